/* SPDX-License-Identifier: Apache-2.0
 * Backward of wide heads on Hopper: what lies in the shared memory of one of the two blocks that share a tile of 128
 * keys, and its barriers. Tiles are panels of 64 rows of 64 elements (128 bytes, swizzled), four for a head filled up
 * to 256.
 *
 *     K, V    this block's 64 keys              KX   the other's keys, of the 128 columns of dQ that are made here
 *     Q, DO   64 queries of the step            P    P^T, 64 keys x 64 queries
 *     DS      dS^T, in three buffers in turn    DSX  the other block's dS^T, in two
 *
 * FULL: bytes have landed. EMPTY: all have read; of Q and DO the warps of both blocks, since each block loads half of
 * the panels for both; of DSX the warps of the block that was written to. READY: P and dS of a step are stored; FREE:
 * the step's products have read P, and those of the step before dS. MAIL: the next tile's number, to the second block.
 */
#pragma once
#include "hopper/backward_records.cuh"
#include "hopper/cluster.cuh"

#define WIDTH     256
#define PANELS    (WIDTH / 64)
#define HALF      64 /* keys of a block */
#define COMPUTING 8  /* warps of a block */
#define Q_STAGES  2
#define DS_STAGES 3
#define X_STAGES  2

static_assert(Q_STAGES == 2, "a step and the next");
static_assert(TILE_Q == 64 && TILE_KV == 2 * HALF && LISTED_KV == HALF, "products are cut for these");

/* Bytes; the host asks for AT_END (hopper_backward.c). */
#define PANEL      (64 * 128)
#define ROWS_TILE  (PANELS * PANEL)
#define X_TILE     (2 * PANEL)
#define STATS      (TILE_Q * 4)
#define AT_K       0
#define AT_V       (AT_K + ROWS_TILE)
#define AT_KX      (AT_V + ROWS_TILE)
#define AT_Q       (AT_KX + X_TILE)
#define AT_DO      (AT_Q + Q_STAGES * ROWS_TILE)
#define AT_P       (AT_DO + ROWS_TILE)
#define AT_DS      (AT_P + PANEL)
#define AT_DSX     (AT_DS + DS_STAGES * PANEL)
#define AT_LSE     (AT_DSX + X_STAGES * PANEL)
#define AT_DELTA   (AT_LSE + Q_STAGES * STATS)
#define AT_STEPS   (AT_DELTA + STATS)
#define AT_OUTPUTS (AT_STEPS + Q_STAGES * STEP_RECORD)
#define AT_TILE    (AT_OUTPUTS + OUTPUT_RECORD)
#define AT_MAIL    (AT_TILE + TILE_RECORD)
#define AT_BARS    (AT_MAIL + 8)
#define BARRIERS   18
#define AT_END     (AT_BARS + 8 * BARRIERS)

#define K_FULL     AT_BARS
#define K_EMPTY    (AT_BARS + 8)
#define V_FULL     (AT_BARS + 16)
#define V_EMPTY    (AT_BARS + 24)
#define Q_FULL     (AT_BARS + 32)
#define Q_EMPTY    (Q_FULL + 8 * Q_STAGES)
#define DO_FULL    (Q_EMPTY + 8 * Q_STAGES)
#define DO_EMPTY   (DO_FULL + 8)
#define READY      (DO_EMPTY + 8)
#define FREE       (READY + 8)
#define DSX_FULL   (FREE + 8)
#define DSX_EMPTY  (DSX_FULL + 8 * X_STAGES)
#define MAIL_FULL  (DSX_EMPTY + 8 * X_STAGES)
#define MAIL_EMPTY (MAIL_FULL + 8)

/* By one thread. */
INLINE void barriers_make(uint32_t shared) {
    barrier_init(shared + K_FULL, 1);
    barrier_init(shared + K_EMPTY, COMPUTING);
    barrier_init(shared + V_FULL, 1);
    barrier_init(shared + V_EMPTY, COMPUTING);
    for (int n = 0; n < Q_STAGES; n++) {
        barrier_init(shared + Q_FULL + 8 * n, 1);
        barrier_init(shared + Q_EMPTY + 8 * n, 2 * COMPUTING);
    }
    barrier_init(shared + DO_FULL, 1);
    barrier_init(shared + DO_EMPTY, 2 * COMPUTING);
    barrier_init(shared + READY, COMPUTING);
    barrier_init(shared + FREE, COMPUTING);
    for (int n = 0; n < X_STAGES; n++) {
        barrier_init(shared + DSX_FULL + 8 * n, 1);
        barrier_init(shared + DSX_EMPTY + 8 * n, COMPUTING);
    }
    barrier_init(shared + MAIL_FULL, 1);
    barrier_init(shared + MAIL_EMPTY, 1);
    barrier_publish();
}
