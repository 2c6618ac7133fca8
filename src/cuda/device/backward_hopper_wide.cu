/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper for heads of 129 to 256; what runs before and after is as for backward_hopper.cu.
 *
 * Gradients of 64 keys take half of a processor's registers here, and adding dQ of 64 keys at a time would take more of
 * the second-level cache than all else. So two blocks of threads on two processors (a cluster) share a tile of 128 keys
 * and walk its queries together: each has P, dS, dK and dV of its own 64 keys, each gets the other's dS and makes half
 * of the columns of dQ for all 128, and each loads half of q and dout for both.
 *
 * A block is four warps of which a thread each loads, places tiles or sends dS (wide_load.cuh), and three warp groups
 * that compute. The first makes P and dS, and dQ, in this order ("|": it waits):
 *
 *     S(0) | P(0)
 *     step i:  dP(i), dQ(i-1) | dS(i) | S(i+1) and additions of dQ(i-1) in turn | P(i+1)
 *     finish:  additions of dQ(n-2); dQ(n-1) | its additions
 *
 * The second makes dV of a step as soon as P and dout are there, the third dK as soon as dS and q are there; each holds
 * its sums in registers until the tile's end and stores them while the first is in the next tile. As these two need
 * nothing else, the tensor cores have their products wherever the first waits or computes. dQ runs one step late, so
 * that the way of dS to the other block costs nothing. */
#include "hopper/backward_store.cuh"
#include "hopper/wide_load.cuh"
#include "hopper/wide_scores.cuh"

#define THREADS 512

/* --- The first group: P, dS, dQ --- */

/* Slots of dQ: of this step and of the step before. */
typedef struct step_slots {
    int now, late;
} step_slots;

/* The stage of DS of the step before: filled with the parity opposite to that with which it was found empty. */
INLINE ring_place late_of(const scorer &w) {
    ring_place late;
    late.stage = 1 - w.ds.stage;
    late.parity = w.ds.parity ^ (uint32_t)(w.ds.stage != 0);
    return late;
}
/* dS of the step before, of both blocks. */
INLINE void wait_for_late(const scorer &w, const ring_place &late) {
    while (!(barrier_try(w.shared + DS_FULL + 8 * late.stage, late.parity) &
             barrier_try(w.shared + DSX_FULL, w.dsx_parity))) {
    }
}
INLINE void issue_late_dq(const scorer &w, float (&dq)[NQ], int stage) {
    issue_dq(dq, (uint32_t)operand_rows(w.shared + AT_DS + stage * PANEL),
             (uint32_t)operand_columns(w.shared + AT_K + w.half * HALF_TILE, PANEL),
             (uint32_t)operand_rows(w.shared + AT_DSX), (uint32_t)operand_columns(w.shared + AT_KX, PANEL));
}
/* dQ is complete: the other block may send again. */
INLINE void end_dq(scorer &w, float (&dq)[NQ]) {
    pin(dq);
    release_peer(w.lane, w.peer + DSX_EMPTY);
    w.dsx_parity ^= 1;
}

INLINE float *sums_at(const attn__params &p, const scorer &w, int slot) {
    return p.dq_sum + (int64_t)slot * (TILE_Q * WIDTH) + w.dq;
}
/* Pieces of 16 bytes; the second half's 64 columns are 2048 floats on, of which 1024 are in its numbers. */
template <int first, int count> INLINE void add_pieces(float *to, const float (&dq)[NQ]) {
    add_dq<first, first + count>(first < NQ / 8 ? to : to + 1024, dq);
}

INLINE void add_all(const attn__params &p, scorer &w, int slot, const float (&dq)[NQ]) {
    turn_wait(w.shared, w.turn);
    add_pieces<0, NQ / 8>(sums_at(p, w, slot), dq);
    add_pieces<NQ / 8, NQ / 8>(sums_at(p, w, slot), dq);
    turn_end(w.shared, w.lane, w.turn++);
}

/* Products of S^T in eight parts with an eighth of the additions of dQ after each: a warp that issues products waits
 * for the tensor cores to take them, and the additions go out meanwhile. The warp is told to meet since the assembler
 * would put all additions first otherwise. */
