/* SPDX-License-Identifier: Apache-2.0
 * The vocabulary of AVX-512 with BF16 and AMX in plain C, 16 lanes wide as there, so that the tile path is run and
 * checked on any machine. Include in place of vec_avx512.h and vec_amx.h. Tile instructions abort where the hardware
 * would fault; amx_tiles_configured tells whether a thread left its tiles behind. */
#ifndef ATTN_TESTS_EMULATED_AMX_H
#define ATTN_TESTS_EMULATED_AMX_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

#define ATTN_W         16
#define ATTN_NV        4
#define ATTN_ROWS      6
#define ATTN_HAVE_DOT2 1
#include "cpu/kernels/vec_generic.h"

VEC_INLINE vf vf_dot2(vf acc, vf x, vf b) {
    const vi high = vi_set((int32_t)0xffff0000u);
    vf low = acc + (vf)((vi)x << 16) * (vf)((vi)b << 16);
    return low + (vf)((vi)x & high) * (vf)((vi)b & high);
}
VEC_INLINE vf vf_pair(vf low, vf high) {
    vf words = {0};
    for (int lane = 0; lane < ATTN_W; lane++) {
        uint32_t pair[2] = {attn__f32_bits(low[lane]), attn__f32_bits(high[lane])};
        for (int n = 0; n < 2; n++) {
            pair[n] = (pair[n] < 0x7fc00000u ? pair[n] : 0x7fc00000u) + 0x8000u;
        }
        words[lane] = attn__bits_f32(pair[0] >> 16 | (pair[1] & 0xffff0000u));
    }
    return words;
}

VEC_INLINE vf amx_pair(vf low, vf high) {
    return vf_pair(low, high);
}

static _Thread_local uint32_t amx_tile[8][16][16];
static _Thread_local bool amx_tiles_configured;

static inline void amx_configure(void) {
    memset(amx_tile, 0, sizeof amx_tile);
    amx_tiles_configured = true;
}
static inline void amx_release(void) {
    amx_tiles_configured = false;
}
static inline void amx_need(void) {
    if (!amx_tiles_configured) {
        abort();
    }
}
static inline void amx_zero(int tile) {
    amx_need();
    memset(amx_tile[tile], 0, sizeof amx_tile[tile]);
}
static inline void amx_load(int tile, const void *base, int64_t stride) {
    amx_need();
    for (int row = 0; row < 16; row++) {
        memcpy(amx_tile[tile][row], (const char *)base + row * stride, 64);
    }
}
static inline void amx_store(int tile, void *base, int64_t stride) {
    amx_need();
    for (int row = 0; row < 16; row++) {
        memcpy((char *)base + row * stride, amx_tile[tile][row], 64);
    }
}
/* Subnormal operands count as 0, as they do there. */
static inline float amx_widen(uint32_t half) {
    return attn__bits_f32((half & 0x7f80u) ? half << 16 : (half & 0x8000u) << 16);
}
static inline void amx_multiply(int c, int a, int b) {
    amx_need();
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 16; column++) {
            float sum = attn__bits_f32(amx_tile[c][row][column]);
            for (int pair = 0; pair < 16; pair++) {
                uint32_t x = amx_tile[a][row][pair], y = amx_tile[b][pair][column];
                sum += amx_widen(x & 0xffffu) * amx_widen(y & 0xffffu);
                sum += amx_widen(x >> 16) * amx_widen(y >> 16);
            }
            amx_tile[c][row][column] = attn__f32_bits(sum);
        }
    }
}

typedef uint16_t amx_halves __attribute__((vector_size(64), may_alias));

static inline amx_halves amx_gather(const uint16_t *a, const uint16_t *b, const uint16_t *c, const uint16_t *d) {
    const uint16_t *from[4] = {a, b, c, d};
    amx_halves x = {0};
    for (int i = 0; i < 32; i++) {
        x[i] = from[i / 8][i % 8];
    }
    return x;
}
static inline amx_halves amx_zip(amx_halves a, amx_halves b, int first) {
    amx_halves x = {0};
    for (int i = 0; i < 32; i++) {
        x[i] = (i % 2 ? b : a)[i / 8 * 8 + first + i % 8 / 2];
    }
    return x;
}
static inline amx_halves amx_zip_first(amx_halves a, amx_halves b) {
    return amx_zip(a, b, 0);
}
static inline amx_halves amx_zip_last(amx_halves a, amx_halves b) {
    return amx_zip(a, b, 4);
}

#endif
