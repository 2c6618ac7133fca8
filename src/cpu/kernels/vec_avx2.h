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
VEC_INLINE vf vf_widen_bf16(const uint16_t *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}

#endif
