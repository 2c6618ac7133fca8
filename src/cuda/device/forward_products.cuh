/* SPDX-License-Identifier: Apache-2.0
 * Forward's two products: queries with keys, and probabilities with values. */
#pragma once
#include "forward_copy.cuh"
#include "forward_score.cuh"

/* s = queries * keys. */
INLINE void multiply_keys(score_tile &s, const held_queries &held, uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int step = 0; step < STEPS_QK; step++) {
        uint32_t a[STRIPS][4];
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
            if (step < QUERIES_HELD) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    a[strip][n] = held[strip][step < QUERIES_HELD ? step : 0][n];
                }
            } else {
                load_a<DTYPE>(a[strip], queries + strip * 16 * PITCH_QK + step * STEP_BYTES);
            }
        }
#pragma unroll
        for (int pair = 0; pair < SCORES / 2; pair++) {
            uint32_t b[4];
            load_b<DTYPE>(b, keys + pair * 16 * PITCH_QK + step * STEP_BYTES);
#pragma unroll
            for (int strip = 0; strip < STRIPS; strip++) {
                if (step == 0) {
                    mma_set<DTYPE>(s[strip][2 * pair], a[strip], b[0], b[1]);
                    mma_set<DTYPE>(s[strip][2 * pair + 1], a[strip], b[2], b[3]);
                } else {
                    mma_add<DTYPE>(s[strip][2 * pair], a[strip], b[0], b[1]);
                    mma_add<DTYPE>(s[strip][2 * pair + 1], a[strip], b[2], b[3]);
                }
            }
        }
    }
}

/* o += probabilities * values. The probabilities of the next step are made between the products of this one, and the
 * copies of the next block are spread over all of them: in one piece they would stand before the warps' own reads. */
INLINE void multiply_values(const attn__params &p, const tile_work &tile, const block_feed &next, warp_rows &w,
                            score_tile &s, const float (&minus)[STRIPS][2], float factor, bool made, uint32_t values) {
    const int sums = SUMS_A_STEP(DTYPE), elements = STRIPS * sums * 4, pairs = (OUTPUTS + 1) / 2;
    row_feed feed = {};
    if (!made) {
        exponentiate(w, s, minus, factor, 0, 0, elements);
    }
#pragma unroll
    for (int step = 0; step < STEPS_PV; step++) {
        uint32_t a[STRIPS][4];
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
            sum_as_a<DTYPE>(a[strip], s[strip][step * sums], s[strip][step * sums + sums - 1]);
        }
#pragma unroll
        for (int pair = 0; pair < pairs; pair++) {
            uint32_t b[4];
            load_b_columns<DTYPE>(b, values + step * KEYS_A_STEP * PITCH_V + pair * 16 * SIZE, PITCH_V);
            if (STAGES > 1) {
                feed_slot(p, tile, next, feed, step * pairs + pair, STEPS_PV * pairs);
            }
            if (!made && step + 1 < STEPS_PV) {
                exponentiate(w, s, minus, factor, step + 1, pair * elements / pairs, (pair + 1) * elements / pairs);
            }
#pragma unroll
            for (int strip = 0; strip < STRIPS; strip++) {
                mma_add<DTYPE>(w.o[strip][2 * pair], a[strip], b[0], b[1]);
                if (2 * pair + 1 < OUTPUTS) {
                    mma_add<DTYPE>(w.o[strip][2 * pair + 1], a[strip], b[2], b[3]);
                }
            }
        }
    }
}
