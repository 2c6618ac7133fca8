/* SPDX-License-Identifier: Apache-2.0
 * AVX-512 F, BW, DQ, VL: 16 lanes; 6 x 4 accumulators of 32 registers. With BF16, pairs by vdpbf16ps. */
#ifndef ATTN_CPU_VEC_AVX512_H
#define ATTN_CPU_VEC_AVX512_H

#include <immintrin.h>

#define ATTN_W    16
#define ATTN_NV   4
#define ATTN_ROWS 6
#ifdef __AVX512BF16__
#define ATTN_HAVE_DOT2 1
#else
#define ATTN_HAVE_DOT2 0
#endif
#include "vec_types.h"

VEC_INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps(a, b, c);
}
VEC_INLINE vf vf_max(vf a, vf b) {
    return (vf)_mm512_max_ps(a, b);
}
VEC_INLINE vf vf_min(vf a, vf b) {
    return (vf)_mm512_min_ps(a, b);
}
VEC_INLINE vf vf_round(vf x) {
    return (vf)_mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_INLINE vf vf_ceil(vf x) {
    return (vf)_mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
VEC_INLINE vi vi_of(vf x) {
    return (vi)_mm512_cvtps_epi32(x);
}
VEC_INLINE vf vf_of(vi x) {
    return (vf)_mm512_cvtepi32_ps((__m512i)x);
}
VEC_INLINE vf vf_widen_f16(const uint16_t *p) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
VEC_INLINE void vf_narrow_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
VEC_INLINE vf vf_sums(const vf a[16]) {
    __m512 quarter[4], half[2];
#pragma GCC unroll 4
    for (int h = 0; h < 4; h++) { /* in each 128 bits: the four sums of a[4h ... 4h + 3] */
        const vf *v = a + 4 * h;
        __m512 even = _mm512_add_ps(_mm512_unpacklo_ps((__m512)v[0], (__m512)v[2]),
                                    _mm512_unpackhi_ps((__m512)v[0], (__m512)v[2]));
        __m512 odd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)v[1], (__m512)v[3]),
                                   _mm512_unpackhi_ps((__m512)v[1], (__m512)v[3]));
        quarter[h] = _mm512_add_ps(_mm512_unpacklo_ps(even, odd), _mm512_unpackhi_ps(even, odd));
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        half[h] = _mm512_add_ps(_mm512_shuffle_f32x4(quarter[2 * h], quarter[2 * h + 1], 0x88),
                                _mm512_shuffle_f32x4(quarter[2 * h], quarter[2 * h + 1], 0xdd));
    }
    return (vf)_mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], 0x88),
                             _mm512_shuffle_f32x4(half[0], half[1], 0xdd));
}
VEC_INLINE vf vf_widen_bf16(const uint16_t *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
#if ATTN_HAVE_DOT2
VEC_INLINE void vf_narrow_bf16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}
VEC_INLINE vf vf_dot2(vf acc, vf x, vf b) {
    return (vf)_mm512_dpbf16_ps(acc, (__m512bh)x, (__m512bh)b);
}
/* Words of two bf16: low rounded into the low half, high into the high half. Not vcvtne2ps2bf16: that leaves halves
 * apart and costs more than these five. Inputs are >= 0 or NaN; the minimum keeps a NaN from rounding into -0. */
VEC_INLINE vf vf_pair(vf low, vf high) {
    const __m512i half = _mm512_set1_epi32(0x8000), nan = _mm512_set1_epi32(0x7fc00000);
    __m512i a = _mm512_add_epi32(_mm512_min_epu32((__m512i)low, nan), half);
    __m512i b = _mm512_add_epi32(_mm512_min_epu32((__m512i)high, nan), half);
    return (vf)_mm512_ternarylogic_epi32(_mm512_set1_epi32((int)0xffff0000), b, _mm512_srli_epi32(a, 16), 0xEA);
}
#endif

#endif
