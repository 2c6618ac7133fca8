/* SPDX-License-Identifier: Apache-2.0
 * The five matrix products of a step of backward on Hopper, as one computing warp group issues them; each is a group of
 * its own. S^T and dP^T have keys along the rows of the sums, so that P^T and dS^T, rounded to 16 bits, are the factor
 * in registers of dV += P^T dO and dK += dS^T Q. Only dS^T visits shared memory, for dQ = dS K, which sums over the
 * keys of both groups: each makes a square of 64 of it, other columns (WIDTH 128) or other queries (WIDTH 64). */
#pragma once
#include "hopper/backward_memory.cuh"
#include "hopper/wgmma.cuh"

#define NS (TILE_Q / 2) /* scores a thread: 64 keys x TILE_Q queries of a group */
#define NO (WIDTH / 2)  /* sums of dk or of dv */
#define NQ 32           /* dq of a group's square */

/* A computing thread: its place, its operands, and where it stands in the rings. */
typedef struct worker {
    uint32_t shared;
    int group, lane, warp;          /* warp: of the group */
    int row;                        /* key row of its first sums inside the tile; the other is + 8 */
    uint32_t k, v, q, dout;         /* rows are what is multiplied */
    uint32_t q_columns, do_columns; /* rows are summed over */
    uint32_t ds, k_columns;         /* of this group's square of dQ */
    uint32_t ds_store;
    int buffer;     /* of dS, for this step */
    uint32_t steps; /* whose dS was handed over: their number, or where nothing counts them whether it is odd */
    ring_place q_ring, do_ring, k_ring;
    uint32_t v_parity;
} worker;

INLINE worker worker_make(uint32_t shared, int warp) {
    worker w;
    w.shared = shared;
    w.group = warp / 4;
    w.warp = warp & 3;
    w.lane = (int)(threadIdx.x & 31);
    w.row = w.group * 64 + w.warp * 16 + (w.lane >> 2);
    w.k = (uint32_t)operand_rows(shared + AT_K + w.group * 64 * 128);
    w.v = (uint32_t)operand_rows(shared + AT_V + w.group * 64 * 128);
    w.q = (uint32_t)operand_rows(shared + AT_Q);
    w.dout = (uint32_t)operand_rows(shared + AT_DO);
    w.q_columns = (uint32_t)operand_columns(shared + AT_Q, TILE_Q * 128);
    w.do_columns = (uint32_t)operand_columns(shared + AT_DO, TILE_Q * 128);
    w.ds = (uint32_t)operand_rows(shared + AT_DS + (WIDTH == 64 ? w.group * TILE_KV * 128 : 0));
    w.k_columns = (uint32_t)operand_rows(shared + AT_K + (WIDTH == 128 ? w.group * TILE_KV * 128 : 0));
    w.ds_store =
        shared + AT_DS + (w.group * 64 + w.warp * 16 + (w.lane & 15)) * 128 + (((w.lane >> 4) ^ (w.lane & 7)) << 4);
    w.buffer = 0;
    w.steps = 0;
    w.q_ring.stage = w.do_ring.stage = w.k_ring.stage = 0;
    w.q_ring.parity = w.do_ring.parity = w.k_ring.parity = 0;
    w.v_parity = 0;
    return w;
}

/* sums = 64 keys of this group times TILE_Q queries, over WIDTH. */
INLINE void product_rows(float (&sums)[NS], uint32_t keys, uint32_t queries) {
    products_fence();
#pragma unroll
    for (int k = 0; k < WIDTH / 16; k++) {
        product_shared<0, 0>(sums, operand(keys + k / 4 * (TILE_KV * 8) + k % 4 * 2),
                             operand(queries + k / 4 * (TILE_Q * 8) + k % 4 * 2), k > 0);
    }
    products_commit();
}
INLINE void issue_scores(const worker &w, float (&s)[NS]) {
    product_rows(s, here(w.k + w.k_ring.stage * (KEY_TILE / 16)), here(w.q + w.q_ring.stage * (QUERY_TILE / 16)));
}
INLINE void issue_dp(const worker &w, float (&dp)[NS]) {
    product_rows(dp, here(w.v), here(w.dout + w.do_ring.stage * (QUERY_TILE / 16)));
}

/* sums += a factor in registers times rows of q or dout. */
INLINE void product_add(float (&sums)[NO], const uint32_t (&factor)[NS / 2], uint32_t rows) {
    products_fence();
#pragma unroll
    for (int k = 0; k < TILE_Q / 16; k++) {
        product_registers<1>(sums, factor[4 * k], factor[4 * k + 1], factor[4 * k + 2], factor[4 * k + 3],
                             operand(rows + k * 128), 1);
    }
    products_commit();
}
INLINE void issue_dv(const worker &w, float (&dv)[NO], const uint32_t (&p16)[NS / 2]) {
    product_add(dv, p16, here(w.do_columns + w.do_ring.stage * (QUERY_TILE / 16)));
}
INLINE void issue_dk(const worker &w, float (&dk)[NO], const uint32_t (&ds16)[NS / 2], int stage) {
    product_add(dk, ds16, here(w.q_columns + stage * (QUERY_TILE / 16)));
}

/* This group's square of dQ, from dS of both groups in a buffer. */
INLINE void issue_dq(const worker &w, float (&dq)[NQ], int buffer) {
    const uint32_t ds = here(w.ds + buffer * (DS_TILE / 16)),
                   keys = here(w.k_columns + w.k_ring.stage * (KEY_TILE / 16));
    products_fence();
#pragma unroll
    for (int k = 0; k < TILE_KV / 16; k++) {
        product_shared<1, 1>(dq, operand(ds + k * 128), operand(keys + k * 128), k > 0);
    }
    products_commit();
}

/* --- Adding dQ to its sums in memory --- */

/* Where this thread's part of a slot begins: in the order of gradient_tile.cuh's add_dq. */
INLINE float *dq_place(const attn__params &p, const worker &w, int slot) {
    const int warp = WIDTH == 128 ? w.warp * 2 + w.group : w.group * 4 + w.warp;
    return p.dq_sum + (int64_t)slot * (TILE_Q * WIDTH) + warp * 1024 + w.lane * 4;
}
