/* SPDX-License-Identifier: Apache-2.0
 * Products of few query rows with a block of keys; lanes run along the head dimension.
 *
 * Rows are cut into tiles of 4, 2 or 1; a tile of R rows takes W / R keys at a time. Scores: one vector of partial
 * sums for each (key, row), then one transposed addition gives all W sums, key-major: the compact block [key][row].
 * Values: the p of W / R keys stay in registers while the block's sums [row][dim] in L1 take them up. Memory runs
 * ahead: while K is read the block's V comes into L2, while V is read the next K.
 *
 * Rows of bf16 are read as words, the halves of which are the elements of even and of odd place: W of each make two
 * vectors with a shift and a mask. q and sums that meet such rows lie in the same order (few_place). */
#ifndef ATTN_CPU_FEW_PRODUCTS_H
#define ATTN_CPU_FEW_PRODUCTS_H

#include "block.h"

typedef struct few_tile {
    int first, rows;  /* among the task's rows */
    float *scores;    /* [key][rows] */
    float *m, *l, *o; /* [rows], [rows], [rows][o_row] */
    float *sums;      /* [rows][o_row], of one block */
    const float *q;   /* [rows][q_row] */
} few_tile;

/* Keys as this body reads them: any float type in place, or converted. */
typedef struct few_keys {
    attn_dtype k_dtype, v_dtype;
    const char *k, *v;
    int64_t k_row, v_row; /* bytes */
    const char *ahead;    /* rows of keys that are read next, as far apart */
} few_keys;

/* Where element d of a row lies; words: rows of bf16, as far as 2 W elements at a time go. */
static inline int64_t few_place(bool words, int64_t dim, int64_t d) {
    const int64_t group = d / (2 * ATTN_W) * (2 * ATTN_W), in = d - group;
    return words && group + 2 * ATTN_W <= dim ? group + in % 2 * ATTN_W + in / 2 : d;
}
VEC_INLINE vf few_even(vf words) {
    return (vf)((vu)words << 16);
}
VEC_INLINE vf few_odd(vf words) {
    return (vf)((vi)words & vi_set((int32_t)0xffff0000u));
}

/* The last dim % W elements of a row, 0 behind them. */
static __attribute__((noinline)) void few_tail(attn_dtype dtype, const char *row, int64_t from, int64_t dim,
                                               float *tail) {
    vf_store(tail, vf_set(0.0f));
    for (int64_t d = from; d < dim; d++) {
        tail[d - from] = (float)attn__load(dtype, row, d);
    }
}

VEC_INLINE void few_prefetch(const char *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(row + at, 0, 2);
    }
}

/* Raw scores of keys [0, count): compact, up to the next multiple of W / R keys (what is past count is -inf). */
VEC_INLINE void few_scores_as(const attn_dtype dtype, const int R, const few_tile *tile, const few_keys *keys,
                              int count, int64_t dim, int64_t q_row, int64_t v_bytes) {
    enum { SIZE_32 = 4 };
    const int64_t size = dtype == ATTN_F32 ? SIZE_32 : 2;
    const int step = ATTN_W / R;
    for (int n = 0; n < count; n += step) {
        const char *k[ATTN_W];
        vf acc[ATTN_W];
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            int key = n + i < count ? n + i : count - 1;
            k[i] = keys->k + key * keys->k_row;
            if (v_bytes > 0) {
                few_prefetch(keys->v + key * keys->v_row, v_bytes);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < ATTN_W; i++) {
            acc[i] = vf_set(0.0f);
        }
        int64_t d = 0;
        for (; dtype == ATTN_BF16 && d + 2 * ATTN_W <= dim; d += 2 * ATTN_W) {
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                const vf x = vf_loadu(k[i] + d * size), even = few_even(x), odd = few_odd(x);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    const float *q = tile->q + r * q_row + d;
                    acc[i * R + r] = vf_fma(even, vf_load(q), acc[i * R + r]);
                    acc[i * R + r] = vf_fma(odd, vf_load(q + ATTN_W), acc[i * R + r]);
                }
            }
        }
        for (; d + ATTN_W <= dim; d += ATTN_W) {
            vf q[4];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                q[r] = vf_load(tile->q + r * q_row + d);
            }
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                vf x = vf_load_as(dtype, k[i] + d * size);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    acc[i * R + r] = vf_fma(x, q[r], acc[i * R + r]);
                }
            }
        }
        if (d < dim) {
            float tail[ATTN_W] __attribute__((aligned(64)));
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                few_tail(dtype, k[i], d, dim, tail);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    acc[i * R + r] = vf_fma(vf_load(tail), vf_load(tile->q + r * q_row + d), acc[i * R + r]);
                }
            }
        }
        vf sums = vf_sums(acc);
        for (int i = count - n; i < step; i++) {
            for (int r = 0; r < R; r++) {
                sums[i * R + r] = -INFINITY;
            }
        }
        vf_store(tile->scores + n * R, sums);
    }
}

