/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper: what the loading threads of both schedules share of tiles and steps. A thread that places tiles
 * leaves them in two records in turn; those that load ask for the next one near a tile's end.
 *
 * Of the schedule, defined before: AT_TILES (in shared memory), TILES_AHEAD. */
#pragma once
#include "hopper/backward_bring.cuh"

INLINE tile_place &tile_at(uint32_t turn) {
    return *(tile_place *)(shared_memory() + AT_TILES + turn * PLACE_RECORD);
}

/* Is it time to ask for the next tile? In the walk's last TILES_AHEAD steps: early enough to hide its placing, and so
 * late that no processor holds tiles that another could begin. */
INLINE bool walk_ends(const tile_place &tile, const walk &now, bool more) {
    const run_span &span = span_of(tile, now);
    if (DETERMINISTIC) { /* all heads of a block before the next */
        const int heads = tile.head_end - tile.head_begin, last = tile.head_end - 1 - now.head;
        return !more || (now.block - span.begin) * heads + last < TILES_AHEAD;
    }
    return !more || (now.head + 1 >= tile.head_end && now.block + TILES_AHEAD >= span.end);
}

/* By a loading thread. */
INLINE void next_wanted(uint32_t shared) {
    if (leads()) {
        barrier_arrive(shared + TILE_WANTED);
    }
}

/* Rows of a walk's block and of its run behind it. */
INLINE int rows_left(const tile_place &tile, const walk &now) {
    return span_of(tile, now).rows - now.block * TILE_Q;
}

/* lse of a slot's queries; their delta follows. */
INLINE const float *stats_at(const attn__params &p, uint32_t slot) {
    return (const float *)p.extra + (int64_t)slot * (2 * TILE_Q);
}
