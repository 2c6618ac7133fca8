/* SPDX-License-Identifier: Apache-2.0
 * Backward's own row blocks. A run of rows is cut into blocks of TILE_Q (queries) or TILE_KV (keys) rows; each block
 * has a slot. What one kernel of backward leaves for the next lies by query slots, heads outermost:
 *
 *     extra:  stats  [head][slot][2][TILE_Q]  lse in the unit of exponents (delta.cu), +inf where a row does not exist
 * or sees nothing, so that its probabilities are 0 without a mask; then the sum of dout * o, less dlse; 0 in such rows
 *             sinks  [head][slot]             a block's part of dsink
 *     dq_sum: [head][slot][TILE_Q * DIM_QK_PAD] float32 sums of dq in an order of backward_mma.cu's own
 *
 *     With LISTS also, in extra behind the sinks: the next tile that a persistent kernel takes, and two lists of tiles
 *     whose dk and dv, or dq, came out with a value that is not finite, or that no query sees; all tiles, where a
 *     tensor does not suit bulk copies. backward_mma.cu takes these again (FLAGGED), leaving hidden pairs out one by
 *     one. A list may name a tile several times.
 *
 *     partial_o: with SPLIT, dk and dv of the p.splits parts of a group's query heads, float32, not scaled yet:
 *             [part][kv head][key slot] and then [TILE_KV][DIM_QK], [TILE_KV][DIM_V]
 *
 * Slots of a side: dense, sequence by sequence; packed, sequence s begins at cu[s] / tile + s, which leaves room enough
 * without a table; segments, in the order of the list. The host counts slots by the same rule (mma_backward.c). */
#pragma once
#include "launch.cuh"
#include "rows.cuh"

/* Keys of a tile on the lists and in partial_o: fewer than a tile has where blocks of threads share it. */
#ifndef LISTED_KV
#define LISTED_KV TILE_KV
#endif

/* Backward on Hopper: is dQ added up in a fixed order? */
#ifndef DETERMINISTIC
#define DETERMINISTIC 0
#endif

/* The side that a tile is made of, and the side whose blocks it meets. */
#define TILE_X (PASS_KEYS ? TILE_KV : TILE_Q)
#define TILE_Y (PASS_KEYS ? TILE_Q : TILE_KV)

INLINE int64_t blocks_of(int64_t rows, int tile) {
    return (rows + tile - 1) / tile;
}

/* Slots of a side; buffers: 1, or batch where segments of each sequence lie in a buffer of their own. */
template <int layout> INLINE int64_t side_slots(const attn__side_ref &side, int batch, int64_t buffers, int tile) {
    if (layout == DENSE) {
        return batch * blocks_of(side.tokens, tile);
    }
    if (layout == PACKED) {
        return batch ? side.total / tile + batch : 0;
    }
    return buffers * (side.total / tile) + side.n_segments;
}

/* First slot of run n. */
template <int layout> INLINE int64_t run_slot(const attn__side_ref &side, int n, int tile) {
    if (layout == DENSE) {
        return n * blocks_of(side.tokens, tile);
    }
    if (layout == PACKED) {
        return side.cu[n] / tile + n;
    }
    int64_t slot = 0;
    for (int m = 0; m < n; m++) {
        slot += blocks_of(side.segments[m].rows, tile);
    }
    return slot;
}

/* Run and block of a slot; false if the slot is empty. */
template <int layout>
INLINE bool slot_find(const attn__side_ref &side, int batch, int64_t slot, int tile, int *run, int *block) {
    if (layout == DENSE) {
        int64_t each = blocks_of(side.tokens, tile);
        *run = (int)quotient(slot, each);
        *block = (int)(slot - *run * each);
        return true;
    }
    if (layout == PACKED) {
        int low = 0, high = batch;
        while (high - low > 1) {
            int middle = (low + high) / 2;
            if (run_slot<PACKED>(side, middle, tile) <= slot) {
                low = middle;
            } else {
                high = middle;
            }
        }
        *run = low;
        *block = (int)(slot - run_slot<PACKED>(side, low, tile));
        return *block < blocks_of(side.cu[low + 1] - side.cu[low], tile);
    }
    for (int n = 0; n < side.n_segments; n++) {
        int64_t blocks = blocks_of(side.segments[n].rows, tile);
        if (slot < blocks) {
            *run = n;
            *block = (int)slot;
            return true;
        }
        slot -= blocks;
    }
    return false;
}

