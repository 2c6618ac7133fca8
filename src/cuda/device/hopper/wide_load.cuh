/* SPDX-License-Identifier: Apache-2.0
 * The loading thread of backward of wide heads on Hopper, one in each of the two blocks of a cluster. Both take the
 * same tiles of keys and walk the same blocks of queries (gradient_walk.cuh); each tells its own computing warps about
 * its half of the keys, and brings half of the panels of q and dout to both.
 *
 * The first block draws tiles from a counter and mails their numbers to the second. */
#pragma once
#include "hopper/wide_memory.cuh"

/* panels of 64 rows from column 64 * first on; sequences that share a buffer are one place of the outermost axis. */
template <bool both, int panels>
INLINE void load_panels(uint32_t to, const attn__map &map, uint32_t barrier, const attn__tensor_ref &t, int first,
                        int64_t row, int head, int sequence, uint64_t policy) {
    sequence = batch_of(t, sequence);
#pragma unroll
    for (int n = 0; n < panels; n++) {
        const int column = (first + n) * 64;
        if constexpr (both) {
            box_load_both(to + n * PANEL, map, barrier, column, (int)row, head, sequence, policy);
        } else {
            box_load(to + n * PANEL, map, barrier, column, (int)row, head, sequence, policy);
        }
    }
}

/* This thread's place in the rings; parities of what is filled begin with 1. */
typedef struct loader {
    uint32_t shared, peer;
    int rank;
    ring_place q;
    uint32_t do_parity, v_parity, k_parity, mail_parity;
} loader;

/* One step: q and lse to one stage, dout and delta to the other. */
INLINE void load_step(const attn__params &p, const attn__maps &maps, const tile_place &tile, const walk &now, bool last,
                      loader &at) {
    const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
    const uint32_t slot = walk_slot(p, tile, now), half = at.rank * 2 * PANEL;
    const float *stats = (const float *)p.extra + (int64_t)slot * (2 * TILE_Q);
    const uint32_t q_full = at.shared + Q_FULL + 8 * at.q.stage, do_full = at.shared + DO_FULL;
    barrier_wait(at.shared + Q_EMPTY + 8 * at.q.stage, (int)at.q.parity);
    describe_step(p, tile, now, at.rank * HALF, last, slot,
                  *(step_record *)(shared_memory() + AT_STEPS + at.q.stage * STEP_RECORD));
    barrier_expect(q_full, ROWS_TILE + STATS);
    load_panels<true, 2>(at.shared + AT_Q + at.q.stage * ROWS_TILE + half, maps.q, q_full, p.q, 2 * at.rank, row,
                         now.head, tile.sequence, KEEP_FIRST);
    bulk_load(at.shared + AT_LSE + at.q.stage * STATS, stats, STATS, q_full);
    ring_next<Q_STAGES>(at.q);
    barrier_wait(at.shared + DO_EMPTY, (int)at.do_parity);
    at.do_parity ^= 1;
    barrier_expect(do_full, ROWS_TILE + STATS);
    load_panels<true, 2>(at.shared + AT_DO + half, maps.dout, do_full, p.dout, 2 * at.rank, row, now.head,
                         tile.sequence, KEEP_FIRST);
    bulk_load(at.shared + AT_DELTA, stats + TILE_Q, STATS, do_full);
}

/* What stays through a tile: v first, which the tile before ceases to read first. */
INLINE void load_keys(const attn__params &p, const attn__maps &maps, const tile_place &tile, loader &at) {
    const int64_t own = tile.row + at.rank * HALF, other = tile.row + (1 - at.rank) * HALF;
    barrier_wait(at.shared + V_EMPTY, at.v_parity);
    at.v_parity ^= 1;
    barrier_expect(at.shared + V_FULL, ROWS_TILE);
    load_panels<false, PANELS>(at.shared + AT_V, maps.v, at.shared + V_FULL, p.v, 0, own, tile.head, tile.sequence,
                               DROP_FIRST);
    barrier_wait(at.shared + K_EMPTY, at.k_parity);
    at.k_parity ^= 1;
    describe_output(p, tile, at.rank * HALF, *(output_record *)(shared_memory() + AT_OUTPUTS));
    barrier_expect(at.shared + K_FULL, ROWS_TILE + X_TILE);
    load_panels<false, PANELS>(at.shared + AT_K, maps.k, at.shared + K_FULL, p.k, 0, own, tile.head, tile.sequence,
                               DROP_FIRST);
    load_panels<false, 2>(at.shared + AT_KX, maps.k, at.shared + K_FULL, p.k, 2 * at.rank, other, tile.head,
                          tile.sequence, DROP_FIRST);
}

/* A tile whose walk has at least one block. The first step is under way before the last tile's keys are done with. */
INLINE void load_tile(const attn__params &p, const attn__maps &maps, const tile_place &tile, walk &w, loader &at) {
    bool more = true, first = true;
    while (more) {
        const walk now = w;
        more = walk_next(p, tile, w);
        load_step(p, maps, tile, now, !more, at);
        if (first) {
            load_keys(p, maps, tile, at);
            first = false;
        }
    }
}

/* The number of the tile after the next, the same in both blocks. */
INLINE int64_t draw_tile(const row_scratch &scratch, loader &at) {
    int number;
    if (at.rank == 0) {
        number = (int)(gridDim.x / 2) + atomicAdd(scratch.next_tile, 1);
        barrier_wait(at.shared + MAIL_EMPTY, (int)(at.mail_parity ^ 1));
        word_send(at.peer + AT_MAIL, number, at.peer + MAIL_FULL);
    } else {
        word_wait(at.shared + MAIL_FULL, at.mail_parity);
        number = (int)load_word(at.shared + AT_MAIL);
        peer_arrive(at.peer + MAIL_EMPTY);
    }
    at.mail_parity ^= 1;
    return number;
}

INLINE void load_all(const attn__params &p, const attn__maps &maps, int rank) {
    const uint32_t shared = shared_address(shared_memory());
    tile_place &tile = *(tile_place *)(shared_memory() + AT_TILE);
    const int64_t section = section_pairs(p);
    const row_scratch scratch = row_scratch_of(p);
    loader at = {shared, peer_shared(shared, 1 - rank), rank, {0, 1}, 1, 1, 1, 0};
    int64_t number = blockIdx.x / 2;
    while (number < p.tiles) {
        const int64_t upcoming = draw_tile(scratch, at);
        walk w;
        if (tile_find(p, number, section, tile) && tile_describe(p, tile)) {
            if (tile.rows > 0 && boxes_read(p) && walk_start(p, tile, w)) {
                load_tile(p, maps, tile, w, at);
            } else if (rank * HALF < tile.slot_rows) {
                output_record output;
                describe_output(p, tile, rank * HALF, output);
                list_add(scratch.keys, output.number);
            }
        }
        number = upcoming;
    }
    barrier_wait(shared + K_EMPTY, at.k_parity);
    ((output_record *)(shared_memory() + AT_OUTPUTS))->rows = -1;
    barrier_arrive(shared + K_FULL);
}
