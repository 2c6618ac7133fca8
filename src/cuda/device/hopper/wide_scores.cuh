/* SPDX-License-Identifier: Apache-2.0
 * From S^T and dP^T to P^T and dS^T, as backward_scores.cuh does for narrower heads: here both go to shared memory,
 * where the groups that make dV and dK read them, and of dS the other block. */
#pragma once
#include "hopper/backward_pieces.cuh"
#include "hopper/wide_products.cuh"

/* A thread of the group that makes scores: its place, its operands, and where it stands in the rings. */
typedef struct scorer {
    uint32_t shared, peer;
    int lane, warp;
    int row;        /* key of its first sums inside the block's half; the other is + 8 */
    uint32_t store; /* this lane's place in P or a stage of DS */
    int64_t dq;     /* in a slot of dQ */
    int half;       /* of dQ's columns: the block's rank */
    ring_place q, dout, ds, outputs;
    uint32_t tile_parity, p_parity, dsx_parity;
    uint32_t turn; /* steps whose dQ was added (backward_order.cuh) */
} scorer;

INLINE scorer scorer_make(uint32_t shared, int warp, int rank) {
    scorer w;
    w.shared = shared;
    w.peer = peer_shared(shared, 1 - rank);
    w.lane = (int)(threadIdx.x & 31);
    w.warp = warp;
    w.row = warp * 16 + (w.lane >> 2);
    w.store = (warp * 16 + (w.lane & 15)) * 128 + (((w.lane >> 4) ^ (w.lane & 7)) << 4);
    /* In the order of gradient_tile.cuh's add_dq, with two warps along the rows. */
    w.dq = ((warp / 2) * 4 + 2 * rank) * 2048 + (warp & 1) * 1024 + w.lane * 4;
    w.half = rank;
    w.q = w.dout = w.outputs = {0, 0};
    w.ds = {0, 1};
    w.tile_parity = w.dsx_parity = w.turn = 0;
    w.p_parity = 1;
    return w;
}

INLINE uint32_t step_address(const scorer &w) {
    return w.shared + AT_STEPS + w.q.stage * STEP_RECORD;
}
/* lse (0) or delta (1) of the queries that this lane has: asked for before the products that it meets are complete. */
typedef struct lane_stats {
    float4 part[NS / 8];
} lane_stats;
INLINE lane_stats stats_of(const scorer &w, int which) {
    lane_stats stats;
#pragma unroll
    for (int part = 0; part < NS / 8; part++) {
        stats.part[part] =
            load_floats(w.shared + AT_STATS + w.q.stage * STATS + which * (STATS / 2) + part * 64 + (w.lane & 3) * 16);
    }
    return stats;
}

/* S^T to P^T in place, or to scores (backward_pieces.cuh); P^T, rounded, to shared memory, whose last readers are done.
 */
INLINE void probabilities(const attn__params &p, const scorer &w, bool masked, const lane_stats &lse, float (&s)[NS]) {
    if constexpr (!SCORE_PLAIN) { /* first: what is hidden is not bent */
#pragma unroll
        for (int n = 0; n < NS; n++) {
            s[n] = score_of_product(p, s[n]);
        }
    }
    if (masked) {
        hide(step_address(w), w.row, (w.lane & 3) * 2, s);
    }
    const float factor = p.scale * LOG2E;
    const uint32_t to = here(w.shared + AT_P + w.store);
#pragma unroll
    for (int part = 0; part < NS / 8; part++) {
        const float of[4] = {lse.part[part].x, lse.part[part].y, lse.part[part].z, lse.part[part].w};
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float &x = s[8 * part + n];
            if constexpr (SCORE_PLAIN) {
                x = exp2_fast(fmaf(x, factor, -of[n / 4 * 2 + (n & 1)]));
            }
        }
    }
#pragma unroll
    for (int part = 0; part < NS / 8; part++) {
        uint32_t p16[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float low = s[8 * part + 2 * n], high = s[8 * part + 2 * n + 1];
            if constexpr (!SCORE_PLAIN) { /* made once more when dP has come */
                const float4 &of = lse.part[part];
                probability_of_score(p, low, n < 2 ? of.x : of.z);
                probability_of_score(p, high, n < 2 ? of.y : of.w);
            }
            p16[n] = narrow_pair<DTYPE>(low, high);
        }
        store_matrices(to ^ (part * 32), p16[0], p16[1], p16[2], p16[3]);
    }
    pin(s);
    fence_async();
    release(w.lane, w.shared + P_FULL);
}

/* dS^T, rounded, to a stage of DS. */
INLINE void gradients(const attn__params &p, const scorer &w, const lane_stats &delta, float (&s)[NS],
                      const float (&dp)[NS]) {
    const lane_stats lse = SCORE_PLAIN ? delta : stats_of(w, 0);
    const uint32_t to = here(w.shared + AT_DS + w.ds.stage * PANEL + w.store);
#pragma unroll
    for (int part = 0; part < NS / 8; part++) {
        const float of[4] = {delta.part[part].x, delta.part[part].y, delta.part[part].z, delta.part[part].w};
        const float lses[4] = {lse.part[part].x, lse.part[part].y, lse.part[part].z, lse.part[part].w};
        uint32_t ds16[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int at = 8 * part + 2 * n, query = n / 2 * 2;
            ds16[n] = narrow_pair<DTYPE>(gradient_of(p, s[at], dp[at], lses[query], of[query]),
                                         gradient_of(p, s[at + 1], dp[at + 1], lses[query + 1], of[query + 1]));
        }
        store_matrices(to ^ (part * 32), ds16[0], ds16[1], ds16[2], ds16[3]);
    }
}