/* sums += p V for keys [0, count); p past count is 0 and meets the row of zeros. */
VEC_INLINE void few_values_as(const attn_dtype dtype, const int R, const few_tile *tile, const few_keys *keys,
                              const char *zeros, int count, int64_t dim, int64_t o_row, int64_t next_k) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    const int step = ATTN_W / R;
    float *sums = tile->sums;
    for (int n = 0; n < count; n += step) {
        const char *v[ATTN_W];
        vf p[ATTN_W];
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            v[i] = n + i < count ? keys->v + (n + i) * keys->v_row : zeros;
            if (next_k > 0 && n + i < count) {
                few_prefetch(keys->ahead + (n + i) * keys->k_row, next_k);
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                p[i * R + r] = vf_set(tile->scores[(n + i) * R + r]);
            }
        }
        int64_t d = 0;
        for (; dtype == ATTN_BF16 && d + 2 * ATTN_W <= dim; d += 2 * ATTN_W) {
            vf even[4], odd[4];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                even[r] = vf_load(sums + r * o_row + d);
                odd[r] = vf_load(sums + r * o_row + d + ATTN_W);
            }
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                const vf x = vf_loadu(v[i] + d * size), x_even = few_even(x), x_odd = few_odd(x);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    even[r] = vf_fma(x_even, p[i * R + r], even[r]);
                    odd[r] = vf_fma(x_odd, p[i * R + r], odd[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vf_store(sums + r * o_row + d, even[r]);
                vf_store(sums + r * o_row + d + ATTN_W, odd[r]);
            }
        }
        for (; d + ATTN_W <= dim; d += ATTN_W) {
            vf o[4];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                o[r] = vf_load(sums + r * o_row + d);
            }
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                vf x = vf_load_as(dtype, v[i] + d * size);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    o[r] = vf_fma(x, p[i * R + r], o[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vf_store(sums + r * o_row + d, o[r]);
            }
        }
        if (d < dim) {
            float tail[ATTN_W] __attribute__((aligned(64)));
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                few_tail(dtype, v[i], d, dim, tail);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    float *o = sums + r * o_row + d;
                    vf_store(o, vf_fma(vf_load(tail), p[i * R + r], vf_load(o)));
                }
            }
        }
    }
}

#define ATTN__FEW_ROWS(rows, CALL)                                                                                     \
    switch (rows) {                                                                                                    \
    case 1: CALL(1); break;                                                                                            \
    case 2: CALL(2); break;                                                                                            \
    default: CALL(4); break;                                                                                           \
    }
#define ATTN__FEW_BODIES(dtype, name)                                                                                  \
    static __attribute__((noinline)) void few_scores_##name(const few_tile *tile, const few_keys *keys, int count,     \
                                                            int64_t dim, int64_t q_row, int64_t v_bytes) {             \
        ATTN__FEW_ROWS(tile->rows, ATTN__FEW_SCORES_##name)                                                            \
    }                                                                                                                  \
    static __attribute__((noinline)) void few_values_##name(const few_tile *tile, const few_keys *keys,                \
                                                            const char *zeros, int count, int64_t dim, int64_t o_row,  \
                                                            int64_t next_k) {                                          \
        ATTN__FEW_ROWS(tile->rows, ATTN__FEW_VALUES_##name)                                                            \
    }
#define ATTN__FEW_SCORES_f32(R)  few_scores_as(ATTN_F32, R, tile, keys, count, dim, q_row, v_bytes)
#define ATTN__FEW_SCORES_f16(R)  few_scores_as(ATTN_F16, R, tile, keys, count, dim, q_row, v_bytes)
#define ATTN__FEW_SCORES_bf16(R) few_scores_as(ATTN_BF16, R, tile, keys, count, dim, q_row, v_bytes)
#define ATTN__FEW_VALUES_f32(R)  few_values_as(ATTN_F32, R, tile, keys, zeros, count, dim, o_row, next_k)
#define ATTN__FEW_VALUES_f16(R)  few_values_as(ATTN_F16, R, tile, keys, zeros, count, dim, o_row, next_k)
#define ATTN__FEW_VALUES_bf16(R) few_values_as(ATTN_BF16, R, tile, keys, zeros, count, dim, o_row, next_k)
ATTN__FEW_BODIES(ATTN_F32, f32)
ATTN__FEW_BODIES(ATTN_F16, f16)
ATTN__FEW_BODIES(ATTN_BF16, bf16)

typedef void (*few_scores_fn)(const few_tile *, const few_keys *, int, int64_t, int64_t, int64_t);
typedef void (*few_values_fn)(const few_tile *, const few_keys *, const char *, int, int64_t, int64_t, int64_t);

static inline few_scores_fn few_scores_of(attn_dtype dtype) {
    return dtype == ATTN_F32 ? few_scores_f32 : dtype == ATTN_F16 ? few_scores_f16 : few_scores_bf16;
}
static inline few_values_fn few_values_of(attn_dtype dtype) {
    return dtype == ATTN_F32 ? few_values_f32 : dtype == ATTN_F16 ? few_values_f16 : few_values_bf16;
}

#endif
