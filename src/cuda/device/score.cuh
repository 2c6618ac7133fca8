/* SPDX-License-Identifier: Apache-2.0
 * The score's one hook: from the raw product <q, k> to the score in natural units, and the derivative that backward
 * needs. Where nothing but a positive scale applies (SCORE_PLAIN) kernels keep raw products and fold scale * log2(e)
 * into the exponential; otherwise every score passes through score_of, and the reference is subtracted before anything
 * is multiplied: scores may lie anywhere in the range of float (a bias of the lowest float is a usual mask).
 *
 * Constants: SCORE_PLAIN, HAS_SOFTCAP, HAS_ALIBI, BIAS_DTYPE (0: no bias), HAS_MASK. */
#pragma once
#include "mask.cuh"

/* tanh with an absolute error of a few 1e-7; tanh.approx has 5e-4, too much for float32. */
INLINE float tanh_exact(float x) {
    float a = fabsf(x);
    if (a < 0.25f) { /* odd polynomial: the quotient below would cancel */
        float y = x * x;
        return x * (1.0f + y * (-0.33333333f + y * (0.13333333f + y * (-0.05396825f + y * 0.02186949f))));
    }
    float e = exp2_fast(-2.0f * LOG2E * a);
    return copysignf((1.0f - e) / (1.0f + e), x);
}

typedef struct score_row {
    float slope;     /* ALiBi */
    int64_t shifted; /* i' */
    int64_t bias_at; /* element offset of (sequence, head, i, 0) */
    int64_t mask_at;
} score_row;

INLINE score_row score_row_of(const attn__params &p, int s, int head, int64_t i, int64_t shifted) {
    score_row row = {0.0f, shifted, 0, 0};
    if (HAS_ALIBI) {
        row.slope = ((const float *)p.alibi.data)[s * p.alibi.stride[0] + head * p.alibi.stride[1]];
    }
    if (BIAS_DTYPE) {
        row.bias_at = s * p.bias.stride[0] + head * p.bias.stride[1] + i * p.bias.stride[2];
    }
    if (HAS_MASK) {
        row.mask_at = s * p.mask.stride[0] + head * p.mask.stride[1] + i * p.mask.stride[2];
    }
    return row;
}

/* Score of a key that the band shows, from s = scale * <q, k>; -inf where boolean mask or bias hide it.
 * *bent (backward) takes d score / d s, which the soft cap bends. */
INLINE float score_of_scaled(const attn__params &p, const score_row &row, float s, int j, float *bent) {
    if (bent) {
        *bent = 1.0f;
    }
    if (HAS_SOFTCAP) {
        float t = tanh_exact(s / p.softcap);
        s = p.softcap * t;
        if (bent) {
            *bent = 1.0f - t * t;
        }
    }
    if (BIAS_DTYPE) {
        float bias = load_element < BIAS_DTYPE ? BIAS_DTYPE : F32 > (p.bias.data, row.bias_at + j * p.bias.stride[3]);
        if (bias == -INFINITY_F) {
            return -INFINITY_F; /* hidden, even where the product is NaN */
        }
        s += bias;
    }
    if (HAS_MASK) {
        if (!((const uint8_t *)p.mask.data)[row.mask_at + j * p.mask.stride[3]]) {
            return -INFINITY_F;
        }
    }
    if (HAS_ALIBI) {
        s -= row.slope * fabsf((float)(row.shifted - j));
    }
    return s;
}

/* The same from the raw product. One that is a number and leaves the range by its scale is NaN: -inf means hidden. */
INLINE float score_of(const attn__params &p, const score_row &row, float raw, int j, float *bent) {
    const float s = raw * p.scale;
    return score_of_scaled(p, row, fabsf(s) == INFINITY_F && is_finite(raw) ? __int_as_float(0x7fffffff) : s, j, bent);
}

/* What turns a raw product (SCORE_PLAIN) or a score into log2 units, for kernels that subtract first; and into natural
 * units. */
INLINE float unit_log2(const attn__params &p) {
    return SCORE_PLAIN ? fminf(p.scale * LOG2E, FLOAT_MAX) : LOG2E;
}
INLINE float unit_natural(const attn__params &p) {
    return SCORE_PLAIN ? p.scale : 1.0f;
}
