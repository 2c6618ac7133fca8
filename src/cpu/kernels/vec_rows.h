/* SPDX-License-Identifier: Apache-2.0
 * Rows of tensors as vectors: typed loads and stores, and the transposition between rows in memory and lanes.
 * A transposed block is [group][dim][lane]: groups of ATTN_LANES lanes, each dim's lanes side by side. */
#ifndef ATTN_CPU_VEC_ROWS_H
#define ATTN_CPU_VEC_ROWS_H

#include "base/dtype.h"
#include "vec_types.h"

typedef uint16_t v16_any __attribute__((vector_size(2 * ATTN_W), aligned(2), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * ATTN_W)));

/* ATTN_W neighbours of any float type at p; dtype is a constant where it is called. */
VEC_INLINE vf vf_load_as(const attn_dtype dtype, const void *p) {
    return dtype == ATTN_F32 ? vf_loadu(p) : dtype == ATTN_F16 ? vf_widen_f16(p) : vf_widen_bf16(p);
}
/* bf16 bits of each lane in its low half, rounded to nearest even, NaN kept. */
VEC_INLINE vu vf_bf16_bits(vf x) {
    vu bits = (vu)x, odd = (bits >> 16) & 1;
    vi nan = x != x;
    vu rounded = (bits + 0x7fff + odd) >> 16, quiet = (bits >> 16) | 0x40;
    return (vu)((nan & (vi)quiet) | (~nan & (vi)rounded));
}
VEC_INLINE void vf_store_as(const attn_dtype dtype, void *p, vf x) {
    if (dtype == ATTN_F32) {
        vf_storeu(p, x);
    } else if (dtype == ATTN_F16) {
        vf_narrow_f16(p, x);
    } else {
#if ATTN_HAVE_DOT2 && defined(__AVX512BF16__)
        vf_narrow_bf16(p, x); /* takes subnormals for 0 */
#else
        *(v16_any *)p = __builtin_convertvector(vf_bf16_bits(x), v16_any);
#endif
    }
}

/* Calls CALL(dtype) with dtype a constant. */
#define ATTN__BY_DTYPE(dtype, CALL)                                                                                    \
    do {                                                                                                               \
        if ((dtype) == ATTN_F32) {                                                                                     \
            CALL(ATTN_F32);                                                                                            \
        } else if ((dtype) == ATTN_F16) {                                                                              \
            CALL(ATTN_F16);                                                                                            \
        } else {                                                                                                       \
            CALL(ATTN_BF16);                                                                                           \
        }                                                                                                              \
    } while (0)

#if ATTN_W == 4
#define ATTN__LOW  0, 4, 1, 5
#define ATTN__HIGH 2, 6, 3, 7
#elif ATTN_W == 8
#define ATTN__LOW  0, 8, 1, 9, 2, 10, 3, 11
#define ATTN__HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ATTN__LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ATTN__HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif
#if defined(__clang__) || __GNUC__ >= 12
#define ATTN__SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ATTN__SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif

/* r[i][j] becomes r[j][i]: interleaving row i with row i + W/2 log2(W) times moves each index bit from row to lane. */
VEC_INLINE void vf_transpose(vf r[ATTN_W]) {
    vf t[ATTN_W];
#pragma GCC unroll 4
    for (int stage = 1; stage < ATTN_W; stage *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < ATTN_W / 2; i++) {
            t[2 * i] = ATTN__SHUFFLE(r[i], r[i + ATTN_W / 2], ATTN__LOW);
            t[2 * i + 1] = ATTN__SHUFFLE(r[i], r[i + ATTN_W / 2], ATTN__HIGH);
        }
#pragma GCC unroll 16
        for (int i = 0; i < ATTN_W; i++) {
            r[i] = t[i];
        }
    }
}

/* [dim][lane] of ATTN_W rows from their pointers. dim_stride in elements. */
VEC_INLINE void rows_to_lanes_as(const attn_dtype dtype, const void *const rows[ATTN_W], int64_t dim,
                                 int64_t dim_stride, float *out, int64_t out_step) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    int64_t d = 0;
    if (dim_stride == 1) {
        for (; d + ATTN_W <= dim; d += ATTN_W) {
            vf r[ATTN_W];
#pragma GCC unroll 16
            for (int i = 0; i < ATTN_W; i++) {
                r[i] = vf_load_as(dtype, (const char *)rows[i] + d * size);
            }
            vf_transpose(r);
#pragma GCC unroll 16
            for (int i = 0; i < ATTN_W; i++) {
                vf_store(out + (d + i) * out_step, r[i]);
            }
        }
    }
    for (; d < dim; d++) {
        for (int i = 0; i < ATTN_W; i++) {
            out[d * out_step + i] = (float)attn__load(dtype, rows[i], d * dim_stride);
        }
    }
}

