/* SPDX-License-Identifier: Apache-2.0
 * What forward and backward share around their products: scratch, key blocks as float rows, and the product for blocks
 * in which a hidden pair meets NaN or inf (0 * NaN must not reach a sum). */
#ifndef ATTN_CPU_BLOCK_H
#define ATTN_CPU_BLOCK_H

#include "score.h"
#include "tile.h"

static inline void *scratch_take(char *base, size_t *used, size_t bytes) {
    void *at = base ? base + *used : NULL;
    *used += (bytes + 63) & ~(size_t)63;
    return at;
}

static inline bool rows_need_copy(const attn_layout *layout) {
    return layout->dtype != ATTN_F32 || layout->stride[3] != 1;
}

/* A block of keys and values as the tiles read them: float rows, element stride 1. */
typedef struct key_block {
    const float *k, *v;
    int64_t k_row, v_row;
} key_block;

/* Where a key block is converted to; NULL where it is read in place. */
typedef struct key_room {
    float *k, *v;
} key_room;

/* Floats from one copied row to the next: an odd number of cache lines, so that a column of the block, which a product
 * over keys walks, is spread over all cache sets. */
static inline int64_t room_step(int64_t dim) {
    return ((dim + 15) / 16 | 1) * 16;
}

/* copy_k, copy_v: also rows that could be read in place, since a copy that serves many rows lies closer together. */
static inline key_room key_room_take(char *base, size_t *used, const attn_problem *p, int64_t keys, bool copy_k,
                                     bool copy_v) {
    key_room room = {NULL, NULL};
    if (copy_k || rows_need_copy(&p->k)) {
        room.k = scratch_take(base, used, (size_t)(keys * room_step(p->dim_qk)) * sizeof(float));
    }
    if (copy_v || rows_need_copy(&p->v)) {
        room.v = scratch_take(base, used, (size_t)(keys * room_step(p->dim_v)) * sizeof(float));
    }
    return room;
}

/* Keys [row, row + count) of a segment as float rows, in place or converted. */
static __attribute__((unused)) key_block key_block_load(const attn_problem *p, const attn_args *args,
                                                        const key_room *room, int64_t sequence, int64_t head_kv,
                                                        int64_t row, int64_t count) {
    const char *k =
        (const char *)args->k + attn__row_offset(&p->k, sequence, head_kv, row) * (int64_t)attn_dtype_size(p->k.dtype);
    const char *v =
        (const char *)args->v + attn__row_offset(&p->v, sequence, head_kv, row) * (int64_t)attn_dtype_size(p->v.dtype);
    key_block keys = {(const float *)k, (const float *)v, p->k.stride[2], p->v.stride[2]};
    if (room->k) {
        keys.k = room->k;
        keys.k_row = room_step(p->dim_qk);
        rows_widen(p->k.dtype, k, p->k.stride[2], p->k.stride[3], count, p->dim_qk, room->k, keys.k_row);
    }
    if (room->v) {
        keys.v = room->v;
        keys.v_row = room_step(p->dim_v);
        rows_widen(p->v.dtype, v, p->v.stride[2], p->v.stride[3], count, p->dim_v, room->v, keys.v_row);
    }
    return keys;
}

/* Rows of the next key block, fetched a few at a time between the tiles of this one. Worth it where rows lie apart:
 * each begins on a page of its own then, and no hardware prefetcher follows. */
typedef struct key_ahead {
    const char *k, *v;
    int64_t k_row, v_row, k_bytes, v_bytes; /* strides and lengths of rows in bytes */
    int64_t rows, done, each;
} key_ahead;

/* rows from `row` on, spread over `tiles` tiles. */
static __attribute__((unused)) key_ahead key_ahead_make(const attn_problem *p, const attn_args *args, int64_t sequence,
                                                        int64_t head_kv, int64_t row, int64_t rows, int64_t tiles) {
    const int64_t k_size = (int64_t)attn_dtype_size(p->k.dtype), v_size = (int64_t)attn_dtype_size(p->v.dtype);
    key_ahead ahead = {(const char *)args->k, (const char *)args->v, 0, 0, 0, 0, 0, 0, 0};
    bool apart = p->k.stride[2] != p->dim_qk || p->v.stride[2] != p->dim_v;
    if (!apart || rows <= 0 || tiles <= 0 || p->k.stride[3] != 1 || p->v.stride[3] != 1) {
        return ahead;
    }
    ahead.k += attn__row_offset(&p->k, sequence, head_kv, row) * k_size;
    ahead.v += attn__row_offset(&p->v, sequence, head_kv, row) * v_size;
    ahead.k_row = p->k.stride[2] * k_size;
    ahead.v_row = p->v.stride[2] * v_size;
    ahead.k_bytes = p->dim_qk * k_size;
    ahead.v_bytes = p->dim_v * v_size;
    ahead.rows = rows;
    ahead.each = (rows + tiles - 1) / tiles;
    return ahead;
}

static __attribute__((unused)) void key_ahead_step(key_ahead *ahead) {
    for (int64_t n = 0; n < ahead->each && ahead->done < ahead->rows; n++, ahead->done++) {
        for (int64_t at = 0; at < ahead->k_bytes; at += 64) {
            __builtin_prefetch(ahead->k + ahead->done * ahead->k_row + at, 0, 2);
        }
        for (int64_t at = 0; at < ahead->v_bytes; at += 64) {
            __builtin_prefetch(ahead->v + ahead->done * ahead->v_row + at, 0, 2);
        }
    }
}

/* x - x is 0 for numbers and NaN for NaN and inf. */
static __attribute__((unused)) bool rows_finite(const float *rows, int64_t row_stride, int64_t count, int64_t dim) {
    vf all = vf_set(0.0f);
    float rest = 0.0f;
    for (int64_t n = 0; n < count; n++) {
        for (int64_t d = 0; d + ATTN_W <= dim; d += ATTN_W) {
            vf x = vf_loadu(rows + n * row_stride + d);
            all += x - x;
        }
        for (int64_t d = dim - dim % ATTN_W; d < dim; d++) {
            rest += rows[n * row_stride + d] - rows[n * row_stride + d];
        }
    }
    for (int lane = 0; lane < ATTN_W; lane++) {
        rest += all[lane];
    }
    return rest == 0.0f;
}

/* Which pairs of a product are visible: those where at[r * row + n * step + lane * lane] is not +0. */
typedef struct seen_pairs {
    const float *at;
    int64_t row, step, lane;
} seen_pairs;

/* c[r][lane] = c * factor + sum over n of b * x, leaving out hidden pairs, whatever b and x hold. */
static __attribute__((noinline, unused)) void panel_add_careful(int64_t rows, attn__operands o, float *c, int64_t c_row,
                                                                const float *factor, seen_pairs seen) {
    for (int64_t r = 0; r < rows; r++) {
        for (int lane = 0; lane < ATTN_LANES; lane++) {
            float sum = 0.0f;
            for (int64_t n = 0; n < o.count; n++) {
                if (attn__f32_bits(seen.at[r * seen.row + n * seen.step + lane * seen.lane]) != 0) {
                    sum += o.b[r * o.b_row + n * o.b_step] * o.x[n * o.x_step + lane];
                }
            }
            c[r * c_row + lane] = c[r * c_row + lane] * factor[lane] + sum;
        }
    }
}

#endif
