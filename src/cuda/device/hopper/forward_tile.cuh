/* SPDX-License-Identifier: Apache-2.0
 * What producer and consumers of the forward kernel share: shared memory, its barriers, and the tiles, which are
 * placed and posted ahead (forward_place.cuh).
 *
 * A tile is POSITIONS rows of each of PACK heads that share their keys (row r of it is position r % POSITIONS of head
 * r / POSITIONS, and a warp's 16 rows are of one head), and the blocks of TILE_KV keys that some row of it may see,
 * taken from the last to the first: under a causal mask the diagonal comes first, so that a row's reference is settled
 * early. Where they are one stretch (WALKED is 0) block n follows from n; else the producer posts each block beside its
 * keys.
 *
 * Shared memory: queries | keys | values | barriers | blocks | tiles. Each operand is in panels of 64 columns (128
 * bytes a row). */
#pragma once
#include "keys.cuh"
#include "schedule.cuh"
#include "softmax.cuh"
#include "hopper/tma.cuh"
#include "hopper/wgmma.cuh"

#define TILE_Q    (64 * GROUPS)
#define POSITIONS (TILE_Q / PACK)
#define THREADS   (128 * (GROUPS + 1))
#define PANELS_QK ((DIM_QK + 63) / 64)
#define PANELS_V  ((WIDTH_V + 63) / 64) /* WIDTH_V: columns of the product, DIM_V rounded up */
#define STEPS_QK  ((DIM_QK + 15) / 16)
#define PANEL_Q   (TILE_Q * 128)
#define PANEL_KV  (TILE_KV * 128)
#define BYTES_Q   (PANELS_QK * PANEL_Q)
#define BYTES_K   (PANELS_QK * PANEL_KV)
#define BYTES_V   (PANELS_V * PANEL_KV)

/* With two buffers for queries the outputs of a tile are staged in its own. */
#define STAGED (STAGES_Q > 1 && PANELS_V <= PANELS_QK)
/* Fewest differences between blocks that need a look at single keys. */
#define TILES_POSTED 4
#define NOWHERE      (1 << 30) /* a row past every extent: reads as zeros */

typedef struct __align__(16) forward_tile {
    int64_t low; /* i' of the first row */
    int blocks;  /* of keys, at least 1; 0: no tile is left */
    int head;    /* the first */
    int kv_head, sequence;
    int row;       /* of the buffers: the tile's first */
    int rows;      /* that count, from there on; may pass the tile */
    int slot;      /* that are written, likewise */
    int position;  /* of key block 0 (not WALKED) */
    int end;       /* past the last key (not WALKED) */
    int first_key; /* row of the buffers that is position 0 of the keys (packed) */
}
forward_tile;

typedef struct forward_block {
    int position, count, whole, unused;
} forward_block;

/* Behind the operands. */
typedef struct forward_shared {
    uint64_t q_full[STAGES_Q], q_empty[STAGES_Q], k_full[STAGES_K], k_empty[STAGES_K], v_full[STAGES_V],
        v_empty[STAGES_V];
    forward_block blocks[WALKED ? STAGES_K : 1];
    forward_tile tiles[TILES_POSTED]; /* the n-th of this block in place n % TILES_POSTED */
} forward_shared;

#define OPERANDS (STAGES_Q * BYTES_Q + STAGES_K * BYTES_K + STAGES_V * BYTES_V)
static_assert(OPERANDS + sizeof(forward_shared) <= SHARED, "the host lays out the same");

extern __shared__ __align__(1024) unsigned char memory[];
#define SHARED_TAIL (*(forward_shared *)(memory + OPERANDS))

INLINE uint32_t queries_at(int stage) {
    return shared_address(memory) + stage * BYTES_Q;
}
INLINE uint32_t keys_at(int stage) {
    return shared_address(memory) + STAGES_Q * BYTES_Q + stage * BYTES_K;
}
INLINE uint32_t values_at(int stage) {
    return shared_address(memory) + STAGES_Q * BYTES_Q + STAGES_K * BYTES_K + stage * BYTES_V;
}
INLINE uint32_t barrier_at(const uint64_t *barriers, int n) {
    return shared_address(barriers) + 8 * n;
}