template <int part, bool with_dq>
INLINE void scores_from(float (&s)[NS], uint32_t k, uint32_t q, float *to, const float (&dq)[NQ]) {
    if constexpr (part < 8) {
        constexpr int first = part * 32 < DIM_QK ? part * 32 : DIM_QK;
        constexpr int last = first + 32 < DIM_QK ? first + 32 : DIM_QK;
        if constexpr (first < last) {
            product_scores<first, last>(s, k, q, false);
        }
        if constexpr (with_dq) {
            __syncwarp();
            add_pieces<part *(NQ / 32), NQ / 32>(to, dq);
            __syncwarp();
        }
        scores_from<part + 1, with_dq>(s, k, q, to, dq);
    }
}
/* S^T of a step, and the additions of dQ of the step two before it. */
template <bool with_dq>
INLINE void issue_scores(const attn__params &p, const scorer &w, float (&s)[NS], int slot, const float (&dq)[NQ]) {
    const uint32_t k = here((uint32_t)operand_rows(w.shared + AT_K));
    const uint32_t q = here((uint32_t)operand_rows(w.shared + AT_Q + w.q.stage * ROWS_TILE));
    products_fence();
    scores_from<0, with_dq>(s, k, q, with_dq ? sums_at(p, w, slot) : 0, dq);
    products_commit();
}

/* From P^T in s to dS^T in shared memory, and dQ of the step before. True: it was the tile's last step. */
template <bool first>
INLINE bool differentiate(const attn__params &p, scorer &w, float (&s)[NS], float (&dq)[NQ], step_slots &slots) {
    const ring_place late = late_of(w), lower = w.dout;
    float dp[NS];
    ring_next<DO_STAGES>(w.dout);
    const ring_place upper = DO_HALVES == 2 ? w.dout : lower;
    if (DO_HALVES == 2) {
        ring_next<DO_STAGES>(w.dout);
    }
    if (!first) {
        wait_for_late(w, late);
    }
    while (!(barrier_try(w.shared + DO_FULL + 8 * lower.stage, lower.parity) &
             barrier_try(w.shared + DO_FULL + 8 * upper.stage, upper.parity) &
             barrier_try(w.shared + DS_EMPTY + 8 * w.ds.stage, w.ds.parity))) {
    }
    issue_dp(dp, (uint32_t)operand_rows(w.shared + AT_V),
             (uint32_t)operand_rows(w.shared + AT_DO + lower.stage * HALF_TILE),
             (uint32_t)operand_rows(w.shared + AT_DO + upper.stage * HALF_TILE));
    if (!first) {
        issue_late_dq(w, dq, late.stage);
    }
    const bool last = step_last(step_address(w));
    slots.late = slots.now;
    slots.now = step_word(step_address(w), STEP_SLOT);
    const lane_stats delta = stats_of(w, 1);
    products_wait<first ? 0 : 1>();
    pin(dp);
    gradients(p, w, delta, s, dp);
    if (w.warp == 0 && w.lane == 0) {
        *(int *)(shared_memory() + AT_LAST + 4 * (DO_STAGES + w.ds.stage)) = last;
    }
    fence_async();
    __syncwarp();
    if (w.lane == 0) {
        barrier_arrive(w.shared + DS_FULL + 8 * w.ds.stage);
        barrier_arrive(w.shared + DO_EMPTY + 8 * lower.stage);
        peer_arrive(w.peer + DO_EMPTY + 8 * lower.stage);
        if (DO_HALVES == 2) {
            barrier_arrive(w.shared + DO_EMPTY + 8 * upper.stage);
            peer_arrive(w.peer + DO_EMPTY + 8 * upper.stage);
        }
        barrier_arrive(w.shared + Q_EMPTY + 8 * w.q.stage);
        peer_arrive(w.peer + Q_EMPTY + 8 * w.q.stage);
        if (last) {
            barrier_arrive(w.shared + V_EMPTY);
        }
    }
    ring_next<Q_STAGES>(w.q);
    ring_next<DS_STAGES>(w.ds);
    if (!first) {
        products_wait<0>();
        end_dq(w, dq);
    }
    return last;
}

