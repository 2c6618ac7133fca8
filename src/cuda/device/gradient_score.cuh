/* SPDX-License-Identifier: Apache-2.0
 * From raw products to probabilities and dS, in a warp's registers:
 *     P = 2^(score - lse),  dS = P (keep * dP - delta), bent by the soft cap
 * A lane's scores are QUERIES queries by KEYS keys; query_at and key_at say where in the tiles, score_at which
 * register. Where some pair of a step is hidden (`masked`) hidden pairs get P = dS = 0 by choice, not by arithmetic,
 * and the step is reported wild if any raw product is not finite: then a hidden NaN or inf may sit in q, k, v or dout,
 * and the products that follow must leave hidden pairs out one by one (careful.cuh). */
#pragma once
#include "dropout.cuh"
#include "gradient_tile.cuh"
#include "score.cuh"
#include "softmax.cuh"

/* Pairs are hidden one by one, so every step is masked. */
#define ALWAYS_MASKED (HAS_MASK || BIAS_DTYPE)

#define QUERIES (PASS_KEYS ? Y_BLOCKS * 2 : X_BLOCKS * 2)
#define KEYS    (PASS_KEYS ? X_BLOCKS * 2 : Y_BLOCKS * 2)

/* What a step is about; alike for all threads. */
typedef struct step_state {
    int head, sequence;
    int64_t query_position, shifted; /* i and i' of the query tile's first row */
    int key_position, keys;          /* j of the key tile's first row, and rows that exist */
} step_state;

INLINE float &score_at(warp_scores &scores, int query, int key) {
    if (PASS_KEYS) {
        return scores[key >> 1][query >> 1][(key & 1) * 2 + (query & 1)];
    }
    return scores[query >> 1][key >> 1][(query & 1) * 2 + (key & 1)];
}
INLINE int x_at(int n) { /* rows g and g + 8 of 16 x 8 blocks */
    return warp_x() * WARP_X + (lane_index() >> 2) + n * 8;
}
INLINE int y_at(int n) { /* columns 2t and 2t + 1 */
    return warp_y() * WARP_Y + (lane_index() & 3) * 2 + (n >> 1) * 8 + (n & 1);
}
INLINE int query_at(int query) {
    return PASS_KEYS ? y_at(query) : x_at(query);
}
INLINE int key_at(int key) {
    return PASS_KEYS ? x_at(key) : y_at(key);
}

/* Random words of a query's keys. Four neighbouring keys share one draw. Where keys run along rows four neighbouring
 * lanes have one each: each lane draws for one in four (query, key) and hands words over. That needs the first key of
 * the tile at a multiple of four, as it is but for segments; elsewhere each lane draws what it needs. */
INLINE void dropout_row(const attn__params &p, attn__dropout_key seed, const step_state &step, int query,
                        uint32_t (&words)[KEYS]) {
    int64_t i = step.query_position + query_at(query);
#pragma unroll
    for (int key = 0; key < KEYS; key++) {
        int j = step.key_position + key_at(key);
        if (key > 0 && !PASS_KEYS && (key & 1) && (j & 3)) {
            continue;
        }
        attn__u32x4 drawn = dropout_words(p, seed, j >> 2, i, step.head, step.sequence);
        words[key] = (j & 3) == 0   ? drawn.word[0]
                     : (j & 3) == 1 ? drawn.word[1]
                     : (j & 3) == 2 ? drawn.word[2]
                                    : drawn.word[3];
        if (!PASS_KEYS && !(key & 1) && (j & 3) != 3) {
            words[key + 1] = (j & 3) == 0 ? drawn.word[1] : (j & 3) == 1 ? drawn.word[2] : drawn.word[3];
        }
    }
}

INLINE bool pair_seen(const attn__params &p, const row_band &band, const step_state &step, int key) {
    return key < step.keys && band_sees(p, band, step.key_position + key);
}

INLINE void add_dbias(const attn__params &p, const step_state &step, int query, int key, float ds) {
    const attn__tensor_ref &t = p.dbias;
    int64_t i = step.query_position + query_at(query), j = step.key_position + key_at(key);
    atomicAdd((float *)t.data + step.sequence * t.stride[0] + step.head * t.stride[1] + i * t.stride[2] +
                  j * t.stride[3],
              ds);
}

/* scores: raw products in, P (with dropout) out; gradients: dP in, dS out. lse, delta: of the lane's queries. Returns
 * whether the step is wild. */
template <bool masked>
INLINE bool gradients_of(const attn__params &p, const step_state &step, const float (&lse)[QUERIES],
                         const float (&delta)[QUERIES], warp_scores &scores, warp_scores &gradients) {
    const float factor = p.scale * LOG2E;
    const attn__dropout_key seed = HAS_DROPOUT ? dropout_key(p) : attn__dropout_key();
    bool wild = false;
#pragma unroll
    for (int query = 0; query < QUERIES; query++) {
        const int64_t shifted = step.shifted + query_at(query);
        row_band band;
        score_row row;
        uint32_t words[KEYS];
        if (masked) {
            band = band_of_row(p, shifted, POSITION_MAX);
        }
        if (!SCORE_PLAIN) {
            row = score_row_of(p, step.sequence, step.head, step.query_position + query_at(query), shifted);
        }
        if (HAS_DROPOUT) {
            dropout_row(p, seed, step, query, words);
        }
#pragma unroll
        for (int key = 0; key < KEYS; key++) {
            float &score = score_at(scores, query, key), &gradient = score_at(gradients, query, key);
            float dp = gradient, bent = 1.0f, probability;
            bool seen = true;
            if (masked) {
                wild = wild || !is_finite(score) || !is_finite(dp);
                seen = pair_seen(p, band, step, key_at(key));
            }
            if (SCORE_PLAIN) {
                probability = exp2_fast(fmaf(score, factor, -lse[query]));
            } else {
                float full = -INFINITY_F;
                if (seen && (!ALWAYS_MASKED || lse[query] != INFINITY_F)) {
                    full = score_of(p, row, score, step.key_position + key_at(key), HAS_SOFTCAP ? &bent : 0);
                }
                seen = seen && full != -INFINITY_F;
                probability = exp2_fast(full - lse[query]);
            }
            float kept = probability;
            if (HAS_DROPOUT) {
                bool keep = words[key] >= seed.threshold;
                kept = keep ? probability * p.keep_scale : 0.0f;
                dp = keep ? dp * p.keep_scale : 0.0f;
            }
            float ds = probability * (dp - delta[query]);
            if (masked || !SCORE_PLAIN) {
                kept = seen ? kept : 0.0f;
                ds = seen ? ds : 0.0f;
            }
            if (HAS_DBIAS && PASS_KEYS) {
                if (p.dbias.data && seen && lse[query] != INFINITY_F) {
                    add_dbias(p, step, query, key, ds);
                }
            }
            score = kept;
            gradient = HAS_SOFTCAP ? ds * bent : ds;
        }
    }
    return wild;
}
