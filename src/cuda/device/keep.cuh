/* SPDX-License-Identifier: Apache-2.0
 * Dropout on tiles laid out as in ffma.cuh: which of a thread's pairs are kept, as bits r * OWN + n. One Philox call
 * serves four neighbouring keys, so threads share calls where the tile's first key is a multiple of 4. */
#pragma once
#include "dropout.cuh"
#include "ffma.cuh"

static_assert(ROWS * OWN <= 32, "one word holds a thread's pairs");

INLINE uint32_t word_of(const attn__u32x4 &words, int component) {
    uint32_t low = component & 1 ? words.word[1] : words.word[0], high = component & 1 ? words.word[3] : words.word[2];
    return component & 2 ? high : low;
}

/* Four bits: words at or above the threshold. */
INLINE uint32_t kept_words(const attn__u32x4 &words, uint32_t threshold) {
    return (uint32_t)(words.word[0] >= threshold) | (uint32_t)(words.word[1] >= threshold) << 1 |
           (uint32_t)(words.word[2] >= threshold) << 2 | (uint32_t)(words.word[3] >= threshold) << 3;
}

/* One pair at a time: tiles that begin between two calls' keys. */
template <bool outer_queries>
INLINE uint32_t keep_one_by_one(const attn__params &p, attn__dropout_key key, int64_t i, int64_t j, int head, int s) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int bit = 0; bit < ROWS * OWN; bit++) {
        int outer = tile_y() * ROWS + bit / OWN, inner = tile_x() + 16 * (bit % OWN);
        int64_t row = i + (outer_queries ? outer : inner), at = j + (outer_queries ? inner : outer);
        attn__u32x4 words = dropout_words(p, key, (int)(at >> 2), row, head, s);
        bits |= (uint32_t)(word_of(words, (int)at & 3) >= key.threshold) << bit;
    }
    return bits;
}

/* Outer rows are queries from position i on, inner rows keys from position j on. */
INLINE uint32_t keep_queries(const attn__params &p, attn__dropout_key key, int64_t i, int64_t j, int head, int s) {
    if (j & 3) {
        return keep_one_by_one<true>(p, key, i, j, head, s);
    }
    /* Four threads of neighbouring keys share a call: each takes every fourth row, then they exchange. */
    const int place = threadIdx.x & 3, y = tile_y(), x = tile_x();
    uint32_t mine = 0, bits = 0;
#pragma unroll 1
    for (int n = 0; n < ROWS / 4 * OWN; n++) {
        attn__u32x4 words =
            dropout_words(p, key, (int)((j + 16 * (n % OWN) + x) >> 2), i + y * ROWS + 4 * (n / OWN) + place, head, s);
        mine |= kept_words(words, key.threshold) << (4 * n);
    }
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const uint32_t other = __shfl_sync(0xffffffffu, mine, (threadIdx.x & 28) | b);
#pragma unroll
        for (int n = 0; n < ROWS / 4 * OWN; n++) {
            bits |= (other >> (4 * n + place) & 1u) << ((4 * (n / OWN) + b) * OWN + n % OWN);
        }
    }
    return bits;
}

/* Outer rows are keys, inner rows queries. */
INLINE uint32_t keep_keys(const attn__params &p, attn__dropout_key key, int64_t i, int64_t j, int head, int s) {
    if (j & 3) {
        return keep_one_by_one<false>(p, key, i, j, head, s);
    }
    uint32_t bits = 0;
#pragma unroll 1
    for (int n = 0; n < ROWS / 4 * OWN; n++) {
        attn__u32x4 words =
            dropout_words(p, key, (int)((j + tile_y() * ROWS) >> 2) + n / OWN, i + tile_x() + 16 * (n % OWN), head, s);
        const uint32_t kept = kept_words(words, key.threshold);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            bits |= (kept >> w & 1u) << ((4 * (n / OWN) + w) * OWN + n % OWN);
        }
    }
    return bits;
}
