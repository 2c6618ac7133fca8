/* SPDX-License-Identifier: Apache-2.0
 * The loading thread of backward on Hopper: takes tiles of keys one after another, walks the blocks of queries that see
 * them (gradient_walk.cuh), and keeps the stages full. It alone knows sequences, heads and bands; the computing warps
 * get records (backward_memory.cuh).
 *
 * Tiles come from a counter, those with most to do first. A tile that no query sees costs the computing warps nothing:
 * it goes to the list of tiles for backward_mma.cu, which writes its zeros. */
#pragma once
#include "hopper/backward_memory.cuh"

/* Panels of `rows` rows; which: sequences that share a buffer are one place of the map's outermost axis. */
INLINE void load_panels(uint32_t to, const attn__map &map, uint32_t barrier, const attn__tensor_ref &t, int rows,
                        int64_t row, int head, int sequence, uint64_t policy) {
#pragma unroll
    for (int n = 0; n < PANELS; n++) {
        box_load(to + n * rows * 128, map, barrier, n * 64, (int)row, head, t.stride[0] ? sequence : 0, policy);
    }
}

typedef struct load_rings {
    ring_place q, dout, k;
    uint32_t v_parity;
} load_rings;

/* One step: q and lse to one stage, dout and delta to another. */
INLINE void load_step(const attn__params &p, const attn__maps &maps, const tile_place &tile, const walk &now, bool last,
                      uint32_t shared, load_rings &rings) {
    const int64_t row = span_of(tile, now).first + (int64_t)now.block * TILE_Q;
    const uint32_t slot = walk_slot(p, tile, now);
    const float *stats = (const float *)p.extra + (int64_t)slot * (2 * TILE_Q);
    const uint32_t q_full = shared + Q_FULL + 8 * rings.q.stage, do_full = shared + DO_FULL + 8 * rings.dout.stage;
    barrier_wait(shared + Q_EMPTY + 8 * rings.q.stage, rings.q.parity);
    describe_step(p, tile, now, 0, last, slot,
                  *(step_record *)(shared_memory() + AT_STEPS + rings.q.stage * STEP_RECORD));
    barrier_expect(q_full, QUERY_TILE + STATS);
    load_panels(shared + AT_Q + rings.q.stage * QUERY_TILE, maps.q, q_full, p.q, TILE_Q, row, now.head, tile.sequence,
                KEEP_FIRST);
    bulk_load(shared + AT_LSE + rings.q.stage * STATS, stats, STATS, q_full);
    ring_next<Q_STAGES>(rings.q);
    barrier_wait(shared + DO_EMPTY + 8 * rings.dout.stage, rings.dout.parity);
    barrier_expect(do_full, QUERY_TILE + STATS);
    load_panels(shared + AT_DO + rings.dout.stage * QUERY_TILE, maps.dout, do_full, p.dout, TILE_Q, row, now.head,
                tile.sequence, KEEP_FIRST);
    bulk_load(shared + AT_DELTA + rings.dout.stage * STATS, stats + TILE_Q, STATS, do_full);
    ring_next<DO_STAGES>(rings.dout);
}

/* A tile whose walk has at least one block. */
INLINE void load_tile(const attn__params &p, const attn__maps &maps, const tile_place &tile, walk &w, uint32_t shared,
                      load_rings &rings) {
    const uint32_t k_full = shared + K_FULL + 8 * rings.k.stage;
    barrier_wait(shared + K_EMPTY + 8 * rings.k.stage, rings.k.parity);
    describe_output(p, tile, 0, *(output_record *)(shared_memory() + AT_OUTPUTS + rings.k.stage * OUTPUT_RECORD));
    barrier_expect(k_full, KEY_TILE);
    load_panels(shared + AT_K + rings.k.stage * KEY_TILE, maps.k, k_full, p.k, TILE_KV, tile.row, tile.head,
                tile.sequence, DROP_FIRST);
    ring_next<K_STAGES>(rings.k);
    bool more = true, first = true;
    while (more) {
        const walk now = w;
        more = walk_next(p, tile, w);
        load_step(p, maps, tile, now, !more, shared, rings);
        if (first) {
            barrier_wait(shared + V_EMPTY, rings.v_parity);
            barrier_expect(shared + V_FULL, KEY_TILE);
            load_panels(shared + AT_V, maps.v, shared + V_FULL, p.v, TILE_KV, tile.row, tile.head, tile.sequence,
                        DROP_FIRST);
            rings.v_parity ^= 1;
            first = false;
        }
    }
}

INLINE void load_all(const attn__params &p, const attn__maps &maps) {
    const uint32_t shared = shared_address(shared_memory());
    tile_place &tile = *(tile_place *)(shared_memory() + AT_TILE);
    const int64_t section = section_pairs(p);
    const row_scratch scratch = row_scratch_of(p);
    load_rings rings = {{0, 1}, {0, 1}, {0, 1}, 1};
    int64_t number = blockIdx.x;
    while (number < p.tiles) {
        const int64_t upcoming = gridDim.x + atomicAdd(scratch.next_tile, 1);
        walk w;
        if (tile_find(p, number, section, tile) && tile_describe(p, tile)) {
            if (tile.rows > 0 && boxes_read(p) && walk_start(p, tile, w)) {
                load_tile(p, maps, tile, w, shared, rings);
            } else {
                output_record output;
                describe_output(p, tile, 0, output);
                list_add(scratch.keys, output.number);
            }
        }
        number = upcoming;
    }
    barrier_wait(shared + K_EMPTY + 8 * rings.k.stage, rings.k.parity);
    ((output_record *)(shared_memory() + AT_OUTPUTS + rings.k.stage * OUTPUT_RECORD))->rows = -1;
    barrier_arrive(shared + K_FULL + 8 * rings.k.stage);
}