INLINE int64_t query_slots(const attn__params &p) {
    return side_slots<ROWS_Q>(p.side_q, p.batch, p.q.stride[0] ? p.batch : 1, TILE_Q);
}
INLINE int64_t key_slots(const attn__params &p) {
    return side_slots<ROWS_KV>(p.side_kv, p.batch, p.k.stride[0] ? p.batch : 1, LISTED_KV);
}

/* Where row r of a block stands in its stats. STATS_BY_LANE: within 16 rows the four that one lane of a product needs
 * (2t, 2t + 1, 8 + 2t, 9 + 2t) lie together. */
INLINE int stat_at(int r) {
    return STATS_BY_LANE ? (r & ~15) | (r & 6) << 1 | (r & 8) >> 2 | (r & 1) : r;
}

/* Numbers of tiles: [part][head][slot] of keys, [head][slot] of queries. */
typedef struct tile_list {
    int *count, *tiles;
} tile_list;
#define LISTED_BY 8 /* warps that may each add a tile of keys */

/* With DETERMINISTIC, of each slot of queries: how many tiles of keys have added to it, apart for each of the two
 * blocks of threads that may share a tile. */
#define TURNS 2

typedef struct row_scratch {
    float *stats, *sinks;
    int64_t slots;
    int *next_tile, *turns;
    tile_list keys, queries;
} row_scratch;

INLINE row_scratch row_scratch_of(const attn__params &p) {
    row_scratch scratch;
    scratch.slots = query_slots(p);
    scratch.stats = (float *)p.extra;
    scratch.sinks = scratch.stats + p.heads_q * scratch.slots * (2 * TILE_Q);
    if (LISTS) {
        int *counts = (int *)(scratch.sinks + p.heads_q * scratch.slots);
        scratch.next_tile = counts;
        scratch.keys.count = counts + 1;
        scratch.queries.count = counts + 2;
        scratch.turns = counts + 4;
        scratch.queries.tiles = scratch.turns + (DETERMINISTIC ? p.heads_q * scratch.slots * TURNS : 0);
        scratch.keys.tiles = scratch.queries.tiles + p.heads_q * scratch.slots;
    }
    return scratch;
}

/* A part's rows of dk (value 0) or dv (1) as a tensor of one tile. */
INLINE void key_part_of(const attn__params &p, int part, int head, int64_t slot, int value, attn__tensor_ref *rows) {
    const int64_t tile = ((int64_t)part * p.heads_kv + head) * key_slots(p) + slot;
    rows->data = p.partial_o + tile * (LISTED_KV * (DIM_QK + DIM_V)) + (value ? LISTED_KV * DIM_QK : 0);
    rows->stride[0] = rows->stride[1] = 0;
    rows->stride[2] = value ? DIM_V : DIM_QK;
    rows->stride[3] = 1;
}

/* Can boxes (maps.h) read all that they must? Else every tile goes to a list; but not with DETERMINISTIC. */
INLINE bool boxes_read(const attn__params &p) {
    if (DETERMINISTIC) {
        return true; /* hopper/backward_bring.cuh */
    }
    const unsigned needed = ATTN__ALIGNED_Q | ATTN__ALIGNED_K | ATTN__ALIGNED_V | ATTN__ALIGNED_DOUT;
    return (p.aligned & needed) == needed;
}

/* With LISTS launches overlap (hopper_backward.c). */
INLINE void wait_for_launches() {
    if (LISTS) {
        launch_wait();
    }
}

INLINE void list_add(const tile_list &list, int tile) {
    list.tiles[atomicAdd(list.count, 1)] = tile;
}