/* P^T of a step; additions of dQ of the step two before. */
template <bool with_dq>
INLINE void advance(const attn__params &p, scorer &w, float (&s)[NS], const float (&dq)[NQ], int slot) {
    while (
        !(barrier_try(w.shared + Q_FULL + 8 * w.q.stage, w.q.parity) & barrier_try(w.shared + P_EMPTY, w.p_parity))) {
    }
    w.p_parity ^= 1;
    /* Asked for before the additions, behind which they would wait. */
    const bool masked = step_word(step_address(w), STEP_FLAGS) & STEP_MASKED;
    const lane_stats lse = stats_of(w, 0);
    if (with_dq) {
        turn_wait(w.shared, w.turn);
    }
    issue_scores<with_dq>(p, w, s, slot, dq);
    if (with_dq) {
        turn_end(w.shared, w.lane, w.turn++);
    }
    products_wait<0>();
    pin(s);
    probabilities(p, w, masked, lse, s);
}

INLINE void finish(const attn__params &p, scorer &w, float (&dq)[NQ], const step_slots &slots) {
    const ring_place late = late_of(w);
    wait_for_late(w, late);
    issue_late_dq(w, dq, late.stage);
    products_wait<0>();
    release(w.lane, w.shared + K_EMPTY);
    end_dq(w, dq);
    add_all(p, w, slots.now, dq);
}

INLINE void make_scores(const attn__params &p, int warp, int rank) {
    scorer w = scorer_make(shared_address(shared_memory()), warp, rank);
    while (output_next(w.shared, w.outputs)) {
        float s[NS], dq[NQ];
        step_slots slots;
        ring_next<2>(w.outputs);
        barrier_wait(w.shared + K_FULL, (int)w.tile_parity);
        advance<false>(p, w, s, dq, 0);
        barrier_wait(w.shared + V_FULL, (int)w.tile_parity);
        w.tile_parity ^= 1;
        if (!differentiate<true>(p, w, s, dq, slots)) {
            advance<false>(p, w, s, dq, 0);
#pragma unroll 1
            while (!differentiate<false>(p, w, s, dq, slots)) {
                advance<true>(p, w, s, dq, slots.late);
            }
            add_all(p, w, slots.late, dq);
        }
        finish(p, w, dq, slots);
    }
}

/* --- The others: dV and dK --- */

/* The tile's sums are complete; its record may be written anew. */
INLINE output_record output_take(uint32_t shared, int lane, ring_place &outputs) {
    const output_record output = *(const output_record *)(shared_memory() + AT_OUTPUTS + outputs.stage * OUTPUT_RECORD);
    release(lane, shared + OUT_EMPTY + 8 * outputs.stage);
    ring_next<2>(outputs);
    return output;
}

template <bool value, int more>
INLINE void store_halves(const attn__params &p, int warp, int lane, const output_record &output, float (&lower)[NV],
                         float (&upper)[more]) {
    constexpr bool both = (value ? DIM_V : DIM_QK) > WIDTH / 2;
    pin(lower);
    if constexpr (both) {
        pin(upper);
    }
    if (output.slot_rows <= 0) {
        return; /* the tile ends in the other block's half */
    }
    bool wild = !all_finite(lower, lower);
    if constexpr (both) {
        wild = wild || !all_finite(upper, upper);
    }
    if (!list_wild(p, output, value && warp == 0 && lane == 0, lane, wild)) {
        output_place place = {warp * 16 + (lane >> 2), 0, lane};
        store_gradient<value>(p, place, output, lower);
        if constexpr (both) {
            place.column = WIDTH / 2;
            store_gradient<value>(p, place, output, upper);
        }
    }
}

