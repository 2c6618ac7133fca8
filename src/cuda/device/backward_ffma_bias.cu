/* SPDX-License-Identifier: Apache-2.0
 * dbias with exact float32 products: a block owns a tile of positions (OUTER queries x INNER keys) of one sequence and
 * head of dbias, and visits every pair of positions that the bias was broadcast to, always in the same order. Along an
 * axis that is summed (stride 0) there is one tile, which walks all positions. Elements that nothing reaches get 0.
 *
 * Constants: those of every backward kernel; OUTER_QUERIES 1; ROWS, DEPTH; RESIDENT. */
#define TWO_TILES 1
#include "ffma_gradient.cuh"

/* [begin, end) on each axis of [sequence, head, i block, j block]. */
typedef struct bias_part {
    int begin[4], end[4];
} bias_part;

INLINE bias_part bias_part_of(const attn__params &p) {
    const int size[4] = {p.batch, p.heads_q, (int)(((int64_t)p.side_q.tokens + OUTER - 1) / OUTER),
                         (int)(((int64_t)p.side_kv.tokens + INNER - 1) / INNER)};
    int64_t number = p.first_tile + blockIdx.x;
    bias_part part;
    for (int axis = 3; axis >= 0; axis--) {
        if (p.dbias.stride[axis]) {
            part.begin[axis] = (int)(number % size[axis]);
            part.end[axis] = part.begin[axis] + 1;
            number /= size[axis];
        } else {
            part.begin[axis] = 0;
            part.end[axis] = size[axis];
        }
    }
    return part;
}

/* The part of a run that lies in `count` positions from `position` on: [*begin, *end), counted from there. */
INLINE bool cut_run(const rows_run &run, int64_t position, int count, int *begin, int *end) {
    *begin = (int)larger(0, smaller(run.position - position, count));
    *end = (int)larger(0, smaller(run.position + run.rows - position, count));
    return *begin < *end;
}

/* dS of one tile added to sum. */
INLINE void add_tile(const attn__params &p, gradient_tile &tile, tile_memory &memory, float (&sum)[ROWS][OWN]) {
    load_statistics(p, tile);
    put_scores(p, tile, memory);
    float *products = put_products(p, tile, memory);
    tile_weights<WEIGHT_DS>(p, tile, memory.weights, products);
#pragma unroll
    for (int group = 0; group < ROWS; group += 4) {
        float x[OWN][4];
        group_get(memory.weights, group, x);
#pragma unroll
        for (int n = 0; n < OWN; n++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                sum[group + r][n] += x[n][r];
            }
        }
    }
    __syncthreads(); /* the next tile may change what this one read */
}

/* All runs of one sequence and head that meet the tile of positions. */
INLINE void add_positions(const attn__params &p, gradient_tile &tile, tile_memory &memory, float (&sum)[ROWS][OWN]) {
    int q_begin, q_end, kv_begin, kv_end;
    side_range<ROWS_Q>(p.side_q, tile.s, &q_begin, &q_end);
    side_range<ROWS_KV>(p.side_kv, tile.s, &kv_begin, &kv_end);
    for (int q = q_begin; q < q_end; q++) {
        const rows_run queries = side_run<ROWS_Q, USED_Q>(p.side_q, q);
        int i_begin, i_end, j_begin, j_end;
        if (!cut_run(queries, tile.i, OUTER, &i_begin, &i_end)) {
            continue;
        }
        const int64_t low = tile.i + i_begin + tile.shift, high = tile.i + i_end - 1 + tile.shift;
        for (int kv = kv_begin; kv < kv_end; kv++) {
            const rows_run keys = side_run<ROWS_KV, USED_KV>(p.side_kv, kv);
            if (!cut_run(keys, tile.j, INNER, &j_begin, &j_end) ||
                band_hides_block(p, low, high, (int)(tile.j + j_begin), (int)(tile.j + j_end))) {
                continue;
            }
            if (threadIdx.x == 0) {
                tile.i_begin = i_begin;
                tile.i_end = i_end;
                tile.j_begin = j_begin;
                tile.j_end = j_end;
                tile.row_q = queries.first + (tile.i - queries.position);
                tile.row_kv = keys.first + (tile.j - keys.position);
                tile.full = i_end - i_begin == OUTER && j_end - j_begin == INNER &&
                            band_shows_all(p, low, high, tile.length, tile.j, INNER);
            }
            __syncthreads();
            add_tile(p, tile, memory, sum);
        }
    }
}

