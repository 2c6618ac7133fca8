/* SPDX-License-Identifier: Apache-2.0
 * From S^T and dP^T to P^T and dS^T in the registers of a computing warp group:
 *     P = 2^(score - lse),  dS = P (dP - delta), times the slope of a soft cap
 * A thread has keys row and row + 8 of its tile by columns 8 j + 2 t, + 1 of the step's queries (t = lane % 4). Hidden
 * pairs get the score -inf; rows that see nothing or do not exist have lse +inf. What NaN and inf in hidden rows do is
 * seen in the results and mended there (backward_store.cuh). */
#pragma once
#include "hopper/backward_pieces.cuh"
#include "hopper/backward_products.cuh"

INLINE uint32_t step_address(const worker &w) {
    return w.shared + AT_STEPS + w.q_ring.stage * STEP_RECORD;
}

/* Where the additions of dQ stand is left to the assembler unless something holds them. SPREAD: steps of 128 queries
 * gain by additions that it must leave between exponentials, and by exponentials before the wait for dK. Steps of 64
 * gain by additions in one burst that begins when the last exponent is known: ahead of them, as it would have it, loads
 * of lse queue up behind them (measured: docs/hopper.md). */
#define SPREAD (WIDTH == 64 && SCORE_PLAIN) /* scores, which may be negative, are no such exponentials */

/* x, which is not known before y is; y is not negative. */
INLINE float after(float x, float y) {
    return __uint_as_float(__float_as_uint(x) ^ (__float_as_uint(y) & 0x80000000u));
}
/* to, which is not known before y is: grids are one row high, which the assembler cannot know. */
INLINE float *after(float *to, float y) {
    return (float *)((uint64_t)to | (__float_as_uint(y) & (gridDim.y - 1)));
}

/* 16 queries of P^T, and a part of the additions of the last step's dQ, which hide behind the exponentials. */
template <int part, bool with_dq>
INLINE void probabilities_from(const attn__params &p, uint32_t lse_at, float factor, float (&s)[NS], float *sums,
                               float (&dq)[NQ]) {
    if constexpr (part < NS / 8) {
        const float4 lse = load_floats(lse_at + part * 64);
        const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float &x = s[8 * part + n];
            x = SCORE_PLAIN ? fmaf(x, factor, -of[n / 4 * 2 + (n & 1)]) : score_of_product(p, x);
        }
        if constexpr (with_dq && !SPREAD && part == NS / 8 - 1) {
            add_dq<0, NQ / 4>(after(sums, s[NS - 1]), dq);
        }
        if constexpr (SCORE_PLAIN) {
#pragma unroll
            for (int n = 0; n < 8; n++) {
                s[8 * part + n] = exp2_fast(s[8 * part + n]);
            }
        }
        if constexpr (with_dq && SPREAD) {
            static_assert(!SPREAD || NQ / 4 == NS / 8, "four sums wait for four exponentials");
#pragma unroll
            for (int n = 0; n < 4; n++) {
                dq[4 * part + n] = after(dq[4 * part + n], s[8 * part + 7 - n]);
            }
            add_dq<part, part + 1>(sums, dq);
        }
        probabilities_from<part + 1, with_dq>(p, lse_at, factor, s, sums, dq);
    }
}
/* S^T to P^T in place, or to scores (backward_pieces.cuh). late: slot of the dQ that is added meanwhile. */
template <bool with_dq>
INLINE void probabilities(const attn__params &p, const worker &w, float (&s)[NS], int late, float (&dq)[NQ]) {
    if constexpr (SCORE_PLAIN) {
        if (step_word(step_address(w), STEP_FLAGS) & STEP_MASKED) {
            hide(step_address(w), w.row, (w.lane & 3) * 2, s);
        }
    }
    float *sums = with_dq ? dq_place(p, w, late) : 0;
    probabilities_from<0, with_dq>(p, w.shared + AT_LSE + w.q_ring.stage * STATS + (w.lane & 3) * 16, p.scale * LOG2E,
                                   s, sums, dq);
    if (!SCORE_PLAIN && step_word(step_address(w), STEP_FLAGS) & STEP_MASKED) { /* what is hidden is not bent */
        hide(step_address(w), w.row, (w.lane & 3) * 2, s);
    }
    pin(s);
}

/* dS^T to shared memory for both groups and, like P^T, to 16 bits for the products of this one. Both are rounded piece
 * by piece: only then does the assembler reuse their registers in place. */
INLINE void gradients(const attn__params &p, const worker &w, float (&s)[NS], const float (&dp)[NS],
                      uint32_t (&p16)[NS / 2], uint32_t (&ds16)[NS / 2]) {
    const uint32_t lse_at = w.shared + AT_LSE + w.q_ring.stage * STATS + (w.lane & 3) * 16;
    const uint32_t delta_at = w.shared + AT_DELTA + w.do_ring.stage * STATS + (w.lane & 3) * 16;
    const uint32_t store = w.ds_store + w.buffer * DS_TILE;
#pragma unroll
    for (int j = 0; j < NS / 8; j++) {
        const float4 delta = load_floats(delta_at + j * 64);
        const float of[4] = {delta.x, delta.y, delta.z, delta.w};
        const float4 lse = SCORE_PLAIN ? delta : load_floats(lse_at + j * 64);
        const float lses[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int at = 8 * j + 2 * n, query = n / 2 * 2;
            ds16[4 * j + n] = narrow_pair<DTYPE>(gradient_of(p, s[at], dp[at], lses[query], of[query]),
                                                 gradient_of(p, s[at + 1], dp[at + 1], lses[query + 1], of[query + 1]));
        }
#pragma unroll
        for (int n = 4 * j; n < 4 * j + 4; n++) {
            p16[n] = narrow_pair<DTYPE>(s[2 * n], s[2 * n + 1]);
        }
        store_matrices((store + j / 4 * (TILE_KV * 128)) ^ (j % 4 * 32), ds16[4 * j], ds16[4 * j + 1], ds16[4 * j + 2],
                       ds16[4 * j + 3]);
    }
}
