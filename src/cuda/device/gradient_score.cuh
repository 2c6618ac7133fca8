/* SPDX-License-Identifier: Apache-2.0
 * From raw products to probabilities and dS, in a warp's registers:
 *     P = e^(score - lse),  dS = P (keep * dP - delta), bent by the soft cap
 * A lane's scores are QUERIES queries by KEYS keys; query_at and key_at say where in the tiles, score_at which
 * register. Where some pair of a step is hidden (`masked`) hidden pairs get P = dS = 0 by choice, not by arithmetic,
 * and the step is reported wild if any raw product is not finite: then a hidden NaN or inf may sit in q, k, v or dout,
 * and the products that follow must leave hidden pairs out one by one (careful.cuh). */
#pragma once
#include "dropout.cuh"
#include "gradient_tile.cuh"
#include "gradient_walk.cuh"
#include "score.cuh"
#include "softmax.cuh"

#define QUERIES (PASS_KEYS ? Y_BLOCKS * 2 : X_BLOCKS * 2)
#define KEYS    (PASS_KEYS ? X_BLOCKS * 2 : Y_BLOCKS * 2)

INLINE tile_place &tile_here() {
    return *(tile_place *)(shared_memory() + AT_TILE);
}

/* What a step is about; alike for all threads. Worked out where it is needed: most steps need none of it. */
typedef struct step_state {
    int head, sequence;
    int64_t query_position, shifted; /* i and i' of the query tile's first row */
    int key_position, keys;          /* j of the key tile's first row, and rows that exist */
} step_state;
INLINE step_state step_of(const walk &w) {
    const tile_place &tile = tile_here();
    const run_span &span = span_of(tile, w);
    const int64_t low = span.position + (int64_t)w.block * TILE_Y;
    step_state step;
    step.head = w.head;
    step.sequence = tile.sequence;
    step.shifted = PASS_KEYS ? low : tile.low;
    step.query_position = step.shifted - tile.shift;
    step.key_position = PASS_KEYS ? tile.low : (int)low;
    step.keys = PASS_KEYS ? tile.rows : span.rows - w.block * TILE_Y;
    return step;
}

INLINE float &score_at(warp_scores &scores, int query, int key) {
    if (PASS_KEYS) {
        return scores[key >> 1][query >> 1][(key & 1) * 2 + (query & 1)];
    }
    return scores[query >> 1][key >> 1][(query & 1) * 2 + (key & 1)];
}
INLINE int x_at(const place &at, int n) { /* rows g and g + 8 of 16 x 8 blocks */
    return at.x * WARP_X + (at.lane >> 2) + n * 8;
}
INLINE int y_at(const place &at, int n) { /* columns 2t and 2t + 1 */
    return at.y * WARP_Y + (at.lane & 3) * 2 + (n >> 1) * 8 + (n & 1);
}
INLINE int query_at(const place &at, int query) {
    return PASS_KEYS ? y_at(at, query) : x_at(at, query);
}
INLINE int key_at(const place &at, int key) {
    return PASS_KEYS ? x_at(at, key) : y_at(at, key);
}

/* --- Dropout: one bit a pair, drawn before the scores in a loop of its own, which keeps ten rounds of multiplications
 * out of the unrolled code. Four neighbouring keys share a draw. --- */

#define PAIRS (QUERIES * KEYS)
typedef uint64_t keep_bits; /* the lane's first query and key at bit 64 - PAIRS */

INLINE bool keeps(keep_bits bits, int query, int key) {
    return (bits >> (64 - PAIRS + query * KEYS + key)) & 1;
}
/* x[n] = x[n ^ r] for the lane's own r in 0 ... 3. */
INLINE void permute_four(uint32_t (&x)[4], int r) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (!(n & bit)) {
                const uint32_t low = x[n], high = x[n | bit];
                x[n] = r & bit ? high : low;
                x[n | bit] = r & bit ? low : high;
            }
        }
    }
}

/* Where keys run along rows, four neighbouring lanes have one key each of four draws: each lane makes one of them and
 * hands words over. Tiles begin at multiples of four keys, but for segments. */
INLINE uint32_t keep_of_rows(const attn__params &p, attn__dropout_key seed, const step_state &step, const place &at,
                             int64_t i) {
    const int r = at.lane >> 2 & 3;
    const int j = step.key_position + x_at(at, r);
    attn__u32x4 drawn = dropout_words(p, seed, j >> 2, i, step.head, step.sequence);
    uint32_t words[4] = {drawn.word[0], drawn.word[1], drawn.word[2], drawn.word[3]}, bits = 0;
    permute_four(words, r);
#pragma unroll
    for (int n = 1; n < 4; n++) {
        words[n] = __shfl_xor_sync(0xffffffffu, words[n], n << 2);
    }
    permute_four(words, r);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        bits |= (uint32_t)(words[n] >= seed.threshold) << n;
    }
    return bits;
}
INLINE uint32_t keep_one_by_one(const attn__params &p, attn__dropout_key seed, const step_state &step, const place &at,
                                int64_t i) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int key = 0; key < KEYS; key++) {
        const int j = step.key_position + key_at(at, key);
        attn__u32x4 drawn = dropout_words(p, seed, j >> 2, i, step.head, step.sequence);
        const uint32_t low = j & 1 ? drawn.word[1] : drawn.word[0], high = j & 1 ? drawn.word[3] : drawn.word[2];
        bits |= (uint32_t)((j & 2 ? high : low) >= seed.threshold) << key;
    }
    return bits;
}

