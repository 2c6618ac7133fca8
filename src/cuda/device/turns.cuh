/* SPDX-License-Identifier: Apache-2.0
 * When a tile of keys adds its part of dQ where additions have a fixed order (hopper/backward_order.cuh): after all
 * tiles of lower slots that meet the same queries. Their number is found from the band alone, and must be what the
 * walks of those tiles visit (tests/cuda/turns_device.cpp). */
#pragma once
#include "gradient_walk.cuh"

/* floor(x / TILE_KV), within [0, most]. */
INLINE int tiles_below(int64_t x, int most) {
    const int64_t tiles = x >= 0 ? x / TILE_KV : -1;
    return (int)(tiles < 0 ? 0 : tiles < most ? tiles : most);
}

/* Of the first `tiles` tiles of a run of `rows` keys from position `low` on: those that meet the block of queries from
 * position `at` on, as span_find and walk_settle of gradient_walk.cuh have it. */
INLINE int tiles_that_meet(const attn__params &p, int64_t low, int64_t rows, int tiles, int64_t at) {
    const int64_t high = at + TILE_Q - 1;
    int end = tiles;
    if (BAND & CAUSAL) {
        end = tiles_below(high - low + TILE_KV, end);
    }
    if (!(BAND & WINDOW) || ((BAND & GLOBALS) && at < p.globals)) {
        return end;
    }
    int begin = 0, last = end, global = 0;
    if (p.left >= 0) {
        const int64_t first = at - p.left - low;
        begin = first >= rows ? end : tiles_below(first, end);
    }
    if (p.right >= 0) {
        last = tiles_below(high + p.right - low + TILE_KV, end);
    }
    if (BAND & GLOBALS) {
        global = tiles_below(p.globals - low + TILE_KV - 1, end);
        begin = begin < global ? global : begin;
    }
    return global + (last > begin ? last - begin : 0);
}

/* Tiles that add to the walk's slot before this one. Without a window who meets a tile meets all tiles before it. */
INLINE int turn_of(const attn__params &p, const tile_place &tile, const walk &w) {
    if (!(BAND & WINDOW) && ROWS_KV != SEGMENTS) {
        return tile.block;
    }
    const int64_t at = span_of(tile, w).position + (int64_t)w.block * TILE_Q, all = (int64_t)1 << 40;
    int turn = tiles_that_meet(p, (int64_t)tile.low - (int64_t)tile.block * TILE_KV, all, tile.block, at);
    if (ROWS_KV == SEGMENTS) {
        int run, end;
        for (side_range<ROWS_KV>(p.side_kv, tile.sequence, &run, &end); run < tile.x_run; run++) {
            const rows_run before = side_run<ROWS_KV, USED_KV>(p.side_kv, run);
            turn += tiles_that_meet(p, before.position, before.rows, (int)blocks_of(before.rows, TILE_KV), at);
        }
    }
    return turn;
}
