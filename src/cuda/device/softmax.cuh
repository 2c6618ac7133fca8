/* SPDX-License-Identifier: Apache-2.0
 * Softmax by powers of two: the probability of value x against a reference r is
 *   2^(x * factor - r)   of bare products (SCORE_PLAIN), factor scale * log2(e), r in log2 units: one fused operation.
 *                        Its rounding of r is common to the whole row, so it cancels as long as lse is made from the
 *                        same r; that holds while |r| < FUSED_LIMIT;
 *   2^((x - r) * unit)   of scores, and of products past that limit, r in the unit of x: subtract first, multiply then.
 */
#pragma once
#include "types.cuh"

#define FUSED_LIMIT 1048576.0f

/* Largest and sum over the four lanes that share a row. */
INLINE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
INLINE float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

INLINE float log2_fast(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* tanh(x), within about 2e-7, where a soft cap bends scores; x = s * exponent / (2 log2(e)). */
INLINE float bend(float s, float exponent) {
    return fmaf(-2.0f, reciprocal_fast(1.0f + exp2_fast(s * exponent)), 1.0f);
}

/* Natural lse of a row from reference, what turns that into natural units, and sum; -inf is kept for rows that saw
 * nothing (sum 0). */
INLINE float natural_lse(float reference, float natural, float sum) {
    const float lse = fmaf(reference, natural, log2_fast(sum) * LN2);
    return sum == 0.0f ? -INFINITY_F : lse == -INFINITY_F ? -FLOAT_MAX : lse;
}
