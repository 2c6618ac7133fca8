/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper for heads of 129 to 256; what runs before and after is as for backward_hopper.cu.
 *
 * Gradients of 64 keys take half of a processor's registers here, and adding dQ of 64 keys at a time would take more of
 * the second-level cache than all else. So two blocks of threads on two processors (a cluster) share a tile of 128 keys
 * and walk its queries together: each has P, dS, dK and dV of its own 64 keys, each gets the other's dS and makes half
 * of the columns of dQ for all 128, and each loads half of q and dout for both.
 *
 * A block is a warp that loads (wide_load.cuh) and two warp groups that compute: each makes half of the block's scores,
 * by queries, and half of the columns of dK and dV. What both need of P and dS goes through shared memory. The order of
 * a group ("|": it waits):
 *
 *     S(0) | exp(0)
 *     front(i): dP(i), dQ(i-1) | dS(i), P(i) stored | dV(i) of own queries
 *     back(i):  | dV(i) of the other's, S(i+1), dK(i) | exp(i+1), additions of dQ(i-1) | end of dK(i)
 *     finish:   the same without a next step, then dQ(n-1)
 *
 * The first warp sends the block's dS to the other block once both groups have stored it; dQ runs one step late, so the
 * way there costs nothing. A buffer of dS is written again three steps later: by then (FREE) both groups have read it,
 * and so has the copy, since the sender has waited for the release of the copy two steps before. */
#include "hopper/backward_store.cuh"
#include "hopper/wide_load.cuh"
#include "hopper/wide_scores.cuh"

#define THREADS 384

/* Slots of dQ: of this step and of the step before. */
typedef struct step_slots {
    int now, late;
} step_slots;

INLINE void release_peer(const worker &w, uint32_t barrier) {
    __syncwarp();
    if (w.lane == 0) {
        peer_arrive(w.peer + barrier);
    }
}
INLINE void release_both(const worker &w, uint32_t barrier) {
    release_peer(w, barrier);
    release(w.lane, w.shared + barrier);
}

INLINE void wait_for_peer(const worker &w) {
    barrier_wait(w.shared + DSX_FULL + 8 * w.receive.stage, (int)w.receive.parity);
}
INLINE int buffer_before(const worker &w) {
    return w.ds_ring.stage == 0 ? DS_STAGES - 1 : w.ds_ring.stage - 1;
}

/* From P^T in s, with dK of the step before still under way, to P^T and dS^T in shared memory and dV of this group's
 * queries under way. dQ of the step before runs while dS^T is made. */
template <bool first>
INLINE void front(worker &w, float (&s)[NS], float (&dv)[NO], float (&dq)[NQ], uint32_t (&ds16)[NS / 2],
                  step_slots &slots) {
    float dp[NS];
    uint32_t p16[NS / 2];
    if (!first) {
        products_wait<0>();
        release_both(w, Q_EMPTY + 8 * (1 - w.q_ring.stage));
    }
    barrier_wait(w.shared + DO_FULL, (int)w.do_parity);
    w.do_parity ^= 1;
    if (!first) {
        wait_for_peer(w);
    }
    issue_dp(w, dp);
    if (!first) {
        issue_dq(w, dq, buffer_before(w));
    }
    products_wait<first ? 0 : 1>();
    pin(dp);
    barrier_wait(w.shared + FREE, (int)w.free_parity);
    w.free_parity ^= 1;
    gradients(w, s, dp, p16, ds16);
    fence_async();
    release(w.lane, w.shared + READY);
    if (!first) {
        products_wait<0>();
        pin(dq);
    }
    issue_dv_own(w, dv, p16);
    slots.late = slots.now;
    slots.now = step_word(step_address(w), STEP_SLOT);
}

/* Waits for P^T and dS^T of both groups; the first warp sends dS^T to the other block. */
INLINE void exchange(worker &w) {
    barrier_wait(w.shared + READY, (int)w.ready_parity);
    w.ready_parity ^= 1;
    if (w.group == 0 && w.warp == 0) {
        const uint32_t full = w.peer + DSX_FULL + 8 * w.send.stage;
        barrier_wait(w.shared + DSX_EMPTY + 8 * w.send.stage, (int)w.send.parity);
        if (w.lane == 0) {
            peer_expect(full, PANEL);
            peer_copy(w.peer + AT_DSX + w.send.stage * PANEL, w.shared + AT_DS + w.ds_ring.stage * PANEL, PANEL, full);
        }
        __syncwarp();
        ring_next<X_STAGES>(w.send);
    }
}
/* The other block may send again; this group's dQ goes to its sums. */
INLINE void add_dq_of(const attn__params &p, worker &w, int slot, const float (&dq)[NQ]) {
    release_peer(w, DSX_EMPTY + 8 * w.receive.stage);
    ring_next<X_STAGES>(w.receive);
    add_dq<0, NQ / 4>(p.dq_sum + (int64_t)slot * (TILE_Q * WIDTH) + w.dq, dq);
}

