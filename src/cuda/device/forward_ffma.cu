/* SPDX-License-Identifier: Apache-2.0
 * Forward with exact float32 products. A block takes OUTER query rows of one run and head and walks the keys in blocks
 * of INNER with an online softmax; scores, and references in the same unit (products where nothing but a scale
 * applies), are subtracted first and multiplied afterwards, so that their size does not matter.
 *
 * Constants: those of every forward kernel; ROWS, DEPTH; RESIDENT, blocks that a processor is to hold. */
#define TWO_TILES 0
#include "ffma_walk.cuh"
#include "keep.cuh"
#include "score.cuh"

/* Of each row of the tile: largest score so far, sum of exponentials, and what the last step scaled sums by. */
typedef struct softmax_rows {
    float m[OUTER], l[OUTER], fade[OUTER];
} softmax_rows;

/* Raw products in memory.weights become scores; -inf where hidden. Keys j + tx + 16 n below `last`. */
INLINE void tile_scores(const attn__params &p, const query_tile &tile, tile_memory &memory, int64_t j, int64_t last) {
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        const int outer = tile_y() * ROWS + r;
        const int64_t i = tile.position + outer, shifted = i + tile.shift;
        const bool counts = tile.first + outer < tile.run.rows;
        const row_band band = band_of_row(p, shifted, tile.length);
        score_row row = {0.0f, 0, 0, 0};
        if (!SCORE_PLAIN) {
            row = score_row_of(p, tile.run.sequence, tile.head, i, shifted);
        }
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int64_t at = j + tile_x() + 16 * n;
            float *place = tile_place(memory.weights, r, n), s = -INFINITY_F;
            if (counts && at < last && band_sees(p, band, (int)at)) {
                s = SCORE_PLAIN ? *place : score_of(p, row, *place, (int)at, nullptr);
            }
            *place = s;
        }
    }
}

/* Scores of four rows become weights; unit: of log2. The 16 threads of a row agree on its state. */
INLINE void group_softmax(softmax_rows &rows, int group, float unit, uint32_t keep, float (&x)[OWN][4]) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int outer = tile_y() * ROWS + group + r;
        float top = fmaxf(fmaxf(x[0][r], x[1][r]), fmaxf(x[2][r], x[3][r])), l = 0.0f;
#pragma unroll
        for (int mask = 8; mask; mask >>= 1) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
        }
        const float before = rows.m[outer], m = fmaxf(before, top), base = m == -INFINITY_F ? 0.0f : m;
        const float fade = exp2_fast((before - base) * unit);
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const bool hidden = x[n][r] == -INFINITY_F;
            const float w = exp2_fast((x[n][r] - base) * unit);
            l += w;
            x[n][r] = hidden ? HIDDEN_WEIGHT : w;
            if (HAS_DROPOUT && !hidden && !(keep >> ((group + r) * OWN + n) & 1u)) {
                x[n][r] = 0.0f;
            }
        }
#pragma unroll
        for (int mask = 8; mask; mask >>= 1) {
            l += __shfl_xor_sync(0xffffffffu, l, mask);
        }
        __syncwarp(); /* all 16 have read the row's state */
        if (tile_x() == 0) {
            rows.m[outer] = m;
            rows.l[outer] = rows.l[outer] * fade + l;
            rows.fade[outer] = fade;
        }
    }
}

/* From raw products in memory.weights to weights; what was summed so far is scaled to the new maxima. */
INLINE void softmax_step(const attn__params &p, const query_tile &tile, softmax_rows &rows, tile_memory &memory,
                         int64_t j, int64_t last, bool full, float (&sum)[ROWS][4 * COLUMNS(DIM_V)]) {
    uint32_t keep = 0;
    if (!SCORE_PLAIN || !full) {
        tile_scores(p, tile, memory, j, last);
    }
    if (HAS_DROPOUT) {
        keep = keep_queries(p, dropout_key(p), tile.position, j, tile.head, tile.run.sequence);
    }
#pragma unroll 1
    for (int group = 0; group < ROWS; group += 4) {
        float x[OWN][4];
        group_get(memory.weights, group, x);
        group_softmax(rows, group, unit_log2(p), keep, x);
        group_put(memory.weights, group, x);
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float fade = rows.fade[tile_y() * ROWS + r];
#pragma unroll
        for (int c = 0; c < 4 * COLUMNS(DIM_V); c++) {
            sum[r][c] *= fade;
        }
    }
}

