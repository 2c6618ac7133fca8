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
#include "hopper/backward_order.cuh"

/* `panels` panels of 64 rows from panel `first` on. */
template <int layout, int dim, int panels>
INLINE void panels_bring(const attn__params &p, uint32_t to, const attn__map &map, uint32_t barrier,
                         const attn__side_ref &side, const attn__tensor_ref &t, unsigned aligned, int first,
                         const rows_place &at) {
    if (!boxed(p, aligned)) {
        panels_read<layout, dim, panels, 64>(to, side, t, first, at);
    } else if (leads()) {
        const box_place box = box_at<layout, 64>(t, at);
#pragma unroll
        for (int n = 0; n < panels; n++) {
            box_load(to + n * PANEL, map, barrier, (first + n) * 64, box.row, at.head, box.outer, DROP_FIRST);
        }
    }
}
/* `panels` panels from panel `first` on, of which each block brings its half to both. What is read element by element
 * each block reads for itself. */
template <int layout, int dim, int panels>
INLINE void panels_bring_both(const attn__params &p, uint32_t to, const attn__map &map, uint32_t barrier,
                              const attn__side_ref &side, const attn__tensor_ref &t, unsigned aligned, int first,
                              int rank, const rows_place &at) {
    if (!boxed(p, aligned)) {
        panels_read<layout, dim, panels, 64>(to, side, t, first, at);
    } else if (leads()) {
        const box_place box = box_at<layout, 64>(t, at);
#pragma unroll
        for (int n = 0; n < panels / 2; n++) {
            const int panel = rank * (panels / 2) + n;
            box_load_both(to + panel * PANEL, map, barrier, (first + panel) * 64, box.row, at.head, box.outer,
                          KEEP_FIRST);
        }
    }
}
/* Before and after panels are brought: boxes are announced before, and what was read by elements is there after. */
INLINE void panels_begin(const attn__params &p, uint32_t barrier, unsigned aligned, int bytes) {
    if (boxed(p, aligned) && leads()) {
        barrier_expect(barrier, bytes);
    }
}
INLINE void panels_end(const attn__params &p, uint32_t barrier, unsigned aligned, int bytes) {
    if (!boxed(p, aligned) && leads()) {
        barrier_expect(barrier, bytes);
    }
}

/* Keys or values of a tile, before there is room for them. */
INLINE void prefetch_panels(const attn__params &p, const attn__map &map, const attn__tensor_ref &t, unsigned aligned,
                            const tile_place &tile, int rank) {
    if (!leads() || !boxed(p, aligned)) {
        return;
    }
    const box_place box =
        box_at<ROWS_KV, 64>(t, {tile.row + rank * HALF, tile.rows - rank * HALF, tile.head, tile.sequence});
#pragma unroll 1
    for (int n = 0; n < PANELS; n++) {
        box_prefetch(map, n * 64, box.row, tile.head, box.outer);
    }
}

/* --- The placing thread --- */

