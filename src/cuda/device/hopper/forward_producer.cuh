/* SPDX-License-Identifier: Apache-2.0
 * The producer: one warp that places tiles, or has them placed, and keeps the rings of queries, keys and values full.
 * Keys run one block ahead of values, over the ends of tiles too. All its threads go the same way; one of them signals
 * and starts copies. A tensor whose address is no multiple of 16, which only a run knows, is read element by element
 * instead. */
#pragma once
#include "hopper/forward_place.cuh"

typedef struct producer {
    ring_place q, k, v;
    int posted; /* tiles */
    tile_draw draw;
    /* The block whose values are still to be brought. */
    int value_row, value_head, value_sequence;
    bool value_due;
    key_view view;
    key_walk walk;
} producer;

/* Boxes of one operand: all its columns, from row `row` and head `head` on, to the panels from `to` on; `rows` rows,
 * `span` of a head. */
typedef struct operand_box {
    uint32_t to, full;
    int rows, span, row, head, sequence, batch;
} operand_box;

INLINE void operand_load(const operand_box &box, const attn__map &map, int panels, uint64_t policy) {
    if ((threadIdx.x & 31) == 0) {
        barrier_expect(box.full, panels * box.rows * 128);
#pragma unroll
        for (int panel = 0; panel < panels; panel++) {
            box_load(box.to + panel * box.rows * 128, map, box.full, 64 * panel, box.row, box.head, box.batch, policy);
        }
    }
}
/* extent: rows of the tensor; what lies past it and past `dim` is 0, as the copy engine has it. */
INLINE void operand_read(const operand_box &box, const attn__tensor_ref &tensor, int panels, int dim, int64_t extent) {
    const uint16_t *data = (const uint16_t *)tensor.data + row_offset(tensor, box.sequence, box.head, box.row);
#pragma unroll 1
    for (int at = threadIdx.x & 31; at < panels * box.rows * 64; at += 32) {
        const int panel = at / (box.rows * 64), r = at / 64 % box.rows, c = at % 64, column = panel * 64 + c;
        const int row = r % box.span, head = r / box.span;
        const bool there = (int64_t)box.row + row < extent && column < dim;
        const uint16_t x = there ? data[row * tensor.stride[2] + head * tensor.stride[1] + column] : 0;
        const uint32_t to = box.to + panel * box.rows * 128 + r * 128 + ((c >> 3 ^ (r & 7)) << 4) + (c & 7) * 2;
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
    }
    fence_async();
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
        barrier_arrive(box.full);
    }
}

/* bulk: by bulk copies alone; else where the address allows them. */
template <bool bulk>
INLINE void operand_bring(const operand_box &box, bool aligned, const attn__map &map, const attn__tensor_ref &tensor,
                          int panels, int dim, int64_t extent, uint64_t policy) {
    if (bulk || aligned) {
        operand_load(box, map, panels, policy);
    } else {
        operand_read(box, tensor, panels, dim, extent);
    }
}
INLINE int64_t extent_q(const attn__params &p) {
    return ROWS_Q == DENSE ? p.side_q.tokens : p.side_q.total;
}
INLINE int64_t extent_kv(const attn__params &p) {
    return ROWS_KV == DENSE ? p.side_kv.tokens : p.side_kv.total;
}

template <bool bulk> INLINE void bring_values(const attn__params &p, const attn__maps &maps, producer &w) {
    forward_shared &shared = SHARED_TAIL;
    if (w.value_due) {
        const operand_box box = {
            values_at(w.v.stage), barrier_at(shared.v_full, w.v.stage), TILE_KV, TILE_KV, w.value_row, w.value_head,
            w.value_sequence,     batch_of(p.v, w.value_sequence)};
        barrier_wait_warp(barrier_at(shared.v_empty, w.v.stage), w.v.parity);
        operand_bring<bulk>(box, p.aligned & ATTN__ALIGNED_V, maps.v, p.v, PANELS_V, DIM_V, extent_kv(p), KEEP_FIRST);
        ring_next<STAGES_V>(w.v);
        w.value_due = false;
    }
}

/* Keys from row `row` on, then the values of the block before. */
template <bool bulk>
INLINE void bring_block(const attn__params &p, const attn__maps &maps, producer &w, const forward_tile &tile, int row) {
    forward_shared &shared = SHARED_TAIL;
    const operand_box box = {
        keys_at(w.k.stage), barrier_at(shared.k_full, w.k.stage), TILE_KV, TILE_KV, row, tile.kv_head,
        tile.sequence,      batch_of(p.k, tile.sequence)};
    operand_bring<bulk>(box, p.aligned & ATTN__ALIGNED_K, maps.k, p.k, PANELS_QK, DIM_QK, extent_kv(p), KEEP_FIRST);
    ring_next<STAGES_K>(w.k);
    bring_values<bulk>(p, maps, w);
    w.value_row = row;
    w.value_head = tile.kv_head;
    w.value_sequence = tile.sequence;
    w.value_due = true;
}

