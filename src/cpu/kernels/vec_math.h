/* SPDX-License-Identifier: Apache-2.0
 * Elementary functions on vectors. The polynomials are minimax fits of 2^f on [-1/2, 1/2] in relative error with the
 * constant term held at 1, so that whole powers of two are exact. */
#ifndef ATTN_CPU_VEC_MATH_H
#define ATTN_CPU_VEC_MATH_H

#include "vec_types.h"

#define ATTN_LOG2E 1.44269504088896340736
#define ATTN_LN2   0.69314718055994530942

/* 2^x for x <= 127.5, relative error 2e-7 (degree 5: 9.2e-8, the rest is rounding). Below -126 it gives 2^-126, never
 * 0, so that "p is 0" can mean "hidden" and nothing else. NaN gives NaN: its integer is INT_MIN or 0, of which the
 * shift leaves no bit. */
VEC_INLINE vf vf_exp2(vf x) {
    x = vf_max(vf_set(-126.0f), x);
    vf whole = vf_round(x), f = x - whole;
    /* In pairs of terms: half the latency of Horner's chain, which is what bounds a pass over scores. */
    vf square = f * f;
    vf high = vf_fma(vf_set(1.32647273e-3f), f, vf_set(9.67151279e-3f));
    vf middle = vf_fma(vf_set(5.55073374e-2f), f, vf_set(2.40222421e-1f));
    vf low = vf_fma(vf_set(6.93146978e-1f), f, vf_set(1.0f));
    vf p = vf_fma(vf_fma(high, square, middle), square, low);
    return (vf)((vi)p + (vi_of(whole) << 23));
}

/* tanh by e^2|x| - 1, so that small arguments keep their relative precision (degree 6). */
VEC_INLINE vf vf_tanh(vf x) {
    vi sign = (vi)x & vi_set(INT32_MIN);
    vf one = vf_set(1.0f), y = vf_abs(x) * vf_set((float)(2 * ATTN_LOG2E));
    y = vf_select(y > vf_set(64.0f), vf_set(64.0f), y); /* tanh is 1 long before; NaN stays */
    vf whole = vf_round(y), f = y - whole, power = (vf)((vi_of(whole) + vi_set(127)) << 23);
    vf p = vf_set(1.53533621e-4f);
    p = vf_fma(p, f, vf_set(1.33988746e-3f));
    p = vf_fma(p, f, vf_set(9.61843736e-3f));
    p = vf_fma(p, f, vf_set(5.55033247e-2f));
    p = vf_fma(p, f, vf_set(2.40226479e-1f));
    p = vf_fma(p, f, vf_set(6.93147203e-1f));
    vf minus_one = vf_fma(power, p * f, power - one);
    return (vf)((vi)(minus_one / (minus_one + vf_set(2.0f))) | sign);
}

#endif
