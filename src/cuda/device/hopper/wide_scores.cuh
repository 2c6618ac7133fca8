/* SPDX-License-Identifier: Apache-2.0
 * From S^T and dP^T to P^T and dS^T, as backward_scores.cuh does for narrower heads: here a group has 32 queries of the
 * step, and what it has made goes to shared memory too, where the other group, and of dS the other block, read it. */
#pragma once
#include "hopper/backward_pieces.cuh"
#include "hopper/wide_products.cuh"
#include "softmax.cuh"

INLINE uint32_t step_address(const worker &w) {
    return w.shared + AT_STEPS + w.q_ring.stage * STEP_RECORD;
}

/* lse or delta of this group's queries that this lane has; part: 16 of them. */
INLINE float4 stats_of(const worker &w, uint32_t stats, int part) {
    return load_floats(stats + (2 * w.group + part) * 64 + (w.lane & 3) * 16);
}

/* S^T to P^T in place. */
INLINE void probabilities(const attn__params &p, const worker &w, float (&s)[NS]) {
    if (step_word(step_address(w), STEP_FLAGS) & STEP_MASKED) {
        hide(step_address(w), w.row, 32 * w.group + (w.lane & 3) * 2, s);
    }
    const float factor = p.scale * LOG2E;
#pragma unroll
    for (int part = 0; part < NS / 8; part++) {
        const float4 lse = stats_of(w, w.shared + AT_LSE + w.q_ring.stage * STATS, part);
        const float of[4] = {lse.x, lse.y, lse.z, lse.w};
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float &x = s[8 * part + n];
            x = exp2_fast(fmaf(x, factor, -of[n / 4 * 2 + (n & 1)]));
        }
    }
    pin(s);
}

/* P^T and dS^T, rounded, to shared memory and as the factors of this group's own queries. */
INLINE void gradients(const worker &w, const float (&s)[NS], const float (&dp)[NS], uint32_t (&p16)[NS / 2],
                      uint32_t (&ds16)[NS / 2]) {
    const uint32_t to = w.shared + w.store, ds = to + w.ds_ring.stage * PANEL;
#pragma unroll
    for (int part = 0; part < NS / 8; part++) {
        const float4 delta = stats_of(w, w.shared + AT_DELTA, part);
        const float of[4] = {delta.x, delta.y, delta.z, delta.w};
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int at = 8 * part + 2 * n;
            ds16[4 * part + n] =
                narrow_pair<DTYPE>(s[at] * (dp[at] - of[n / 2 * 2]), s[at + 1] * (dp[at + 1] - of[n / 2 * 2 + 1]));
            p16[4 * part + n] = narrow_pair<DTYPE>(s[at], s[at + 1]);
        }
        store_matrices((to + AT_P) ^ (part * 32), p16[4 * part], p16[4 * part + 1], p16[4 * part + 2],
                       p16[4 * part + 3]);
        store_matrices((ds + AT_DS) ^ (part * 32), ds16[4 * part], ds16[4 * part + 1], ds16[4 * part + 2],
                       ds16[4 * part + 3]);
    }
}
