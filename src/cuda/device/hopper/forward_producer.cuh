/* SPDX-License-Identifier: Apache-2.0
 * The producer: one thread that places tiles and keeps the rings of queries, keys and values full. Keys run one block
 * ahead of values, over the ends of tiles too. */
#pragma once
#include "hopper/forward_tile.cuh"

typedef struct producer {
    ring_place q, k, v;
    int posted; /* tiles */
    int64_t at; /* number of the tile that was drawn last */
    /* The block whose values are still to be brought. */
    int value_row, value_head, value_batch;
    bool value_due;
    key_view view;
    key_walk walk;
} producer;

/* The next number: dealt out in turn, or (DYNAMIC) drawn from a counter that each launch finds at 0. */
INLINE int64_t draw_tile(const attn__params &p, int64_t before) {
    if (DYNAMIC) {
        return atomicAdd((unsigned *)p.extra, 1u) + (int64_t)gridDim.x;
    }
    return before + gridDim.x;
}

INLINE int blocks_in(const key_walk &walk) {
    return walk.end > walk.at ? (walk.end - walk.at + TILE_KV - 1) / TILE_KV : 0;
}

/* Places the first tile from number `at` on that exists; blocks 0 if there is none. */
INLINE forward_tile place_forward(const attn__params &p, producer &w) {
    forward_tile tile;
    tile.blocks = 0;
    for (; w.at < p.tiles; w.at = draw_tile(p, w.at)) {
        tile_place place = place_tile(p, w.at, p.heads_q, p.group, 1, TILE_Q, 2 * (DIM_QK + DIM_V));
        if (!place.exists) {
            continue;
        }
        const rows_run &run = place.run;
        tile.head = place.column;
        tile.sequence = run.sequence;
        tile.row = (int)(run.first + place.first);
        tile.rows = run.rows - place.first;
        tile.slot = run.slot - place.first;
        tile.low = run.position + place.first + row_shift(p, run.sequence);
        w.view = view_keys(p, run.sequence, tile.low, tile.rows < TILE_Q ? tile.rows : TILE_Q, 0, 1);
        w.walk.at = w.walk.end = w.walk.stretch = w.walk.whole = w.walk.far = 0;
        w.walk.shift = 0;
        int blocks = 0;
        for (int n = 0; n < w.view.runs * STRETCHES_A_RUN; n++) {
            walk_enter(p, w.view, w.walk);
            blocks += blocks_in(w.walk);
        }
        tile.position = w.walk.at;
        tile.end = blocks ? w.walk.end : w.walk.at;
        tile.blocks = blocks ? blocks : 1; /* of no key: a row of zeros takes its place */
        break;
    }
    return tile;
}

INLINE void bring_values(const attn__maps &maps, producer &w) {
    forward_shared &shared = SHARED_TAIL;
    if (w.value_due) {
        uint32_t full = barrier_at(shared.v_full, w.v.stage);
        barrier_wait_warp(barrier_at(shared.v_empty, w.v.stage), w.v.parity);
        barrier_expect(full, BYTES_V);
        for (int panel = 0; panel < PANELS_V; panel++) {
            box_load(values_at(w.v.stage) + panel * PANEL_KV, maps.v, full, 64 * panel, w.value_row, w.value_head,
                     w.value_batch, KEEP_FIRST);
        }
        ring_next<STAGES_V>(w.v);
        w.value_due = false;
    }
}

/* Keys of a block, then the values of the block before it. */
INLINE void bring_block(const attn__params &p, const attn__maps &maps, producer &w, const forward_tile &tile,
                        const key_block &block, int64_t first_row) {
    forward_shared &shared = SHARED_TAIL;
    const uint32_t full = barrier_at(shared.k_full, w.k.stage);
    const int head = tile.head / p.group, batch = batch_kv(p, tile.sequence);
    const int row = block.count > 0 ? (int)(first_row + block.row) : NOWHERE;
    if (WALKED) {
        forward_block posted = {block.position, block.count, block.whole, 0};
        shared.blocks[WALKED ? w.k.stage : 0] = posted;
    }
    barrier_expect(full, BYTES_K);
    for (int panel = 0; panel < PANELS_QK; panel++) {
        box_load(keys_at(w.k.stage) + panel * PANEL_KV, maps.k, full, 64 * panel, row, head, batch, KEEP_FIRST);
    }
    ring_next<STAGES_K>(w.k);
    bring_values(maps, w);
    w.value_row = row;
    w.value_head = head;
    w.value_batch = batch;
    w.value_due = true;
}

/* The next block, going back; left: of those in the current stretch. */
INLINE key_block block_back(const attn__params &p, producer &w, int &left) {
    if (WALKED) {
        while (left == 0 && w.walk.stretch > 1) {
            w.walk.stretch -= 2;
            walk_enter(p, w.view, w.walk);
            left = blocks_in(w.walk);
        }
    }
    left--;
    return walk_block(w.walk, left > 0 ? left : 0);
}

INLINE void bring_tile(const attn__params &p, const attn__maps &maps, producer &w, const forward_tile &tile) {
    forward_shared &shared = SHARED_TAIL;
    if (STAGES_Q == 1) {
        bring_values(maps, w);
    }
    const uint32_t full = barrier_at(shared.q_full, w.q.stage);
    barrier_wait_warp(barrier_at(shared.q_empty, w.q.stage), w.q.parity);
    barrier_expect(full, BYTES_Q);
    for (int panel = 0; panel < PANELS_QK; panel++) {
        box_load(queries_at(w.q.stage) + panel * PANEL_Q, maps.q, full, 64 * panel, tile.row, tile.head,
                 batch_q(p, tile.sequence), DROP_FIRST);
    }
    ring_next<STAGES_Q>(w.q);
    const int64_t first_row = ROWS_KV == PACKED ? p.side_kv.cu[tile.sequence] : 0;
    int left = blocks_in(w.walk);
    forward_tile next;
    for (int n = tile.blocks - 1; n >= 0; n--) {
        const key_block block = block_back(p, w, left);
        if (n == (tile.blocks > 2 ? 2 : tile.blocks - 1)) { /* late, or the last tiles end unevenly */
            w.at = draw_tile(p, w.at);
        }
        if (n == 0) {
            next = place_forward(p, w);
        }
        barrier_wait_warp(barrier_at(shared.k_empty, w.k.stage), w.k.parity);
        if (n == 0) { /* read by who waits for these keys */
            shared.tiles[w.posted++ % TILES_POSTED] = next;
        }
        bring_block(p, maps, w, tile, block, first_row);
    }
}

INLINE void produce(const attn__params &p, const attn__maps &maps) {
    forward_shared &shared = SHARED_TAIL;
    producer w;
    map_prefetch(maps.q);
    map_prefetch(maps.k);
    map_prefetch(maps.v);
    w.q.stage = w.k.stage = w.v.stage = 0;
    w.q.parity = w.k.parity = w.v.parity = 1;
    w.value_due = false;
    w.at = blockIdx.x;
    forward_tile tile = place_forward(p, w);
    shared.tiles[0] = tile;
    w.posted = 1;
    if (tile.blocks == 0) { /* nothing at all: consumers wait for queries before they read the first tile */
        barrier_arrive(barrier_at(shared.q_full, 0));
    }
    while (tile.blocks) {
        bring_tile(p, maps, w, tile);
        tile = shared.tiles[(w.posted - 1) % TILES_POSTED];
    }
    bring_values(maps, w);
}
