/* SPDX-License-Identifier: Apache-2.0
 * Scores to probabilities, in a warp's registers (laid out as wgmma.cuh tells): a thread holds two rows, 8 apart.
 *
 * Each row has a reference r (log2 units); what is summed is 2^(factor s - r). As long as nothing overflows r need not be
 * the largest score. But a weight that is rounded and not 1 is off by up to half a unit in its last place, and where it
 * outweighs the rest of its row so is the output, since the sum takes it unrounded. So r stays near the largest:
 *   - blocks that look for it (a tile's first, and masked ones) move r only if the largest grew by more than LAZY;
 *   - NO_MAX: blocks without masked keys do not look at all. Their sums are needed anyway and are the alarm: a partial
 *     sum of ALARM or more makes the warp scale the block's weights down to a largest of 1, and where one reaches LOST,
 *     past which they may have overflowed, it first computes the block's scores again with warp-wide products. */
#pragma once
#include "hopper/forward_tile.cuh"
#include "score.cuh"

#define LAZY         2.0f
#define NO_REFERENCE (-1.0e30f) /* of a row that has seen no key: finite, so that no NaN arises */
#define SCORES       (TILE_KV / 2)
#define SUMS         (WIDTH_V / 2)

typedef struct forward_rows {
    float s[SCORES];              /* scores, then probabilities, of the block */
    float o[SUMS];                /* outputs times sum */
    uint32_t weights[SCORES / 2]; /* the block's probabilities, rounded */
    uint32_t q[QUERIES_HELD ? STEPS_QK * 4 : 1];
    float reference[2], sum[2]; /* of this thread's columns */
    float shrink[2];            /* what outputs so far are multiplied by, if `moved` */
    bool moved;
    float factor; /* from products (with a soft cap: from its tanh) to log2 units */
} forward_rows;

/* A thread's place. */
typedef struct forward_place {
    int group, warp, lane;
    int row;  /* the thread's first, as a position of the tile */
    int head; /* and its head, from the tile's on */
} forward_place;

INLINE void bend_scores(const attn__params &p, forward_rows &w) {
    if (HAS_SOFTCAP) {
        const float exponent = 2.0f * LOG2E * p.scale / p.softcap;
#pragma unroll
        for (int n = 0; n < SCORES; n++) {
            w.s[n] = bend(w.s[n], exponent);
        }
    }
}

/* What the band hides becomes -inf. */
INLINE void hide_keys(const attn__params &p, const forward_tile &tile, const key_block &block, const forward_place &at,
                      forward_rows &w) {
    key_view view;
    view.low = tile.low;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const row_keys keys = keys_of_row(p, view, block, at.row + 8 * half, 2 * (at.lane & 3));
#pragma unroll
        for (int n = 0; n < TILE_KV / 8; n++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!keys_show(keys, 8 * n + e)) {
                    w.s[4 * n + 2 * half + e] = -INFINITY_F;
                }
            }
        }
    }
}

/* The largest of each row, of scores as they come from products or of weights. */
INLINE void find_peaks(const forward_rows &w, float (&peak)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float x = w.s[2 * half], y = w.s[2 * half + 1];
#pragma unroll
        for (int n = 1; n < TILE_KV / 8; n++) {
            x = fmaxf(x, w.s[4 * n + 2 * half]);
            y = fmaxf(y, w.s[4 * n + 2 * half + 1]);
        }
        peak[half] = quad_max(fmaxf(x, y));
    }
}
/* The largest score of each row, in log2 units and at least NO_REFERENCE. */
INLINE void find_largest(const forward_rows &w, float (&largest)[2]) {
    find_peaks(w, largest);
    largest[0] = fmaxf(largest[0] * w.factor, NO_REFERENCE);
    largest[1] = fmaxf(largest[1] * w.factor, NO_REFERENCE);
}

/* Scores become probabilities; sum: of this thread's columns. Returns the largest partial sum, of half the columns. */
INLINE float raise_scores(forward_rows &w, float (&sum)[2]) {
    float even[2] = {0.0f, 0.0f}, odd[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < TILE_KV / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w.s[4 * n + e] = exp2_fast(fmaf(w.s[4 * n + e], w.factor, -w.reference[e / 2]));
        }
        even[0] += w.s[4 * n];
        odd[0] += w.s[4 * n + 1];
        even[1] += w.s[4 * n + 2];
        odd[1] += w.s[4 * n + 3];
    }
    sum[0] = even[0] + odd[0];
    sum[1] = even[1] + odd[1];
    return fmaxf(fmaxf(even[0], odd[0]), fmaxf(even[1], odd[1]));
}