INLINE void make_dv(const attn__params &p, int warp, int rank) {
    const uint32_t shared = shared_address(shared_memory()), peer = peer_shared(shared, 1 - rank);
    const int lane = (int)(threadIdx.x & 31);
    ring_place outputs = {0, 0}, dout = {0, 0};
    uint32_t p_parity = 0;
    float lower[NV], upper[NV_MORE];
    while (output_next(shared, outputs)) {
        bool last = false, more = false;
#pragma unroll 1
        while (!last) {
            const ring_place first = dout;
            ring_next<DO_STAGES>(dout);
            const ring_place second = dout;
            barrier_wait(shared + P_FULL, (int)p_parity);
            p_parity ^= 1;
            barrier_wait(shared + DO_FULL + 8 * first.stage, (int)first.parity);
            last = load_word(shared + AT_LAST + 4 * first.stage) != 0;
            product_rows(lower, (uint32_t)operand_rows(shared + AT_P),
                         (uint32_t)operand_columns(shared + AT_DO + first.stage * HALF_TILE, PANEL), more);
            if constexpr (DO_HALVES == 2) {
                ring_next<DO_STAGES>(dout);
                barrier_wait(shared + DO_FULL + 8 * second.stage, (int)second.parity);
                product_rows(upper, (uint32_t)operand_rows(shared + AT_P),
                             (uint32_t)operand_columns(shared + AT_DO + second.stage * HALF_TILE, PANEL), more);
                products_wait<1>();
            } else {
                products_wait<0>();
            }
            release(lane, shared + DO_EMPTY + 8 * first.stage);
            release_peer(lane, peer + DO_EMPTY + 8 * first.stage);
            if constexpr (DO_HALVES == 2) {
                products_wait<0>();
                release(lane, shared + DO_EMPTY + 8 * second.stage);
                release_peer(lane, peer + DO_EMPTY + 8 * second.stage);
            }
            release(lane, shared + P_EMPTY);
            more = true;
        }
        store_halves<true>(p, warp, lane, output_take(shared, lane, outputs), lower, upper);
    }
}

INLINE void make_dk(const attn__params &p, int warp, int rank) {
    const uint32_t shared = shared_address(shared_memory()), peer = peer_shared(shared, 1 - rank);
    const int lane = (int)(threadIdx.x & 31);
    ring_place outputs = {0, 0}, ds = {0, 0}, q = {0, 0};
    float lower[NV], upper[NK_MORE];
    while (output_next(shared, outputs)) {
        bool last = false, more = false;
#pragma unroll 1
        while (!last) {
            barrier_wait(shared + Q_FULL + 8 * q.stage, (int)q.parity);
            barrier_wait(shared + DS_FULL + 8 * ds.stage, (int)ds.parity);
            last = load_word(shared + AT_LAST + 4 * (DO_STAGES + ds.stage)) != 0;
            product_rows(lower, (uint32_t)operand_rows(shared + AT_DS + ds.stage * PANEL),
                         (uint32_t)operand_columns(shared + AT_Q + q.stage * ROWS_TILE, PANEL), more);
            if constexpr (DIM_QK > 128) {
                product_rows(upper, (uint32_t)operand_rows(shared + AT_DS + ds.stage * PANEL),
                             (uint32_t)operand_columns(shared + AT_Q + q.stage * ROWS_TILE + HALF_TILE, PANEL), more);
            }
            products_wait<0>();
            release(lane, shared + DS_EMPTY + 8 * ds.stage);
            release(lane, shared + Q_EMPTY + 8 * q.stage);
            release_peer(lane, peer + Q_EMPTY + 8 * q.stage);
            ring_next<DS_STAGES>(ds);
            ring_next<Q_STAGES>(q);
            more = true;
        }
        store_halves<false>(p, warp, lane, output_take(shared, lane, outputs), lower, upper);
    }
}

INLINE void feed(const attn__params &p, const attn__maps &maps, int warp, int rank) {
    if (warp == 0) {
        place_all(p, rank);
    } else if (warp == 1) {
        load_queries(p, maps, rank);
    } else if (warp == 2) {
        load_douts(p, maps, rank);
    } else {
        send_all(p, rank);
    }
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
    ATTN_KERNEL(const __grid_constant__ attn__params p, const __grid_constant__ attn__maps maps) {
    const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x / 32), 0), rank = cluster_rank();
    if (p.status && *p.status != 0) {
        return;
    }
    if (threadIdx.x == 0) {
        barriers_make(shared_address(shared_memory()));
    }
    cluster_sync();
    if (warp < GROUP) {
        registers_give<32>();
        if (threadIdx.x % 32 == 0 || (DETERMINISTIC && (warp == 1 || warp == 2))) { /* backward_bring.cuh */
            feed(p, maps, warp, rank);
        }
    } else {
        registers_take<160>();
        if (warp < 2 * GROUP) {
            make_scores(p, warp - GROUP, rank);
        } else if (warp < 3 * GROUP) {
            make_dv(p, warp - 2 * GROUP, rank);
        } else {
            make_dk(p, warp - 3 * GROUP, rank);
        }
    }
    cluster_sync();
}
