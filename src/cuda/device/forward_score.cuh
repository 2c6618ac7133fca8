/* SPDX-License-Identifier: Apache-2.0
 * Forward's scores on their way from products to probabilities, in a warp's registers: hidden, scored, measured against
 * the rows' references, dropped.
 *
 * A row's reference need not be its maximum: it is raised only when a score passes it by more than 2^8, so output and
 * sum are rarely rescaled. LAZY: blocks that every row sees whole do not look for a maximum at all once every row has a
 * reference; a probability may then grow to the type's limit, and what passes it is found at the end. That is 2^127 for
 * bf16 and tf32. f16 has 2^16 only, so its references stand 2^8 above the maximum they are taken from: 2^24, that is
 * e^16 times the largest probability of the first keys; at the lower end the steps of 2^-24 are still 2^-16 of the
 * largest probability. */
#pragma once
#include "dropout.cuh"
#include "forward_tile.cuh"
#include "score.cuh"
#include "softmax.cuh"

#define RAISE        8.0f                         /* log2 units, like the next */
#define HEADROOM     (DTYPE == F16 ? 8.0f : 0.0f) /* f16 ends at 2^16 */
#define NO_REFERENCE (-FLOAT_MAX) /* of a row that saw nothing yet: finite, so that -inf minus it stays -inf */

/* References are in natural units; those of bare products in log2 units (mode 0) or products (careful modes). */
#define FUSED(mode) (SCORE_PLAIN && (mode) == 0)
INLINE float reference_log2(const attn__params &p, int mode) {
    return FUSED(mode) ? 1.0f : unit_log2(p);
}
INLINE float reference_natural(const attn__params &p, int mode) {
    return FUSED(mode) ? LN2 : unit_natural(p);
}

/* Hides what the band and the lengths hide, and turns products into scores where they are more than that. */
template <bool boundary>
INLINE void hide_and_score(const attn__params &p, const tile_work &tile, const key_block &block, score_tile &s) {
    const rows_run &run = tile.run;
    const int thread = thread_index_again();
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row_of(strip, half, thread), token = row / PACK;
            if (!SCORE_PLAIN && token >= tile.rows) {
                token = tile.rows - 1; /* rows past the end read what the last one reads */
            }
            row_keys seen_keys = keys_of_row(p, tile.view, block, token, thread % 4 * 2);
            score_row score = {};
            if (!SCORE_PLAIN) {
                score = score_row_of(p, run.sequence, head_of(tile, row), run.position + tile.first + token,
                                     tile.view.low + token);
            }
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &x = s[strip][n][2 * half + c];
                    bool seen = !boundary || keys_show(seen_keys, n * 8 + c);
                    if (SCORE_PLAIN) {
                        x = seen ? x : -INFINITY_F;
                    } else {
                        int j = block.position + n * 8 + thread % 4 * 2 + c;
                        x = seen ? score_of(p, score, x, j, 0) : -INFINITY_F;
                    }
                }
            }
        }
    }
}

/* Raises references that the block passes too far (in careful modes: at all), and rescales what was summed against the
 * old ones. */
INLINE void raise_references(const attn__params &p, tile_work &tile, warp_rows &w, const score_tile &s, int mode) {
    const float log2_units = SCORE_PLAIN ? 1.0f : LN2, factor = FUSED(mode) ? p.scale * LOG2E : 1.0f;
    const float headroom = mode ? 0.0f : HEADROOM * log2_units, enough = mode ? 0.0f : RAISE * log2_units;
    float top[STRIPS][2];
    bool raise = false, lost = false; /* a product that is a number has left the range */
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = fmaxf(s[strip][0][2 * half], s[strip][0][2 * half + 1]);
#pragma unroll
            for (int n = 1; n < SCORES; n++) {
                x = fmaxf(x, fmaxf(s[strip][n][2 * half], s[strip][n][2 * half + 1]));
            }
            x = quad_max(x);
            top[strip][half] = x * factor + headroom;
            raise = raise || top[strip][half] > w.reference[strip][half] + enough;
            lost = lost || (SCORE_PLAIN && top[strip][half] == -INFINITY_F && x != -INFINITY_F);
        }
    }
    if (!__any_sync(0xffffffffu, raise || lost)) {
        return;
    }
    const float unit = reference_log2(p, mode);
    bool settled = true, far = lost;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float before = w.reference[strip][half], now = fmaxf(before, top[strip][half]);
            float scale = now == before ? 1.0f : exp2_fast((before - now) * unit); /* equal infinities too */
            w.reference[strip][half] = now;
            w.sum[strip][half] *= scale;
