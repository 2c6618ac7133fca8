/* SPDX-License-Identifier: Apache-2.0
 * Backward with exact float32 products, without one addition whose order is left to chance. Either
 *   OUTER_QUERIES 1   a block takes query rows of one run and head, walks the keys and sums dq;
 *   OUTER_QUERIES 0   a block takes keys of one run and kv head, walks the query rows of its heads and sums dk, dv or,
 *                     without soft cap and dropout, both: P then serves dv first and becomes dS in its place.
 * Scores are computed in each pass anew, which costs two products of seven but needs neither memory nor atomics.
 *
 * Constants: those of every backward kernel; OUTER_QUERIES; MAKE_DQ, MAKE_DK, MAKE_DV: what is summed; ROWS, DEPTH;
 * RESIDENT, blocks that a processor is to hold. */
#define TWO_TILES (MAKE_DQ || MAKE_DK)
#include "ffma_gradient.cuh"

/* What a thread sums; registers only for what is made. */
typedef struct gradient_sums {
    float x[ROWS][4 * COLUMNS(DIM_QK)]; /* dq or dk, without the scale */
    float v[ROWS][4 * COLUMNS(DIM_V)];
} gradient_sums;

INLINE void clear_sums(gradient_sums &sums) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int c = 0; c < 4 * COLUMNS(DIM_QK); c++) {
            sums.x[r][c] = 0.0f;
        }
#pragma unroll
        for (int c = 0; c < 4 * COLUMNS(DIM_V); c++) {
            sums.v[r][c] = 0.0f;
        }
    }
}

INLINE void add_tile(const attn__params &p, const gradient_tile &tile, tile_memory &memory, gradient_sums &sums) {
    put_scores(p, tile, memory);
    if (MAKE_DV) {
        tile_weights<WEIGHT_P>(p, tile, memory.weights, nullptr);
        tile_mix<DOUT_DTYPE, DIM_V>(sums.v, query_rows(tile, p.dout, p.aligned & ATTN__ALIGNED_DOUT), memory);
    }
    if (MAKE_DQ || MAKE_DK) {
        float *products = put_products(p, tile, memory);
        if (MAKE_DV) {
            tile_gradients_of(tile, memory.weights, products);
        } else {
            tile_weights<WEIGHT_DX>(p, tile, memory.weights, products);
        }
        if (MAKE_DQ) {
            tile_mix<DTYPE, DIM_QK>(sums.x, key_rows(p, tile, p.k, p.aligned & ATTN__ALIGNED_K), memory);
        } else {
            tile_mix<DTYPE, DIM_QK>(sums.x, query_rows(tile, p.q, p.aligned & ATTN__ALIGNED_Q), memory);
        }
    }
}

/* Row `row` of a run that has `rows` rows that count and `slot` in all. */
template <int dtype, int dim>
INLINE void store_gradient(const attn__params &p, const attn__tensor_ref &t, const rows_run &run, int head, int row,
                           const float (&sum)[4 * COLUMNS(dim)], float scale, bool aligned) {
    if (!t.data || row >= run.slot || (row >= run.rows && p.accumulate)) {
        return;
    }
    const int64_t at = row_offset(t, run.sequence, head, run.first + row);
    if (row >= run.rows) {
        store_zeros<dtype, dim>(t, at, aligned);
    } else {
        store_row<dtype, dim>(t, at, sum, scale, aligned, p.accumulate);
    }
}

INLINE void sum_queries(const attn__params &p, gradient_tile &tile, tile_memory &memory) {
    __shared__ query_tile queries;
    __shared__ key_span keys;
    gradient_sums sums;
    clear_sums(sums);
    if (threadIdx.x == 0) {
        queries = query_tile_of(p);
        tile.s = queries.run.sequence;
        tile.head = queries.head;
        tile.length = queries.length;
        tile.i = queries.position;
        tile.shift = queries.shift;
        tile.row_q = queries.run.first + queries.first;
        tile.i_begin = tile.j_begin = 0;
        tile.i_end = (int)smaller(OUTER, queries.run.rows - queries.first);
    }
    __syncthreads();
    if (queries.first >= queries.run.slot) {
        return;
    }
    load_statistics(p, tile);
    int list = 0, lists = 0;
    if (queries.first < queries.run.rows) {
        side_range<ROWS_KV>(p.side_kv, tile.s, &list, &lists);
    }
    for (; list < lists; list++) {
        __syncthreads();
        if (threadIdx.x == 0) {
            keys = key_span_of(p, queries.low, queries.high, queries.length, list);
        }
        __syncthreads();
        for (unsigned at = 0; at < keys.count; at += INNER) {
            const int j = keys.first + (int)at;
            const int count = (int)smaller(INNER, keys.last - j);
            if (band_hides_block(p, queries.low, queries.high, j, j + count)) {
                continue;
            }
            __syncthreads(); /* the last tile's readers are done */
            if (threadIdx.x == 0) {
                tile.j = j;
                tile.row_kv = keys.run.first + (j - keys.run.position);
                tile.j_end = count;
                tile.full = count == INNER && tile.i_end == OUTER &&
                            band_shows_all(p, queries.low, queries.high, queries.length, j, INNER);
            }
            __syncthreads();
            add_tile(p, tile, memory, sums);
        }
    }
    if (MAKE_DQ) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            store_gradient<DQ_DTYPE, DIM_QK>(p, p.dq, queries.run, queries.head, queries.first + tile_y() * ROWS + r,
                                             sums.x[r], p.scale, p.aligned & ATTN__ALIGNED_DQ);
        }
    }
}