/* The reverse, into the first `count` rows. */
VEC_INLINE void lanes_to_rows_as(const attn_dtype dtype, const float *in, int64_t in_step, int64_t dim,
                                 int64_t dim_stride, void *const rows[ATTN_W], int count) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    int64_t d = 0;
    if (dim_stride == 1) {
        for (; d + ATTN_W <= dim; d += ATTN_W) {
            vf r[ATTN_W];
#pragma GCC unroll 16
            for (int i = 0; i < ATTN_W; i++) {
                r[i] = vf_load(in + (d + i) * in_step);
            }
            vf_transpose(r);
            for (int i = 0; i < ATTN_W; i++) {
                if (i < count) {
                    vf_store_as(dtype, (char *)rows[i] + d * size, r[i]);
                }
            }
        }
    }
    for (; d < dim; d++) {
        for (int i = 0; i < count; i++) {
            attn__store(dtype, rows[i], d * dim_stride, in[d * in_step + i]);
        }
    }
}

/* `count` rows of `dim` elements, row_stride and dim_stride apart, widened to float rows of out_stride. */
VEC_INLINE void rows_widen_as(const attn_dtype dtype, const void *in, int64_t row_stride, int64_t dim_stride,
                              int64_t count, int64_t dim, float *out, int64_t out_stride) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    for (int64_t n = 0; n < count; n++) {
        const char *row = (const char *)in + n * row_stride * size;
        int64_t d = 0;
        if (dim_stride == 1) {
            for (; d + ATTN_W <= dim; d += ATTN_W) {
                vf_storeu(out + n * out_stride + d, vf_load_as(dtype, row + d * size));
            }
        }
        for (; d < dim; d++) {
            out[n * out_stride + d] = (float)attn__load(dtype, row, d * dim_stride);
        }
    }
}

/* Elements d ... d + ATTN_W - 1 of a row. */
VEC_INLINE vf row_part_as(const attn_dtype dtype, const void *row, int64_t d, int64_t stride) {
    float part[ATTN_W];
    if (stride == 1) {
        return vf_load_as(dtype, (const char *)row + d * (dtype == ATTN_F32 ? 4 : 2));
    }
    for (int lane = 0; lane < ATTN_W; lane++) {
        part[lane] = (float)attn__load(dtype, row, (d + lane) * stride);
    }
    return vf_loadu(part);
}

/* sum over dim of a * b, one row each; the order of the sum, hence its bits, is the same for all strides. */
VEC_INLINE float rows_dot_as(const attn_dtype a_type, const void *a, int64_t a_stride, const attn_dtype b_type,
                             const void *b, int64_t b_stride, int64_t dim) {
    vf even = vf_set(0.0f), odd = vf_set(0.0f);
    float sum = 0.0f;
    int64_t d = 0;
    for (; d + 2 * ATTN_W <= dim; d += 2 * ATTN_W) {
        even = vf_fma(row_part_as(a_type, a, d, a_stride), row_part_as(b_type, b, d, b_stride), even);
        odd = vf_fma(row_part_as(a_type, a, d + ATTN_W, a_stride), row_part_as(b_type, b, d + ATTN_W, b_stride), odd);
    }
    even += odd;
    for (; d < dim; d++) {
        sum += (float)attn__load(a_type, a, d * a_stride) * (float)attn__load(b_type, b, d * b_stride);
    }
    for (int lane = 0; lane < ATTN_W; lane++) {
        sum += even[lane];
    }
    return sum;
}

/* `count` rows as column tiles of ATTN_LANES floats, tile t at out + t * tile_floats, zeros past `dim`. */
VEC_INLINE void rows_to_tiles_as(const attn_dtype dtype, const void *const *rows, int count, int64_t dim,
                                 int64_t dim_stride, float *out, int64_t tile_floats) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2, padded = (dim + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    for (int n = 0; n < count; n++) {
        int64_t d = 0;
        if (dim_stride == 1) {
            for (; d + ATTN_W <= dim; d += ATTN_W) {
                float *at = out + d / ATTN_LANES * tile_floats + n * ATTN_LANES + d % ATTN_LANES;
                vf_store(at, vf_load_as(dtype, (const char *)rows[n] + d * size));
            }
        }
        for (; d < padded; d++) {
            float *at = out + d / ATTN_LANES * tile_floats + n * ATTN_LANES + d % ATTN_LANES;
            *at = d < dim ? (float)attn__load(dtype, rows[n], d * dim_stride) : 0.0f;
        }
    }
}

