/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper: dK and dV of a tile of 128 keys in registers, over all queries and heads of its group that see
 * it, and its part of dQ added to float32 sums in memory. delta.cu has run before (row scratch, zeroed sums, counters),
 * backward_sums.cu turns the sums into dQ afterwards, backward_mma.cu takes again what came out not finite.
 *
 * A block of threads is one warp that loads (backward_load.cuh) and two warp groups that compute, 64 keys each; one
 * block a processor takes tiles until none is left. The order of a computing group ("|": it waits, and the other group
 * fills the tensor cores meanwhile):
 *
 *     S(0) | exp(0)
 *     front(i): dP(i) | dS(i) to shared memory; dV(i)
 *     back(i):  | dQ(i-1), S(i+1), dK(i) | exp(i+1) with the additions of dQ(i-1) in between; | end of dK(i)
 *     finish:   dQ(n-2), dK(n-1), dQ(n-1), and S(0) of the next tile before dK and dV are stored
 *
 * dQ runs one step late, so that no group waits for the other's dS, and its additions hide behind the exponentials. dS
 * needs three buffers: a group that has seen the other's dS(i-1) knows that dQ(i-3) has been read out of the buffer of
 * step i. Barriers 4 + 2 * group + parity of the hardware: dS of that group is stored.
 *
 * What costs registers is delicate: the assembler must never have to touch sums that are under way (wgmma.cuh). */
#include "hopper/backward_load.cuh"
#include "hopper/backward_order.cuh"
#include "hopper/backward_scores.cuh"
#include "hopper/backward_store.cuh"

#define THREADS 384

/* A computing thread's values. */
typedef struct tile_state {
    int slot, late; /* of this step and of the step before */
} tile_state;

INLINE int steps_parity(const worker &w) {
    return (int)(DETERMINISTIC ? w.steps & 1 : w.steps);
}
INLINE void wait_for_ds(const worker &w) {
    named_sync(4 + 2 * (1 - w.group) + (steps_parity(w) ^ 1), 256);
}

/* Waits for the next tile and issues its first S^T, on whatever is in shared memory when there is none. */
INLINE bool next_tile(worker &w, float (&s)[NS]) {
    barrier_wait(w.shared + K_FULL + 8 * w.k_ring.stage, (int)w.k_ring.parity);
    const bool more = (int)load_word(w.shared + AT_OUTPUTS + w.k_ring.stage * OUTPUT_RECORD) >= 0;
    if (more) {
        barrier_wait(w.shared + Q_FULL + 8 * w.q_ring.stage, (int)w.q_ring.parity);
    }
    issue_scores(w, s);
    return more;
}

/* From P^T in s, with nothing under way, to dS^T in shared memory and dV under way. */
template <bool first>
INLINE void front(const attn__params &p, worker &w, float (&s)[NS], float (&dv)[NO], uint32_t (&ds16)[NS / 2],
                  tile_state &state) {
    float dp[NS];
    uint32_t p16[NS / 2];
    barrier_wait(w.shared + DO_FULL + 8 * w.do_ring.stage, (int)w.do_ring.parity);
    issue_dp(w, dp);
    products_wait<0>();
    pin(dp);
    if (!first) { /* the other group's last dS^T is stored; so it has finished with the buffer written now */
        wait_for_ds(w);
    }
    gradients(p, w, s, dp, p16, ds16);
    issue_dv(w, dv, p16);
    fence_async();
    named_arrive(4 + 2 * w.group + steps_parity(w), 256);
    w.steps = DETERMINISTIC ? w.steps + 1 : w.steps ^ 1;
    state.late = state.slot;
    state.slot = step_word(step_address(w), STEP_SLOT);
}

INLINE int buffer_before(const worker &w) {
    return w.buffer == 0 ? 2 : w.buffer - 1;
}
INLINE void release_dout(worker &w) {
    release(w.lane, w.shared + DO_EMPTY + 8 * w.do_ring.stage);
    ring_next<DO_STAGES>(w.do_ring);
}

/* dQ of the step before, dK of this one, S^T and P^T of the next. */
template <bool first>
INLINE void back(const attn__params &p, worker &w, float (&s)[NS], float (&dk)[NO], const uint32_t (&ds16)[NS / 2],
                 const tile_state &state) {
    const int q_now = w.q_ring.stage;
    float dq[NQ];
    ring_next<Q_STAGES>(w.q_ring);
    barrier_wait(w.shared + Q_FULL + 8 * w.q_ring.stage, (int)w.q_ring.parity);
    products_wait<0>(); /* dV is complete: s and the registers of P^T are free */
    release_dout(w);
    if (!first) {
        issue_dq(w, dq, buffer_before(w));
    }
    issue_scores(w, s);
    issue_dk(w, dk, ds16, q_now);
    products_wait<1>(); /* dQ and the next S^T are complete */
    pin(s);
    if (!first) {
        pin(dq);
    }
    if (!first) {
        turn_wait(w.shared, w.steps - 2);
    }
    probabilities<!first>(p, w, s, state.late, dq);
    if (!first) {
        turn_end(w.shared, w.lane, w.steps - 2);
    }
    if (SPREAD) { /* complete long ago: a branch, past which the assembler moves no exponential */
        barrier_wait(w.shared + Q_FULL + 8 * w.q_ring.stage, (int)w.q_ring.parity);
    }
    products_wait<0>();
    release(w.lane, w.shared + Q_EMPTY + 8 * q_now);
    w.buffer = w.buffer == 2 ? 0 : w.buffer + 1;
}

