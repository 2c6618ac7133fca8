/* SPDX-License-Identifier: Apache-2.0
 * Backward on tensor cores. Two forms of one kernel (gradient_tile.cuh): PASS_KEYS owns a tile of keys and makes dK and
 * dV of it in registers, over all queries and heads of its group, and adds its part of dQ to float32 sums in memory;
 * the other owns a tile of queries and makes dQ alone, for a dQ whose bits do not depend on the order of additions.
 *
 * delta.cu has run before (row scratch, zeroed sums); backward_sums.cu turns the sums into dQ afterwards. dQ and dK
 * take the scale at the very end.
 *
 * FLAGGED: only the tiles of a list (gradient_blocks.cuh) are taken, by as many blocks of threads as there are.
 *
 * A step: a barrier; y block t is in shared memory, t + 1 begins to arrive in the other stage; S and dP; P and dS in
 * registers; both to shared memory; once the warps that share rows of x have done so, dV and dK. dQ needs dS of all
 * warps: it is made one step later, behind the next barrier, so dS lies in two buffers in turn. */
#include "careful.cuh"

/* `count` rows from element offset `at` on to a tile of `rows` rows, `width` columns, with zeros where there is
 * nothing; narrowed one by one where the tensor is of another type than the products. Does not wait. */
template <int dtype, int dim, int width, int rows>
INLINE void copy_side(const attn__params &p, uint32_t to, const attn__tensor_ref &t, unsigned aligned, int64_t at,
                      int count) {
    typedef element_t<dtype> element;
    const int pitch = TILE_PITCH(width, SIZE), units = width * SIZE / 16, each = 16 / SIZE;
    const int at_once = THREADS / units; /* rows, where they come out even */
    const element *from = (const element *)t.data + at;
    to += shared_address(shared_memory());
    if constexpr (dtype != DTYPE) {
        for (int n = (int)threadIdx.x; n < rows * width; n += THREADS) {
            int r = n / width, column = n % width;
            float x = r < count && column < dim ? widen<dtype>(from[r * t.stride[2] + column * t.stride[3]]) : 0.0f;
            store_shared<DTYPE>(to + r * pitch + column * SIZE, x);
        }
    } else if (!(p.aligned & aligned)) {
#pragma unroll 1
        for (int unit = (int)threadIdx.x; unit < rows * units; unit += THREADS) {
            int r = unit / units, column = unit % units * each;
            store_shared_16(to + r * pitch + column * SIZE,
                            gather_16<dtype>(from + r * t.stride[2] + column * t.stride[3], t.stride[3],
                                             r < count ? dim - column : 0));
        }
    } else if constexpr (THREADS % units == 0 && rows % at_once == 0) {
        const int thread = thread_index_again(), r = thread / units, column = thread % units;
        from += r * t.stride[2] + column * each;
        to += r * pitch + column * 16;
        if (count >= rows && width == dim) {
#pragma unroll
            for (int n = 0; n < rows / at_once; n++) {
                copy_whole_16(to + n * at_once * pitch, from);
                from += at_once * t.stride[2];
            }
        } else {
            count = column * each < dim ? count - r : 0; /* aligned rows hold whole units */
#pragma unroll
            for (int n = 0; n < rows / at_once; n++) {
                copy_16<dtype>(to + n * at_once * pitch, from, n * at_once < count ? 16 : 0);
                from += at_once * t.stride[2];
            }
        }
    } else {
#pragma unroll
        for (int n = 0; n < (rows * units + THREADS - 1) / THREADS; n++) {
            const int unit = n * THREADS + (int)threadIdx.x, r = unit / units, column = unit % units;
            if (rows * units % THREADS == 0 || r < rows) {
                copy_16<dtype>(to + r * pitch + column * 16, from + r * t.stride[2] + column * each,
                               r < count && column * each < dim ? 16 : 0);
            }
        }
    }
}

