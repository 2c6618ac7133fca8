/* SPDX-License-Identifier: Apache-2.0
 * A consumer: a warp group with 64 rows of every tile, in one pipeline over all blocks of all tiles:
 *
 *     issue S(i + 1) = Q K(i + 1)^T
 *     issue O       += P(i) V(i)             P in registers
 *     wait for S(i + 1); exponentials, sums  while the tensor cores work for O and for the other groups
 *     wait for O; P(i + 1) rounded; O shrunk if a reference moved (rare)
 *
 * After a tile's last block, i + 1 is the first block of the next tile (the seam): no product runs alone but the very
 * first and last. With one buffer for queries (wide heads) the seam issues O's product first, so that the outputs are
 * stored under S and the next queries come under O.
 *
 * A group whose rows see fewer blocks than the tile has (SKIPS) ends the tile before alone, lets the others begin, and
 * joins them at its own first block.
 *
 * Groups take turns to issue (named barriers), so that one's products run under another's exponentials. A stage of keys
 * is released by every warp, since softmax_blind may read it once more; a stage of values by one thread a group. */
#pragma once
#include "hopper/forward_careful.cuh"

#define SEAM_FIRST_O (STAGES_Q == 1)
/* A group's rows may end before the tile's last blocks of keys. */
#define SKIPS      (BAND == CAUSAL && !WALKED && PACK == 1 && TILE_Q > TILE_KV)
#define TURN       1 /* numbers of named barriers: GROUPS for turns, GROUPS for one group's threads */
#define GROUP_SYNC (TURN + GROUPS)

typedef struct consumer {
    forward_place at;
    ring_place q, k, v;
    int read;                   /* tiles */
    int add;                    /* 0: the next product overwrites the outputs */
    int staged;                 /* buffer whose outputs the copy engine may still read; -1: none */
    int blocks;                 /* of the tile, from its first key on, that some row of this group may see */
    int clear_begin, clear_end; /* blocks of the tile that this group need not mask (not WALKED) */
} consumer;

INLINE void turn_wait(const consumer &c) {
    named_sync(TURN + c.at.group, 256);
}
INLINE void turn_pass(const consumer &c) {
    named_arrive(TURN + (c.at.group + 1 == GROUPS ? 0 : c.at.group + 1), 256);
}

/* --- Rings --- */

INLINE void wait_keys(const consumer &c) {
    barrier_wait_warp(barrier_at(SHARED_TAIL.k_full, c.k.stage), c.k.parity);
}
INLINE void wait_values(const consumer &c) {
    barrier_wait_warp(barrier_at(SHARED_TAIL.v_full, c.v.stage), c.v.parity);
}
INLINE void wait_queries(const consumer &c) {
    barrier_wait_warp(barrier_at(SHARED_TAIL.q_full, c.q.stage), c.q.parity);
}
INLINE void release_keys(consumer &c) {
    if (elect()) {
        barrier_arrive(barrier_at(SHARED_TAIL.k_empty, c.k.stage));
    }
    ring_next<STAGES_K>(c.k);
}
INLINE void release_values(consumer &c) {
    if ((threadIdx.x & 127) == 0) {
        barrier_arrive(barrier_at(SHARED_TAIL.v_empty, c.v.stage));
    }
    ring_next<STAGES_V>(c.v);
}
INLINE void release_queries(int stage) {
    if (elect()) {
        barrier_arrive(barrier_at(SHARED_TAIL.q_empty, stage));
    }
}
/* The copy engine has read an earlier tile's outputs: their buffer goes back. By the thread that stored. */
INLINE void release_staged(consumer &c) {
    if (STAGED && c.staged >= 0) {
        if (c.at.lane == 0) {
            stores_wait_read();
            barrier_arrive(barrier_at(SHARED_TAIL.q_empty, c.staged));
        }
        c.staged = -1;
    }
}

/* --- Products --- */

