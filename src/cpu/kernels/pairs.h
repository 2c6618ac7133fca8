/* SPDX-License-Identifier: Apache-2.0
 * bf16 by pairs: two neighbours along the sum of a product side by side in one 32-bit word, first one low, as vf_dot2
 * multiplies them. Queries and keys pair neighbouring dims (a row is in that order already), values and
 * probabilities neighbouring keys. What is missing of a last pair is 0. Words travel as floats: only bits move. */
#ifndef ATTN_CPU_PAIRS_H
#define ATTN_CPU_PAIRS_H

#include "block.h"

#if ATTN_HAVE_DOT2

static inline int64_t pairs_of(int64_t n) {
    return (n + 1) / 2;
}
/* Are rows readable in place as words? */
static inline bool pairs_in_place(const attn_layout *layout, int64_t dim) {
    return layout->stride[3] == 1 && layout->stride[2] % 2 == 0 && dim % 2 == 0;
}

static inline uint32_t pairs_word(const uint16_t *row, int64_t stride, int64_t pair, int64_t dim) {
    uint32_t low = row[2 * pair * stride];
    return 2 * pair + 1 < dim ? low | (uint32_t)row[(2 * pair + 1) * stride] << 16 : low;
}

/* [pair][lane] of ATTN_W rows. */
static __attribute__((unused)) void pairs_to_lanes(const void *const rows[ATTN_W], int64_t dim, int64_t dim_stride,
                                                   float *out, int64_t out_step) {
    if (dim_stride == 1 && dim % (2 * ATTN_W) == 0) {
        rows_to_lanes(ATTN_F32, rows, dim / 2, 1, out, out_step);
        return;
    }
    for (int64_t pair = 0; pair < pairs_of(dim); pair++) {
        for (int i = 0; i < ATTN_W; i++) {
            out[pair * out_step + i] = attn__bits_f32(pairs_word(rows[i], dim_stride, pair, dim));
        }
    }
}

/* Rows of words, for rows that cannot be read in place. */
static __attribute__((unused)) void pairs_copy_rows(const uint16_t *in, int64_t row_stride, int64_t dim_stride,
                                                    int64_t count, int64_t dim, float *out) {
    for (int64_t n = 0; n < count; n++) {
        for (int64_t pair = 0; pair < pairs_of(dim); pair++) {
            *out++ = attn__bits_f32(pairs_word(in + n * row_stride, dim_stride, pair, dim));
        }
    }
}

/* [pair of rows][dim]. */
static __attribute__((noinline, unused)) void pairs_interleave_rows(const uint16_t *in, int64_t row_stride,
                                                                    int64_t dim_stride, int64_t count, int64_t dim,
                                                                    float *out) {
    for (int64_t n = 0; n < count; n += 2) {
        const uint16_t *even = in + n * row_stride, *odd = even + row_stride;
        const bool whole = n + 1 < count;
        int64_t d = 0;
        if (dim_stride == 1 && whole) {
            for (; d + ATTN_W <= dim; d += ATTN_W) {
                vu low = (vu)vf_widen_bf16(even + d) >> 16, high = (vu)vf_widen_bf16(odd + d);
                vf_storeu(out + d, (vf)(low | high));
            }
        }
        for (; d < dim; d++) {
            uint32_t high = whole ? (uint32_t)odd[d * dim_stride] << 16 : 0;
            out[d] = attn__bits_f32(even[d * dim_stride] | high);
        }
        out += dim;
    }
}

/* Rows in pairs (2n, 2n + 1) as column tiles [tile][pair][ATTN_LANES], tile t at out + t * tile_words, zeros past `dim`
 * and for a last row without partner. */
static __attribute__((noinline, unused)) void pairs_to_tiles(const void *const *rows, int count, int64_t dim,
                                                             int64_t dim_stride, float *out, int64_t tile_words) {
    const int64_t padded = (dim + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    for (int n = 0; n < count; n += 2) {
        const uint16_t *even = rows[n], *odd = n + 1 < count ? rows[n + 1] : NULL;
        int64_t d = 0;
        if (dim_stride == 1 && odd) {
            for (; d + ATTN_W <= dim; d += ATTN_W) {
                float *at = out + d / ATTN_LANES * tile_words + n / 2 * ATTN_LANES + d % ATTN_LANES;
                vf_store(at, (vf)((vu)vf_widen_bf16(even + d) >> 16 | (vu)vf_widen_bf16(odd + d)));
            }
        }
        for (; d < padded; d++) {
            float *at = out + d / ATTN_LANES * tile_words + n / 2 * ATTN_LANES + d % ATTN_LANES;
            uint32_t low = d < dim ? even[d * dim_stride] : 0, high = d < dim && odd ? odd[d * dim_stride] : 0;
            *at = attn__bits_f32(low | high << 16);
        }
    }
}

/* Extends keys [*begin, *end) of a block [base, base + count) to whole pairs of the block; true if that took keys in.
 */
static inline bool pairs_whole(int64_t base, int64_t count, int64_t *begin, int64_t *end) {
    int64_t first = *begin - ((*begin - base) & 1), last = *end + ((*end - base) & 1);
    last = last > base + count ? base + count : last;
    bool wider = first != *begin || last != *end;
    *begin = first;
    *end = last;
    return wider;
}

/* Rows of words as float rows, for the careful path. */
static __attribute__((unused)) void pairs_split_rows(const float *words, int64_t row, int64_t count, int64_t dim,
                                                     float *out) {
    for (int64_t n = 0; n < count; n++) {
        const uint16_t *halves = (const uint16_t *)(const void *)(words + n * row);
        for (int64_t d = 0; d < dim; d++) {
            out[n * dim + d] = attn__bf16_to_f32(halves[d]);
        }
    }
}

/* Is no half of `words` words NaN or inf? */
static __attribute__((unused)) bool pairs_finite(const float *words, int64_t count) {
    const uint32_t low = 0x7f80u, high = 0x7f800000u;
    for (int64_t n = 0; n < count; n++) {
        uint32_t word = attn__f32_bits(words[n]);
        if ((word & low) == low || (word & high) == high) {
            return false;
        }
    }
    return true;
}

/* b of a product, `count` pairs long, back as float rows [2 * count][dim] for the careful path. */
static __attribute__((unused)) void pairs_widen(const float *words, int64_t count, int64_t dim, float *out) {
    for (int64_t n = 0; n < count; n++) {
        for (int64_t d = 0; d < dim; d++) {
            uint32_t word = attn__f32_bits(words[n * dim + d]);
            out[2 * n * dim + d] = attn__bits_f32(word << 16);
            out[(2 * n + 1) * dim + d] = attn__bits_f32(word & 0xffff0000u);
        }
    }
}

#endif

#endif
