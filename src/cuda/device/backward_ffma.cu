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

/* The tile's rows in the four inputs; row_q and row_kv are the buffers' rows of its first query and key. */
typedef struct gradient_rows {
    tile_rows q, k, v, dout;
} gradient_rows;

INLINE gradient_rows rows_of_tile(const attn__params &p, const gradient_tile &tile, int64_t row_q, int64_t row_kv) {
    const int s = tile.s, head = tile.head, head_kv = tile.head / p.group;
    gradient_rows rows = {
        tile_rows_of(p.q, s, head, row_q, tile.i_begin, tile.i_end, p.aligned & ATTN__ALIGNED_Q),
        tile_rows_of(p.k, s, head_kv, row_kv, tile.j_begin, tile.j_end, p.aligned & ATTN__ALIGNED_K),
        tile_rows_of(p.v, s, head_kv, row_kv, tile.j_begin, tile.j_end, p.aligned & ATTN__ALIGNED_V),
        tile_rows_of(p.dout, s, head, row_q, tile.i_begin, tile.i_end, p.aligned & ATTN__ALIGNED_DOUT)};
    return rows;
}

/* Raw <q, k> into weights, <dout, v> into the chunks' memory. */
INLINE void put_scores(const gradient_rows &rows, tile_memory &memory) {
    float t[ROWS][OWN];
    tile_clear(t);
    if (OUTER_QUERIES) {
        tile_dot<DTYPE, DTYPE, DIM_QK>(t, rows.q, rows.k, memory);
    } else {
        tile_dot<DTYPE, DTYPE, DIM_QK>(t, rows.k, rows.q, memory);
    }
    tile_put(memory.weights, t);
}
INLINE float *put_products(const gradient_rows &rows, tile_memory &memory) {
    float t[ROWS][OWN];
    tile_clear(t);
    if (OUTER_QUERIES) {
        tile_dot<DOUT_DTYPE, DTYPE, DIM_V>(t, rows.dout, rows.v, memory);
    } else {
        tile_dot<DTYPE, DOUT_DTYPE, DIM_V>(t, rows.v, rows.dout, memory);
    }
    __syncthreads(); /* the chunks' last readers are done */
    tile_put(memory.chunk[0], t);
    return memory.chunk[0];
}

INLINE void add_tile(const attn__params &p, const gradient_tile &tile, const gradient_rows &rows, tile_memory &memory,
                     gradient_sums &sums) {
    put_scores(rows, memory);
    if (MAKE_DV) {
        tile_weights<WEIGHT_P>(p, tile, memory.weights, nullptr);
        tile_mix<DOUT_DTYPE, DIM_V>(sums.v, rows.dout, memory);
    }
    if (MAKE_DQ || MAKE_DK) {
        float *products = put_products(rows, memory);
        if (MAKE_DV) {
            tile_gradients_of(tile, memory.weights, products);
        } else {
            tile_weights<WEIGHT_DX>(p, tile, memory.weights, products);
        }
        tile_mix<DTYPE, DIM_QK>(sums.x, MAKE_DQ ? rows.k : rows.q, memory);
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
        tile.i_begin = tile.j_begin = 0;
        tile.i_end = (int)smaller(OUTER, queries.run.rows - queries.first);
    }
    __syncthreads();
    if (queries.first >= queries.run.slot) {
        return;
    }
    load_statistics(p, tile, queries.run.first + queries.first);
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
        for (int64_t j = keys.first; j < keys.last; j += INNER) {
            const int count = (int)smaller(INNER, keys.last - j);
            if (band_hides_block(p, queries.low, queries.high, (int)j, (int)j + count)) {
                continue;
            }
            __syncthreads(); /* the last tile's readers are done */
            if (threadIdx.x == 0) {
                tile.j = j;
                tile.j_end = count;
                tile.full = count == INNER && tile.i_end == OUTER &&
                            band_shows_all(p, queries.low, queries.high, queries.length, j, INNER);
            }
            __syncthreads();
            const gradient_rows rows =
                rows_of_tile(p, tile, queries.run.first + queries.first, keys.run.first + (j - keys.run.position));
            add_tile(p, tile, rows, memory, sums);
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
                    tile.i_end = count;
                    tile.full =
                        count == INNER && seen == OUTER && band_shows_all(p, low, high, tile.length, tile.j, OUTER);
                }
                __syncthreads();
                load_statistics(p, tile, run.first + first);
                const gradient_rows rows = rows_of_tile(p, tile, run.first + first, keys.run.first + keys.first);
                add_tile(p, tile, rows, memory, sums);
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
