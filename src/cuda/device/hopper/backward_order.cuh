/* SPDX-License-Identifier: Apache-2.0
 * Additions of dQ in a fixed order (DETERMINISTIC), so that every run gives the same bits. A slot of dQ has a count of
 * the tiles of keys that have added to it, and a tile adds when the count equals its turn: the number of tiles before
 * it, by slots of keys, that meet the slot's queries (turns.cuh). One thread of a block keeps the order: it waits for
 * the turn, tells the computing warps (TURN), waits until all of them have added (ADDED), and passes the turn on. What
 * they added is seen before the new count is, as the barrier and the release at the GPU's scope are cumulative.
 *
 * No tile waits for ever. Tiles are drawn from a counter by blocks that run, also the first ones, and a block works on
 * its tiles in the order in which it drew them. Tile and turn order agree: of the tiles of one head and sequence, one
 * with a lower slot has a lower number, and so it is for each head of a group, since a tile has the same heads as those
 * before it. So all that a tile waits for was begun before it, and of all tiles that are not done the one with the
 * lowest number is the one that its block is at, and nothing that it waits for is left: it goes on, whatever the order
 * of its steps and however many blocks run at once (tests/cuda/turns_device.cpp plays it through). Within a block the
 * keeper tells a turn as soon as it has come, without asking for the additions of the step before, and passes turns on
 * in the order of the steps; warps add in that order too.
 *
 * Blocks of queries are walked from the last to the first, each by all heads of a group (gradient_walk.cuh). Under a
 * causal band the longest tiles, which are drawn first, so begin at the same block as those that wait for them, and in
 * a window each tile begins ahead of the one before it. */
#pragma once
#include "hopper/backward_tiles.cuh"
#include "turns.cuh"

/* The keeping thread, at the next step whose turn it waits for. Steps are numbered over all tiles. */
typedef struct order {
    uint32_t shared;
    int *counts;   /* of this block's part of each slot */
    uint32_t tile; /* which record is the tile's */
    walk w;
    bool more;
    uint32_t slot; /* of the step */
    int turn;
    uint32_t told, passed; /* steps whose turn the warps were told; those whose turn was passed on */
} order;

INLINE order order_make(const attn__params &p, int part) {
    order o;
    o.shared = shared_address(shared_memory());
    o.counts = row_scratch_of(p).turns + part;
    o.told = o.passed = 0;
    o.more = false;
    return o;
}

/* A barrier of the ring at TURN or ADDED, and the parity of its phase, for a step. */
INLINE uint32_t turn_barrier(uint32_t ring, uint32_t step) {
    return ring + 8 * (step % TURN_STAGES);
}
INLINE int turn_parity(uint32_t step) {
    return (int)(step / TURN_STAGES & 1);
}

/* The next tile, which the keeper is the third to read; false: none is left. It asks for the tile after it where it
 * begins, as by then it has left the tile before, whose record that one gets. */
INLINE bool order_tile(const attn__params &p, order &o, uint32_t turn) {
    barrier_wait(o.shared + TILE_FULL, (int)turn);
    if (tile_at(turn).rows < 0) {
        return false;
    }
    barrier_arrive(o.shared + TILE_WANTED);
    o.tile = turn;
    o.more = walk_start(p, tile_at(turn), o.w);
    return true;
}

INLINE int *order_count(const order &o, uint32_t slot) {
    return o.counts + (int64_t)slot * TURNS;
}
INLINE void order_aim(const attn__params &p, order &o) {
    o.slot = walk_slot(p, tile_at(o.tile), o.w);
    o.turn = turn_of(p, tile_at(o.tile), o.w);
}
INLINE bool order_reached(const order &o) {
    int count;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(count) : "l"(order_count(o, o.slot)) : "memory");
    return count == o.turn;
}
/* The step's turn has come; to the next. */
INLINE void order_tell(const attn__params &p, order &o) {
    barrier_arrive(turn_barrier(o.shared + TURN, o.told));
    o.told++;
    o.more = walk_next(p, tile_at(o.tile), o.w);
}

/* Have all warps added the first step that was not passed on? */
INLINE bool order_added(const order &o) {
    uint32_t done;
    asm volatile("{.reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;}"
                 : "=r"(done)
                 : "r"(turn_barrier(o.shared + ADDED, o.passed)), "r"(turn_parity(o.passed))
                 : "memory");
    return done != 0;
}
INLINE void order_pass(order &o, uint32_t slot, int turn) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(order_count(o, slot)), "r"(turn + 1) : "memory");
    o.passed++;
}

/* One step at a time, for a thread that has other work meanwhile: waits for the turn of the walk's step and tells the
 * warps; waits until all have added, and passes the turn on. */
INLINE void order_take(const attn__params &p, order &o) {
    order_aim(p, o);
    while (!order_reached(o)) {
    }
    order_tell(p, o);
}
INLINE void order_leave(order &o) {
    barrier_wait(turn_barrier(o.shared + ADDED, o.passed), turn_parity(o.passed));
    order_pass(o, o.slot, o.turn);
}

/* A thread that does nothing else. Two steps may be under way, so that one group need not wait until the other has
 * added, and passing a turn on, which takes as long as the additions need to be seen, keeps no group waiting. */
INLINE void order_all(const attn__params &p) {
    order o = order_make(p, 0);
    for (uint32_t tile = 0; order_tile(p, o, tile); tile ^= 1) {
        uint32_t first = 0, second = 0; /* slots of the steps under way, and their turns */
        int first_turn = 0, second_turn = 0;
        order_aim(p, o);
        while (o.more || o.passed != o.told) {
            const bool idle = !o.more || o.told - o.passed == TURN_STAGES; /* no turn can be told */
            if (idle) {
                barrier_wait(turn_barrier(o.shared + ADDED, o.passed), turn_parity(o.passed));
            }
            if (idle || (o.passed != o.told && order_added(o))) {
                order_pass(o, first, first_turn);
                first = second;
                first_turn = second_turn;
            } else if (order_reached(o)) {
                if (o.passed == o.told) {
                    first = o.slot;
                    first_turn = o.turn;
                }
                second = o.slot;
                second_turn = o.turn;
                order_tell(p, o);
                if (o.more) {
                    order_aim(p, o);
                }
            }
        }
    }
}

/* --- By the computing warps --- */

/* Before a step's additions, and after them. step: its number over all tiles. */
INLINE void turn_wait(uint32_t shared, uint32_t step) {
    if (DETERMINISTIC) {
        barrier_wait(turn_barrier(shared + TURN, step), turn_parity(step));
    }
}
INLINE void turn_end(uint32_t shared, int lane, uint32_t step) {
    if (DETERMINISTIC) {
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(turn_barrier(shared + ADDED, step));
        }
    }
}