/* The next tile's number, the same in both blocks. mail: parity of the next letter. */
INLINE int64_t draw_tile(const row_scratch &scratch, uint32_t shared, int rank, uint32_t &mail) {
    int number;
    if (rank == 0) {
        const uint32_t peer = peer_shared(shared, 1);
        number = (DETERMINISTIC ? 0 : (int)(gridDim.x / 2)) + atomicAdd(scratch.next_tile, 1);
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
    const int64_t first = DETERMINISTIC ? draw_tile(row_scratch_of(p), shared, rank, mail) : blockIdx.x / 2;
    place_next(p, first, section, rank, mail, tile_at(0));
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
    const int own = rank * HALF, other = HALF - own;
    const rows_place here = {tile.row + own, tile.rows - own, tile.head, tile.sequence};
    const rows_place there = {tile.row + other, tile.rows - other, tile.head, tile.sequence};
    panels_begin(p, shared + K_FULL, ATTN__ALIGNED_K, ROWS_TILE + HALF_TILE);
    panels_bring<ROWS_KV, DIM_QK, PANELS>(p, shared + AT_K, maps.k, shared + K_FULL, p.side_kv, p.k, ATTN__ALIGNED_K, 0,
                                          here);
    panels_bring<ROWS_KV, DIM_QK, PANELS / 2>(p, shared + AT_KX, maps.k, shared + K_FULL, p.side_kv, p.k,
                                              ATTN__ALIGNED_K, rank * PANELS / 2, there);
    panels_end(p, shared + K_FULL, ATTN__ALIGNED_K, 0);
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
        if (leads()) {
            output.rows = -1;
            if (tile.rows >= 0) {
                describe_output(p, tile, rank * HALF, output);
            }
            barrier_arrive(out_full);
        }
        if (tile.rows < 0) {
            return;
        }
        ring_next<2>(outputs);
        prefetch_panels(p, maps.k, p.k, ATTN__ALIGNED_K, tile, rank);
        walk w;
        bool more = walk_start(p, tile, w), first = true, asked = false;
        while (more) {
            const walk now = w;
            more = walk_next(p, tile, w);
            const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
            const uint32_t slot = walk_slot(p, tile, now), full = shared + Q_FULL + 8 * ring.stage;
            barrier_wait(shared + Q_EMPTY + 8 * ring.stage, (int)ring.parity);
            if (leads()) {
                describe_step(p, tile, now, rank * HALF, !more, slot,
                              *(step_record *)(shared_memory() + AT_STEPS + ring.stage * STEP_RECORD));
            }
            panels_begin(p, full, ATTN__ALIGNED_Q, ROWS_TILE + STATS);
            panels_bring_both<ROWS_Q, DIM_QK, PANELS>(p, shared + AT_Q + ring.stage * ROWS_TILE, maps.q, full, p.side_q,
                                                      p.q, ATTN__ALIGNED_Q, 0, rank,
                                                      {row, rows_left(tile, now), now.head, tile.sequence});
            panels_end(p, full, ATTN__ALIGNED_Q, STATS);
            if (leads()) {
                bulk_load(shared + AT_STATS + ring.stage * STATS, stats_at(p, slot), STATS, full);
            }
            ring_next<Q_STAGES>(ring);
            if (first) {
                barrier_wait(shared + K_EMPTY, (int)(turn ^ 1));
                load_keys(p, maps, tile, rank);
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
        prefetch_panels(p, maps.v, p.v, ATTN__ALIGNED_V, tile, rank);
        bool more = walk_start(p, tile, w), first = true, asked = false;
        while (more) {
            const walk now = w;
            more = walk_next(p, tile, w);
            const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
            for (int half = 0; half < DO_HALVES; half++) {
                const uint32_t full = shared + DO_FULL + 8 * ring.stage;
                barrier_wait(shared + DO_EMPTY + 8 * ring.stage, (int)ring.parity);
                if (leads()) {
                    ((int *)(shared_memory() + AT_LAST))[ring.stage] = !more;
                }
                panels_begin(p, full, ATTN__ALIGNED_DOUT, HALF_TILE);
                panels_bring_both<ROWS_Q, DIM_V, PANELS / 2>(
                    p, shared + AT_DO + ring.stage * HALF_TILE, maps.dout, full, p.side_q, p.dout, ATTN__ALIGNED_DOUT,
                    half * PANELS / 2, rank, {row, rows_left(tile, now), now.head, tile.sequence});
                panels_end(p, full, ATTN__ALIGNED_DOUT, 0);
                ring_next<DO_STAGES>(ring);
                if (first) {
                    barrier_wait(shared + V_EMPTY, (int)(turn ^ 1));
                    panels_begin(p, shared + V_FULL, ATTN__ALIGNED_V, ROWS_TILE);
                    panels_bring<ROWS_KV, DIM_V, PANELS>(
                        p, shared + AT_V, maps.v, shared + V_FULL, p.side_kv, p.v, ATTN__ALIGNED_V, 0,
                        {tile.row + rank * HALF, tile.rows - rank * HALF, tile.head, tile.sequence});
                    panels_end(p, shared + V_FULL, ATTN__ALIGNED_V, 0);
                    first = false;
                }
            }
            if (!asked && walk_ends(tile, now, more)) {
                next_wanted(shared);
                asked = true;
            }
            lanes_meet();
        }
    }
}

/* --- The sending thread --- */

/* The other block has read one step's dS before the next is sent; only then may its buffer here be filled again.
 * DETERMINISTIC: this thread also keeps the order of additions, which come when the next step's dS is sent. */
INLINE void send_all(const attn__params &p, int rank) {
    const uint32_t shared = shared_address(shared_memory()), peer = peer_shared(shared, 1 - rank);
    ring_place outputs = {0, 0}, ds = {0, 0};
    uint32_t parity = 1;
    bool sent = false;
    order o;
    uint32_t turn = 0;
    if (DETERMINISTIC) {
        o = order_make(p, rank);
    }
    while (output_next(shared, outputs)) {
        barrier_arrive(shared + OUT_EMPTY + 8 * outputs.stage);
        ring_next<2>(outputs);
        bool last = false, late = false;
        if (DETERMINISTIC) {
            order_tile(p, o, turn);
            turn ^= 1;
        }
        while (!last) {
            if (DETERMINISTIC && late) {
                order_take(p, o);
            }
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
            if (DETERMINISTIC && late) {
                order_leave(o);
            }
            late = true;
        }
        if (DETERMINISTIC) {
            order_take(p, o);
            order_leave(o);
        }
    }
}
