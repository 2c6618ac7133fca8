/* SPDX-License-Identifier: Apache-2.0
 * The loading thread of backward on Hopper: takes tiles of keys one after another, walks the blocks of queries that see
 * them (gradient_walk.cuh), and keeps the stages full. It alone knows sequences, heads and bands; the computing warps
 * get records (backward_memory.cuh).
 *
 * Tiles come from a counter, those with most to do first. A tile that no query sees costs the computing warps nothing:
 * it goes to the list of tiles for backward_mma.cu, which writes its zeros. */
#pragma once
#include "hopper/backward_memory.cuh"

/* Tiles of a wide section even out better at the end; in a narrow one q, dout and the sums of dq stay in L2. Sections
 * are of equal width, since a narrow last one leaves processors idle. Measured, d 128, causal: docs/hopper.md. */
#define SECTION_ROWS  65536
#define SECTION_LEAST 8
INLINE int64_t section_pairs(const attn__params &p) {
    if (!BAND) {
        return 1;
    }
    const int64_t pairs = (int64_t)p.batch * p.heads_kv;
    const int64_t heads = larger(SECTION_LEAST, SECTION_ROWS / larger(1, p.side_q.tokens));
    const int64_t wide = larger(1, heads / p.group), sections = (pairs + wide - 1) / wide;
    return (pairs + sections - 1) / sections;
}

/* Near enough for 32 bits, far more than a tile has rows. */
INLINE int nearby(int64_t x) {
    return x < -(1 << 29) ? -(1 << 29) : x > 1 << 29 ? 1 << 29 : (int)x;
}

INLINE void describe_step(const attn__params &p, const tile_place &tile, const walk &w, bool last, uint32_t slot,
                          step_record &step) {
    const int64_t ahead = (int64_t)span_of(tile, w).position + (int64_t)w.block * TILE_Q - tile.low;
    int64_t above = (int64_t)1 << 40, below = above;
    if (BAND & WINDOW) {
        above = p.right >= 0 ? p.right : above;
        below = p.left >= 0 ? p.left : below;
    }
    if (BAND & CAUSAL) {
        above = smaller(above, 0);
    }
    step.word[STEP_SLOT] = (int)slot;
    step.word[STEP_FLAGS] = (last ? STEP_LAST : 0) | (walk_full(tile, w) ? 0 : STEP_MASKED);
    step.word[STEP_KEYS] = tile.rows;
    step.word[STEP_ABOVE] = nearby(above + ahead);
    step.word[STEP_BELOW] = nearby(below - ahead);
    step.word[STEP_GLOBAL_KEYS] = BAND & GLOBALS ? nearby(p.globals - tile.low) : 0;
    step.word[STEP_GLOBAL_QUERIES] = BAND & GLOBALS ? nearby(p.globals - tile.low - ahead) : 0;
    step.word[STEP_CAUSAL] = BAND & CAUSAL ? nearby(ahead) : 1 << 29;
}

INLINE void describe_output(const attn__params &p, const tile_place &tile, output_record &output) {
    const int64_t slot = run_slot<ROWS_KV>(p.side_kv, tile.x_run, TILE_KV) + tile.block;
    output.dk = row_offset(p.dk, tile.sequence, tile.head, tile.row);
    output.dv = row_offset(p.dv, tile.sequence, tile.head, tile.row);
    output.rows = tile.rows;
    output.slot_rows = tile.slot_rows;
    output.number = (int)((tile.part * p.heads_kv + tile.head) * key_slots(p) + slot);
    output.part = tile.part;
}

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
    describe_step(p, tile, now, last, slot, *(step_record *)(shared_memory() + AT_STEPS + rings.q.stage * STEP_RECORD));
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
    describe_output(p, tile, *(output_record *)(shared_memory() + AT_OUTPUTS + rings.k.stage * OUTPUT_RECORD));
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
                describe_output(p, tile, output);
                list_add(scratch.keys, output.number);
            }
        }
        number = upcoming;
    }
    barrier_wait(shared + K_EMPTY + 8 * rings.k.stage, rings.k.parity);
    ((output_record *)(shared_memory() + AT_OUTPUTS + rings.k.stage * OUTPUT_RECORD))->rows = -1;
    barrier_arrive(shared + K_FULL + 8 * rings.k.stage);
}