/* Element (i, j) of the part's tile; i and j are 0 along summed axes. */
INLINE void store_element_of(const attn__params &p, const bias_part &part, int i, int j, float value) {
    const int64_t *stride = p.dbias.stride;
    const int64_t row = (int64_t)part.begin[2] * OUTER + i, key = (int64_t)part.begin[3] * INNER + j;
    if ((stride[2] && row >= p.side_q.tokens) || (stride[3] && key >= p.side_kv.tokens)) {
        return;
    }
    float *at = (float *)p.dbias.data + part.begin[0] * stride[0] + part.begin[1] * stride[1] + row * stride[2] +
                key * stride[3];
    *at = p.accumulate ? *at + value : value;
}

INLINE void store_sums(const attn__params &p, const bias_part &part, float *tile) {
    const bool rows = p.dbias.stride[2], keys = p.dbias.stride[3]; /* kept apart, not summed */
    const int t = threadIdx.x;
    if (rows && keys) {
        for (int at = t; at < OUTER * INNER; at += THREADS) {
            store_element_of(p, part, at / INNER, at % INNER, tile[at % INNER * WEIGHT_PITCH + at / INNER]);
        }
        return;
    }
    /* One thread sums a line of what is summed, in order. */
    float sum = 0.0f;
    if (keys && t < INNER) {
        for (int i = 0; i < OUTER; i++) {
            sum += tile[t * WEIGHT_PITCH + i];
        }
        store_element_of(p, part, 0, t, sum);
    } else if (!keys && t < OUTER) {
        for (int j = 0; j < INNER; j++) {
            sum += tile[j * WEIGHT_PITCH + t];
        }
        if (rows) {
            store_element_of(p, part, t, 0, sum);
        } else {
            tile[t] = sum; /* only thread t read this place */
        }
    }
    if (!rows && !keys) {
        __syncthreads();
        if (t == 0) {
            sum = 0.0f;
            for (int i = 0; i < OUTER; i++) {
                sum += tile[i];
            }
            store_element_of(p, part, 0, 0, sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    __shared__ __align__(16) tile_memory memory;
    __shared__ gradient_tile tile;
    __shared__ bias_part part;
    float sum[ROWS][OWN];
    if (p.status && *p.status) {
        return;
    }
    if (threadIdx.x == 0) {
        part = bias_part_of(p);
    }
    tile_clear(sum);
    __syncthreads();
    for (int s = part.begin[0]; s < part.end[0]; s++) {
        const int rows = side_length<ROWS_Q, USED_Q>(p.side_q, s), keys = side_length<ROWS_KV, USED_KV>(p.side_kv, s);
        for (int head = part.begin[1]; head < part.end[1]; head++) {
            for (int i = part.begin[2]; i < part.end[2] && (int64_t)i * OUTER < rows; i++) {
                for (int j = part.begin[3]; j < part.end[3] && (int64_t)j * INNER < keys; j++) {
                    __syncthreads(); /* the last tile's readers are done */
                    if (threadIdx.x == 0) {
                        tile.s = s;
                        tile.head = head;
                        tile.length = keys;
                        tile.shift = row_shift(p, s);
                        tile.i = (int64_t)i * OUTER;
                        tile.j = (int64_t)j * INNER;
                    }
                    __syncthreads();
                    add_positions(p, tile, memory, sum);
                }
            }
        }
    }
    __syncthreads();
    tile_put(memory.weights, sum);
    __syncthreads();
    store_sums(p, part, memory.weights);
}