/* Up to OUTER keys of one run and kv head. */
typedef struct key_tile {
    rows_run run;
    int head_kv, first;
} key_tile;

INLINE key_tile key_tile_of(const attn__params &p) {
    const int64_t lists = (int64_t)side_runs<ROWS_KV>(p.side_kv, p.batch) * p.heads_kv;
    const int64_t tile = p.first_tile + blockIdx.x, list = tile % lists; /* first keys first: most rows see those */
    key_tile t;
    t.run = side_run<ROWS_KV, USED_KV>(p.side_kv, (int)(list / p.heads_kv));
    t.head_kv = (int)(list % p.heads_kv);
    t.first = (int)smaller(tile / lists * OUTER, t.run.slot);
    return t;
}

INLINE void sum_keys(const attn__params &p, gradient_tile &tile, tile_memory &memory) {
    __shared__ key_tile keys;
    gradient_sums sums;
    clear_sums(sums);
    if (threadIdx.x == 0) {
        keys = key_tile_of(p);
        tile.s = keys.run.sequence;
        tile.length = side_length<ROWS_KV, USED_KV>(p.side_kv, tile.s);
        tile.shift = row_shift(p, tile.s);
        tile.j = keys.run.position + keys.first;
        tile.row_kv = keys.run.first + keys.first;
        tile.i_begin = tile.j_begin = 0;
        tile.j_end = (int)smaller(OUTER, keys.run.rows - keys.first);
    }
    __syncthreads();
    if (keys.first >= keys.run.slot) {
        return;
    }
    int lists_begin = 0, lists = 0;
    if (keys.first < keys.run.rows) {
        side_range<ROWS_Q>(p.side_q, tile.s, &lists_begin, &lists);
    }
    for (int head = keys.head_kv * p.group; head < (keys.head_kv + 1) * p.group; head++) {
        for (int list = lists_begin; list < lists; list++) {
            const rows_run run = side_run<ROWS_Q, USED_Q>(p.side_q, list);
            for (int64_t first = 0; first < run.rows; first += INNER) {
                const int count = (int)smaller(INNER, run.rows - first), seen = tile.j_end;
                const int64_t low = run.position + first + tile.shift, high = low + count - 1;
                if (band_hides_block(p, low, high, (int)tile.j, (int)tile.j + seen)) {
                    continue;
                }
                __syncthreads(); /* the last tile's readers are done */
                if (threadIdx.x == 0) {
                    tile.head = head;
                    tile.i = run.position + first;
                    tile.row_q = run.first + first;
                    tile.i_end = count;
                    tile.full =
                        count == INNER && seen == OUTER && band_shows_all(p, low, high, tile.length, tile.j, OUTER);
                }
                __syncthreads();
                load_statistics(p, tile);
                add_tile(p, tile, memory, sums);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = keys.first + tile_y() * ROWS + r;
        if (MAKE_DK) {
            store_gradient<DK_DTYPE, DIM_QK>(p, p.dk, keys.run, keys.head_kv, row, sums.x[r], p.scale,
                                             p.aligned & ATTN__ALIGNED_DK);
        }
        if (MAKE_DV) {
            store_gradient<DV_DTYPE, DIM_V>(p, p.dv, keys.run, keys.head_kv, row, sums.v[r], p.keep_scale,
                                            p.aligned & ATTN__ALIGNED_DV);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    __shared__ __align__(16) tile_memory memory;
    __shared__ gradient_tile tile;
    if (p.status && *p.status) {
        return;
    }
    if (OUTER_QUERIES) {
        sum_queries(p, tile, memory);
    } else {
        sum_keys(p, tile, memory);
    }
}
