/* SPDX-License-Identifier: Apache-2.0
 * The y blocks that an x tile meets: for PASS_KEYS every block of queries that sees a key of the tile, head by head of
 * the kv head's group (so that dK and dV of the group stay in registers); else the blocks of keys that the queries see.
 * Blocks in which nothing is visible are never visited. Within a run the visited blocks and those in which every pair
 * is visible are stretches, known in advance; with global tokens blocks are asked one by one. */
#pragma once
#include "gradient_score.cuh"

/* Positions, on the scale of keys (queries: i'). */
typedef struct tile_place {
    int sequence, head; /* head of the x side */
    int64_t shift;      /* i' - i of the sequence */
    int64_t low;        /* position of the tile's first row */
    int rows;           /* rows that exist */
} tile_place;

typedef struct walk {
    int head, head_end; /* query heads */
    int run, run_begin, run_end;
    int block, begin, end, full_begin, full_end;
    int64_t first, position, slot; /* of the run's row 0: buffer row, position (with shift), slot (queries) */
    int rows;
} walk;

INLINE int block_floor(int64_t rows) { /* rows may be negative */
    int64_t block = rows >= 0 ? rows / TILE_Y : -((TILE_Y - 1 - rows) / TILE_Y);
    return clamp_position(block);
}
INLINE int block_between(int64_t block, int64_t last) {
    return (int)(block < 0 ? 0 : block > last ? last : block);
}

/* Finds the blocks of run w.run that matter. */
INLINE void walk_enter(const attn__params &p, const tile_place &tile, walk &w) {
    rows_run run = PASS_KEYS ? side_run<ROWS_Q, USED_Q>(p.side_q, w.run) : side_run<ROWS_KV, USED_KV>(p.side_kv, w.run);
    w.first = run.first;
    w.rows = run.rows;
    w.position = run.position + (PASS_KEYS ? tile.shift : 0);
    w.slot = PASS_KEYS ? run_slot<ROWS_Q>(p.side_q, w.run, TILE_Q) : 0;
    /* Some pair is visible if the block reaches some_low and does not begin past some_high; all are if it lies within
     * [full_low, full_high]. */
    int64_t far = (int64_t)1 << 40, last = tile.low + tile.rows - 1;
    int64_t some_low = -far, full_low = -far, some_high = far, full_high = far;
    if (BAND & CAUSAL) {
        if (PASS_KEYS) {
            some_low = tile.low, full_low = last;
        } else {
            some_high = last, full_high = tile.low;
        }
    }
    if ((BAND & WINDOW) && !(BAND & GLOBALS)) {
        int64_t behind = PASS_KEYS ? p.right : p.left, ahead = PASS_KEYS ? p.left : p.right;
        if (behind >= 0) {
            some_low = larger(some_low, tile.low - behind), full_low = larger(full_low, last - behind);
        }
        if (ahead >= 0) {
            some_high = smaller(some_high, last + ahead), full_high = smaller(full_high, tile.low + ahead);
        }
    }
    int64_t blocks = blocks_of(run.rows, TILE_Y);
    w.begin = block_between(block_floor(some_low - w.position), blocks);
    w.end = block_between((int64_t)block_floor(some_high - w.position) + 1, blocks);
    w.full_begin = block_floor(full_low - w.position + TILE_Y - 1);
    w.full_end = block_floor(full_high - w.position + 1);
    if (!PASS_KEYS) { /* keys past the run's end are hidden */
        w.full_end = (int)smaller(w.full_end, run.rows / TILE_Y);
    } else if (tile.rows < TILE_KV) {
        w.full_end = 0;
    }
    if (BAND & GLOBALS) {
        w.full_end = 0;
    }
    w.block = w.begin - 1;
}

INLINE bool walk_hides(const attn__params &p, const tile_place &tile, const walk &w) {
    if (!(BAND & GLOBALS)) {
        return false;
    }
    int64_t at = w.position + (int64_t)w.block * TILE_Y;
    if (PASS_KEYS) {
        return band_hides_block(p, at, at + TILE_Y - 1, (int)tile.low, (int)tile.low + tile.rows);
    }
    return band_hides_block(p, tile.low, tile.low + tile.rows - 1, (int)at, (int)at + TILE_Y);
}

/* To the next visited block; false past the last. */
INLINE bool walk_next(const attn__params &p, const tile_place &tile, walk &w) {
    while (true) {
        w.block++;
        while (w.block >= w.end) {
            if (++w.run < w.run_end) {
                walk_enter(p, tile, w);
                w.block++;
                continue;
            }
            if (++w.head >= w.head_end) {
                return false;
            }
            w.run = w.run_begin;
            if (w.run_end - w.run_begin > 1) {
                walk_enter(p, tile, w);
            }
            w.block = w.begin;
        }
        if (!walk_hides(p, tile, w)) {
            return true;
        }
    }
}

INLINE walk walk_start(const attn__params &p, const tile_place &tile) {
    walk w;
    w.head = PASS_KEYS ? tile.head * p.group : tile.head;
    w.head_end = w.head + (PASS_KEYS ? p.group : 1);
    if (PASS_KEYS) {
        side_range<ROWS_Q>(p.side_q, tile.sequence, &w.run_begin, &w.run_end);
    } else {
        side_range<ROWS_KV>(p.side_kv, tile.sequence, &w.run_begin, &w.run_end);
    }
    w.run = w.run_begin;
    if (w.run < w.run_end) {
        walk_enter(p, tile, w);
    } else {
        w.block = w.begin = w.end = 0;
    }
    return w;
}
INLINE bool walk_full(const walk &w) {
    return !ALWAYS_MASKED && w.block >= w.full_begin && w.block < w.full_end;
}