INLINE void hold_queries(const consumer &c, forward_rows &w) {
    if (QUERIES_HELD) {
        const int r = c.at.group * 64 + c.at.warp * 16 + (c.at.lane & 15);
#pragma unroll
        for (int k = 0; k < STEPS_QK; k++) {
            const uint32_t piece = (k % 4) * 2 + (c.at.lane >> 4);
            ldmatrix(*(uint32_t(*)[4])(w.q + (QUERIES_HELD ? 4 * k : 0)),
                     queries_at(c.q.stage) + (k / 4) * PANEL_Q + r * 128 + ((piece ^ (r & 7)) << 4));
        }
    }
}
INLINE void issue_scores(const consumer &c, forward_rows &w) {
    const uint64_t keys = operand_rows(keys_at(c.k.stage));
    const uint64_t queries = operand_rows(queries_at(c.q.stage) + c.at.group * 64 * 128);
#pragma unroll
    for (int k = 0; k < STEPS_QK; k++) {
        const uint64_t b = keys + (k / 4) * (PANEL_KV >> 4) + (k % 4) * 2;
        if constexpr (QUERIES_HELD) {
            product_registers<0>(w.s, w.q[4 * k], w.q[4 * k + 1], w.q[4 * k + 2], w.q[4 * k + 3], b, k != 0);
        } else {
            product_shared<0, 0>(w.s, queries + (k / 4) * (PANEL_Q >> 4) + (k % 4) * 2, b, k != 0);
        }
    }
    products_commit();
}
INLINE void issue_outputs(consumer &c, forward_rows &w) {
    const uint64_t values = operand_columns(values_at(c.v.stage), PANEL_KV);
#pragma unroll
    for (int k = 0; k < TILE_KV / 16; k++) {
        product_registers<1>(w.o, w.weights[4 * k], w.weights[4 * k + 1], w.weights[4 * k + 2], w.weights[4 * k + 3],
                             values + k * 128, k == 0 ? c.add : 1);
    }
    products_commit();
    c.add = 1;
}

/* In its turn, with no other product under way. */
INLINE void start_outputs(consumer &c, forward_rows &w) {
    wait_values(c);
    turn_wait(c);
    pin(w.o);
    pin(w.weights);
    products_fence();
    issue_outputs(c, w);
}

/* --- Blocks --- */

/* Which blocks this group's rows see, and which of them need no mask. With NO_MAX every row that sees a key also sees
 * one in a masked block, as far as there are any, so that its reference is its own. */
INLINE void find_blocks(const attn__params &p, const forward_tile &tile, consumer &c) {
    c.blocks = tile.blocks;
    if (SKIPS) {
        const int64_t seen = tile.low + c.at.group * 64 + 64 - tile.position; /* keys, by the last row */
        const int most =
            seen < 1 || c.at.group * 64 >= tile.rows ? 1 : (int)smaller(tile.blocks, (seen + TILE_KV - 1) / TILE_KV);
        c.blocks = most;
    }
    if (!WALKED) {
        const bool own = POSITIONS % 64 == 0; /* the group's rows are 64 positions, not all */
        const int first = PACK == 1 ? c.at.group * 64 : own ? c.at.group * 64 % POSITIONS : 0;
        const int64_t low = tile.low + first, high = low + (own ? 63 : POSITIONS - 1);
        int64_t begin = 0, end = tile.end;
        if (BAND & CAUSAL) {
            end = smaller(end, low + !NO_MAX);
        }
        if ((BAND & WINDOW) && p.right >= 0) {
            end = smaller(end, low + p.right + !NO_MAX);
        }
        if ((BAND & WINDOW) && p.left >= 0) {
            begin = larger(0, high - p.left + NO_MAX - tile.position);
        }
        c.clear_end = end > tile.position ? (int)(end - tile.position) / TILE_KV : 0;
        c.clear_begin = (int)((begin + TILE_KV - 1) / TILE_KV);
    }
}

/* Block n of the tile, whose keys lie in the current stage. whole: nothing in it needs a mask. */
INLINE key_block block_here(const forward_tile &tile, const consumer &c, int n) {
    key_block block;
    if (WALKED) {
        const forward_block &posted = SHARED_TAIL.blocks[WALKED ? c.k.stage : 0];
        block.position = posted.position;
        block.count = posted.count;
        block.whole = posted.whole;
    } else {
        block.position = tile.position + n * TILE_KV;
        block.count = tile.end - block.position < TILE_KV ? tile.end - block.position : TILE_KV;
        block.whole = n < c.clear_end && (!(BAND & WINDOW) || n >= c.clear_begin);
    }
    return block;
}

