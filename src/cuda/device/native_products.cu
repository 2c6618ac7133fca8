/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the unfused computation, float32 sums over tiles of ffma.cuh. By PRODUCT:
 *   SCORES     p.scores = scale * Q K^T, rounded          DPRODUCTS  p.extra = dout V^T, rounded
 *   OUTPUT     o = P V                                     DQ         dq = scale * dX K
 *   DK         dk = scale * sum of dX^T Q                  DV         dv = sum of P^T dout      over a kv head's heads
 * A block takes OUTER rows of one run and head of the result and walks the other side; a result of rows is made 64
 * columns at a time, so any head size goes. No block is left out because of a mask: this is the plain recipe.
 *
 * Constants: those of every kernel of the pass; PRODUCT; ROWS 8, DEPTH. */
#define SCORES    0
#define DPRODUCTS 1
#define OUTPUT    2
#define DQ        3
#define DK        4
#define DV        5

#define TWO_TILES 0
#include "ffma.cuh"
#include "native.cuh"

#define OF_QUERIES (PRODUCT != DK && PRODUCT != DV) /* the result's rows are queries */
#define OF_SCORES  (PRODUCT == SCORES || PRODUCT == DPRODUCTS)

/* Rows of the result: OUTER rows of a run from `first` on, and 64 columns from group `column` on. */
typedef struct product_tile {
    rows_run run;
    int head, first, column;
} product_tile;

INLINE product_tile product_tile_of(const attn__params &p, int groups) {
    const int runs = OF_QUERIES ? side_runs<ROWS_Q>(p.side_q, p.batch) : side_runs<ROWS_KV>(p.side_kv, p.batch);
    const int heads = OF_QUERIES ? p.heads_q : p.heads_kv;
    int64_t number = p.first_tile + blockIdx.x;
    product_tile t;
    t.column = (int)(number % groups);
    number /= groups;
    t.head = (int)(number % heads);
    number /= heads;
    t.run = OF_QUERIES ? side_run<ROWS_Q, USED_Q>(p.side_q, (int)(number % runs))
                       : side_run<ROWS_KV, USED_KV>(p.side_kv, (int)(number % runs));
    t.first = (int)smaller(number / runs * OUTER, t.run.slot);
    return t;
}

INLINE void store_scores(const attn__params &p, const product_tile &tile, const rows_run &keys, int64_t first,
                         const float (&t)[ROWS][OWN]) {
    void *matrix = PRODUCT == SCORES ? p.scores : p.extra;
    const float scale = PRODUCT == SCORES ? p.scale : 1.0f;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t row = tile.first + tile_y() * ROWS + r;
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int64_t key = first + tile_x() + 16 * n;
            if (row < tile.run.rows && key < keys.rows) {
                store_element<DTYPE>(
                    matrix, matrix_at(p, tile.run.sequence, tile.head, tile.run.position + row, keys.position + key),
                    t[r][n] * scale);
            }
        }
    }
}

/* Q K^T or dout V^T. */
INLINE void make_scores(const attn__params &p, const product_tile &tile, tile_memory &memory) {
    const int s = tile.run.sequence, head_kv = tile.head / p.group;
    const int rows = (int)smaller(OUTER, tile.run.rows - tile.first);
    int list, lists;
    side_range<ROWS_KV>(p.side_kv, s, &list, &lists);
    for (; list < lists; list++) {
        const rows_run keys = side_run<ROWS_KV, USED_KV>(p.side_kv, list);
        for (int64_t first = 0; first < keys.rows; first += INNER) {
            const int count = (int)smaller(INNER, keys.rows - first);
            float t[ROWS][OWN];
            tile_clear(t);
            if constexpr (PRODUCT == SCORES) {
                tile_dot<DTYPE, DTYPE, DIM_QK>(
                    t,
                    tile_rows_of(p.q, s, tile.head, tile.run.first + tile.first, 0, rows, p.aligned & ATTN__ALIGNED_Q),
                    tile_rows_of(p.k, s, head_kv, keys.first + first, 0, count, p.aligned & ATTN__ALIGNED_K), memory);
            } else {
#if PRODUCT == DPRODUCTS
                tile_dot<DOUT_DTYPE, DTYPE, DIM_V>(
                    t,
                    tile_rows_of(p.dout, s, tile.head, tile.run.first + tile.first, 0, rows,
                                 p.aligned & ATTN__ALIGNED_DOUT),
                    tile_rows_of(p.v, s, head_kv, keys.first + first, 0, count, p.aligned & ATTN__ALIGNED_V), memory);
#endif
            }
            store_scores(p, tile, keys, first, t);
        }
    }
}

