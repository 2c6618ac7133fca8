/* SPDX-License-Identifier: Apache-2.0
 * Ceiling kernels for x86-64 beyond the baseline. Each function carries its target; the CPU is asked before one runs.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "ceilings_parts.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WIDTH    32
#define TARGET   __attribute__((target("avx2,fma")))
#define NAMED(x) x##_avx2
#include "ceilings_body.h"

#define WIDTH    64
#define TARGET   __attribute__((target("avx512f,avx512dq")))
#define NAMED(x) x##_avx512
#include "ceilings_body.h"

/* vdpbf16ps: 16 sums of two products. */
__attribute__((target("avx512f,avx512bf16"))) static void bf16_avx512(long rounds) {
    __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0;
    __m512 a6 = a0, a7 = a0, a8 = a0, a9 = a0, a10 = a0, a11 = a0;
    __m512i bits = _mm512_setzero_si512();
    __m512bh x = (__m512bh)bits, y = x;
    for (long r = 0; r < rounds; r++) {
        a0 = _mm512_dpbf16_ps(a0, x, y), a1 = _mm512_dpbf16_ps(a1, x, y), a2 = _mm512_dpbf16_ps(a2, x, y);
        a3 = _mm512_dpbf16_ps(a3, x, y), a4 = _mm512_dpbf16_ps(a4, x, y), a5 = _mm512_dpbf16_ps(a5, x, y);
        a6 = _mm512_dpbf16_ps(a6, x, y), a7 = _mm512_dpbf16_ps(a7, x, y), a8 = _mm512_dpbf16_ps(a8, x, y);
        a9 = _mm512_dpbf16_ps(a9, x, y), a10 = _mm512_dpbf16_ps(a10, x, y), a11 = _mm512_dpbf16_ps(a11, x, y);
        KEEP(a0, a1, a2, a3, a4, a5);
        KEEP(a6, a7, a8, a9, a10, a11);
    }
    a0 = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a0, a1), _mm512_add_ps(a2, a3)), _mm512_add_ps(a4, a5));
    a6 = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a6, a7), _mm512_add_ps(a8, a9)), _mm512_add_ps(a10, a11));
    keep_float(_mm512_cvtss_f32(_mm512_add_ps(a0, a6)));
}

/* tdpbf16ps on full tiles: 16 x 16 sums of 32 products; four accumulators from two by two operands. */
__attribute__((target("amx-tile,amx-bf16"))) static void bf16_amx(long rounds) {
    struct {
        unsigned char palette, start_row, reserved[14];
        unsigned short columns[16];
        unsigned char rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.columns[tile] = 64;
        config.rows[tile] = 16;
    }
    keep_memory(&config);
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (long r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
}
static bool has_bf16(void) {
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}
/* The kernel grants the tile registers to a process that asks for them (feature 18). */
static bool has_amx(void) {
    unsigned a, b, c, d;
    const unsigned needed = 1u << 22 | 1u << 24;
    const long ask_permission = 0x1023;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed &&
           syscall(SYS_arch_prctl, ask_permission, 18) == 0;
}

const cli_ceiling cli_ceilings_x86[] = {
    {"fma.avx512", CLI_CEILING_FMA, 12 * 16 * 2, has_avx512, fma_avx512},
    {"fma.avx2", CLI_CEILING_FMA, 12 * 8 * 2, has_avx2, fma_avx2},
    {"bf16.amx", CLI_CEILING_BF16, 4 * 16 * 16 * 32 * 2, has_amx, bf16_amx},
    {"bf16.avx512", CLI_CEILING_BF16, 12 * 32 * 2, has_bf16, bf16_avx512},
    {"exp.avx512", CLI_CEILING_EXP, EXP_ELEMENTS, has_avx512, exp_avx512},
    {"exp.avx2", CLI_CEILING_EXP, EXP_ELEMENTS, has_avx2, exp_avx2},
    {0},
};

#else

const cli_ceiling cli_ceilings_x86[] = {{0}};

#endif