/* Rows of both tensors of one side: q and dout, or k and v. */
template <bool queries, int rows>
INLINE void copy_pair(const attn__params &p, uint32_t to1, uint32_t to2, int s, int head, int64_t row, int count) {
    if constexpr (queries) {
        copy_side<DTYPE, DIM_QK, WIDTH_QK, rows>(p, to1, p.q, ATTN__ALIGNED_Q, row_offset(p.q, s, head, row), count);
        copy_side<DOUT_DTYPE, DIM_V, WIDTH_V, rows>(p, to2, p.dout, ATTN__ALIGNED_DOUT,
                                                    row_offset(p.dout, s, head, row), count);
    } else {
        copy_side<DTYPE, DIM_QK, WIDTH_QK, rows>(p, to1, p.k, ATTN__ALIGNED_K, row_offset(p.k, s, head, row), count);
        copy_side<DTYPE, DIM_V, WIDTH_V, rows>(p, to2, p.v, ATTN__ALIGNED_V, row_offset(p.v, s, head, row), count);
    }
}

/* Brings the walk's block, and its queries' lse and delta, to a stage. */
INLINE void copy_block(const attn__params &p, const tile_place &tile, const walk &w, int stage) {
    const run_span &span = span_of(tile, w);
    const int done = w.block * TILE_Y;
    const int64_t row = span.first + done;
    const uint32_t to1 = AT_Y1 + stage * TILE_Y * PITCH_QK, to2 = AT_Y2 + stage * TILE_Y * PITCH_V;
    if constexpr (PASS_KEYS) {
        copy_pair<true, TILE_Y>(p, to1, to2, tile.sequence, w.head, row, span.rows - done);
        if (threadIdx.x < 2 * TILE_Q / 4) {
            const float *from = (const float *)p.extra + (int64_t)walk_slot(p, tile, w) * (2 * TILE_Q);
            copy_16<F32>(shared_address(shared_memory()) + AT_STATS + stage * 2 * TILE_Q * 4 + threadIdx.x * 16,
                         from + threadIdx.x * 4, 16);
        }
    } else {
        copy_pair<false, TILE_Y>(p, to1, to2, tile.sequence, w.head / p.group, row, span.rows - done);
    }
    copies_commit();
}

/* Rows x of a sum to their tensor, row 0 of the tile at element offset `at`; rows past `rows` but inside the slot get
 * zeros. */
template <int dtype, int dim, int columns>
INLINE void store_rows(const attn__tensor_ref &t, bool aligned, bool accumulate, int64_t at, int rows, int slot,
                       float scale, const float (&sums)[X_BLOCKS][columns / 8][4]) {
    typedef element_t<dtype> element;
    const place here = place_again();
    const int first = here.y * columns + (here.lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < X_BLOCKS * 2; n++) {
        int x = x_at(here, n);
        if (x >= (accumulate ? rows : slot)) {
            continue;
        }
        element *to = (element *)t.data + at + x * t.stride[2];
#pragma unroll
        for (int c = 0; c < columns / 8; c++) {
            int column = first + c * 8;
            float low = x < rows ? sums[n >> 1][c][(n & 1) * 2] * scale : 0.0f;
            float high = x < rows ? sums[n >> 1][c][(n & 1) * 2 + 1] * scale : 0.0f;
            if (aligned && !accumulate && column + 1 < dim) {
                if constexpr (dtype == F32) {
                    *(float2 *)(to + column) = make_float2(low, high);
                } else {
                    *(uint32_t *)(to + column) = narrow_pair<dtype>(low, high);
                }
                continue;
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (column + e < dim) {
                    element *one = to + (column + e) * t.stride[3];
                    *one = narrow<dtype>((e ? high : low) + (accumulate ? widen<dtype>(*one) : 0.0f));
                }
            }
        }
    }
}

typedef struct tile_sums {
    float first[X_BLOCKS][SLICE_QK / 8][4]; /* dK or dQ */
    float second[X_BLOCKS][SLICE_V / 8][4]; /* dV */
} tile_sums;