/* What a result of rows is made of: weights from `matrix`, rows of `inner`. */
#if PRODUCT == OUTPUT
#define MATRIX      p.scores
#define INNER_OF    p.v
#define INNER_DTYPE DTYPE
#define INNER_BIT   ATTN__ALIGNED_V
#define RESULT      p.o
#define RESULT_TYPE O_DTYPE
#define RESULT_BIT  ATTN__ALIGNED_O
#define DIM         DIM_V
#define FACTOR      1.0f
#elif PRODUCT == DQ
#define MATRIX      p.extra
#define INNER_OF    p.k
#define INNER_DTYPE DTYPE
#define INNER_BIT   ATTN__ALIGNED_K
#define RESULT      p.dq
#define RESULT_TYPE DQ_DTYPE
#define RESULT_BIT  ATTN__ALIGNED_DQ
#define DIM         DIM_QK
#define FACTOR      p.scale
#elif PRODUCT == DK
#define MATRIX      p.extra
#define INNER_OF    p.q
#define INNER_DTYPE DTYPE
#define INNER_BIT   ATTN__ALIGNED_Q
#define RESULT      p.dk
#define RESULT_TYPE DK_DTYPE
#define RESULT_BIT  ATTN__ALIGNED_DK
#define DIM         DIM_QK
#define FACTOR      p.scale
#elif PRODUCT == DV
#define MATRIX      p.scores
#define INNER_OF    p.dout
#define INNER_DTYPE DOUT_DTYPE
#define INNER_BIT   ATTN__ALIGNED_DOUT
#define RESULT      p.dv
#define RESULT_TYPE DV_DTYPE
#define RESULT_BIT  ATTN__ALIGNED_DV
#define DIM         DIM_V
#define FACTOR      1.0f
#endif

#if PRODUCT >= OUTPUT
/* The thread's places of the weights' tile from the matrix; what does not count is hidden. */
INLINE void load_weights(const attn__params &p, const product_tile &tile, const rows_run &inner, int head,
                         int64_t first, tile_memory &memory) {
#pragma unroll 1
    for (int r = 0; r < ROWS; r++) {
        const int64_t outer_row = tile.first + tile_y() * ROWS + r;
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            const int64_t inner_row = first + tile_x() + 16 * n;
            float weight = HIDDEN_WEIGHT;
            if (outer_row < tile.run.rows && inner_row < inner.rows) {
                const int64_t outer_at = tile.run.position + outer_row, inner_at = inner.position + inner_row;
                weight =
                    load_element<DTYPE>(MATRIX, matrix_at(p, tile.run.sequence, head, OF_QUERIES ? outer_at : inner_at,
                                                          OF_QUERIES ? inner_at : outer_at));
            }
            *tile_place(memory.weights, r, n) = weight;
        }
    }
}

INLINE void make_rows(const attn__params &p, const product_tile &tile, tile_memory &memory) {
    const int s = tile.run.sequence, t = here();
    const int head_begin = OF_QUERIES ? tile.head : tile.head * p.group;
    const int head_end = OF_QUERIES ? tile.head + 1 : head_begin + p.group;
    float sum[ROWS][4];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = 0.0f;
    }
    int lists_begin, lists;
    if (OF_QUERIES) {
        side_range<ROWS_KV>(p.side_kv, s, &lists_begin, &lists);
    } else {
        side_range<ROWS_Q>(p.side_q, s, &lists_begin, &lists);
    }
    for (int head = head_begin; head < head_end; head++) {
        for (int list = lists_begin; list < lists; list++) {
            const rows_run inner =
                OF_QUERIES ? side_run<ROWS_KV, USED_KV>(p.side_kv, list) : side_run<ROWS_Q, USED_Q>(p.side_q, list);
            for (int64_t first = 0; first < inner.rows; first += INNER) {
                const tile_rows rows =
                    tile_rows_of(INNER_OF, s, OF_QUERIES ? head / p.group : head, inner.first + first, 0,
                                 (int)smaller(INNER, inner.rows - first), p.aligned & INNER_BIT);
                float4 next[VECTORS];
                float part[ROWS][4];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    part[r][0] = part[r][1] = part[r][2] = part[r][3] = 0.0f;
                }
                __syncthreads(); /* the weights' last readers are done */
                load_weights(p, tile, inner, head, first, memory);
                fetch_lines<INNER_DTYPE, DIM>(next, rows, tile.column, 0);
                __syncthreads();
                mix_columns<INNER_DTYPE, DIM>(part, next, rows, memory, tile.column, false, t);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        sum[r][n] += part[r][n];
                    }
                }
            }
        }
    }
    const bool accumulate = PRODUCT != OUTPUT && p.accumulate;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = tile.first + tile_y() * ROWS + r;
        /* Rows past the used length have no weights, so their sums are 0. */
        if (row < tile.run.slot && !(row >= tile.run.rows && accumulate)) {
            const float4 x =
                make_float4(sum[r][0] * FACTOR, sum[r][1] * FACTOR, sum[r][2] * FACTOR, sum[r][3] * FACTOR);
            store_four<RESULT_TYPE, DIM>(RESULT, row_offset(RESULT, s, tile.head, tile.run.first + row),
                                         64 * tile.column + 4 * tile_x(), x, p.aligned & RESULT_BIT, accumulate);
        }
    }
}
#else
#define DIM 1
INLINE void make_rows(const attn__params &, const product_tile &, tile_memory &) {}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    __shared__ __align__(16) tile_memory memory;
    if (p.status && *p.status) {
        return;
    }
    const product_tile tile = product_tile_of(p, OF_SCORES ? 1 : COLUMNS(DIM));
    if (tile.first >= tile.run.slot) {
        return;
    }
    if (OF_SCORES) {
        make_scores(p, tile, memory);
    } else {
        make_rows(p, tile, memory);
    }
}
