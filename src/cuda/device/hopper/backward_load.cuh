/* SPDX-License-Identifier: Apache-2.0
 * The three threads that feed the computing warps of backward on Hopper, each of a warp of its own: one takes tiles of
 * keys one after another and places them, one loads keys and q, one values and dout. Both loading threads walk the
 * blocks of queries that see the tile (gradient_walk.cuh). They alone know sequences, heads and bands; the computing
 * warps get records (backward_records.cuh). Every step waits for its loads with little in reserve, so what a thread
 * does for a step must be short: hence three.
 *
 * Tiles come from a counter, those with most to do first. A tile that no query sees costs the computing warps nothing:
 * it goes to the list of tiles for backward_mma.cu, which writes its zeros. */
#pragma once
#include "hopper/backward_bring.cuh"
#include "hopper/backward_memory.cuh"

#define TILES_AHEAD 2
#include "hopper/backward_tiles.cuh"

/* Rows of a tile to their panels; `more` bytes besides are announced to the barrier. */
template <int layout, int dim, int rows>
INLINE void bring(const attn__params &p, uint32_t to, const attn__map &map, uint32_t barrier,
                  const attn__side_ref &side, const attn__tensor_ref &t, unsigned aligned, const rows_place &at,
                  int more, uint64_t policy) {
    if (!boxed(p, aligned)) {
        panels_read<layout, dim, PANELS, rows>(to, side, t, 0, at);
        if (leads()) {
            barrier_expect(barrier, more);
        }
    } else if (leads()) {
        barrier_expect(barrier, rows * WIDTH * 2 + more);
        const box_place box = box_at<layout, rows>(t, at);
#pragma unroll
        for (int n = 0; n < PANELS; n++) {
            box_load(to + n * rows * 128, map, barrier, n * 64, box.row, at.head, box.outer, policy);
        }
    }
}

/* --- The placing thread --- */

/* The next tile with something to do; rows -1 if none is left. Tiles that no query sees, or whose tensors boxes cannot
 * read, go to the list. first: of this block of threads. */
INLINE void place_next(const attn__params &p, int64_t section, bool first, tile_place &tile) {
    const row_scratch scratch = row_scratch_of(p);
    while (true) {
        const bool given = first && !DETERMINISTIC;
        const int64_t number = given ? blockIdx.x : (DETERMINISTIC ? 0 : gridDim.x) + atomicAdd(scratch.next_tile, 1);
        walk w;
        first = false;
        if (number >= p.tiles) {
            tile.rows = -1;
            return;
        }
        if (tile_find(p, number, section, tile) && tile_describe(p, tile)) {
            if (tile.rows > 0 && boxes_read(p) && walk_start(p, tile, w)) {
                return;
            }
            output_record output;
            describe_output(p, tile, 0, output);
            list_add(scratch.keys, output.number);
        }
    }
}

INLINE void place_all(const attn__params &p) {
    const uint32_t shared = shared_address(shared_memory());
    const int64_t section = section_pairs(p);
    uint32_t turn = 0;
    place_next(p, section, true, tile_at(0));
    barrier_arrive(shared + TILE_FULL);
    while (tile_at(turn).rows >= 0) {
        barrier_wait(shared + TILE_WANTED, (int)turn);
        turn ^= 1;
        place_next(p, section, false, tile_at(turn));
        barrier_arrive(shared + TILE_FULL);
    }
}

/* --- The loading threads --- */

