/* SPDX-License-Identifier: Apache-2.0
 * Intel AMX: eight tiles, each 16 rows of 64 bytes, state of the thread that configures them.
 *   amx_multiply(c, a, b): c[16][16 floats] += a[16][16 pairs of bf16] * b[16 pairs][16 columns]
 * Tiles are named by literal numbers. The asm statements stay in order among themselves and with memory; arithmetic
 * between them is free to move, so that the core overlaps it. Besides, what rearranging 16-bit rows needs. */
#ifndef ATTN_CPU_VEC_AMX_H
#define ATTN_CPU_VEC_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "vec_types.h"

VEC_INLINE void amx_configure(void) {
    const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config
        __attribute__((aligned(64))) = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
VEC_INLINE void amx_release(void) {
    __asm__ volatile("tilerelease" ::: "memory");
}

#define amx_zero(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
/* 16 rows, `stride` bytes apart. */
#define amx_load(tile, base, stride)                                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"((int64_t)(stride)) : "memory")
#define amx_store(tile, base, stride)                                                                                  \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"((int64_t)(stride)) : "memory")
#define amx_multiply(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

/* vf_pair for values of which a NaN is a product's, hence has no payload in its low half that could carry. */
VEC_INLINE vf amx_pair(vf low, vf high) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    __m512i a = _mm512_add_epi32((__m512i)low, half), b = _mm512_add_epi32((__m512i)high, half);
    return (vf)_mm512_ternarylogic_epi32(_mm512_set1_epi32((int)0xffff0000), b, _mm512_srli_epi32(a, 16), 0xEA);
}

typedef uint16_t amx_halves __attribute__((vector_size(64), may_alias));

/* Four pieces of 8 halves side by side. */
VEC_INLINE amx_halves amx_gather(const uint16_t *a, const uint16_t *b, const uint16_t *c, const uint16_t *d) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)b), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)c), 2);
    return (amx_halves)_mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)d), 3);
}
/* In each piece of 8: the first (last) four of a and of b, alternating. */
VEC_INLINE amx_halves amx_zip_first(amx_halves a, amx_halves b) {
    return (amx_halves)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
}
VEC_INLINE amx_halves amx_zip_last(amx_halves a, amx_halves b) {
    return (amx_halves)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
}

#endif