/* WALKED: the next block, going back; left: of those in the current stretch. */
INLINE key_block block_back(const attn__params &p, producer &w, int &left) {
    while (left == 0 && w.walk.stretch > 1) {
        w.walk.stretch -= 2;
        walk_enter(p, w.view, w.walk);
        left = blocks_in(w.walk);
    }
    left--;
    return walk_block(w.walk, left > 0 ? left : 0);
}

/* Waits for the placer, or places and posts the tile of the number that was drawn. */
INLINE void next_posted(const attn__params &p, const attn__deal &deal, producer &w) {
    if (PLACER) {
        named_sync(TILE_POSTED, 64);
    } else {
        post_tile(place_forward(p, deal, w.draw, w.view, w.walk), w.posted);
    }
    w.posted++;
}

/* Everything of the tile that was posted last; in between the next one is posted. */
template <bool bulk> INLINE void bring_tile(const attn__params &p, const attn__maps &maps, producer &w) {
    forward_shared &shared = SHARED_TAIL;
    const forward_tile tile = shared.tiles[(w.posted - 1) % TILES_POSTED];
    if (STAGES_Q == 1) {
        bring_values<bulk>(p, maps, w);
    }
    const operand_box box = {
        queries_at(w.q.stage), barrier_at(shared.q_full, w.q.stage), TILE_Q, POSITIONS, tile.row, tile.head,
        tile.sequence,         batch_of(p.q, tile.sequence)};
    barrier_wait_warp(barrier_at(shared.q_empty, w.q.stage), w.q.parity);
    operand_bring<bulk>(box, p.aligned & ATTN__ALIGNED_Q, maps.q, p.q, PANELS_QK, DIM_QK, extent_q(p), DROP_FIRST);
    ring_next<STAGES_Q>(w.q);
    if (PLACER && WALKED) {
        walk_through(p, tile, w.view, w.walk);
    }
    const int first = ROWS_KV == PACKED ? tile.first_key : 0;
    int left = WALKED ? blocks_in(w.walk) : 0;
    int row = tile.end > tile.position ? first + tile.position + (tile.blocks - 1) * TILE_KV : NOWHERE;
#pragma unroll 1
    for (int n = tile.blocks - 1; n >= 0; n--) {
        key_block block;
        if (WALKED) {
            block = block_back(p, w, left);
            row = block.count > 0 ? (int)(first + block.row) : NOWHERE;
        }
        if (n == (tile.blocks > 2 ? 2 : tile.blocks - 1)) { /* late, or the last tiles end unevenly */
            if (PLACER) {
                named_arrive(TILE_WANTED, 64);
            } else {
                draw_start(p, w.draw);
            }
        }
        if (n == 0) {
            if (!PLACER) {
                draw_finish(p, w.draw);
            }
            next_posted(p, maps.deal, w);
        }
        barrier_wait_warp(barrier_at(shared.k_empty, w.k.stage), w.k.parity);
        if (WALKED && (threadIdx.x & 31) == 0) {
            forward_block posted = {block.position, block.count, block.whole, 0};
            shared.blocks[WALKED ? w.k.stage : 0] = posted;
        }
        bring_block<bulk>(p, maps, w, tile, row);
        row -= TILE_KV;
    }
}

template <bool bulk> INLINE void produce_all(const attn__params &p, const attn__maps &maps) {
    forward_shared &shared = SHARED_TAIL;
    producer w;
    w.q.stage = w.k.stage = w.v.stage = 0;
    w.q.parity = w.k.parity = w.v.parity = 1;
    w.value_due = false;
    w.draw.at = blockIdx.x;
    w.draw.open = false;
    w.posted = 0;
    next_posted(p, maps.deal, w);
    if (shared.tiles[0].blocks == 0 &&
        (threadIdx.x & 31) == 0) { /* nothing at all: consumers wait for queries before they read the first tile */
        barrier_arrive(barrier_at(shared.q_full, 0));
    }
    while (shared.tiles[(w.posted - 1) % TILES_POSTED].blocks) {
        bring_tile<bulk>(p, maps, w);
    }
    bring_values<bulk>(p, maps, w);
}

/* Two forms, since the one that also reads element by element needs more registers than a producer has. */
INLINE void produce(const attn__params &p, const attn__maps &maps) {
    const unsigned all = ATTN__ALIGNED_Q | ATTN__ALIGNED_K | ATTN__ALIGNED_V;
    if ((p.aligned & all) == all) {
        produce_all<true>(p, maps);
    } else {
        produce_all<false>(p, maps);
    }
}
