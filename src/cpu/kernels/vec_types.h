/* SPDX-License-Identifier: Apache-2.0
 * Vector types of ATTN_W lanes of 32 bits, as the compiler's own vector extension: + - * / and comparisons work on
 * them for every instruction set. A comparison gives lanes of 0 and -1. What the extension lacks (fma, max, rounding,
 * conversions) each vec_<isa>.h adds under the same names:
 *   vf_fma(a, b, c) = a * b + c        vf_max, vf_min(a, b): b where either is NaN
 *   vf_round, vf_ceil                  vi_of(x): nearest integer, lanes within int32
 *   vf_of(i)                           vf_widen_f16(p), vf_narrow_f16(p, x): ATTN_W halves at p
 *   vf_sums(a): lane i is the sum of the lanes of a[i], i < ATTN_W
 *   vf_dot2(acc, x, b): pairs of bf16, acc + x.lo * b.lo + x.hi * b.hi, and vf_pair(low, high), which rounds two
 *   vectors >= 0 into such pairs   (only where ATTN_HAVE_DOT2: all products of that file are of pairs)
 * Loops over arrays of vectors say how far they unroll: such an array stays in registers only then.
 * ATTN_NV vectors side by side make the ATTN_LANES columns of a register tile, ATTN_ROWS its rows. */
#ifndef ATTN_CPU_VEC_TYPES_H
#define ATTN_CPU_VEC_TYPES_H

#include <stdbool.h>
#include <stdint.h>

#define ATTN_LANES (ATTN_W * ATTN_NV)
#define VEC_INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * ATTN_W)));
typedef int32_t vi __attribute__((vector_size(4 * ATTN_W)));
typedef float f32_any __attribute__((aligned(2), may_alias)); /* a float, or a word of bf16 rows */
typedef float vf_any __attribute__((vector_size(4 * ATTN_W), aligned(2), may_alias)); /* likewise */
typedef float vf_at __attribute__((vector_size(4 * ATTN_W), may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * ATTN_W), aligned(4), may_alias));

VEC_INLINE vf vf_load(const void *p) {
    return *(const vf_at *)p;
} /* aligned to the vector */
VEC_INLINE void vf_store(void *p, vf x) {
    *(vf_at *)p = x;
}
VEC_INLINE vf vf_loadu(const void *p) {
    return *(const vf_any *)p;
}
VEC_INLINE void vf_storeu(void *p, vf x) {
    *(vf_any *)p = x;
}
VEC_INLINE vi vi_loadu(const void *p) {
    return *(const vi_any *)p;
}
/* In a register from here on: where one load serves several products, the compiler would fold a load into each. */
VEC_INLINE vf vf_keep(vf x) {
#if defined(__AVX__)
    __asm__("" : "+x"(x));
#endif
    return x;
}
VEC_INLINE vf vf_set(float x) {
    return x - (vf){0};
}
VEC_INLINE vi vi_set(int32_t x) {
    return x - (vi){0};
}
VEC_INLINE vf vf_select(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}
VEC_INLINE vf vf_abs(vf x) {
    return (vf)((vi)x & vi_set(0x7fffffff));
}
VEC_INLINE bool vi_any_set(vi mask) {
    int32_t any = 0;
    for (int lane = 0; lane < ATTN_W; lane++) {
        any |= mask[lane];
    }
    return any != 0;
}

#endif
