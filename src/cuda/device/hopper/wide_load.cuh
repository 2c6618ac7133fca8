/* SPDX-License-Identifier: Apache-2.0
 * The threads that feed the computing warps of backward of wide heads on Hopper, in each of the two blocks of a
 * cluster, each of a warp of its own: one places tiles of keys, one loads keys and q, one values and dout, and one
 * sends dS to the other block. Both blocks take the same tiles and walk the same blocks of queries
 * (gradient_walk.cuh); each tells its own computing warps about its half of the keys, and brings half of the panels of
 * q and dout to both.
 *
 * The first block draws tiles from a counter, those with most to do first, and mails their numbers to the second. */
#pragma once
#include "hopper/wide_memory.cuh"

#define TILES_AHEAD 6 /* placing takes 7,000 cycles: docs/hopper.md */
#include "hopper/backward_tiles.cuh"

/* Panels of 64 rows from column 64 * first on; sequences that share a buffer are one place of the outermost axis. */
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

/* Keys or values of a tile, before there is room for them. */
INLINE void prefetch_panels(const attn__map &map, const attn__tensor_ref &t, const tile_place &tile, int rank) {
#pragma unroll 1
    for (int n = 0; n < PANELS; n++) {
        box_prefetch(map, n * 64, (int)(tile.row + rank * HALF), tile.head, batch_of(t, tile.sequence));
    }
}

/* --- The placing thread --- */

/* The next tile's number, the same in both blocks. mail: parity of the next letter. */
INLINE int64_t draw_tile(const row_scratch &scratch, uint32_t shared, int rank, uint32_t &mail) {
    int number;
    if (rank == 0) {
        const uint32_t peer = peer_shared(shared, 1);
        number = (int)(gridDim.x / 2) + atomicAdd(scratch.next_tile, 1);
        barrier_wait(shared + MAIL_EMPTY, (int)(mail ^ 1));
        word_send(peer + AT_MAIL, number, peer + MAIL_FULL);
    } else {
        word_wait(shared + MAIL_FULL, mail);
        number = (int)load_word(shared + AT_MAIL);
        peer_arrive(peer_shared(shared, 0) + MAIL_EMPTY);
    }
    mail ^= 1;
    return number;
}

/* The next tile with something to do; rows -1 if none is left. Tiles that no query sees, or whose tensors boxes cannot
 * read, go to the list. number: of the first to try. */
INLINE void place_next(const attn__params &p, int64_t number, int64_t section, int rank, uint32_t &mail,
                       tile_place &tile) {
    const row_scratch scratch = row_scratch_of(p);
    while (number < p.tiles) {
        walk w;
        if (tile_find(p, number, section, tile) && tile_describe(p, tile)) {
            if (tile.rows > 0 && boxes_read(p) && walk_start(p, tile, w)) {
                return;
            }
            if (rank * HALF < tile.slot_rows) {
                output_record output;
                describe_output(p, tile, rank * HALF, output);
                list_add(scratch.keys, output.number);
            }
        }
        number = draw_tile(scratch, shared_address(shared_memory()), rank, mail);
    }
    tile.rows = -1;
}

INLINE void place_all(const attn__params &p, int rank) {
    const uint32_t shared = shared_address(shared_memory());
    const int64_t section = section_pairs(p);
    uint32_t turn = 0, mail = 0;
    place_next(p, blockIdx.x / 2, section, rank, mail, tile_at(0));
    barrier_arrive(shared + TILE_FULL);
    while (tile_at(turn).rows >= 0) {
        barrier_wait(shared + TILE_WANTED, (int)turn);
        turn ^= 1;
        place_next(p, draw_tile(row_scratch_of(p), shared, rank, mail), section, rank, mail, tile_at(turn));
        barrier_arrive(shared + TILE_FULL);
    }
}

/* --- The loading threads --- */

/* A tile's keys: its own and, of the columns of dQ that are made here, the other block's. */
INLINE void load_keys(const attn__params &p, const attn__maps &maps, const tile_place &tile, int rank) {
    const uint32_t shared = shared_address(shared_memory());
    const int64_t own = tile.row + rank * HALF, other = tile.row + (1 - rank) * HALF;
    barrier_expect(shared + K_FULL, ROWS_TILE + HALF_TILE);
    load_panels<false, PANELS>(shared + AT_K, maps.k, shared + K_FULL, p.k, 0, own, tile.head, tile.sequence,
                               DROP_FIRST);
    load_panels<false, PANELS / 2>(shared + AT_KX, maps.k, shared + K_FULL, p.k, rank * PANELS / 2, other, tile.head,
                                   tile.sequence, DROP_FIRST);
}

