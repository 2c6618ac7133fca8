/* SPDX-License-Identifier: Apache-2.0
 * The matrix products of a step of backward of wide heads on Hopper, as one of a block's two computing warp groups
 * issues them. Scores are transposed: group g has the block's 64 keys by queries 32 g ... 32 g + 31, and columns 128 g
 * ... 128 g + 127 of dK and dV. So P^T and dS^T, rounded, are the factor in registers for a group's own queries, and
 * come from shared memory for the other group's.
 *
 * Of dQ, which sums over the keys of both blocks, each of the four groups makes 64 columns. */
#pragma once
#include "hopper/wgmma.cuh"
#include "hopper/wide_memory.cuh"

#define NS 16 /* scores a thread */
#define NO 64 /* sums of dk or of dv */
#define NQ 32 /* dq of a group's square of 64 */

/* In units of descriptors: 16 bytes. */
#define PANEL16 (PANEL / 16)
#define STEP16  128 /* 16 rows that are summed over */

/* A computing thread: its place, its operands, and where it stands in the rings. */
typedef struct worker {
    uint32_t shared, peer;
    int group, lane, warp;                   /* warp: of the group */
    int row;                                 /* key of its first sums inside the block's half; the other is + 8 */
    uint32_t k, v, q, dout;                  /* rows are what is multiplied */
    uint32_t q_columns, do_columns;          /* of this group's columns; rows are summed over */
    uint32_t own, other;                     /* first 16 rows of this group's queries, of the other's */
    uint32_t ds, dsx, k_columns, kx_columns; /* dQ */
    uint32_t store;                          /* this lane's place in P or a buffer of DS */
    int64_t dq;                              /* in a slot of dQ */
    ring_place q_ring, ds_ring;              /* ds_ring: this step's buffer of DS */
    ring_place send, receive;                /* DSX of the other block and of this one */
    uint32_t k_parity, v_parity, do_parity, ready_parity, free_parity;
} worker;

INLINE worker worker_make(uint32_t shared, int warp, int rank) {
    worker w;
    w.shared = shared;
    w.peer = peer_shared(shared, 1 - rank);
    w.group = warp / 4;
    w.warp = warp & 3;
    w.lane = (int)(threadIdx.x & 31);
    w.row = w.warp * 16 + (w.lane >> 2);
    w.k = (uint32_t)operand_rows(shared + AT_K);
    w.v = (uint32_t)operand_rows(shared + AT_V);
    w.q = (uint32_t)operand_rows(shared + AT_Q + w.group * (PANEL / 2));
    w.dout = (uint32_t)operand_rows(shared + AT_DO + w.group * (PANEL / 2));
    w.q_columns = (uint32_t)operand_columns(shared + AT_Q + w.group * 2 * PANEL, PANEL);
    w.do_columns = (uint32_t)operand_columns(shared + AT_DO + w.group * 2 * PANEL, PANEL);
    w.own = w.group * 2 * STEP16;
    w.other = (1 - w.group) * 2 * STEP16;
    w.ds = (uint32_t)operand_rows(shared + AT_DS);
    w.dsx = (uint32_t)operand_rows(shared + AT_DSX);
    w.k_columns = (uint32_t)operand_rows(shared + AT_K + (2 * rank + w.group) * PANEL);
    w.kx_columns = (uint32_t)operand_rows(shared + AT_KX + w.group * PANEL);
    w.store = (w.warp * 16 + (w.lane & 15)) * 128 + ((((w.lane >> 4) ^ (w.lane & 7)) << 4) ^ (w.group * 64));
    /* In the order of gradient_tile.cuh's add_dq, with two warps along the rows. */
    w.dq = ((w.warp / 2) * 4 + 2 * rank + w.group) * 2048 + (w.warp & 1) * 1024 + w.lane * 4;
    w.q_ring.stage = w.ds_ring.stage = w.send.stage = w.receive.stage = 0;
    w.q_ring.parity = w.ds_ring.parity = w.receive.parity = 0;
    w.send.parity = w.free_parity = 1;
    w.k_parity = w.v_parity = w.do_parity = w.ready_parity = 0;
    return w;
}

/* sums = the block's 64 keys times 32 queries of this group, over `dim` columns. */
template <int dim> INLINE void product_scores(float (&sums)[NS], uint32_t keys, uint32_t queries) {
    products_fence();
#pragma unroll
    for (int k = 0; k < (dim + 15) / 16; k++) {
        product_shared<0, 0>(sums, operand(keys + k / 4 * PANEL16 + k % 4 * 2),
                             operand(queries + k / 4 * PANEL16 + k % 4 * 2), k > 0);
    }
    products_commit();
}
INLINE void issue_scores(const worker &w, float (&s)[NS]) {
    product_scores<DIM_QK>(s, here(w.k), here(w.q + w.q_ring.stage * (ROWS_TILE / 16)));
}
INLINE void issue_dp(const worker &w, float (&dp)[NS]) {
    product_scores<DIM_V>(dp, here(w.v), here(w.dout));
}

/* sums += a factor times rows of q or dout: this group's queries, with the factor in registers. */
INLINE void product_own(const worker &w, float (&sums)[NO], const uint32_t (&factor)[NS / 2], uint32_t columns) {
    const uint32_t rows = here(columns + w.own);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        product_registers<1>(sums, factor[4 * k], factor[4 * k + 1], factor[4 * k + 2], factor[4 * k + 3],
                             operand(rows + k * STEP16), 1);
    }
}
/* The other group's, with the factor at `stored`. */
INLINE void product_other(const worker &w, float (&sums)[NO], uint32_t stored, uint32_t columns) {
    const uint32_t rows = here(columns + w.other), factor = here(stored + (1 - w.group) * 4);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        product_shared<0, 1>(sums, operand(factor + k * 2), operand(rows + k * STEP16), 1);
    }
}
INLINE void issue_dv_own(const worker &w, float (&dv)[NO], const uint32_t (&p16)[NS / 2]) {
    products_fence();
    product_own(w, dv, p16, w.do_columns);
    products_commit();
}
INLINE void issue_dv_other(const worker &w, float (&dv)[NO]) {
    products_fence();
    product_other(w, dv, (uint32_t)operand_rows(w.shared + AT_P), w.do_columns);
    products_commit();
}
INLINE void issue_dk(const worker &w, float (&dk)[NO], const uint32_t (&ds16)[NS / 2], int stage) {
    const uint32_t columns = w.q_columns + stage * (ROWS_TILE / 16);
    products_fence();
    product_own(w, dk, ds16, columns);
    product_other(w, dk, w.ds + w.ds_ring.stage * PANEL16, columns);
    products_commit();
}

/* This group's 64 columns of dQ: this block's keys with dS in `buffer`, and the other's. */
INLINE void issue_dq(const worker &w, float (&dq)[NQ], int buffer) {
    const uint32_t ds = here(w.ds + buffer * PANEL16), keys = here(w.k_columns);
    const uint32_t dsx = here(w.dsx + w.receive.stage * PANEL16), other = here(w.kx_columns);
    products_fence();
#pragma unroll
    for (int k = 0; k < HALF / 16; k++) {
        product_shared<1, 1>(dq, operand(ds + k * STEP16), operand(keys + k * STEP16), k > 0);
    }
#pragma unroll
    for (int k = 0; k < HALF / 16; k++) {
        product_shared<1, 1>(dq, operand(dsx + k * STEP16), operand(other + k * STEP16), 1);
    }
    products_commit();
}
