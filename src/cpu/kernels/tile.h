/* SPDX-License-Identifier: Apache-2.0
 * The register tile that all matrix products of forward and backward are made of:
 *
 *     c[r][lane] (+)= sum over n in [0, count) of  b[r * b_row + n * b_step] * x[n * x_step + lane]
 *
 * r < ATTN_ROWS, lane < ATTN_LANES. b is read by broadcast, in place, with any two strides; x by whole vectors. So
 *   S^T  = K Q^T      b = K  (b_row: key, b_step: 1)          x = Q^T  [dim][lanes]
 *   O^T += V^T P^T    b = V  (b_row: 1, b_step: key)          x = P^T  [key][lanes]
 *   dV  += P^T dO     b = P^T (b_row: key, b_step: 1 query)   x = dO   [query][dims]
 * Products start from zero and are added to c at the end, so that a long sum is a sum of block sums.
 *
 * Where ATTN_HAVE_DOT2, an element of b and x is two bf16 side by side (two neighbours along n). */
#ifndef ATTN_CPU_TILE_H
#define ATTN_CPU_TILE_H

#include "vec_types.h"

typedef struct attn__operands {
    const float *b;
    int64_t b_row, b_step;
    const float *x;
    int64_t x_step;
    int64_t count;
} attn__operands;

VEC_INLINE void tile_products(const int rows, const attn__operands *o, vf acc[6][ATTN_NV]) {
    const float *x = o->x;
    const f32_any *b[6];
    const int64_t b_step = o->b_step, x_step = o->x_step;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        b[r] = o->b + r * o->b_row;
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            acc[r][v] = vf_set(0.0f);
        }
    }
#pragma GCC unroll 2
    for (int64_t n = 0; n < o->count; n++) {
        vf column[ATTN_NV];
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            column[v] = vf_load(x + v * ATTN_W);
        }
        x += x_step;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vf factor = vf_set(*b[r]);
            b[r] += b_step;
#pragma GCC unroll 4
            for (int v = 0; v < ATTN_NV; v++) {
#if ATTN_HAVE_DOT2
                acc[r][v] = vf_dot2(acc[r][v], column[v], factor);
#else
                acc[r][v] = vf_fma(column[v], factor, acc[r][v]);
#endif
            }
        }
    }
}

/* c = products, and their running maximum a lane. */
VEC_INLINE void tile_scores(const int rows, const attn__operands *o, float *c, int64_t c_row, vf maximum[ATTN_NV]) {
    vf acc[6][ATTN_NV];
    tile_products(rows, o, acc);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            vf_store(c + r * c_row + v * ATTN_W, acc[r][v]);
            maximum[v] = vf_max(maximum[v], acc[r][v]);
        }
    }
}

/* c = c * factor + products. */
VEC_INLINE void tile_add(const int rows, const attn__operands *o, float *c, int64_t c_row, const vf factor[ATTN_NV]) {
    vf acc[6][ATTN_NV];
    tile_products(rows, o, acc);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            float *at = c + r * c_row + v * ATTN_W;
            vf_store(at, vf_fma(vf_load(at), factor[v], acc[r][v]));
        }
    }
}

/* Rows beyond the last full tile take a tile of their own size: registers need it as a constant. */
#define ATTN__TILE_ROWS(rows, CALL)                                                                                    \
    switch (rows) {                                                                                                    \
    case 1: CALL(1); break;                                                                                            \
    case 2: CALL(2); break;                                                                                            \
    case 3: CALL(3); break;                                                                                            \
    case 4: CALL(4); break;                                                                                            \
    case 5: CALL(5); break;                                                                                            \
    default: CALL(6); break;                                                                                           \
    }

/* `rows` rows of scores from o (whose b is advanced a tile at a time). maximum: ATTN_LANES floats, updated. */
static __attribute__((noinline, unused)) void panel_scores(int64_t rows, attn__operands o, float *c, int64_t c_row,
                                                           float *maximum) {
    vf top[ATTN_NV];
#pragma GCC unroll 4
    for (int v = 0; v < ATTN_NV; v++) {
        top[v] = vf_load(maximum + v * ATTN_W);
    }
    for (; rows >= ATTN_ROWS; rows -= ATTN_ROWS) {
        tile_scores(ATTN_ROWS, &o, c, c_row, top);
        o.b += ATTN_ROWS * o.b_row;
        c += ATTN_ROWS * c_row;
    }
    if (rows > 0) {
#define ATTN__CALL(r) tile_scores(r, &o, c, c_row, top)
        ATTN__TILE_ROWS(rows, ATTN__CALL)
#undef ATTN__CALL
    }
#pragma GCC unroll 4
    for (int v = 0; v < ATTN_NV; v++) {
        vf_store(maximum + v * ATTN_W, top[v]);
    }
}

/* c = c * factor + products for `rows` rows. factor: ATTN_LANES floats. */
static __attribute__((noinline, unused)) void panel_add(int64_t rows, attn__operands o, float *c, int64_t c_row,
                                                        const float *factor) {
    vf scale[ATTN_NV];
#pragma GCC unroll 4
    for (int v = 0; v < ATTN_NV; v++) {
        scale[v] = vf_load(factor + v * ATTN_W);
    }
    for (; rows >= ATTN_ROWS; rows -= ATTN_ROWS) {
        tile_add(ATTN_ROWS, &o, c, c_row, scale);
        o.b += ATTN_ROWS * o.b_row;
        c += ATTN_ROWS * c_row;
    }
    if (rows > 0) {
#define ATTN__CALL(r) tile_add(r, &o, c, c_row, scale)
        ATTN__TILE_ROWS(rows, ATTN__CALL)
#undef ATTN__CALL
    }
}

#endif