/* Scores of block n against the outputs of the block before it. */
template <bool masked>
INLINE void step(const attn__params &p, const forward_tile &tile, consumer &c, forward_rows &w, int n) {
    const key_block block = block_here(tile, c, n);
    turn_wait(c);
    pin(w.s);
    pin(w.o);
    pin(w.weights);
    products_fence();
    issue_scores(c, w);
    wait_values(c);
    issue_outputs(c, w);
    turn_pass(c);
    release_staged(c);
    products_wait<1>();
    pin(w.s);
    bend_scores(p, w);
    if (!masked && NO_MAX) {
        softmax_blind(p, c.at, w, queries_at(c.q.stage), keys_at(c.k.stage));
    }
    release_keys(c);
    if (STAGES_Q == 1 && n == 0) {
        release_queries(0);
    }
    if (masked) {
        hide_keys(p, tile, block, c.at, w);
    }
    if (masked || !NO_MAX) {
        softmax_looking(w);
    }
    products_wait<0>();
    pin(w.o);
    release_values(c);
    round_weights(w);
    shrink_outputs(w);
}

/* What follows a tile's first product of scores, once it is there. */
INLINE void first_block(const attn__params &p, const forward_tile &tile, consumer &c, forward_rows &w) {
    const key_block block = block_here(tile, c, c.blocks - 1);
    release_keys(c);
    if (STAGES_Q == 1 && c.blocks == 1) {
        release_queries(0);
    }
    bend_scores(p, w);
    if (!block.whole) {
        hide_keys(p, tile, block, c.at, w);
    }
    softmax_first(tile, c.at, w);
}

INLINE void other_blocks(const attn__params &p, const forward_tile &tile, consumer &c, forward_rows &w) {
    int n = c.blocks - 2;
    if (WALKED || (BAND & WINDOW)) {
#pragma unroll 1
        for (; n >= 0; n--) {
            wait_keys(c);
            if (block_here(tile, c, n).whole) {
                step<false>(p, tile, c, w, n);
            } else {
                step<true>(p, tile, c, w, n);
            }
        }
        return;
    }
#pragma unroll 1
    for (; n >= c.clear_end && n >= 0; n--) {
        wait_keys(c);
        step<true>(p, tile, c, w, n);
    }
#pragma unroll 1
    for (; n >= 0; n--) {
        wait_keys(c);
        step<false>(p, tile, c, w, n);
    }
}

/* Outputs of a finished tile, whose queries lie in buffer `stage`; reference and sum are its rows'. Returns those that
 * mend_tile is for. */
INLINE odd_rows store_tile(const attn__params &p, const attn__maps &maps, const forward_tile &tile, consumer &c,
                           const forward_rows &w, const float (&reference)[2], const float (&sum)[2], int stage) {
    float scale[2];
    output_test test = {{0, 0}};
    finish_rows(p, tile, c.at, reference, sum, scale);
    if (STAGED) {
        named_sync(GROUP_SYNC + c.at.group, 128); /* no product of this group reads these queries any more */
        if (clips(tile, c.at) && (p.aligned & ATTN__ALIGNED_O)) {
            stage_rows(p, maps, tile, c.at, w, scale, queries_at(stage), test);
            c.staged = stage;
            return find_odd_rows(tile, c.at, test, reference, sum);
        }
    }
    store_rows(p, tile, c.at, w, scale, test);
    if (STAGES_Q > 1) {
        __syncwarp();
        release_queries(stage);
    }
    return find_odd_rows(tile, c.at, test, reference, sum);
}

/* Odd rows are stored once more, when no product is under way. */
INLINE void mend_tile(const attn__params &p, const forward_tile &tile, const consumer &c, forward_rows &w,
                      const odd_rows &odd, float (&reference)[2], float (&sum)[2]) {
    if (odd.any) {
        float scale[2];
        output_test test = {{0, 0}};
        redo_rows(p, tile, c.at, w, odd, reference, sum);
        if (STAGED && c.at.lane == 0) {
            stores_wait();
        }
        __syncwarp();
        finish_rows(p, tile, c.at, reference, sum, scale);
        store_rows(p, tile, c.at, w, scale, test);
    }
}

/* Passes over the tile's blocks of keys that no row of this group sees, in step with the groups whose rows see them:
 * waits for `turns` of theirs. Every warp has seen a block's values full before it releases anything or passes the turn
 * that the others use them in, else they might be gone twice around the ring before it looks. */
INLINE void skip_blocks(const forward_tile &tile, consumer &c, int turns) {
#pragma unroll 1
    for (int n = 0; n < tile.blocks - c.blocks; n++) {
        wait_keys(c);
        wait_values(c);
        release_keys(c);
        release_values(c);
        if (n < turns) {
            turn_wait(c);
            turn_pass(c);
        }
    }
}

