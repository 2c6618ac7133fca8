/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper: what lies in shared memory, and the barriers and records by which the loading warp and the two
 * computing warp groups speak to each other.
 *
 * A tile of q, k, v or dout is WIDTH / 64 panels of rows of 64 elements (128 bytes, swizzled), each brought by one box
 * (maps.h). dS^T lies in panels too, [64 queries][key]: a row of 128 bytes a key.
 *
 * Stages are rings: q with its rows' lse, dout with its rows' delta, k; v has one. Each has a full barrier (the bytes
 * have landed) and an empty one (every computing warp has read them); v is empty when dout of the tile's last step is.
 *
 * Constants: TILE_Q, TILE_KV (128), WIDTH (64 or 128; heads are filled up with zeros), Q_STAGES, DO_STAGES, K_STAGES.
 */
#pragma once
#include "hopper/backward_records.cuh"

#define COMPUTING   8 /* warps */
#define PANELS      (WIDTH / 64)
#define TURN_STAGES 2

static_assert(TILE_Q * WIDTH == 8192 && TILE_KV == 128, "dQ of a step is cut into two squares of 64");

/* Bytes; the host asks for AT_END (hopper_backward.c). */
#define KEY_TILE   (TILE_KV * WIDTH * 2)
#define QUERY_TILE (TILE_Q * WIDTH * 2)
#define DS_TILE    (TILE_KV * TILE_Q * 2)
#define STATS      (TILE_Q * 4)
#define AT_K       0
#define AT_V       (AT_K + K_STAGES * KEY_TILE)
#define AT_Q       (AT_V + KEY_TILE)
#define AT_DO      (AT_Q + Q_STAGES * QUERY_TILE)
#define AT_DS      (AT_DO + DO_STAGES * QUERY_TILE)
#define AT_LSE     (AT_DS + 3 * DS_TILE)
#define AT_DELTA   (AT_LSE + Q_STAGES * STATS)
#define AT_STEPS   (AT_DELTA + DO_STAGES * STATS)
#define AT_OUTPUTS (AT_STEPS + Q_STAGES * STEP_RECORD)
#define AT_TILES   (AT_OUTPUTS + K_STAGES * OUTPUT_RECORD)
#define AT_BARS    (AT_TILES + PLACES * PLACE_RECORD)
#define AT_END     (AT_BARS + 8 * (2 * K_STAGES + 1 + 2 * Q_STAGES + 2 * DO_STAGES + 2 + 2 * TURN_STAGES * DETERMINISTIC))
static_assert(AT_BARS % 8 == 0, "barriers are words of 8 bytes");

#define K_FULL   AT_BARS
#define K_EMPTY  (K_FULL + 8 * K_STAGES)
#define V_FULL   (K_EMPTY + 8 * K_STAGES)
#define Q_FULL   (V_FULL + 8)
#define Q_EMPTY  (Q_FULL + 8 * Q_STAGES)
#define DO_FULL  (Q_EMPTY + 8 * Q_STAGES)
#define DO_EMPTY (DO_FULL + 8 * DO_STAGES)
/* A tile is placed; both loading threads have come near its end, and the keeper of the order has read it. Tiles
 * alternate between two records. */
#define TILE_FULL   (DO_EMPTY + 8 * DO_STAGES)
#define TILE_WANTED (TILE_FULL + 8)
/* backward_order.cuh: rings of the steps that may add at a time. */
#define TURN  (TILE_WANTED + 8)
#define ADDED (TURN + 8 * TURN_STAGES)

/* By one thread. */
INLINE void barriers_make(uint32_t shared) {
    for (int n = 0; n < K_STAGES; n++) {
        barrier_init(shared + K_FULL + 8 * n, 1);
        barrier_init(shared + K_EMPTY + 8 * n, COMPUTING);
    }
    barrier_init(shared + V_FULL, 1);
    for (int n = 0; n < Q_STAGES; n++) {
        barrier_init(shared + Q_FULL + 8 * n, 1);
        barrier_init(shared + Q_EMPTY + 8 * n, COMPUTING);
    }
    for (int n = 0; n < DO_STAGES; n++) {
        barrier_init(shared + DO_FULL + 8 * n, 1);
        barrier_init(shared + DO_EMPTY + 8 * n, COMPUTING);
    }
    barrier_init(shared + TILE_FULL, 1);
    barrier_init(shared + TILE_WANTED, 2 + DETERMINISTIC);
    for (int n = 0; DETERMINISTIC && n < TURN_STAGES; n++) {
        barrier_init(shared + TURN + 8 * n, 1);
        barrier_init(shared + ADDED + 8 * n, COMPUTING);
    }
    barrier_publish();
}
