/* SPDX-License-Identifier: Apache-2.0
 * Forward for sm_90a: o = softmax(scale Q K^T + band) V and lse, f16 or bf16, by warp-group products and bulk copies.
 *
 * One block a processor, persistent: warp group 0 places tiles and brings their operands (forward_place.cuh,
 * forward_producer.cuh), GROUPS others consume 64 rows of each tile (forward_consumer.cuh). Constants beside those of
 * the problem: GROUPS, PACK (heads of a tile), TILE_KV, STAGES_Q, STAGES_K, STAGES_V, WIDTH_V, QUERIES_HELD (as A's
 * registers), NO_MAX, ALARM and LOST (forward_softmax.cuh), DYNAMIC (tiles drawn from a counter in params.extra),
 * REGISTERS_PRODUCER, REGISTERS_CONSUMER, SHARED.
 *
 * Limits: scores of nothing but scale > 0, soft cap and band; heads up to 256; o of q's type. */
#include "launch.cuh"
#include "hopper/forward_consumer.cuh"
#include "hopper/forward_producer.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ATTN_KERNEL(const __grid_constant__ attn__params p, const __grid_constant__ attn__maps maps) {
    forward_shared &shared = SHARED_TAIL;
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int n = 0; n < STAGES_Q; n++) {
            barrier_init(barrier_at(shared.q_full, n), 1);
            barrier_init(barrier_at(shared.q_empty, n), 4 * GROUPS);
        }
        for (int n = 0; n < STAGES_K; n++) {
            barrier_init(barrier_at(shared.k_full, n), 1);
            barrier_init(barrier_at(shared.k_empty, n), 4 * GROUPS);
        }
        for (int n = 0; n < STAGES_V; n++) {
            barrier_init(barrier_at(shared.v_full, n), 1);
            barrier_init(barrier_at(shared.v_empty, n), GROUPS);
        }
        barrier_publish();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        map_prefetch(maps.q);
        map_prefetch(maps.k);
        map_prefetch(maps.v);
    }
    launch_wait();
    if (p.status && __syncthreads_or(threadIdx.x == 0 && *p.status != 0)) {
        return;
    }
    if (group == 0) {
        registers_give<REGISTERS_PRODUCER>();
        if (threadIdx.x < 32) {
            produce(p, maps);
        } else if (PLACER && threadIdx.x < 64) {
            place_tiles(p, maps.deal);
        } else if (DYNAMIC && threadIdx.x / 32 == 1 + PLACER) {
            if ((threadIdx.x & 31) == 0) {
                counter_open(p);
            }
            __syncwarp();
            named_arrive(COUNTER_SYNC, 64);
        }
    } else {
        registers_take<REGISTERS_CONSUMER>();
        consume(p, maps, group - 1);
    }
}