/* The last step has no second half: what is left of dQ and dK. */
template <bool first>
INLINE void finish(const attn__params &p, worker &w, float (&dk)[NO], const uint32_t (&ds16)[NS / 2],
                   const tile_state &state) {
    float dq[NQ];
    products_wait<0>();
    release_dout(w);
    if (!first) {
        issue_dq(w, dq, buffer_before(w));
    }
    issue_dk(w, dk, ds16, w.q_ring.stage);
    if (!first) {
        products_wait<1>();
        pin(dq);
        turn_wait(w.shared, w.steps - 2);
        add_dq<0, NQ / 4>(dq_place(p, w, state.late), dq);
        turn_end(w.shared, w.lane, w.steps - 2);
    }
    wait_for_ds(w);
    products_wait<0>();
    issue_dq(w, dq, w.buffer);
    products_wait<0>();
    pin(dq);
    turn_wait(w.shared, w.steps - 1);
    add_dq<0, NQ / 4>(dq_place(p, w, state.slot), dq);
    turn_end(w.shared, w.lane, w.steps - 1);
    release(w.lane, w.shared + Q_EMPTY + 8 * w.q_ring.stage);
    ring_next<Q_STAGES>(w.q_ring);
    w.buffer = w.buffer == 2 ? 0 : w.buffer + 1;
}

INLINE void compute_all(const attn__params &p, int warp) {
    worker w = worker_make(shared_address(shared_memory()), warp);
    float dk[NO], dv[NO], s[NS];
    bool more = next_tile(w, s);
    while (more) {
        uint32_t ds16[NS / 2];
        tile_state state;
#pragma unroll
        for (int n = 0; n < NO; n++) {
            dk[n] = dv[n] = 0.0f;
        }
        barrier_wait(w.shared + V_FULL, (int)w.v_parity);
        w.v_parity ^= 1;
        products_wait<0>();
        pin(s);
        {
            float none[NQ];
            probabilities<false>(p, w, s, 0, none);
        }
        front<true>(p, w, s, dv, ds16, state);
        if (step_last(step_address(w))) {
            finish<true>(p, w, dk, ds16, state);
        } else {
            back<true>(p, w, s, dk, ds16, state);
#pragma unroll 1
            for (;;) {
                front<false>(p, w, s, dv, ds16, state);
                if (step_last(step_address(w))) {
                    break;
                }
                back<false>(p, w, s, dk, ds16, state);
            }
            finish<false>(p, w, dk, ds16, state);
        }
        const output_record output =
            *(const output_record *)(shared_memory() + AT_OUTPUTS + w.k_ring.stage * OUTPUT_RECORD);
        release(w.lane, w.shared + K_EMPTY + 8 * w.k_ring.stage);
        ring_next<K_STAGES>(w.k_ring);
        pin(dv);
        pin(dk);
        more = next_tile(w, s);
        const output_place place = {w.row, 0, w.lane};
        store_tile(p, place, w.row == 0 && w.lane == 0, output, dk, dv);
    }
    products_wait<0>();
    pin(s);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_KERNEL(const __grid_constant__ attn__params p, const __grid_constant__ attn__maps maps) {
    const int warp = __shfl_sync(0xffffffffu, (int)(threadIdx.x / 32), 0);
    if (threadIdx.x == 0) {
        barriers_make(shared_address(shared_memory()));
    }
    __syncthreads();
    wait_for_launches();
    if (p.status && __syncthreads_or(threadIdx.x == 0 && *p.status != 0)) {
        return;
    }
    if (warp < 4) {
        registers_give<24>();
        const bool loads = DETERMINISTIC || threadIdx.x % 32 == 0; /* backward_bring.cuh */
        if (warp == 0 && loads) {
            load_queries(p, maps);
        } else if (warp == 1 && loads) {
            load_douts(p, maps);
        } else if (threadIdx.x == 64) {
            place_all(p);
        } else if (DETERMINISTIC && threadIdx.x == 96) {
            order_all(p);
        }
    } else {
        registers_take<240>();
        compute_all(p, warp - 4);
    }
}