/* The reverse of rows_widen, times `factor`; `add`: to what is there. */
VEC_INLINE void rows_narrow_as(const attn_dtype dtype, const float *in, int64_t in_stride, int64_t count, int64_t dim,
                               float factor, bool add, void *out, int64_t row_stride, int64_t dim_stride) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    for (int64_t n = 0; n < count; n++) {
        char *row = (char *)out + n * row_stride * size;
        int64_t d = 0;
        if (dim_stride == 1) {
            for (; d + ATTN_W <= dim; d += ATTN_W) {
                vf x = vf_loadu(in + n * in_stride + d) * vf_set(factor);
                vf_store_as(dtype, row + d * size, add ? x + vf_load_as(dtype, row + d * size) : x);
            }
        }
        for (; d < dim; d++) {
            float x = in[n * in_stride + d] * factor;
            attn__store(dtype, row, d * dim_stride, add ? x + (float)attn__load(dtype, row, d * dim_stride) : x);
        }
    }
}

static __attribute__((noinline, unused)) void rows_to_lanes(attn_dtype dtype, const void *const rows[ATTN_W],
                                                            int64_t dim, int64_t dim_stride, float *out,
                                                            int64_t out_step) {
#define ATTN__CALL(type) rows_to_lanes_as(type, rows, dim, dim_stride, out, out_step)
    ATTN__BY_DTYPE(dtype, ATTN__CALL);
#undef ATTN__CALL
}
static __attribute__((noinline, unused)) void lanes_to_rows(attn_dtype dtype, const float *in, int64_t in_step,
                                                            int64_t dim, int64_t dim_stride, void *const rows[ATTN_W],
                                                            int count) {
#define ATTN__CALL(type) lanes_to_rows_as(type, in, in_step, dim, dim_stride, rows, count)
    ATTN__BY_DTYPE(dtype, ATTN__CALL);
#undef ATTN__CALL
}
static __attribute__((noinline, unused)) void rows_widen(attn_dtype dtype, const void *in, int64_t row_stride,
                                                         int64_t dim_stride, int64_t count, int64_t dim, float *out,
                                                         int64_t out_stride) {
#define ATTN__CALL(type) rows_widen_as(type, in, row_stride, dim_stride, count, dim, out, out_stride)
    ATTN__BY_DTYPE(dtype, ATTN__CALL);
#undef ATTN__CALL
}
/* b is of a's type or f32, as o and dout are to each other. */
static __attribute__((noinline, unused)) float rows_dot(attn_dtype a_type, const void *a, int64_t a_stride,
                                                        attn_dtype b_type, const void *b, int64_t b_stride,
                                                        int64_t dim) {
    float sum;
#define ATTN__CALL(type)                                                                                               \
    sum = b_type == type ? rows_dot_as(type, a, a_stride, type, b, b_stride, dim)                                      \
                         : rows_dot_as(type, a, a_stride, ATTN_F32, b, b_stride, dim)
    if (a_type == ATTN_F32 && b_type != ATTN_F32) {
        return rows_dot(b_type, b, b_stride, a_type, a, a_stride, dim);
    }
    ATTN__BY_DTYPE(a_type, ATTN__CALL);
#undef ATTN__CALL
    return sum;
}
static __attribute__((noinline, unused)) void rows_to_tiles(attn_dtype dtype, const void *const *rows, int count,
                                                            int64_t dim, int64_t dim_stride, float *out,
                                                            int64_t tile_floats) {
#define ATTN__CALL(type) rows_to_tiles_as(type, rows, count, dim, dim_stride, out, tile_floats)
    ATTN__BY_DTYPE(dtype, ATTN__CALL);
#undef ATTN__CALL
}
static __attribute__((noinline, unused)) void rows_narrow(attn_dtype dtype, const float *in, int64_t in_stride,
                                                          int64_t count, int64_t dim, float factor, bool add, void *out,
                                                          int64_t row_stride, int64_t dim_stride) {
#define ATTN__CALL(type) rows_narrow_as(type, in, in_stride, count, dim, factor, add, out, row_stride, dim_stride)
    ATTN__BY_DTYPE(dtype, ATTN__CALL);
#undef ATTN__CALL
}

#endif
