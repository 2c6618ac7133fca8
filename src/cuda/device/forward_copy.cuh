/* SPDX-License-Identifier: Apache-2.0
 * Forward's queries, keys and values to shared memory. Whole blocks of keys and values are fed unit by unit while the
 * last values are multiplied (feed_slot); others are copied in one piece (start_feed). Where warps run free, barriers
 * of each stage say that its keys, its values have landed, and that it may be filled again. */
#pragma once
#include "forward_tile.cuh"

#define CAN_FEED_BLOCKS                                                                                                \
    (STAGES > 1 && CAN_FEED(DIM_QK, SIZE, TILE_KV, THREADS) && CAN_FEED(DIM_PART, SIZE, TILE_KV, THREADS))

INLINE void copy_queries(const attn__params &p, const tile_work &tile, uint32_t to) {
    const int64_t row = tile.run.first + tile.first;
    bool aligned = p.aligned & ATTN__ALIGNED_Q;
    if constexpr (PACK == 1) {
        copy_rows<DTYPE, DIM_QK, TILE_Q, THREADS>(to, p.q.data, row_offset(p.q, tile.run.sequence, tile.column, row),
                                                  p.q.stride[2], p.q.stride[3], tile.rows, aligned);
    } else {
#pragma unroll 1
        for (int unit = (int)threadIdx.x; unit < TILE_Q * STEPS_QK * 2; unit += THREADS) {
            int line = unit / (STEPS_QK * 2), first = unit % (STEPS_QK * 2) * (16 / SIZE), token = line / PACK;
            int count = token < tile.rows ? DIM_QK - first : 0;
            count = count < 0 ? 0 : count < 16 / SIZE ? count : 16 / SIZE;
            const element_t<DTYPE> *from = (const element_t<DTYPE> *)p.q.data;
            if (count > 0) {
                from += row_offset(p.q, tile.run.sequence, head_of(tile, line), row + token) + first * p.q.stride[3];
            }
            uint32_t at = to + line * PITCH_QK + first * SIZE;
            if (aligned && count > 0) {
                copy_whole_16(at, from);
            } else {
                store_shared_16(at, gather_16<DTYPE>(from, p.q.stride[3], count));
            }
        }
    }
}

INLINE void copy_keys(const attn__params &p, const tile_work &tile, const key_block &block, uint32_t to) {
    copy_rows<DTYPE, DIM_QK, TILE_KV, THREADS>(to, tile.keys, block.row * p.k.stride[2], p.k.stride[2], p.k.stride[3],
                                               block.count, p.aligned & ATTN__ALIGNED_K);
}
INLINE void copy_values(const attn__params &p, const tile_work &tile, const key_block &block, uint32_t to) {
    bool aligned = (p.aligned & ATTN__ALIGNED_V) && (DIM_V - DIM_PART) * SIZE % 16 == 0;
    copy_rows<DTYPE, DIM_PART, TILE_KV, THREADS>(to, tile.values, block.row * p.v.stride[2], p.v.stride[2],
                                                 p.v.stride[3], block.count, aligned);
}

/* The barriers of stage `stage`: its keys, its values have landed; it is free to be filled again. */
INLINE uint32_t keys_landed(const tile_work &tile, int stage) {
    return shared_address(&tile.landed_keys[stage]);
}
INLINE uint32_t values_landed(const tile_work &tile, int stage) {
    return shared_address(&tile.landed_values[stage]);
}
INLINE uint32_t stage_free(const tile_work &tile, int stage) {
    return shared_address(&tile.free[stage]);
}

/* This thread's copies (and stores) into a stage are done or on their way. */
INLINE void announce(uint32_t barrier, bool stores) {
    if (!FREE_RUNNING) {
        return;
    }
    if (stores) {
        copies_commit();
        copies_wait<0>();
        barrier_arrive(barrier);
    } else {
        barrier_arrive_copies(barrier);
    }
}

/* What is brought while the values are multiplied: the next block's keys and values. */
typedef struct block_feed {
    bool on;
    key_block block;
    uint32_t keys, values, landed; /* stage; barrier for the keys */
} block_feed;

/* Unit `slot` of `slots`: keys in the first half, values in the second. */
INLINE void feed_slot(const attn__params &p, const tile_work &tile, const block_feed &next, row_feed &feed, int slot,
                      int slots) {
    if constexpr (CAN_FEED_BLOCKS) {
        const int half = slots / 2, units_k = FEED_UNITS(DIM_QK, SIZE, TILE_KV, THREADS),
                  units_v = FEED_UNITS(DIM_PART, SIZE, TILE_KV, THREADS);
        if (slot == 0) {
            feed =
                feed_rows<DTYPE, DIM_QK, THREADS>(next.keys, tile.keys, next.block.row * p.k.stride[2], p.k.stride[2]);
        }
        if (slot == half) {
            if (FREE_RUNNING && next.on) {
                barrier_arrive_copies(next.landed);
            }
            feed = feed_rows<DTYPE, DIM_PART, THREADS>(next.values, tile.values, next.block.row * p.v.stride[2],
                                                       p.v.stride[2]);
        }
#pragma unroll
        for (int n = 0; n < units_k; n++) {
            if (n * half / units_k == slot) {
                feed_unit<DTYPE, DIM_QK, THREADS>(feed, p.k.stride[2], n, next.on);
            }
        }
#pragma unroll
        for (int n = 0; n < units_v; n++) {
            if (half + n * half / units_v == slot) {
                feed_unit<DTYPE, DIM_PART, THREADS>(feed, p.v.stride[2], n, next.on);
            }
        }
    }
}

/* Does bringing this block store anything by plain stores: zeros, or elements one by one? */
INLINE bool needs_stores(const attn__params &p, const key_block &block) {
    return !CAN_FEED_BLOCKS || block.count < TILE_KV ||
           (p.aligned & (ATTN__ALIGNED_K | ATTN__ALIGNED_V)) != (ATTN__ALIGNED_K | ATTN__ALIGNED_V);
}

/* Makes ready for the copies of block n: whole blocks are fed while the values are multiplied, others are copied now.
 */
INLINE block_feed start_feed(const attn__params &p, const tile_work &tile, int n, uint32_t keys, uint32_t values) {
    const int stage = n % STAGES;
    block_feed feed = {false, block_of_walk(tile.walk, n), keys + stage * BYTES_K, values + stage * BYTES_V,
                       keys_landed(tile, stage)};
    if (feed.block.count > 0) {
        if (FREE_RUNNING && n >= STAGES) {
            barrier_wait(stage_free(tile, stage), (n / STAGES - 1) & 1);
        }
        feed.on = !needs_stores(p, feed.block);
        if (!feed.on) {
            copy_keys(p, tile, feed.block, feed.keys);
            copy_values(p, tile, feed.block, feed.values);
            announce(feed.landed, true);
        }
    }
    return feed;
}
