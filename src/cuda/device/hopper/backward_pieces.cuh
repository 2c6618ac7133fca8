/* SPDX-License-Identifier: Apache-2.0
 * What the schedules of backward on Hopper share in a computing thread: pairs that the band hides, and the addition of
 * dQ to its sums in memory. */
#pragma once
#include "hopper/backward_records.cuh"
#include "softmax.cuh"

INLINE int step_word(uint32_t step, int word) {
    return (int)load_word(step + word * 4);
}
/* step: address of its record. */
INLINE bool step_last(uint32_t step) {
    return (step_word(step, STEP_FLAGS) & STEP_LAST) != 0;
}
/* For a warp, all of whose lanes have read. */
INLINE void release(int lane, uint32_t barrier) {
    __syncwarp();
    if (lane == 0) {
        barrier_arrive(barrier);
    }
}

/* Columns of a row that the band shows: [low, high], and those from `causal` on where the pair is global. */
typedef struct row_columns {
    int low, high, causal;
    bool global;
} row_columns;
INLINE row_columns columns_of(uint32_t step, int row, int first) {
    row_columns columns = {-(1 << 30), 1 << 30, 1 << 30, false};
    if (BAND) {
        columns.low = row - step_word(step, STEP_ABOVE) - first;
    }
    if (BAND & WINDOW) {
        columns.high = row + step_word(step, STEP_BELOW) - first;
    }
    if (BAND & GLOBALS) {
        columns.causal = row - step_word(step, STEP_CAUSAL) - first;
        columns.global = row < step_word(step, STEP_GLOBAL_KEYS);
    }
    if (row >= step_word(step, STEP_KEYS)) {
        columns.low = columns.causal = 1 << 30;
    }
    return columns;
}
/* column: less the thread's first one, a constant. globals: columns below it are global queries. */
INLINE bool columns_show(const row_columns &columns, int column, int globals) {
    return (column >= columns.low && (!(BAND & WINDOW) || column <= columns.high)) ||
           ((BAND & GLOBALS) && (columns.global || column < globals) && column >= columns.causal);
}
/* step: address of its record; row, first: key and query of the thread's first score. */
template <int count> INLINE void hide(uint32_t step, int row, int first, float (&s)[count]) {
    const row_columns upper = columns_of(step, row, first), lower = columns_of(step, row + 8, first);
    const int globals = BAND & GLOBALS ? step_word(step, STEP_GLOBAL_QUERIES) - first : 0;
#pragma unroll
    for (int n = 0; n < count; n++) {
        if (!columns_show(n & 2 ? lower : upper, n / 4 * 8 + (n & 1), globals)) {
            s[n] = -INFINITY_F;
        }
    }
}

/* --- Scores that are more than a scaled product (SCORE_PLAIN off) and lse in natural units. They stay scores, before a
 * cap its tanh, until dP has come: dS needs the slope by then, which so costs no registers. --- */

INLINE float score_of_product(const attn__params &p, float product) {
    return HAS_SOFTCAP ? bend(product, 2.0f * LOG2E * p.scale * reciprocal_fast(p.softcap)) : product * p.scale;
}
/* score: of a pair, becomes its probability. Returns what the cap makes of a gradient; 0 for a hidden pair. */
INLINE float probability_of_score(const attn__params &p, float &score, float lse) {
    const float slope = HAS_SOFTCAP ? fmaxf(fmaf(-score, score, 1.0f), 0.0f) : 1.0f;
    score = exp2_fast((HAS_SOFTCAP ? fmaf(score, p.softcap, -lse) : score - lse) * LOG2E);
    return slope;
}

/* dS of a pair, whose score becomes its probability if it is not yet. */
INLINE float gradient_of(const attn__params &p, float &score, float dp, float lse, float delta) {
    if constexpr (SCORE_PLAIN) {
        return score * (dp - delta);
    } else {
        const float slope = probability_of_score(p, score, lse);
        return score * (dp - delta) * slope;
    }
}

/* Pieces first ... last - 1 of a thread's part, 16 bytes each; a warp adds 512 bytes. */
template <int first, int last, int count> INLINE void add_dq(float *to, const float (&x)[count]) {
    if constexpr (first < last) {
        asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0 + %5], {%1, %2, %3, %4};" ::"l"(to), "f"(x[4 * first]),
                     "f"(x[4 * first + 1]), "f"(x[4 * first + 2]), "f"(x[4 * first + 3]), "n"(first * 512)
                     : "memory");
        add_dq<first + 1, last>(to, x);
    }
}