/* Keys, and each step's q and lse. */
INLINE void load_queries(const attn__params &p, const attn__maps &maps) {
    const uint32_t shared = shared_address(shared_memory());
    ring_place ring = {0, 1}, keys = {0, 1};
    for (uint32_t turn = 0;; turn ^= 1) {
        barrier_wait(shared + TILE_FULL, (int)turn);
        const tile_place &tile = tile_at(turn);
        const uint32_t k_full = shared + K_FULL + 8 * keys.stage;
        walk w;
        barrier_wait(shared + K_EMPTY + 8 * keys.stage, keys.parity);
        output_record &output = *(output_record *)(shared_memory() + AT_OUTPUTS + keys.stage * OUTPUT_RECORD);
        if (tile.rows < 0) {
            if (leads()) {
                output.rows = -1;
                barrier_arrive(k_full);
            }
            return;
        }
        if (leads()) {
            describe_output(p, tile, 0, output);
        }
        bring<ROWS_KV, DIM_QK, TILE_KV>(p, shared + AT_K + keys.stage * KEY_TILE, maps.k, k_full, p.side_kv, p.k,
                                        ATTN__ALIGNED_K, {tile.row, tile.rows, tile.head, tile.sequence}, 0,
                                        DROP_FIRST);
        ring_next<K_STAGES>(keys);
        bool more = walk_start(p, tile, w), asked = false;
        while (more) {
            const walk now = w;
            more = walk_next(p, tile, w);
            const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
            const uint32_t slot = walk_slot(p, tile, now), full = shared + Q_FULL + 8 * ring.stage;
            barrier_wait(shared + Q_EMPTY + 8 * ring.stage, ring.parity);
            if (leads()) {
                describe_step(p, tile, now, 0, !more, slot,
                              *(step_record *)(shared_memory() + AT_STEPS + ring.stage * STEP_RECORD));
            }
            bring<ROWS_Q, DIM_QK, TILE_Q>(p, shared + AT_Q + ring.stage * QUERY_TILE, maps.q, full, p.side_q, p.q,
                                          ATTN__ALIGNED_Q, {row, rows_left(tile, now), now.head, tile.sequence}, STATS,
                                          KEEP_FIRST);
            if (leads()) {
                bulk_load(shared + AT_LSE + ring.stage * STATS, stats_at(p, slot), STATS, full);
            }
            ring_next<Q_STAGES>(ring);
            if (!asked && walk_ends(tile, now, more)) {
                next_wanted(shared);
                asked = true;
            }
            lanes_meet();
        }
    }
}

/* Values, and each step's dout and delta. */
INLINE void load_douts(const attn__params &p, const attn__maps &maps) {
    const uint32_t shared = shared_address(shared_memory());
    ring_place ring = {0, 1};
    for (uint32_t turn = 0;; turn ^= 1) {
        barrier_wait(shared + TILE_FULL, (int)turn);
        const tile_place &tile = tile_at(turn);
        walk w;
        if (tile.rows < 0) {
            return;
        }
        bool more = walk_start(p, tile, w), first = true, asked = false;
        while (more) {
            const walk now = w;
            more = walk_next(p, tile, w);
            const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
            const uint32_t slot = walk_slot(p, tile, now), full = shared + DO_FULL + 8 * ring.stage;
            barrier_wait(shared + DO_EMPTY + 8 * ring.stage, ring.parity);
            bring<ROWS_Q, DIM_V, TILE_Q>(p, shared + AT_DO + ring.stage * QUERY_TILE, maps.dout, full, p.side_q, p.dout,
                                         ATTN__ALIGNED_DOUT, {row, rows_left(tile, now), now.head, tile.sequence},
                                         STATS, KEEP_FIRST);
            if (leads()) {
                bulk_load(shared + AT_DELTA + ring.stage * STATS, stats_at(p, slot) + TILE_Q, STATS, full);
            }
            ring_next<DO_STAGES>(ring);
            if (first) { /* the tile before has read its values when it has read its last dout */
                static_assert(DO_STAGES == 2, "which lies in the next stage");
                barrier_wait(shared + DO_EMPTY + 8 * ring.stage, ring.parity);
                bring<ROWS_KV, DIM_V, TILE_KV>(p, shared + AT_V, maps.v, shared + V_FULL, p.side_kv, p.v,
                                               ATTN__ALIGNED_V, {tile.row, tile.rows, tile.head, tile.sequence}, 0,
                                               DROP_FIRST);
                first = false;
            }
            if (!asked && walk_ends(tile, now, more)) {
                next_wanted(shared);
                asked = true;
            }
            lanes_meet();
        }
    }
}
