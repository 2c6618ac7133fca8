/* SPDX-License-Identifier: Apache-2.0
 * The one body of all instruction sets. A file that includes it defines
 *     NATIVE_TABLE    name of the table
 *     NATIVE_LANES    floats a vector register
 *     NATIVE_ROWS, NATIVE_VECTORS    the register tile: rows, and vectors a row
 * and is compiled with the flags of its set. Loops over rows of elements are left to the compiler's vectoriser; only
 * the tile needs registers named, as arrays of vectors. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/dtype.h"
#include "native/kernels/kernels.h"

/* Products may be fused into sums where the set can: that is its full rate. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

typedef float vector __attribute__((vector_size(NATIVE_LANES * 4)));
typedef float vector_anywhere __attribute__((vector_size(NATIVE_LANES * 4), aligned(4), may_alias));

static void multiply(int64_t depth, const float *left, const float *right, float *c, int64_t ldc) {
    vector sum[NATIVE_ROWS][NATIVE_VECTORS];
    memset(sum, 0, sizeof sum);
    for (int64_t d = 0; d < depth; d++) {
        vector line[NATIVE_VECTORS];
#pragma GCC unroll 8
        for (int n = 0; n < NATIVE_VECTORS; n++) {
            line[n] = *(const vector_anywhere *)(right + n * NATIVE_LANES);
        }
#pragma GCC unroll 16
        for (int r = 0; r < NATIVE_ROWS; r++) {
#pragma GCC unroll 8
            for (int n = 0; n < NATIVE_VECTORS; n++) {
                sum[r][n] = sum[r][n] + left[r] * line[n];
            }
        }
        left += NATIVE_ROWS;
        right += NATIVE_VECTORS * NATIVE_LANES;
    }
#pragma GCC unroll 16
    for (int r = 0; r < NATIVE_ROWS; r++) {
#pragma GCC unroll 8
        for (int n = 0; n < NATIVE_VECTORS; n++) {
            vector_anywhere *to = (vector_anywhere *)(c + r * ldc + n * NATIVE_LANES);
            *to = *to + sum[r][n];
        }
    }
}

/* Each element's sum in the same order and with the same roundings as above. */
static void multiply_visible(int64_t depth, const float *left, const float *right, float *c, int64_t ldc) {
    enum { WIDTH = NATIVE_VECTORS * NATIVE_LANES };
    for (int r = 0; r < NATIVE_ROWS; r++) {
        float sum[WIDTH] = {0};
        for (int64_t d = 0; d < depth; d++) {
            float weight = left[d * NATIVE_ROWS + r];
            for (int n = 0; n < WIDTH && attn__f32_bits(weight) != NATIVE_HIDDEN; n++) {
                sum[n] = sum[n] + weight * right[d * WIDTH + n];
            }
        }
        for (int n = 0; n < WIDTH; n++) {
            c[r * ldc + n] += sum[n];
        }
    }
}

/* Without branches, so that the loop around it vectorises. */
static inline float widen_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    uint32_t normal = (rest << 13) + 0x38000000u;
    uint32_t small = attn__f32_bits((float)(int32_t)rest * 0x1p-24f);
    uint32_t special = 0x7f800000u | rest << 13;
    uint32_t bits = rest < 0x400u ? small : normal;
    return attn__bits_f32(sign | (rest >= 0x7c00u ? special : bits));
}

static inline uint16_t narrow_f16(float value) {
    uint32_t bits = attn__f32_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    uint32_t normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    uint32_t small = attn__f32_bits(attn__bits_f32(rest) + 0.5f) - 0x3f000000u;
    uint32_t half = rest < 0x38800000u ? small : normal;
    half = rest >= 0x477ff000u ? 0x7c00u : half;
    half = rest > 0x7f800000u ? 0x7e00u : half;
    return (uint16_t)(sign | half);
}

static inline uint16_t narrow_bf16(float value) {
    uint32_t bits = attn__f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static void widen(attn_dtype dtype, const void *from, int64_t n, float *to) {
    const uint16_t *half = from;
    if (dtype == ATTN_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
    } else if (dtype == ATTN_BF16) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = attn__bf16_to_f32(half[i]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            to[i] = widen_f16(half[i]);
        }
    }
}

static void narrow(attn_dtype dtype, const float *from, int64_t n, void *to) {
    uint16_t *half = to;
    if (dtype == ATTN_F32) {
        memcpy(to, from, (size_t)n * sizeof *from);
    } else if (dtype == ATTN_BF16) {
        for (int64_t i = 0; i < n; i++) {
            half[i] = narrow_bf16(from[i]);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            half[i] = narrow_f16(from[i]);
        }
    }
}