/* Keys, after the first step's q, which the tile before ceases to read first; each step's q, lse and delta. */
INLINE void load_queries(const attn__params &p, const attn__maps &maps, int rank) {
    const uint32_t shared = shared_address(shared_memory());
    ring_place ring = {0, 1}, outputs = {0, 1};
    for (uint32_t turn = 0;; turn ^= 1) {
        barrier_wait(shared + TILE_FULL, (int)turn);
        const tile_place &tile = tile_at(turn);
        const uint32_t out_full = shared + OUT_FULL + 8 * outputs.stage;
        barrier_wait(shared + OUT_EMPTY + 8 * outputs.stage, (int)outputs.parity);
        output_record &output = *(output_record *)(shared_memory() + AT_OUTPUTS + outputs.stage * OUTPUT_RECORD);
        if (tile.rows < 0) {
            output.rows = -1;
            barrier_arrive(out_full);
            return;
        }
        describe_output(p, tile, rank * HALF, output);
        barrier_arrive(out_full);
        ring_next<2>(outputs);
        prefetch_panels(maps.k, p.k, tile, rank);
        walk w;
        bool more = walk_start(p, tile, w), first = true, asked = false;
        while (more) {
            const walk now = w;
            more = walk_next(p, tile, w);
            const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
            const uint32_t slot = walk_slot(p, tile, now), full = shared + Q_FULL + 8 * ring.stage;
            barrier_wait(shared + Q_EMPTY + 8 * ring.stage, (int)ring.parity);
            describe_step(p, tile, now, rank * HALF, !more, slot,
                          *(step_record *)(shared_memory() + AT_STEPS + ring.stage * STEP_RECORD));
            barrier_expect(full, ROWS_TILE + STATS);
            load_panels<true, PANELS / 2>(shared + AT_Q + ring.stage * ROWS_TILE + rank * HALF_TILE, maps.q, full, p.q,
                                          rank * PANELS / 2, row, now.head, tile.sequence, KEEP_FIRST);
            bulk_load(shared + AT_STATS + ring.stage * STATS, stats_at(p, slot), STATS, full);
            ring_next<Q_STAGES>(ring);
            if (first) {
                barrier_wait(shared + K_EMPTY, (int)(turn ^ 1));
                load_keys(p, maps, tile, rank);
                first = false;
            }
            if (!asked && walk_ends(tile, now, more)) {
                barrier_arrive(shared + TILE_WANTED);
                asked = true;
            }
        }
    }
}

/* Values, and each step's dout. */
INLINE void load_douts(const attn__params &p, const attn__maps &maps, int rank) {
    const uint32_t shared = shared_address(shared_memory());
    ring_place ring = {0, 1};
    for (uint32_t turn = 0;; turn ^= 1) {
        barrier_wait(shared + TILE_FULL, (int)turn);
        const tile_place &tile = tile_at(turn);
        walk w;
        if (tile.rows < 0) {
            return;
        }
        prefetch_panels(maps.v, p.v, tile, rank);
        bool more = walk_start(p, tile, w), first = true, asked = false;
        while (more) {
            const walk now = w;
            more = walk_next(p, tile, w);
            const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
            for (int half = 0; half < DO_HALVES; half++) {
                const uint32_t full = shared + DO_FULL + 8 * ring.stage;
                barrier_wait(shared + DO_EMPTY + 8 * ring.stage, (int)ring.parity);
                ((int *)(shared_memory() + AT_LAST))[ring.stage] = !more;
                barrier_expect(full, HALF_TILE);
                load_panels<true, 1>(shared + AT_DO + ring.stage * HALF_TILE + rank * PANEL, maps.dout, full, p.dout,
                                     half * PANELS / 2 + rank, row, now.head, tile.sequence, KEEP_FIRST);
                ring_next<DO_STAGES>(ring);
                if (first) {
                    barrier_wait(shared + V_EMPTY, (int)(turn ^ 1));
                    barrier_expect(shared + V_FULL, ROWS_TILE);
                    load_panels<false, PANELS>(shared + AT_V, maps.v, shared + V_FULL, p.v, 0, tile.row + rank * HALF,
                                               tile.head, tile.sequence, DROP_FIRST);
                    first = false;
                }
            }
            if (!asked && walk_ends(tile, now, more)) {
                barrier_arrive(shared + TILE_WANTED);
                asked = true;
            }
        }
    }
}

/* --- The sending thread --- */

/* The other block has read one step's dS before the next is sent; only then may its buffer here be filled again. */
INLINE void send_all(int rank) {
    const uint32_t shared = shared_address(shared_memory()), peer = peer_shared(shared, 1 - rank);
    ring_place outputs = {0, 0}, ds = {0, 0};
    uint32_t parity = 1;
    bool sent = false;
    while (output_next(shared, outputs)) {
        barrier_arrive(shared + OUT_EMPTY + 8 * outputs.stage);
        ring_next<2>(outputs);
        bool last = false;
        while (!last) {
            barrier_wait(shared + DS_FULL + 8 * ds.stage, (int)ds.parity);
            last = load_word(shared + AT_LAST + 4 * (DO_STAGES + ds.stage)) != 0;
            barrier_wait(shared + DSX_EMPTY, (int)parity);
            parity ^= 1;
            peer_expect(peer + DSX_FULL, PANEL);
            peer_copy(peer + AT_DSX, shared + AT_DS + ds.stage * PANEL, PANEL, peer + DSX_FULL);
            if (sent) {
                barrier_arrive(shared + DS_EMPTY + 8 * (1 - ds.stage));
            }
            sent = true;
            ring_next<DS_STAGES>(ds);
        }
    }
}
