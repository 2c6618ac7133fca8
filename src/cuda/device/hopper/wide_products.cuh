/* SPDX-License-Identifier: Apache-2.0
 * The matrix products of a step of backward of wide heads on Hopper, shared out among a block's three computing groups:
 * one makes S^T, dP^T and half of the columns of dQ for the keys of both blocks, one dV, one dK. Scores are transposed:
 * the sums have the block's 64 keys by the step's 64 queries, and P^T and dS^T, rounded, are read from shared memory.
 *
 * The sums of dV and dK never leave their group's registers within a tile. Two of the three groups do nothing but
 * products, so that the tensor cores have work while the first makes P and dS. */
#pragma once
#include "hopper/wgmma.cuh"
#include "hopper/wide_memory.cuh"

#define NS 32 /* scores a thread */
#define NQ 64 /* dq */
/* Sums of half of the columns of dk or dv; of the other half, which may be narrower or have no product at all. */
#define NV        64
#define MORE(dim) ((dim) > 192 ? 64 : (dim) > 128 ? 32 : 8)
#define NV_MORE   MORE(DIM_V)
#define NK_MORE   MORE(DIM_QK)

/* In units of descriptors: 16 bytes. */
#define PANEL16 (PANEL / 16)
#define STEP16  128 /* 16 rows that are summed over */

/* sums (+)= keys times queries over columns [first, last) of both. */
template <int first, int last>
INLINE void product_scores(float (&sums)[NS], uint32_t keys, uint32_t queries, bool add) {
#pragma unroll
    for (int k = first / 16; k < (last + 15) / 16; k++) {
        product_shared<0, 0>(sums, operand(keys + k / 4 * PANEL16 + k % 4 * 2),
                             operand(queries + k / 4 * PANEL16 + k % 4 * 2), add || k > 0);
    }
}
/* dP^T; lower, upper: the halves of dout. */
INLINE void issue_dp(float (&dp)[NS], uint32_t v, uint32_t lower, uint32_t upper) {
    products_fence();
    product_scores<0, (DIM_V < 128 ? DIM_V : 128)>(dp, here(v), here(lower), false);
    if constexpr (DO_HALVES == 2) {
        product_scores<0, (DIM_V > 128 ? DIM_V - 128 : 0)>(dp, here(v + 2 * PANEL16), here(upper), true);
    }
    products_commit();
}

/* sums (+)= P^T or dS^T at `factor` times the step's rows of dout or q. */
template <int count> INLINE void product_rows(float (&sums)[count], uint32_t factor, uint32_t columns, bool add) {
    factor = here(factor);
    columns = here(columns);
    products_fence();
#pragma unroll
    for (int k = 0; k < TILE_Q / 16; k++) {
        product_shared<0, 1>(sums, operand(factor + k * 2), operand(columns + k * STEP16), add || k > 0);
    }
    products_commit();
}

/* 128 columns of dQ: this block's keys with its dS, and the other's. */
INLINE void issue_dq(float (&dq)[NQ], uint32_t ds, uint32_t k, uint32_t dsx, uint32_t kx) {
    ds = here(ds);
    k = here(k);
    dsx = here(dsx);
    kx = here(kx);
    products_fence();
#pragma unroll
    for (int n = 0; n < HALF / 16; n++) {
        product_shared<1, 1>(dq, operand(ds + n * STEP16), operand(k + n * STEP16), n > 0);
    }
#pragma unroll
    for (int n = 0; n < HALF / 16; n++) {
        product_shared<1, 1>(dq, operand(dsx + n * STEP16), operand(kx + n * STEP16), 1);
    }
    products_commit();
}