INLINE void move_references(forward_rows &w, const float (&largest)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float now = fmaxf(largest[half], w.reference[half]);
        w.shrink[half] = exp2_fast(w.reference[half] - now);
        w.reference[half] = now;
        w.sum[half] *= w.shrink[half];
    }
}

/* A tile's first block. Rows past the tile's last hold a neighbour's queries, or zeros. Their weights are 0 or NaN, which
 * raises no alarm: what they hold does not show in the rounding of others. */
INLINE void softmax_first(const forward_tile &tile, const forward_place &at, forward_rows &w) {
    find_largest(w, w.reference);
    w.reference[0] = at.row < tile.rows ? w.reference[0] : INFINITY_F;
    w.reference[1] = at.row + 8 < tile.rows ? w.reference[1] : INFINITY_F;
    raise_scores(w, w.sum);
    w.moved = false;
}

/* A later block that looks for the largest. */
INLINE void softmax_looking(forward_rows &w) {
    float largest[2], sum[2];
    find_largest(w, largest);
    w.moved = __any_sync(0xffffffffu, largest[0] > w.reference[0] + LAZY || largest[1] > w.reference[1] + LAZY);
    if (w.moved) {
        move_references(w, largest);
    }
    raise_scores(w, sum);
    w.sum[0] += sum[0];
    w.sum[1] += sum[1];
}

INLINE void scores_again(const forward_place &at, forward_rows &w, uint32_t queries, uint32_t keys) {
    const int qr = at.group * 64 + at.warp * 16 + (at.lane & 15), kr = ((at.lane >> 4) << 3) + (at.lane & 7);
#pragma unroll
    for (int n = 0; n < SCORES; n++) {
        w.s[n] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < STEPS_QK; k++) {
        uint32_t a[4], b[4];
        ldmatrix(a, queries + (k / 4) * PANEL_Q + qr * 128 + ((((k % 4) * 2 + (at.lane >> 4)) ^ (qr & 7)) << 4));
        const uint32_t ka =
            keys + (k / 4) * PANEL_KV + kr * 128 + ((((k % 4) * 2 + (at.lane >> 3 & 1)) ^ (kr & 7)) << 4);
#pragma unroll
        for (int n = 0; n < TILE_KV / 8; n += 2) {
            float(&left)[4] = *(float(*)[4])(w.s + 4 * n), (&right)[4] = *(float(*)[4])(w.s + 4 * n + 4);
            ldmatrix(b, ka + n * 1024);
            mma_add<DTYPE>(left, a, b[0], b[1]);
            mma_add<DTYPE>(right, a, b[2], b[3]);
        }
    }
}

/* NaN does not: it stays in its row, which is computed again if it counts. */
INLINE bool reaches(float sum, unsigned bits) {
    return __any_sync(0xffffffffu, sum >= __uint_as_float(bits));
}

/* References move to the block's largest weights, and its weights with them. */
INLINE void lower_weights(forward_rows &w, float (&sum)[2]) {
    float largest[2];
    find_peaks(w, largest);
    largest[0] = w.reference[0] + log2_fast(largest[0]);
    largest[1] = w.reference[1] + log2_fast(largest[1]);
    move_references(w, largest);
#pragma unroll
    for (int n = 0; n < SCORES; n++) {
        w.s[n] *= w.shrink[n / 2 & 1];
    }
    sum[0] *= w.shrink[0];
    sum[1] *= w.shrink[1];
}

/* A block whose every key every row sees, without a look unless the alarm tells. */
INLINE void softmax_blind(const attn__params &p, const forward_place &at, forward_rows &w, uint32_t queries,
                          uint32_t keys) {
    float sum[2], largest[2];
    const float most = raise_scores(w, sum);
    w.moved = reaches(most, ALARM);
    if (w.moved) {
        if (reaches(most, LOST)) {
            scores_again(at, w, queries, keys);
            bend_scores(p, w);
            find_largest(w, largest);
            move_references(w, largest);
            raise_scores(w, sum);
        } else {
            lower_weights(w, sum);
        }
    }
    w.sum[0] += sum[0];
    w.sum[1] += sum[1];
}

INLINE void round_weights(forward_rows &w) {
#pragma unroll
    for (int n = 0; n < SCORES / 2; n++) {
        w.weights[n] = narrow_pair<DTYPE>(w.s[2 * n], w.s[2 * n + 1]);
    }
}
INLINE void shrink_outputs(forward_rows &w) {
    if (w.moved) {
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
            w.o[n] *= w.shrink[n / 2 & 1];
        }
    }
}