/* dQ of the last step, from the buffer of dS with that number. */
#define NO_SLOT 0xffffffffu
INLINE void finish_dq(const attn__params &p, const place &at, uint32_t slot, int buffer) {
    if (WITH_DQ && slot != NO_SLOT) {
        const uint32_t shared = shared_address(shared_memory());
        dq_sums dq;
        product_dq(at, dq, shared + AT_DS + buffer * TILE_X * PITCH_S, shared + AT_X1);
        add_dq(at, dq, p.dq_sum + (int64_t)slot * DQ_TILE);
    }
}

/* What follows P and dS, pair by pair. */
INLINE void finish_carefully(const attn__params &p, const walk &now, const place &at, const float *lse, int stage,
                             int ds, tile_sums &sums) {
    const step_state step = step_of(now);
    const int y1 = AT_Y1 + stage * TILE_Y * PITCH_QK, y2 = AT_Y2 + stage * TILE_Y * PITCH_V;
    add_carefully<SLICE_QK>(p, step, at, lse, sums.first, shared_memory(), ds, y1, PITCH_QK);
    if constexpr (PASS_KEYS) {
        add_carefully<SLICE_V>(p, step, at, lse, sums.second, shared_memory(), AT_P, y2, PITCH_V);
        if (WITH_DQ && p.dq.data) {
            dq_sums dq;
            product_dq_carefully(p, step, at, lse, dq, shared_memory(), ds, AT_X1);
            add_dq(at, dq, p.dq_sum + (int64_t)walk_slot(p, tile_here(), now) * DQ_TILE);
        }
    }
}

/* The warps that share rows of x have each written their part of P and dS. */
INLINE void wait_for_partners(const place &at) {
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(1 + at.x), "n"(32 * WARPS_Y) : "memory");
}

/* Half of the warps make the last step's dQ first, the others after P and dS: so that the scores of one half are worked
 * out while the tensor cores are busy with the other. `late`: slot of the last step, whose dS lies in the other buffer
 * than this step's; returns this step's. parity: of the step; its buffer of dS and, of two, its stage. */
INLINE uint32_t one_step(const attn__params &p, const walk &now, bool masked, int parity, const row_stats &stats,
                         uint32_t late, tile_sums &sums) {
    const uint32_t shared = shared_address(shared_memory());
    const int stage = STAGES > 1 ? parity : 0, buffer = DS_BUFFERS > 1 ? parity : 0;
    const uint32_t y1 = shared + AT_Y1 + stage * TILE_Y * PITCH_QK, y2 = shared + AT_Y2 + stage * TILE_Y * PITCH_V;
    const int ds = AT_DS + buffer * TILE_X * PITCH_S;
    const place at = place_again();
    const uint32_t own = at.x * WARP_X * PITCH_S + at.y * WARP_Y * SIZE;
    warp_factor p_factor, ds_factor;
    const keep_bits kept = HAS_DROPOUT ? keep_draw(p, step_of(now), at) : 0;
    bool wild = false;
    if (at.warp < WARPS / 2) {
        finish_dq(p, at, late, buffer ^ 1);
    }
    {
        warp_scores scores, gradients;
        product_rows<WIDTH_QK / STEP>(at, scores, shared + AT_X1 + at.x * WARP_X * PITCH_QK,
                                      y1 + at.y * WARP_Y * PITCH_QK, PITCH_QK);
        product_rows<WIDTH_V / STEP>(at, gradients, shared + AT_X2 + at.x * WARP_X * PITCH_V,
                                     y2 + at.y * WARP_Y * PITCH_V, PITCH_V);
        if (masked) {
            wild = gradients_of<true>(p, now, at, stats, kept, scores, gradients);
        } else if (!ALWAYS_MASKED) {
            gradients_of<false>(p, now, at, stats, kept, scores, gradients);
        }
        if (PASS_KEYS) {
            narrow_scores(p_factor, scores);
            store_factor(at, p_factor, shared + AT_P + own);
        }
        narrow_scores(ds_factor, gradients);
        store_factor(at, ds_factor, shared + ds + own);
    }
    if (at.warp >= WARPS / 2) {
        finish_dq(p, at, late, buffer ^ 1);
    }
    if (masked && __syncthreads_or(wild)) {
        finish_carefully(p, now, at, stats.rows, stage, ds, sums);
        return NO_SLOT;
    }
    if constexpr (PASS_KEYS) {
        add_own<SLICE_V>(at, sums.second, p_factor, y2, PITCH_V);
    }
    add_own<SLICE_QK>(at, sums.first, ds_factor, y1, PITCH_QK);
    wait_for_partners(at);
    if constexpr (PASS_KEYS) {
        add_others<SLICE_V>(at, sums.second, shared + AT_P, y2, PITCH_V);
    }
    add_others<SLICE_QK>(at, sums.first, shared + ds, y1, PITCH_QK);
    return WITH_DQ && p.dq.data ? walk_slot(p, tile_here(), now) : NO_SLOT;
}

