/* SPDX-License-Identifier: Apache-2.0
 * The AVX2 vocabulary with the bf16 pair product of AVX-512 emulated, so that the pair path is run and checked on
 * machines without it. Include before kernels.h, in place of vec_avx2.h. */
#ifndef ATTN_TESTS_EMULATED_PAIRS_H
#define ATTN_TESTS_EMULATED_PAIRS_H

#define ATTN_HAVE_DOT2 1
#include "cpu/kernels/vec_avx2.h"

VEC_INLINE vf vf_dot2(vf acc, vf x, vf b) {
    const vi high = vi_set((int32_t)0xffff0000u);
    vf x_low = (vf)((vi)x << 16), b_low = (vf)((vi)b << 16);
    return vf_fma((vf)((vi)x & high), (vf)((vi)b & high), vf_fma(x_low, b_low, acc));
}
VEC_INLINE vf vf_pair(vf low, vf high) {
    const __m256i half = _mm256_set1_epi32(0x8000), nan = _mm256_set1_epi32(0x7fc00000);
    __m256i a = _mm256_add_epi32(_mm256_min_epu32((__m256i)low, nan), half);
    __m256i b = _mm256_add_epi32(_mm256_min_epu32((__m256i)high, nan), half);
    return (vf)_mm256_or_si256(_mm256_and_si256(b, _mm256_set1_epi32((int32_t)0xffff0000u)), _mm256_srli_epi32(a, 16));
}

#endif