INLINE keep_bits keep_draw(const attn__params &p, const step_state &step, const place &at) {
    const attn__dropout_key seed = dropout_key(p);
    keep_bits bits = 0;
#pragma unroll 1
    for (int query = 0; query < QUERIES; query++) {
        const int64_t i = step.query_position + query_at(at, query);
        const uint32_t row = PASS_KEYS && KEYS == 4 && ROWS_KV != SEGMENTS ? keep_of_rows(p, seed, step, at, i)
                                                                           : keep_one_by_one(p, seed, step, at, i);
        bits = bits >> KEYS | (keep_bits)row << (64 - KEYS);
    }
    return bits;
}

INLINE bool pair_seen(const attn__params &p, const row_band &band, const step_state &step, int key) {
    return key < step.keys && band_sees(p, band, step.key_position + key);
}

INLINE void add_dbias(const attn__params &p, const step_state &step, const place &at, int query, int key, float ds) {
    const attn__tensor_ref &t = p.dbias;
    int64_t i = step.query_position + query_at(at, query), j = step.key_position + key_at(at, key);
    atomicAdd((float *)t.data + step.sequence * t.stride[0] + step.head * t.stride[1] + i * t.stride[2] +
                  j * t.stride[3],
              ds);
}

/* lse and delta of a tile's queries: [2][TILE_Q]. Where queries are x they stay in registers, else they are read from
 * the stage when they are needed. */
typedef struct row_stats {
    const float *rows;
    float lse[PASS_KEYS ? 1 : QUERIES], delta[PASS_KEYS ? 1 : QUERIES];
} row_stats;

/* scores: raw products in, P (with dropout) out; gradients: dP in, dS out. Returns whether the step is wild. */
template <bool masked>
INLINE bool gradients_of(const attn__params &p, const walk &now, const place &at, const row_stats &stats,
                         keep_bits kept_pairs, warp_scores &scores, warp_scores &gradients) {
    const step_state step = step_of(now);
    const float factor = p.scale * LOG2E;
    bool wild = false;
#pragma unroll
    for (int query = 0; query < QUERIES; query++) {
        const int64_t shifted = step.shifted + query_at(at, query);
        const float lse = PASS_KEYS ? stats.rows[stat_at(query_at(at, query))] : stats.lse[query];
        const float delta = PASS_KEYS ? stats.rows[TILE_Q + stat_at(query_at(at, query))] : stats.delta[query];
        row_band band;
        score_row row;
        if (masked) {
            band = band_of_row(p, shifted, POSITION_MAX);
        }
        if (!SCORE_PLAIN) {
            row = score_row_of(p, step.sequence, step.head, step.query_position + query_at(at, query), shifted);
        }
#pragma unroll
        for (int key = 0; key < KEYS; key++) {
            float &score = score_at(scores, query, key), &gradient = score_at(gradients, query, key);
            float dp = gradient, bent = 1.0f, probability;
            bool seen = true;
            if (masked) {
                wild = wild || !is_finite(score) || !is_finite(dp);
                seen = pair_seen(p, band, step, key_at(at, key));
            }
            if (SCORE_PLAIN) {
                probability = exp2_fast(fmaf(score, factor, -lse));
            } else {
                float full = -INFINITY_F;
                if (seen && (!ALWAYS_MASKED || lse != INFINITY_F)) {
                    full = score_of(p, row, score, step.key_position + key_at(at, key), HAS_SOFTCAP ? &bent : 0);
                }
                seen = seen && full != -INFINITY_F;
                probability = exp2_fast((full - lse) * LOG2E);
            }
            float kept = probability;
            if (HAS_DROPOUT) {
                bool keep = keeps(kept_pairs, query, key);
                const float weight = keep ? p.keep_scale : 0.0f;
                kept = probability * weight;
                dp *= weight; /* 0 * inf: NaN */
            }
            float ds = probability * (dp - delta);
            if (masked || !SCORE_PLAIN) {
                kept = seen ? kept : 0.0f;
                ds = seen ? ds : 0.0f;
            }
            if (HAS_DBIAS && PASS_KEYS) {
                if (p.dbias.data && seen && lse != INFINITY_F) {
                    add_dbias(p, step, at, query, key, ds);
                }
            }
            score = kept;
            gradient = HAS_SOFTCAP ? ds * bent : ds;
        }
    }
    return wild;
}