#define SECTION_BYTES (32 << 20)

/* Sequences and heads whose tiles are handed out together, those with most to do first: few enough that what their
 * blocks stream (q, dout, and the sums of dq) stays near, enough that long and short tiles even out under a causal
 * band. */
INLINE int64_t section_pairs(const attn__params &p) {
    const int64_t row = (PASS_KEYS ? WIDTH_QK * 4 : 0) + (WIDTH_QK + WIDTH_V) * SIZE;
    const int64_t bytes = row * (PASS_KEYS ? p.side_q.tokens : p.side_kv.tokens);
    return larger(1, SECTION_BYTES / larger(1, bytes));
}

INLINE void store_tile(const attn__params &p, const tile_place &tile, const tile_sums &sums) {
    if constexpr (PASS_KEYS && SPLIT) {
        attn__tensor_ref part;
        const int64_t slot = run_slot<ROWS_KV>(p.side_kv, tile.x_run, TILE_KV) + tile.block;
        key_part_of(p, tile.part, tile.head, slot, 0, &part);
        store_rows<F32, DIM_QK, SLICE_QK>(part, DIM_QK % 2 == 0, false, 0, tile.rows, tile.rows, 1.0f, sums.first);
        key_part_of(p, tile.part, tile.head, slot, 1, &part);
        store_rows<F32, DIM_V, SLICE_V>(part, DIM_V % 2 == 0, false, 0, tile.rows, tile.rows, 1.0f, sums.second);
    } else if constexpr (PASS_KEYS) {
        if (p.dk.data) {
            store_rows<DK_DTYPE, DIM_QK, SLICE_QK>(p.dk, p.aligned & ATTN__ALIGNED_DK, p.accumulate,
                                                   row_offset(p.dk, tile.sequence, tile.head, tile.row), tile.rows,
                                                   tile.slot_rows, p.scale, sums.first);
        }
        if (p.dv.data) {
            store_rows<DV_DTYPE, DIM_V, SLICE_V>(p.dv, p.aligned & ATTN__ALIGNED_DV, p.accumulate,
                                                 row_offset(p.dv, tile.sequence, tile.head, tile.row), tile.rows,
                                                 tile.slot_rows, 1.0f, sums.second);
        }
    } else {
        store_rows<DQ_DTYPE, DIM_QK, SLICE_QK>(p.dq, p.aligned & ATTN__ALIGNED_DQ, p.accumulate,
                                               row_offset(p.dq, tile.sequence, tile.head, tile.row), tile.rows,
                                               tile.slot_rows, p.scale, sums.first);
    }
}

INLINE void clear_sums(tile_sums &sums) {
#pragma unroll
    for (int m = 0; m < X_BLOCKS; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
#pragma unroll
            for (int n = 0; n < SLICE_QK / 8; n++) {
                sums.first[m][n][c] = 0.0f;
            }
#pragma unroll
            for (int n = 0; n < SLICE_V / 8; n++) {
                sums.second[m][n][c] = 0.0f;
            }
        }
    }
}

