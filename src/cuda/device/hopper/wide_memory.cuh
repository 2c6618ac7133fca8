/* SPDX-License-Identifier: Apache-2.0
 * Backward of wide heads on Hopper: what lies in the shared memory of one of the two blocks that share a tile of 128
 * keys, and its barriers. Tiles are panels of 64 rows of 64 elements (128 bytes, swizzled), four for a head filled up
 * to 256.
 *
 *     K, V    this block's 64 keys              KX   the other's keys, of the 128 columns of dQ that are made here
 *     Q       64 queries of the step, with      DO   the same queries' dout: halves of 128 columns, three in a ring
 *             lse and delta; two stages
 *     P       P^T, 64 keys x 64 queries         DS   dS^T, two stages           DSX  the other block's dS^T
 *
 * FULL: bytes have landed, or are stored. EMPTY: all have read; of Q and DO the warps of both blocks, since each block
 * loads half of the panels for both; of DSX the warps of the block that was written to. OUT: a tile's record of
 * outputs. TILE: the placing thread's records (wide_load.cuh). MAIL: the next tile's number, to the second block. */
#pragma once
#include "hopper/backward_records.cuh"
#include "hopper/cluster.cuh"

#define WIDTH     256
#define PANELS    (WIDTH / 64)
#define HALF      64 /* keys of a block */
#define GROUP     4  /* warps of a computing group */
#define Q_STAGES  2
#define DO_STAGES 3
#define DO_HALVES (DIM_V > WIDTH / 2 ? 2 : 1) /* that a step reads */
#define DS_STAGES 2

static_assert(TILE_Q == 64 && TILE_KV == 2 * HALF && LISTED_KV == HALF, "products are cut for these");

/* Bytes; the host asks for AT_END (hopper_backward.c). */
#define PANEL      (64 * 128)
#define ROWS_TILE  (PANELS * PANEL)
#define HALF_TILE  (ROWS_TILE / 2)
#define STATS      (2 * TILE_Q * 4)
#define AT_K       0
#define AT_V       (AT_K + ROWS_TILE)
#define AT_KX      (AT_V + ROWS_TILE)
#define AT_Q       (AT_KX + HALF_TILE)
#define AT_DO      (AT_Q + Q_STAGES * ROWS_TILE)
#define AT_P       (AT_DO + DO_STAGES * HALF_TILE)
#define AT_DS      (AT_P + PANEL)
#define AT_DSX     (AT_DS + DS_STAGES * PANEL)
#define AT_STATS   (AT_DSX + PANEL)
#define AT_STEPS   (AT_STATS + Q_STAGES * STATS)
#define AT_OUTPUTS (AT_STEPS + Q_STAGES * STEP_RECORD)
#define AT_TILES   (AT_OUTPUTS + 2 * OUTPUT_RECORD)
#define AT_LAST    (AT_TILES + PLACES * PLACE_RECORD) /* is it the tile's last step: by stage of DO, then of DS */
#define AT_MAIL    (AT_LAST + 4 * (DO_STAGES + DS_STAGES))
#define AT_BARS    (AT_MAIL + 4)
#define BARRIERS   (30 + 2 * DETERMINISTIC)
#define AT_END     (AT_BARS + 8 * BARRIERS)
static_assert(AT_BARS % 8 == 0, "barriers are words of 8 bytes");

#define K_FULL      AT_BARS
#define K_EMPTY     (K_FULL + 8)
#define V_FULL      (K_EMPTY + 8)
#define V_EMPTY     (V_FULL + 8)
#define Q_FULL      (V_EMPTY + 8)
#define Q_EMPTY     (Q_FULL + 8 * Q_STAGES)
#define DO_FULL     (Q_EMPTY + 8 * Q_STAGES)
#define DO_EMPTY    (DO_FULL + 8 * DO_STAGES)
#define P_FULL      (DO_EMPTY + 8 * DO_STAGES)
#define P_EMPTY     (P_FULL + 8)
#define DS_FULL     (P_EMPTY + 8)
#define DS_EMPTY    (DS_FULL + 8 * DS_STAGES)
#define DSX_FULL    (DS_EMPTY + 8 * DS_STAGES)
#define DSX_EMPTY   (DSX_FULL + 8)
#define OUT_FULL    (DSX_EMPTY + 8)
#define OUT_EMPTY   (OUT_FULL + 8 * 2)
#define TILE_FULL   (OUT_EMPTY + 8 * 2)
#define TILE_WANTED (TILE_FULL + 8)
#define MAIL_FULL   (TILE_WANTED + 8)
#define MAIL_EMPTY  (MAIL_FULL + 8)
#define TURN        (MAIL_EMPTY + 8) /* backward_order.cuh: a step at a time */
#define TURN_STAGES 1
#define ADDED       (TURN + 8)
static_assert((DETERMINISTIC ? ADDED : MAIL_EMPTY) + 8 == AT_END, "all barriers have room");

/* A stage that one thread fills and `readers` warps empty. */
INLINE void stages_make(uint32_t full, uint32_t empty, int stages, int fillers, int readers) {
    for (int n = 0; n < stages; n++) {
        barrier_init(full + 8 * n, fillers);
        barrier_init(empty + 8 * n, readers);
    }
}

/* By one thread. */
INLINE void barriers_make(uint32_t shared) {
    stages_make(shared + K_FULL, shared + K_EMPTY, 1, 1, GROUP);
    stages_make(shared + V_FULL, shared + V_EMPTY, 1, 1, GROUP);
    stages_make(shared + Q_FULL, shared + Q_EMPTY, Q_STAGES, 1, 4 * GROUP);
    stages_make(shared + DO_FULL, shared + DO_EMPTY, DO_STAGES, 1, 4 * GROUP);
    stages_make(shared + P_FULL, shared + P_EMPTY, 1, GROUP, GROUP);
    stages_make(shared + DS_FULL, shared + DS_EMPTY, DS_STAGES, GROUP, GROUP + 1); /* the sender too */
    stages_make(shared + DSX_FULL, shared + DSX_EMPTY, 1, 1, GROUP);
    stages_make(shared + OUT_FULL, shared + OUT_EMPTY, 2, 1, 2 * GROUP + 1);
    stages_make(shared + TILE_FULL, shared + TILE_WANTED, 1, 1, 2 + DETERMINISTIC);
    stages_make(shared + MAIL_FULL, shared + MAIL_EMPTY, 1, 1, 1);
    if (DETERMINISTIC) {
        stages_make(shared + TURN, shared + ADDED, 1, 1, GROUP);
    }
    barrier_publish();
}

/* --- By all computing warps --- */

/* For a warp, after release() or where only products have read. */
INLINE void release_peer(int lane, uint32_t barrier) {
    if (lane == 0) {
        peer_arrive(barrier);
    }
}

/* The records of outputs alternate; false: no tile is left. */
INLINE bool output_next(uint32_t shared, ring_place &outputs) {
    barrier_wait(shared + OUT_FULL + 8 * outputs.stage, (int)outputs.parity);
    return (int)load_word(shared + AT_OUTPUTS + outputs.stage * OUTPUT_RECORD) >= 0;
}