/* exp(x) = 2^n exp(r), n the integer nearest to x / ln 2, |r| <= ln 2 / 2. The Taylor polynomial of degree 7 is off by
 * at most 6e-9 there. 2^n is applied in two factors, so that results below 2^-126 are rounded and not lost. NaN stays
 * NaN: it passes the clamps and the polynomial. */
static inline float exponential(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    x = x < -105.0f ? -105.0f : x;
    x = x > 90.0f ? 90.0f : x;
    float shifted = x * 1.44269504f + magic, n = shifted - magic;
    float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t power = (int32_t)(attn__f32_bits(shifted) - 0x4b400000u), half = power >> 1;
    float low = attn__bits_f32((uint32_t)(half + 127) << 23),
          high = attn__bits_f32((uint32_t)(power - half + 127) << 23);
    return p * low * high;
}

enum { PARTS = 16 }; /* partial results of a row, so that lanes stay independent */

static float exp_row(float *x, float shift, int64_t n) {
    float part[PARTS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + PARTS <= n; i += PARTS) {
        for (int lane = 0; lane < PARTS; lane++) {
            x[i + lane] = exponential(x[i + lane] - shift);
            part[lane] += x[i + lane];
        }
    }
    for (; i < n; i++) {
        x[i] = exponential(x[i] - shift);
        part[0] += x[i];
    }
    for (int lane = 0; lane < PARTS; lane++) {
        sum += part[lane];
    }
    return sum;
}

static float hide(float *x, const uint8_t *visible, int64_t n) {
    const float none = attn__bits_f32(0xff800000u);
    float part[PARTS], largest = none;
    int64_t i = 0;
    for (int lane = 0; lane < PARTS; lane++) {
        part[lane] = none;
    }
    for (; i + PARTS <= n; i += PARTS) {
        for (int lane = 0; lane < PARTS; lane++) {
            x[i + lane] = visible[i + lane] ? x[i + lane] : none;
            part[lane] = x[i + lane] > part[lane] ? x[i + lane] : part[lane];
        }
    }
    for (; i < n; i++) {
        x[i] = visible[i] ? x[i] : none;
        part[0] = x[i] > part[0] ? x[i] : part[0];
    }
    for (int lane = 0; lane < PARTS; lane++) {
        largest = part[lane] > largest ? part[lane] : largest;
    }
    return largest;
}

static void see(const int32_t *position, int64_t n, int32_t first, int32_t last, int32_t upto, uint8_t *visible) {
    for (int64_t i = 0; i < n; i++) {
        visible[i] = ((position[i] >= first) & (position[i] <= last)) | (position[i] <= upto);
    }
}

static void scale(float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

static void score_gradient(const float *p, const float *dp, const float *keep, float shift, int64_t n, float *ds) {
    for (int64_t i = 0; i < n && !keep; i++) {
        ds[i] = p[i] * (dp[i] - shift);
    }
    for (int64_t i = 0; i < n && keep; i++) {
        ds[i] = p[i] * (keep[i] * dp[i] - shift);
    }
}

static bool all_finite(const float *x, int64_t n) {
    const uint32_t exponent = 0x7f800000u;
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        found |= (attn__f32_bits(x[i]) & exponent) == exponent;
    }
    return !found;
}

static void mark(attn_dtype dtype, const uint8_t *visible, int64_t n, void *row) {
    if (dtype == ATTN_F32) {
        float *to = row;
        for (int64_t i = 0; i < n; i++) {
            to[i] = visible[i] ? to[i] + 0.0f : -0.0f; /* -0.0 + 0.0 is +0.0 */
        }
    } else {
        uint16_t *to = row;
        for (int64_t i = 0; i < n; i++) {
            uint16_t value = to[i] == 0x8000u ? 0 : to[i];
            to[i] = visible[i] ? value : 0x8000u;
        }
    }
}

const native_kernels NATIVE_TABLE = {
    .rows = NATIVE_ROWS,
    .columns = NATIVE_VECTORS * NATIVE_LANES,
    .multiply = multiply,
    .multiply_visible = multiply_visible,
    .widen = widen,
    .narrow = narrow,
    .finite = all_finite,
    .see = see,
    .hide = hide,
    .exp_row = exp_row,
    .scale = scale,
    .score_gradient = score_gradient,
    .mark = mark,
};