#pragma unroll
            for (int n = 0; n < OUTPUTS; n++) {
                w.o[strip][n][2 * half] *= scale;
                w.o[strip][n][2 * half + 1] *= scale;
            }
            settled = settled && now != NO_REFERENCE;
            far = far || (now != NO_REFERENCE && fabsf(now) >= FUSED_LIMIT);
        }
    }
    w.settled = __all_sync(0xffffffffu, settled);
    if (SCORE_PLAIN && far) {
        tile.far = true;
    }
}

/* Scores [first, last) of step `step`, counted through strips, sums and elements, become probabilities. */
INLINE void exponentiate(warp_rows &w, score_tile &s, const float (&minus)[STRIPS][2], float factor, int step,
                         int first, int last) {
    const int sums = SUMS_A_STEP(DTYPE);
#pragma unroll
    for (int n = 0; n < STRIPS * sums * 4; n++) {
        if (n >= first && n < last) {
            int strip = n / (sums * 4), half = n % 4 / 2;
            float &x = s[strip][step * sums + n / 4 % sums][n % 4];
            x = exp2_fast(SCORE_PLAIN ? fmaf(x, factor, minus[strip][half]) : (x + minus[strip][half]) * factor);
            w.sum[strip][half] += x;
        }
    }
}

/* Drops probabilities, or all that is not dropped; the kept ones are scaled at the end. */
INLINE void drop(const attn__params &p, const tile_work &tile, const key_block &block, bool others, score_tile &s) {
    attn__dropout_key key = dropout_key(p);
    const rows_run &run = tile.run;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row_of(strip, half), head = head_of(tile, row);
            int64_t i = run.position + tile.first + row / PACK;
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
                int j = block.position + n * 8 + lane_index() % 4 * 2;
                attn__u32x4 words = dropout_words(p, key, j >> 2, i, head, run.sequence);
                uint32_t left =
                    j & 2 ? (j & 1 ? words.word[3] : words.word[2]) : (j & 1 ? words.word[1] : words.word[0]);
                uint32_t right = j & 2 ? words.word[3] : (j & 1 ? words.word[2] : words.word[1]);
                if (ROWS_KV == SEGMENTS && (j & 3) == 3) { /* an odd first position: the pair spans two groups */
                    right = dropout_words(p, key, (j + 1) >> 2, i, head, run.sequence).word[0];
                }
                s[strip][n][2 * half] = (left >= key.threshold) != others ? s[strip][n][2 * half] : 0.0f;
                s[strip][n][2 * half + 1] = (right >= key.threshold) != others ? s[strip][n][2 * half + 1] : 0.0f;
            }
        }
    }
}

/* Everything between the two products that needs the whole block's scores. */
INLINE void settle_scores(const attn__params &p, tile_work &tile, const key_block &block, warp_rows &w, score_tile &s,
                          float (&minus)[STRIPS][2], float &factor) {
    const int mode = tile.mode;
    bool boundary = !block.whole;
    if (boundary) {
        hide_and_score<true>(p, tile, block, s);
    } else if (!SCORE_PLAIN) {
        hide_and_score<false>(p, tile, block, s);
    }
    if (mode >= 2) {
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
            for (int n = 0; n < SCORES * 4; n++) {
                float &x = s[strip][n / 4][n % 4];
                x = x == -INFINITY_F ? x : 0.0f;
            }
        }
    }
    factor = SCORE_PLAIN ? p.scale * LOG2E : LOG2E;
    if (!LAZY || boundary || mode || HAS_MASK || BIAS_DTYPE || !w.settled) {
        raise_references(p, tile, w, s, mode);
    }
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
        minus[strip][0] = -w.reference[strip][0];
        minus[strip][1] = -w.reference[strip][1];
    }
    if (SCORE_PLAIN && mode) { /* softmax.cuh: subtract first, multiply then */
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
            for (int n = 0; n < SCORES * 4; n++) {
                float &x = s[strip][n / 4][n % 4];
                x = (x + minus[strip][n % 4 / 2]) * unit_log2(p);
            }
            minus[strip][0] = minus[strip][1] = 0.0f;
        }
        factor = 1.0f;
    }
    if (HAS_DROPOUT) {
#pragma unroll
        for (int step = 0; step < STEPS_PV; step++) {
            exponentiate(w, s, minus, factor, step, 0, STRIPS * SUMS_A_STEP(DTYPE) * 4);
        }
        if (mode < 2 || mode == MODE_DROPPED) {
            drop(p, tile, block, mode == MODE_DROPPED, s);
        }
    }
}