/* The tile's own rows to shared memory and, of queries, lse and delta to registers. */
INLINE void load_tile(const attn__params &p, const tile_place &tile, row_stats &stats) {
    if constexpr (PASS_KEYS) {
        copy_pair<false, TILE_X>(p, AT_X1, AT_X2, tile.sequence, tile.head, tile.row, tile.rows);
    } else {
        copy_pair<true, TILE_X>(p, AT_X1, AT_X2, tile.sequence, tile.head, tile.row, tile.rows);
        const int64_t slot = tile.head * query_slots(p) + run_slot<ROWS_Q>(p.side_q, tile.x_run, TILE_Q) + tile.block;
        const place at = place_again();
        stats.rows = (const float *)p.extra + slot * (2 * TILE_Q);
#pragma unroll
        for (int query = 0; query < (PASS_KEYS ? 1 : QUERIES); query++) {
            stats.lse[query] = stats.rows[stat_at(query_at(at, query))];
            stats.delta[query] = stats.rows[TILE_Q + stat_at(query_at(at, query))];
        }
    }
}

/* The tile that tile_here() describes. */
INLINE void make_tile(const attn__params &p) {
    tile_place &tile = tile_here();
    tile_sums sums;
    row_stats stats;
    walk w;
    clear_sums(sums);
    bool more = tile.rows > 0 && walk_start(p, tile, w);
    if (more) {
        load_tile(p, tile, stats);
        copy_block(p, tile, w, 0);
    }
    uint32_t late = NO_SLOT;
    int parity = 0;
    while (more) {
        const walk now = w;
        const bool masked = !walk_full(tile, now);
        copies_wait<0>();
        __syncthreads();
        more = walk_next(p, tile, w);
        if (STAGES > 1 && more) {
            copy_block(p, tile, w, parity ^ 1);
        }
        if (PASS_KEYS) {
            const int stage = STAGES > 1 ? parity : 0;
            stats.rows = (const float *)(shared_memory() + AT_STATS + stage * 2 * TILE_Q * 4);
        }
        late = one_step(p, now, masked, parity, stats, late, sums);
        parity ^= 1;
        if (STAGES == 1 && more) {
            __syncthreads();
            copy_block(p, tile, w, 0);
        }
    }
    if (WITH_DQ) {
        __syncthreads();
        finish_dq(p, place_again(), late, parity ^ 1);
    }
    store_tile(p, tile, sums);
}

/* Entry n of the list, unless an earlier one names the same tile. By all threads. */
INLINE bool listed_find(const attn__params &p, const tile_list &list, int n, tile_place &tile) {
    const int number = list.tiles[n], slots = (int)(PASS_KEYS ? key_slots(p) : query_slots(p));
    bool earlier = false, found = false;
    for (int m = (int)threadIdx.x; m < n; m += THREADS) {
        earlier = earlier || list.tiles[m] == number;
    }
    if (__syncthreads_or(earlier)) {
        return false;
    }
    if (threadIdx.x == 0) {
        const int heads = PASS_KEYS ? p.heads_kv : p.heads_q, slot = number % slots;
        tile.part = number / slots / heads;
        tile.head = number / slots % heads;
        found = PASS_KEYS ? slot_find<ROWS_KV>(p.side_kv, p.batch, slot, TILE_KV, &tile.x_run, &tile.block)
                          : slot_find<ROWS_Q>(p.side_q, p.batch, slot, TILE_Q, &tile.x_run, &tile.block);
    }
    return __syncthreads_or(found && tile_describe(p, tile));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    wait_for_launches();
    if (p.status && *p.status != 0) {
        return;
    }
    tile_place &tile = tile_here();
    if (FLAGGED) {
        const row_scratch scratch = row_scratch_of(p);
        const tile_list &list = PASS_KEYS ? scratch.keys : scratch.queries;
        const int count = *list.count;
#pragma unroll 1
        for (int n = (int)blockIdx.x; n < count; n += (int)gridDim.x) {
            if (listed_find(p, list, n, tile)) {
                make_tile(p);
            }
            __syncthreads();
        }
    } else if (__syncthreads_or(threadIdx.x == 0 && tile_find(p, p.first_tile + blockIdx.x, section_pairs(p), tile) &&
                                tile_describe(p, tile))) {
        make_tile(p);
    }
}
