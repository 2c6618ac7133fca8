/* SPDX-License-Identifier: Apache-2.0
 * The tile of a block of threads in the forward pass on the tensor cores: its sizes, what it works on (in shared
 * memory: thread 0 finds it, all read it where they need it), and what a warp keeps of its rows. Constants:
 * forward_mma.cu. */
#pragma once
#include "barrier.cuh"
#include "copy.cuh"
#include "keys.cuh"
#include "schedule.cuh"

#define SIZE        ((int)sizeof(element_t<DTYPE>))
#define THREADS     (WARPS * 32)
#define TOKENS      (TILE_Q / PACK)
#define STRIPS      (TILE_Q / WARPS / 16) /* of 16 rows, a warp */
#define SCORES      (TILE_KV / 8)         /* sums of 8 keys */
#define OUTPUTS     ((DIM_PART + 7) / 8)  /* sums of 8 columns */
#define STEPS_QK    STEPS(DIM_QK, SIZE)
#define STEPS_PV    (TILE_KV * SIZE / STEP_BYTES)
#define KEYS_A_STEP (STEP_BYTES / SIZE)
#define PITCH_QK    TILE_PITCH(DIM_QK, SIZE)
#define PITCH_V     TILE_PITCH(DIM_PART, SIZE)
#define BYTES_Q     (TILE_Q * PITCH_QK)
#define BYTES_K     (TILE_KV * PITCH_QK)
#define BYTES_V     (TILE_KV * PITCH_V)

/* Warps wait for data and for room in a stage, not for each other (where each block follows from its number). */
#define FREE_RUNNING (HAS_BARRIERS && !WALKED && STAGES > 1)

/* Careful modes (forward_mma.cu). */
#define MODE_DROPPED 4
#define LAST_MODE    (HAS_DROPOUT ? MODE_DROPPED : 3)

typedef struct tile_work {
    key_view view;
    rows_run run;
    int first;    /* row of the run's slot that begins the tile */
    int rows;     /* tokens of the tile that count */
    int column;   /* its heads are column * PACK ... */
    int column_v; /* first column of the values */
    bool exists;
    const void *keys, *values; /* row 0 of the buffers (segments), of the run (else) */
    int mode;                  /* 0, or a careful mode (forward_mma.cu) */
    bool far;                  /* some product is past FUSED_LIMIT: a careful mode must do the tile again */
    key_walk walk;
    uint64_t landed_keys[STAGES], landed_values[STAGES], free[STAGES]; /* barriers */
} tile_work;

typedef struct warp_rows {
    float o[STRIPS][OUTPUTS][4];
    float reference[STRIPS][2], sum[STRIPS][2];
    bool settled; /* every row has a reference */
} warp_rows;

typedef float score_tile[STRIPS][SCORES][4];
typedef uint32_t held_queries[STRIPS][QUERIES_HELD ? QUERIES_HELD : 1][4];

/* Row of the tile of a lane's elements [2 half], [2 half + 1] in a strip. */
INLINE int row_of(int strip, int half, int thread = (int)threadIdx.x) {
    return (thread >> 5) * (STRIPS * 16) + strip * 16 + half * 8 + (thread % 32 >> 2);
}
INLINE int head_of(const tile_work &tile, int row) {
    return tile.column * PACK + row % PACK;
}

INLINE void find_tile(const attn__params &p, int64_t index, tile_work &tile) {
    const int splits = SPLIT ? p.splits : 1;
    tile_place place =
        place_tile(p, index, p.heads_q / PACK, p.group / PACK, splits * PARTS, TOKENS, (DIM_QK + DIM_V) * SIZE);
    tile.exists = place.exists && place.first < place.run.slot;
    if (!tile.exists) {
        return;
    }
    int left = place.run.rows - place.first, s = place.run.sequence, head = place.column * PACK / p.group;
    tile.run = place.run;
    tile.first = place.first;
    tile.rows = left < 0 ? 0 : left < TOKENS ? left : TOKENS;
    tile.column = place.column;
    tile.column_v = place.inner % PARTS ? DIM_V - DIM_PART : 0;
    tile.view =
        view_keys(p, s, place.run.position + place.first + row_shift(p, s), tile.rows, place.inner / PARTS, splits);
    int64_t row = ROWS_KV == PACKED ? p.side_kv.cu[s] : 0;
    tile.keys = (const element_t<DTYPE> *)p.k.data + row_offset(p.k, s, head, row);
    tile.values = (const element_t<DTYPE> *)p.v.data + row_offset(p.v, s, head, row) + tile.column_v * p.v.stride[3];
}
