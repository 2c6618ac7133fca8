/* SPDX-License-Identifier: Apache-2.0
 * Softmax in log2 units: the probability of raw value x against a reference r is 2^(x * factor - r), with factor
 * scale * log2(e) where x is a bare product (SCORE_PLAIN) and 1 where it is a score already.
 *
 * The product and the difference are one fused operation. Its rounding of r is common to the whole row, so it cancels
 * as long as lse is made from the same r; that holds while |r| < FUSED_LIMIT. Beyond it (products of 1e6 and more) the
 * unrounded product would differ from r by whole powers of two: multiply first, subtract then. */
#pragma once
#include "types.cuh"

#define FUSED_LIMIT 1048576.0f

INLINE float probability(float x, float factor, float reference) {
    return exp2_fast(fmaf(x, factor, -reference));
}
INLINE float probability_unfused(float x, float factor, float reference) {
    return exp2_fast(__fsub_rn(__fmul_rn(x, factor), reference));
}

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

/* Natural lse of a row from reference and sum; -inf where nothing was seen (sum 0). */
INLINE float natural_lse(float reference, float sum) {
    return sum == 0.0f ? -INFINITY_F : (reference + log2_fast(sum)) * LN2;
}
