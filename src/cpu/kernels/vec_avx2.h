/* SPDX-License-Identifier: Apache-2.0
 * AVX2 with FMA and F16C: 8 lanes; 6 x 2 accumulators leave room for 2 operands and a broadcast in 16 registers. */
#ifndef ATTN_CPU_VEC_AVX2_H
#define ATTN_CPU_VEC_AVX2_H

#include <immintrin.h>

#define ATTN_W    8
#define ATTN_NV   2
#define ATTN_ROWS 6
#ifndef ATTN_HAVE_DOT2 /* a test defines it and emulates the pair product */
#define ATTN_HAVE_DOT2 0
#endif
#include "vec_types.h"

VEC_INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps(a, b, c);
}
VEC_INLINE vf vf_max(vf a, vf b) {
    return (vf)_mm256_max_ps(a, b);
}
VEC_INLINE vf vf_min(vf a, vf b) {
    return (vf)_mm256_min_ps(a, b);
}
VEC_INLINE vf vf_round(vf x) {
    return (vf)_mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_INLINE vf vf_ceil(vf x) {
    return (vf)_mm256_round_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
VEC_INLINE vi vi_of(vf x) {
    return (vi)_mm256_cvtps_epi32(x);
}
VEC_INLINE vf vf_of(vi x) {
    return (vf)_mm256_cvtepi32_ps((__m256i)x);
}
VEC_INLINE vf vf_widen_f16(const uint16_t *p) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
VEC_INLINE void vf_narrow_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
VEC_INLINE vf vf_sums(const vf a[8]) {
    __m256 half[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) { /* in each 128 bits: the four sums of a[4h ... 4h + 3] */
        const vf *v = a + 4 * h;
        __m256 even = _mm256_add_ps(_mm256_unpacklo_ps((__m256)v[0], (__m256)v[2]),
                                    _mm256_unpackhi_ps((__m256)v[0], (__m256)v[2]));
        __m256 odd = _mm256_add_ps(_mm256_unpacklo_ps((__m256)v[1], (__m256)v[3]),
                                   _mm256_unpackhi_ps((__m256)v[1], (__m256)v[3]));
        half[h] = _mm256_add_ps(_mm256_unpacklo_ps(even, odd), _mm256_unpackhi_ps(even, odd));
    }
    return (vf)_mm256_add_ps(_mm256_permute2f128_ps(half[0], half[1], 0x20),
                             _mm256_permute2f128_ps(half[0], half[1], 0x31));
}
VEC_INLINE vf vf_widen_bf16(const uint16_t *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}

#endif