/* A tile's first scores, alone. */
INLINE void first_scores(const attn__params &p, const forward_tile &tile, consumer &c, forward_rows &w, bool in_turn) {
    wait_queries(c);
    hold_queries(c, w);
    wait_keys(c);
    if (in_turn) {
        turn_wait(c);
    }
    pin(w.s);
    products_fence();
    issue_scores(c, w);
    if (in_turn) {
        turn_pass(c);
    }
    products_wait<0>();
    pin(w.s);
    first_block(p, tile, c, w);
}

INLINE forward_tile next_tile(consumer &c) {
    return SHARED_TAIL.tiles[c.read++ % TILES_POSTED];
}

INLINE void consume(const attn__params &p, const attn__maps &maps, int group) {
    consumer c;
    forward_rows w;
    c.at.group = group;
    c.at.warp = threadIdx.x >> 5 & 3;
    c.at.lane = threadIdx.x & 31;
    c.at.row = group * 64 + c.at.warp * 16 + (c.at.lane >> 2);
    c.at.head = PACK > 1 ? c.at.row / POSITIONS : 0;
    c.at.row -= c.at.head * POSITIONS;
    c.q.stage = c.k.stage = c.v.stage = c.read = 0;
    c.q.parity = c.k.parity = c.v.parity = 0;
    c.staged = -1;
    w.factor = HAS_SOFTCAP ? p.softcap * LOG2E : p.scale * LOG2E;
    if (group == GROUPS - 1) {
        turn_pass(c);
    }
    wait_queries(c);
    forward_tile tile = next_tile(c);
    if (tile.blocks == 0) {
        return;
    }
    find_blocks(p, tile, c);
    skip_blocks(tile, c, tile.blocks);
    first_scores(p, tile, c, w, false);
    round_weights(w);
    while (true) {
        c.add = 0;
        other_blocks(p, tile, c, w);
        release_staged(c); /* of a tile before this one, if this has a single block */
        const forward_tile done = tile;
        const int stage = c.q.stage;
        tile = next_tile(c);
        if (tile.blocks == 0) {
            tile = done;
            break;
        }
        float reference[2] = {w.reference[0], w.reference[1]}, sum[2] = {w.sum[0], w.sum[1]};
        find_blocks(p, tile, c);
        if (SKIPS && c.blocks < tile.blocks) { /* other groups' products run beside this one's exponentials */
            start_outputs(c, w);
            turn_pass(c);
            products_wait<0>();
            pin(w.o);
            release_values(c);
            const odd_rows odd = store_tile(p, maps, done, c, w, reference, sum, stage);
            mend_tile(p, done, c, w, odd, reference, sum);
            skip_blocks(tile, c, tile.blocks - c.blocks - 1);
            ring_next<STAGES_Q>(c.q);
            first_scores(p, tile, c, w, true);
            round_weights(w);
            continue;
        }
        if (SEAM_FIRST_O) {
            start_outputs(c, w);
        }
        ring_next<STAGES_Q>(c.q);
        wait_queries(c);
        hold_queries(c, w);
        wait_keys(c);
        if (!SEAM_FIRST_O) {
            turn_wait(c);
            pin(w.o);
            pin(w.weights);
        }
        pin(w.s);
        products_fence();
        issue_scores(c, w);
        if (SEAM_FIRST_O) {
            turn_pass(c);
            products_wait<1>();
            pin(w.o);
            release_values(c);
            const odd_rows odd = store_tile(p, maps, done, c, w, reference, sum, stage);
            products_wait<0>();
            pin(w.s);
            mend_tile(p, done, c, w, odd, reference, sum);
        } else {
            wait_values(c);
            issue_outputs(c, w);
            turn_pass(c);
            products_wait<1>();
            pin(w.s);
        }
        first_block(p, tile, c, w);
        if (!SEAM_FIRST_O) {
            products_wait<0>();
            pin(w.o);
            release_values(c);
            const odd_rows odd = store_tile(p, maps, done, c, w, reference, sum, stage);
            mend_tile(p, done, c, w, odd, reference, sum);
        }
        round_weights(w);
    }
    start_outputs(c, w);
    if (group != GROUPS - 1) {
        turn_pass(c);
    }
    products_wait<0>();
    pin(w.o);
    const odd_rows odd = store_tile(p, maps, tile, c, w, w.reference, w.sum, c.q.stage);
    mend_tile(p, tile, c, w, odd, w.reference, w.sum);
    if (STAGED) {
        stores_wait();
    }
}
