/* SPDX-License-Identifier: Apache-2.0
 * Additions of dQ in a fixed order (DETERMINISTIC), so that every run gives the same bits. A slot of dQ has a count of
 * the tiles of keys that have added to it, and a tile adds when the count equals its turn: the number of tiles before
 * it, by slots of keys, that meet the slot's queries (turns.cuh). One thread of a block keeps the order: it waits for
 * the turn, tells the computing warps (TURN), waits until all of them have added (ADDED), and passes the turn on. What
 * they added is seen before the new count is, as the barrier and the release at the GPU's scope are cumulative.
 *
 * No tile waits for ever. Tiles are drawn from a counter by blocks that run, also the first ones, and a block works on
 * its tiles in the order in which it drew them. Tile and turn order agree: of the tiles of one head and sequence, one
 * with a lower slot has a lower number. So of all tiles that are not done the one with the lowest number is the one
 * that its block is at, and all that it waits for are done; it does not matter how many blocks run at once.
 *
 * Blocks of queries are walked from the last to the first (gradient_walk.cuh). Under a causal band the longest tiles,
 * which are drawn first, so begin at the same block as those that wait for them, and in a window each tile begins ahead
 * of the one before it. */
#pragma once
#include "hopper/backward_tiles.cuh"
#include "turns.cuh"

/* The keeper's copy of the tile, behind the placing thread's two. */
INLINE tile_place &tile_ordered() {
    return tile_at(2);
}

/* The keeping thread, at the step whose turn it waits for. */
typedef struct order {
    uint32_t shared;
    int *counts; /* of this block's part of each slot */
    walk w;
    bool more;
    int *count; /* of the step that is under way */
    int turn;
    uint32_t parity; /* of ADDED */
} order;

INLINE order order_make(const attn__params &p, int part) {
    order o;
    o.shared = shared_address(shared_memory());
    o.counts = row_scratch_of(p).turns + part;
    o.parity = 0;
    o.more = false;
    return o;
}

/* The next tile, which the keeper is the third to read; false: none is left. */
INLINE bool order_tile(const attn__params &p, order &o, uint32_t turn) {
    barrier_wait(o.shared + TILE_FULL, (int)turn);
    tile_place &tile = tile_ordered();
    tile = tile_at(turn);
    if (tile.rows < 0) {
        return false;
    }
    barrier_arrive(o.shared + TILE_WANTED);
    o.more = walk_start(p, tile, o.w);
    return true;
}

INLINE void order_aim(const attn__params &p, order &o) {
    o.count = o.counts + (int64_t)walk_slot(p, tile_ordered(), o.w) * TURNS;
    o.turn = turn_of(p, tile_ordered(), o.w);
}
INLINE bool order_reached(const order &o) {
    int count;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(count) : "l"(o.count) : "memory");
    return count == o.turn;
}
INLINE void order_pass(int *count, int turn) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(count), "r"(turn + 1) : "memory");
}
INLINE bool order_added(const order &o) {
    uint32_t done;
    asm volatile("{.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;}"
                 : "=r"(done)
                 : "r"(o.shared + ADDED), "r"(o.parity)
                 : "memory");
    return done != 0;
}

/* Waits for the turn of the walk's step, tells the warps, and goes on to the next step. */
INLINE void order_take(const attn__params &p, order &o) {
    order_aim(p, o);
    while (!order_reached(o)) {
    }
    barrier_arrive(o.shared + TURN);
    o.more = walk_next(p, tile_ordered(), o.w);
}
/* Waits until all warps have added, and passes the turn on. */
INLINE void order_leave(order &o) {
    barrier_wait(o.shared + ADDED, (int)o.parity);
    o.parity ^= 1;
    order_pass(o.count, o.turn);
}

/* A thread that does nothing else. It asks for the next step's turn while the warps add, and tells them as soon as they
 * have: one group may be ready for it long before the count is passed on. */
INLINE void order_all(const attn__params &p) {
    order o = order_make(p, 0);
    for (uint32_t turn = 0; order_tile(p, o, turn); turn ^= 1) {
        order_take(p, o);
        while (o.more) {
            int *const count = o.count, given = o.turn;
            bool reached = false;
            order_aim(p, o);
            while (!order_added(o)) {
                reached = reached || order_reached(o);
            }
            o.parity ^= 1;
            if (reached) {
                barrier_arrive(o.shared + TURN);
            }
            order_pass(count, given);
            while (!reached) {
                reached = order_reached(o);
                if (reached) {
                    barrier_arrive(o.shared + TURN);
                }
            }
            o.more = walk_next(p, tile_ordered(), o.w);
        }
        order_leave(o);
    }
}

/* --- By the computing warps --- */

/* Before a step's additions, and after them. parity: of TURN. */
INLINE void turn_wait(uint32_t shared, uint32_t &parity) {
    if (DETERMINISTIC) {
        barrier_wait(shared + TURN, (int)parity);
        parity ^= 1;
    }
}
INLINE void turn_end(uint32_t shared, int lane) {
    if (DETERMINISTIC) {
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(shared + ADDED);
        }
    }
}
