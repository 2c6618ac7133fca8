/* SPDX-License-Identifier: Apache-2.0
 * What both passes of `ffma` choose alike: the shape of a tile, which src/cuda/device/ffma.cuh defines. */
#ifndef ATTN_CUDA_FFMA_H
#define ATTN_CUDA_FFMA_H

#include "cuda/cuda.h"

enum {
    FFMA_THREADS = 128,
    FFMA_INNER = 64, /* rows of the side that is walked */
    FFMA_DEPTH = 8,  /* columns a chunk */
    /* Forward takes longer chunks, with fewer barriers, where as many blocks share a processor with 39 KB as with 31.
     */
    FFMA_LONG_DEPTH = 16,
    FFMA_LONG_SHARED = 40 << 10
};

/* Rows of a tile that a thread sums, 4 or 8 (the tile has 8 times as many): 8 unless sums of `columns` groups of 64
 * columns would then not fit its registers, or 4 are asked for by block_q. */
static inline int attn__ffma_rows(const attn_plan *plan, int columns) {
    return columns > 4 || (plan->hints.block_q > 0 && plan->hints.block_q <= 32) ? 4 : 8;
}

/* Groups of 64 columns that dim takes. */
static inline int attn__ffma_columns(int64_t dim) {
    return (int)((dim + 63) / 64);
}

/* Blocks that a processor is to hold, which bounds a thread's registers. */
static inline int attn__ffma_resident(int rows, int columns) {
    return rows * columns <= 16 ? 3 : 2;
}

#endif