/* dV and dK of this step, S^T and P^T of the next, the additions of dQ of the step before. */
template <bool first>
INLINE void back(const attn__params &p, worker &w, float (&s)[NS], float (&dk)[NO], float (&dv)[NO],
                 const float (&dq)[NQ], const uint32_t (&ds16)[NS / 2], const step_slots &slots) {
    const int q_now = w.q_ring.stage;
    exchange(w);
    ring_next<Q_STAGES>(w.q_ring);
    barrier_wait(w.shared + Q_FULL + 8 * w.q_ring.stage, (int)w.q_ring.parity);
    issue_dv_other(w, dv);
    issue_scores(w, s);
    issue_dk(w, dk, ds16, q_now);
    products_wait<2>();
    release_both(w, DO_EMPTY);
    release(w.lane, w.shared + FREE);
    products_wait<1>(); /* the next S^T is complete */
    pin(s);
    probabilities(p, w, s);
    if (!first) {
        add_dq_of(p, w, slots.late, dq);
    }
    ring_next<DS_STAGES>(w.ds_ring);
}

/* The last step: what is left of dV, dK and dQ. */
template <bool first>
INLINE void finish(const attn__params &p, worker &w, float (&dk)[NO], float (&dv)[NO], float (&dq)[NQ],
                   const uint32_t (&ds16)[NS / 2], const step_slots &slots) {
    release(w.lane, w.shared + V_EMPTY);
    exchange(w);
    issue_dv_other(w, dv);
    issue_dk(w, dk, ds16, w.q_ring.stage);
    if (!first) {
        add_dq_of(p, w, slots.late, dq);
    }
    products_wait<0>();
    release_both(w, DO_EMPTY);
    release_both(w, Q_EMPTY + 8 * w.q_ring.stage);
    release(w.lane, w.shared + FREE);
    wait_for_peer(w);
    issue_dq(w, dq, w.ds_ring.stage);
    products_wait<0>();
    pin(dq);
    add_dq_of(p, w, slots.now, dq);
    ring_next<Q_STAGES>(w.q_ring);
    ring_next<DS_STAGES>(w.ds_ring);
}

/* All steps of a tile whose keys have landed. */
INLINE void compute_tile(const attn__params &p, worker &w, float (&dk)[NO], float (&dv)[NO]) {
    float s[NS], dq[NQ];
    uint32_t ds16[NS / 2];
    step_slots slots;
    barrier_wait(w.shared + Q_FULL + 8 * w.q_ring.stage, (int)w.q_ring.parity);
    issue_scores(w, s);
#pragma unroll
    for (int n = 0; n < NO; n++) {
        dk[n] = dv[n] = 0.0f;
    }
    barrier_wait(w.shared + V_FULL, (int)w.v_parity);
    w.v_parity ^= 1;
    products_wait<0>();
    pin(s);
    probabilities(p, w, s);
    front<true>(w, s, dv, dq, ds16, slots);
    if (step_last(step_address(w))) {
        finish<true>(p, w, dk, dv, dq, ds16, slots);
        return;
    }
    back<true>(p, w, s, dk, dv, dq, ds16, slots);
#pragma unroll 1
    for (;;) {
        front<false>(w, s, dv, dq, ds16, slots);
        if (step_last(step_address(w))) {
            break;
        }
        back<false>(p, w, s, dk, dv, dq, ds16, slots);
    }
    finish<false>(p, w, dk, dv, dq, ds16, slots);
}

INLINE void compute_all(const attn__params &p, int warp, int rank) {
    worker w = worker_make(shared_address(shared_memory()), warp, rank);
    float dk[NO], dv[NO];
    while (true) {
        barrier_wait(w.shared + K_FULL, (int)w.k_parity);
        w.k_parity ^= 1;
        if ((int)load_word(w.shared + AT_OUTPUTS) < 0) {
            return;
        }
        compute_tile(p, w, dk, dv);
        const output_record output = *(const output_record *)(shared_memory() + AT_OUTPUTS);
        release(w.lane, w.shared + K_EMPTY);
        pin(dv);
        pin(dk);
        if (output.slot_rows > 0) { /* the tile may end in the other block's half */
            const output_place place = {w.row, w.group * (WIDTH / 2), w.lane};
            store_tile(p, place, w.group == 0 && w.row == 0 && w.lane == 0, output, dk, dv);
        }
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
    if (warp < 4) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            load_all(p, maps, rank);
        }
    } else {
        registers_take<240>();
        compute_all(p, warp - 4, rank);
    }
    cluster_sync();
}
