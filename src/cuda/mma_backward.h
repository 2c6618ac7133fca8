/* SPDX-License-Identifier: Apache-2.0
 * What `mma` and `hopper` share backward: the kernels around the products, and mma's own products, which `hopper` has
 * take again what came out not finite. Sums and scratch of both lie alike (device/gradient_blocks.cuh). */
#ifndef ATTN_CUDA_MMA_BACKWARD_H
#define ATTN_CUDA_MMA_BACKWARD_H

#include "cuda/cuda.h"

/* Roles, in the order of launches. */
enum {
    ATTN__BACKWARD_DELTA,
    ATTN__BACKWARD_KEYS,
    ATTN__BACKWARD_PARTS,
    ATTN__BACKWARD_QUERIES,
    ATTN__BACKWARD_SUMS,
    ATTN__BACKWARD_DSINK,
    ATTN__BACKWARD_CLEAR_DBIAS,
    ATTN__BACKWARD_HOPPER /* the products that `hopper` makes itself */
};

/* widest: head size up to which the sums fit the registers. See gradient_tile.cuh for warps_y and dq_warps_m. */
typedef struct attn__mma_row {
    int element_size, widest;
    int tile_q, tile_kv, warps, warps_y, stages, dq_warps_m;
} attn__mma_row;

typedef struct attn__mma_tiling {
    attn__mma_row row;
    int64_t width_qk, width_v;
    size_t shared_keys, shared_queries;
    int64_t parts;   /* of the query heads of a kv head */
    bool two_passes; /* dQ by a pass of its own, over tiles of queries */
    bool listed;     /* products only for the tiles on lists (LISTS, FLAGGED) */
    bool ordered;    /* `hopper` with ATTN_DETERMINISTIC (DETERMINISTIC) */
} attn__mma_tiling;

/* Fills shared_keys and shared_queries. */
void attn__mma_shared(attn__mma_tiling *t);
/* Parts of a group's heads: more where there are too few tiles of keys for the processors. */
int64_t attn__mma_parts(const attn_plan *plan, const attn__mma_tiling *t);
/* Slots of rows of a side, as side_slots() of gradient_blocks.cuh counts them. */
int64_t attn__mma_slots(const attn_problem *problem, bool queries, int64_t segments, int tile);
/* heads * slots * each floats; SIZE_MAX if that passes the address space. */
size_t attn__mma_floats(int64_t heads, int64_t slots, int64_t each);

/* A kernel with the constants that all of backward's have. */
attn__kernel *attn__mma_backward_kernel(attn_plan *plan, const attn__mma_tiling *t, int role, const char *source,
                                        const char *stem);
void attn__mma_add_delta(attn_plan *plan, const attn__mma_tiling *t);
void attn__mma_add_product(attn_plan *plan, const attn__mma_tiling *t, bool keys);
/* What follows the products: parts added up, sums to dQ or dQ's own pass (both where tiles are listed), dsink. */
void attn__mma_add_rest(attn_plan *plan, const attn__mma_tiling *t);

#endif
