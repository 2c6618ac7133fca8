/* SPDX-License-Identifier: Apache-2.0
 * The one body of all instruction sets. A file that includes it defines
 *     NATIVE_TABLE    name of the table
 *     NATIVE_LANES    floats a vector register
 *     NATIVE_ROWS, NATIVE_VECTORS    the register tile: rows, and vectors a row
 * and is compiled with the flags of its set. Loops over rows of elements are left to the compiler's vectoriser; only
 * the tile needs registers named, as arrays of vectors. */
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "base/dtype.h"
#include "native/kernels/kernels.h"

/* Products may be fused into sums where the set can: that is its full rate. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

enum { NATIVE_COLUMNS = NATIVE_VECTORS * NATIVE_LANES };

typedef float vector __attribute__((vector_size(NATIVE_LANES * 4)));
typedef int32_t integers __attribute__((vector_size(NATIVE_LANES * 4)));
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
        right += NATIVE_COLUMNS;
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
    for (int r = 0; r < NATIVE_ROWS; r++) {
        float sum[NATIVE_COLUMNS] = {0};
        for (int64_t d = 0; d < depth; d++) {
            float weight = left[d * NATIVE_ROWS + r];
            for (int n = 0; n < NATIVE_COLUMNS && attn__f32_bits(weight) != NATIVE_HIDDEN; n++) {
                sum[n] = sum[n] + weight * right[d * NATIVE_COLUMNS + n];
            }
        }
        for (int n = 0; n < NATIVE_COLUMNS; n++) {
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

/* Eight at once where the set converts in hardware; the rest is left to the loops after it. */
#if defined(__F16C__)
static int64_t widen_eights(const uint16_t *half, int64_t n, float *to) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(half + i))));
    }
    return i;
}
static int64_t narrow_eights(const float *from, int64_t n, uint16_t *half) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i rounded = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(half + i), rounded);
    }
    return i;
}
#else
static int64_t widen_eights(const uint16_t *half, int64_t n, float *to) {
    (void)half, (void)n, (void)to;
    return 0;
}
static int64_t narrow_eights(const float *from, int64_t n, uint16_t *half) {
    (void)from, (void)n, (void)half;
    return 0;
}
#endif

static void widen(attn_dtype dtype, const void *from, int64_t n, float *to) {
    const uint16_t *half = from;
    if (dtype == ATTN_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
    } else if (dtype == ATTN_BF16) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = attn__bf16_to_f32(half[i]);
        }
    } else {
        for (int64_t i = widen_eights(half, n, to); i < n; i++) {
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
        for (int64_t i = narrow_eights(from, n, half); i < n; i++) {
            half[i] = narrow_f16(from[i]);
        }
    }
}

/* exp(x) = 2^n exp(r), n the integer nearest to x / ln 2, |r| <= ln 2 / 2. The Taylor polynomial of degree 7 is off by
 * at most 6e-9 there. 2^n is applied in two factors, so that results below 2^-126 are rounded and not lost. NaN stays
 * NaN: it passes the clamps and the polynomial. */
static inline vector exponential(vector x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low bits */
    const vector zero = {0}, lowest = zero - 105.0f, highest = zero + 90.0f;
    integers low = x<lowest, high = x> highest;
    x = (vector)(((integers)x & ~(low | high)) | ((integers)lowest & low) | ((integers)highest & high));
    vector shifted = x * 1.44269504f + magic, n = shifted - magic;
    vector r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    vector p = zero + 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    integers power = (integers)shifted - 0x4b400000, half = power >> 1;
    return p * (vector)((half + 127) << 23) * (vector)((power - half + 127) << 23);
}

static float exp_row(float *x, float shift, int64_t n) {
    vector sum = {0};
    float tail[NATIVE_LANES], total = 0;
    int64_t i = 0;
    for (; i + NATIVE_LANES <= n; i += NATIVE_LANES) {
        vector e = exponential(*(const vector_anywhere *)(x + i) - shift);
        *(vector_anywhere *)(x + i) = e;
        sum += e;
    }
    for (int lane = 0; lane < NATIVE_LANES; lane++) {
        tail[lane] = i + lane < n ? x[i + lane] - shift : -INFINITY;
    }
    vector e = exponential(*(const vector_anywhere *)tail);
    sum += e;
    for (int lane = 0; lane < NATIVE_LANES; lane++) {
        if (i + lane < n) {
            x[i + lane] = e[lane];
        }
        total += sum[lane];
    }
    return total;
}

enum { PARTS = 16 }; /* partial results of a row, so that lanes stay independent */

static float hide(float *x, const uint8_t *visible, int64_t n) {
    const float none = -INFINITY;
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

/* Panels of one width, known to the compiler. */
static inline void pack_line(float *panel, int width, int64_t depth, const float *from) {
    for (int64_t d = 0; d < depth; d++) {
        panel[d * width] = from[d];
    }
}

static inline void pack_depth(float *panels, int width, int64_t depth, const float *from, int64_t n, int64_t to) {
    int64_t line = 0;
    for (; line + width <= n; line += width) {
        for (int lane = 0; lane < width; lane++) {
            panels[line * depth + lane] = from[line + lane];
        }
    }
    for (; line < to; line += width) {
        for (int lane = 0; lane < width; lane++) {
            panels[line * depth + lane] = line + lane < n ? from[line + lane] : 0;
        }
    }
}

static void pack_left_line(float *panels, int64_t depth, int64_t line, const float *from) {
    pack_line(panels + line / NATIVE_ROWS * NATIVE_ROWS * depth + line % NATIVE_ROWS, NATIVE_ROWS, depth, from);
}

static void pack_left_depth(float *panels, int64_t depth, int64_t d, const float *from, int64_t n, int64_t to) {
    pack_depth(panels + d * NATIVE_ROWS, NATIVE_ROWS, depth, from, n, to);
}

static void pack_right_line(float *panels, int64_t depth, int64_t line, const float *from) {
    pack_line(panels + line / NATIVE_COLUMNS * NATIVE_COLUMNS * depth + line % NATIVE_COLUMNS, NATIVE_COLUMNS, depth,
              from);
}

static void pack_right_depth(float *panels, int64_t depth, int64_t d, const float *from, int64_t n, int64_t to) {
    pack_depth(panels + d * NATIVE_COLUMNS, NATIVE_COLUMNS, depth, from, n, to);
}

const native_kernels NATIVE_TABLE = {
    .rows = NATIVE_ROWS,
    .columns = NATIVE_COLUMNS,
    .left = {NATIVE_ROWS, pack_left_line, pack_left_depth},
    .right = {NATIVE_COLUMNS, pack_right_line, pack_right_depth},
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