INLINE void store_tile(const attn__params &p, const query_tile &tile, const softmax_rows &rows,
                       const float (&sum)[ROWS][4 * COLUMNS(DIM_V)]) {
    const bool aligned = p.aligned & ATTN__ALIGNED_O;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int outer = tile_y() * ROWS + r, row = tile.first + outer;
        if (row >= tile.run.slot) {
            continue;
        }
        const int64_t at = row_offset(p.o, tile.run.sequence, tile.head, tile.run.first + row);
        float lse = -INFINITY_F;
        if (row >= tile.run.rows) {
            store_zeros<O_DTYPE, DIM_V>(p.o, at, aligned);
        } else {
            const float l = rows.l[outer];
            store_row<O_DTYPE, DIM_V>(p.o, at, sum[r], l == 0.0f ? 0.0f : p.keep_scale / l, aligned, false);
            if (l != 0.0f) {
                lse = (float)((double)rows.m[outer] * unit_natural(p) + (double)logf(l));
                lse = lse == -INFINITY_F ? -FLOAT_MAX : lse; /* -inf is kept for rows that saw nothing */
            }
        }
        if (p.lse.data && tile_x() == 0) {
            ((float *)p.lse.data)[row_offset(p.lse, tile.run.sequence, tile.head, tile.run.first + row)] = lse;
        }
    }
}

/* The block of keys from position j on, in K or V. */
INLINE tile_rows key_rows(const attn__params &p, const query_tile &tile, const key_span &keys, int j,
                          const attn__tensor_ref &t, bool aligned) {
    return tile_rows_of(t, tile.run.sequence, tile.head / p.group, keys.run.first + (j - keys.run.position), 0,
                        (int)smaller(INNER, keys.last - j), aligned);
}

/* Raw products into memory.weights. */
INLINE void put_scores(const attn__params &p, const query_tile &tile, const tile_rows &keys, tile_memory &memory) {
    const tile_rows queries = tile_rows_of(p.q, tile.run.sequence, tile.head, tile.run.first + tile.first, 0,
                                           tile.run.rows - tile.first, p.aligned & ATTN__ALIGNED_Q);
    float t[ROWS][OWN];
    tile_clear(t);
    tile_dot<DTYPE, DTYPE, DIM_QK>(t, queries, keys, memory);
    tile_put(memory.weights, t);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    __shared__ __align__(16) tile_memory memory;
    __shared__ softmax_rows rows;
    __shared__ query_tile tile; /* the same for all threads: no registers for these */
    __shared__ key_span keys;
    if (p.status && *p.status) {
        return;
    }
    if (threadIdx.x == 0) {
        tile = query_tile_of(p);
    }
    __syncthreads();
    if (tile.first >= tile.run.slot) {
        return;
    }
    float sum[ROWS][4 * COLUMNS(DIM_V)];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < 4 * COLUMNS(DIM_V); c++) {
            sum[r][c] = 0.0f;
        }
    }
    if (threadIdx.x < OUTER) {
        const float sink =
            HAS_SINK ? ((const float *)p.sink.data)[tile.head * p.sink.stride[1]] / unit_natural(p) : -INFINITY_F;
        rows.m[threadIdx.x] = sink;
        rows.l[threadIdx.x] = sink != -INFINITY_F ? 1.0f : 0.0f;
    }
    int list = 0, lists = 0;
    if (tile.first < tile.run.rows) {
        side_range<ROWS_KV>(p.side_kv, tile.run.sequence, &list, &lists);
    }
    for (; list < lists; list++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            keys = key_span_of(p, tile.low, tile.high, tile.length, list);
        }
        __syncthreads();
        for (unsigned at = 0; at < keys.count; at += INNER) {
            const int j = keys.first + (int)at;
            const int end = (int)smaller((int64_t)j + INNER, keys.last);
            if (band_hides_block(p, tile.low, tile.high, j, end)) {
                continue;
            }
            const bool full = end - j == INNER && band_shows_all(p, tile.low, tile.high, tile.length, j, INNER);
            put_scores(p, tile, key_rows(p, tile, keys, j, p.k, p.aligned & ATTN__ALIGNED_K), memory);
            softmax_step(p, tile, rows, memory, j, end, full, sum);
            tile_mix<DTYPE, DIM_V>(sum, key_rows(p, tile, keys, j, p.v, p.aligned & ATTN__ALIGNED_V), memory);
        }
    }
    __syncthreads();
    store_tile(p, tile, rows, sum);
}
