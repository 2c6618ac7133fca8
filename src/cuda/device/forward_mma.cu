/* SPDX-License-Identifier: Apache-2.0
 * Forward on the tensor cores: one block of threads takes TILE_Q query rows of one column (schedule.cuh) and walks the
 * key blocks that they see (keys.cuh). Each warp owns TILE_Q / WARPS rows: their scores, running reference, sum and
 * output stay in its registers; nothing is exchanged between warps.
 *
 * Shared memory: [queries TILE_Q][keys TILE_KV x STAGES][values TILE_KV x STAGES] and the tile_work.
 * With two stages and more the copies of coming blocks run beside the work on this one, a barrier a block; with one
 * stage the next keys are brought while the values are in use and the other way round.
 *
 * Constants beside those of the problem: TILE_Q, TILE_KV, STAGES, WARPS, BLOCKS (blocks of threads that share a
 * processor), PACK (query heads of one key head packed into the tile's rows), DIM_PART (columns of the values that one
 * tile takes), PARTS (tiles to a row's values), SPLIT (1: partial results for combine.cu), QUERIES_HELD (how many
 * steps of the queries stay in registers), LAZY (1: see forward_score.cuh).
 *
 * Concerns: the tile forward_tile.cuh, copies forward_copy.cuh, products forward_products.cuh, scores and softmax
 * forward_score.cuh, the tile's end forward_store.cuh; here the walk over the blocks.
 *
 * Careful modes. A hidden key's NaN or infinity would pass through 0 * value. So, if a tile's result is not finite (or
 * a sum is out of range, or a product past FUSED_LIMIT), the tile is computed again: 1, always against the maximum,
 * subtracted first, and with values that are not finite taken as 0; 2 and 3 count for each output how many visible
 * values were +inf or NaN, -inf or NaN, and add that infinity to what mode 1 stored; 4, with dropout, counts dropped
 * values that are not finite, which make NaN. */
#include "forward_products.cuh"
#include "forward_store.cuh"

/* The whole tile in one mode. True: it must be done again in the next one. */
INLINE bool run_tile(const attn__params &p, tile_work &tile, unsigned char *memory) {
    const uint32_t queries = shared_address(memory), keys = queries + BYTES_Q, values = keys + STAGES * BYTES_K;
    const int ahead = STAGES > 1 ? STAGES - 1 : 1; /* blocks brought before they are needed */
    warp_rows w;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int n = 0; n < OUTPUTS * 4; n++) {
            w.o[strip][n / 4][n % 4] = 0.0f;
        }
        w.reference[strip][0] = w.reference[strip][1] = NO_REFERENCE;
        w.sum[strip][0] = w.sum[strip][1] = 0.0f;
    }
    w.settled = false;
    copy_queries(p, tile, queries);
#pragma unroll 1
    for (int n = 0; n < ahead; n++) {
        key_block block = block_of_walk(tile.walk, n);
        copy_keys(p, tile, block, keys + n * BYTES_K);
        announce(keys_landed(tile, n), needs_stores(p, block));
        if (FREE_RUNNING || STAGES == 1) {
            copies_commit();
        }
        copy_values(p, tile, block, values + n * BYTES_V);
        announce(values_landed(tile, n), needs_stores(p, block));
        copies_commit();
    }
    copies_wait<STAGES == 1 || FREE_RUNNING ? 1 : 0>(); /* the queries are there */
    __syncthreads();
    held_queries held;
    if (QUERIES_HELD) {
        const uint32_t lane_q = queries + (threadIdx.x >> 5) * (STRIPS * 16 * PITCH_QK) + lane_of_rows(PITCH_QK);
#pragma unroll
        for (int n = 0; n < STRIPS * QUERIES_HELD; n++) {
            const int strip = n / (QUERIES_HELD ? QUERIES_HELD : 1), step = n % (QUERIES_HELD ? QUERIES_HELD : 1);
            load_a<DTYPE>(held[strip][step], lane_q + strip * 16 * PITCH_QK + step * STEP_BYTES);
        }
    }
#pragma unroll 1
    for (int n = 0;; n++) {
        score_tile s;
        float minus[STRIPS][2], factor;
        const int stage = n % STAGES, parity = n / STAGES & 1;
        if (!FREE_RUNNING) {
            copies_wait<STAGES == 1 ? 1 : STAGES - 2>();
            __syncthreads();
        }
        if (block_of_walk(tile.walk, n).count <= 0) {
            break;
        }
        if (WALKED && threadIdx.x == 0) {
            walk_next(p, tile.view, tile.walk, n + ahead + 1);
        }
        if (FREE_RUNNING) {
            barrier_wait(keys_landed(tile, stage), parity);
        }
        int thread = thread_index_again();
        multiply_keys(s, held, queries + (thread >> 5) * (STRIPS * 16 * PITCH_QK) + lane_of_rows(PITCH_QK, thread & 31),
                      keys + stage * BYTES_K + lane_of_columns(PITCH_QK, thread & 31));
        if (STAGES == 1) {
            __syncthreads();
            const key_block next = block_of_walk(tile.walk, n + 1);
            if (next.count > 0) {
                copy_keys(p, tile, next, keys);
            }
            copies_commit();
        }
        settle_scores(p, tile, block_of_walk(tile.walk, n), w, s, minus, factor);
        block_feed feed = {};
        if (STAGES > 1) {
            feed = start_feed(p, tile, n + ahead, keys, values);
        } else {
            copies_wait<1>();
            __syncthreads();
        }
        if (FREE_RUNNING) {
            barrier_wait(values_landed(tile, stage), parity);
        }
        if (tile.mode) {
            __syncthreads();
            patch_values(values + stage * BYTES_V, tile.mode);
            __syncthreads();
        }
        multiply_values(p, tile, feed, w, s, minus, factor, HAS_DROPOUT,
                        values + stage * BYTES_V + lane_of_summed_rows<DTYPE>(PITCH_V, thread_index_again() & 31));
        if (STAGES == 1) {
            __syncthreads();
            const key_block next = block_of_walk(tile.walk, n + 1);
            if (next.count > 0) {
                copy_values(p, tile, next, values);
            }
        }
        if (FREE_RUNNING) {
            if (feed.block.count > 0) {
                announce(values_landed(tile, (n + ahead) % STAGES), !feed.on);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                barrier_arrive(stage_free(tile, stage));
            }
        } else {
            copies_commit();
        }
    }
    copies_wait<0>();
    return finish_rows(p, tile, w, memory);
}

INLINE void start_barriers(tile_work &tile, bool again) {
    for (int stage = 0; FREE_RUNNING && stage < STAGES; stage++) {
        if (again) {
            barrier_end(keys_landed(tile, stage));
            barrier_end(values_landed(tile, stage));
            barrier_end(stage_free(tile, stage));
        }
        barrier_init(keys_landed(tile, stage), THREADS);
        barrier_init(values_landed(tile, stage), THREADS);
        barrier_init(stage_free(tile, stage), WARPS);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ tile_work tile;
    if (p.status && *p.status) {
        return;
    }
    bool again = false;
    do {
        if (threadIdx.x == 0) {
            if (!again) {
                find_tile(p, p.first_tile + blockIdx.x, tile);
                tile.mode = 0;
                tile.far = false;
            }
            if (tile.exists) {
                walk_start(p, tile.view, tile.walk, STAGES > 1 ? STAGES : 2);
                start_barriers(tile, again);
            }
        }
        __syncthreads();
        again = tile.exists && run_tile(p, tile, memory);
        __syncthreads();
    } while (again);
}
