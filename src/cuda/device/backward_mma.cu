/* SPDX-License-Identifier: Apache-2.0
 * Backward on tensor cores. Two forms of one kernel (gradient_tile.cuh): PASS_KEYS owns a tile of keys and makes dK and
 * dV of it in registers, over all queries and heads of its group, and adds its part of dQ to float32 sums in memory;
 * the other owns a tile of queries and makes dQ alone, for a dQ whose bits do not depend on the order of additions.
 *
 * delta.cu has run before (row scratch, zeroed sums); backward_sums.cu turns the sums into dQ afterwards. dQ and dK
 * take the scale at the very end.
 *
 * A step: y block t is in shared memory, t + 1 begins to arrive in the other stage; S and dP; P and dS in registers;
 * both to shared memory for the other warps; a barrier; the products that follow. */
#include "careful.cuh"
#include "gradient_walk.cuh"

/* Rows [row, row + count) of a head to a tile of `rows` rows, `width` columns, with zeros where there is nothing;
 * narrowed one by one where the tensor is of another type than the products. Does not wait. */
template <int dtype, int dim, int width, int rows>
INLINE void copy_side(const attn__params &p, uint32_t to, const attn__tensor_ref &t, unsigned aligned, int s, int head,
                      int64_t row, int count) {
    typedef element_t<dtype> element;
    const int pitch = TILE_PITCH(width, SIZE), units = width * SIZE / 16, each = 16 / SIZE;
    const element *from = (const element *)t.data + row_offset(t, s, head, row);
    to += shared_address(shared_memory());
    if constexpr (dtype != DTYPE) {
        for (int n = (int)threadIdx.x; n < rows * width; n += THREADS) {
            int r = n / width, column = n % width;
            float x = r < count && column < dim ? widen<dtype>(from[r * t.stride[2] + column * t.stride[3]]) : 0.0f;
            store_shared<DTYPE>(to + r * pitch + column * SIZE, x);
        }
    } else if (p.aligned & aligned) {
#pragma unroll
        for (int n = 0; n < (rows * units + THREADS - 1) / THREADS; n++) {
            int unit = n * THREADS + (int)threadIdx.x, r = unit / units, column = unit % units;
            if (rows * units % THREADS == 0 || r < rows) {
                bool there = r < count && column * each < dim; /* aligned rows hold whole units */
                copy_16<dtype>(to + r * pitch + column * 16, from + (there ? r * t.stride[2] + column * each : 0),
                               there ? 16 : 0);
            }
        }
    } else {
#pragma unroll 1
        for (int unit = (int)threadIdx.x; unit < rows * units; unit += THREADS) {
            int r = unit / units, column = unit % units * each;
            store_shared_16(to + r * pitch + column * SIZE,
                            gather_16<dtype>(from + r * t.stride[2] + column * t.stride[3], t.stride[3],
                                             r < count ? dim - column : 0));
        }
    }
}

/* Rows of both tensors of one side: q and dout, or k and v. */
template <bool queries, int rows>
INLINE void copy_pair(const attn__params &p, uint32_t to1, uint32_t to2, int s, int head, int64_t row, int count) {
    if constexpr (queries) {
        copy_side<DTYPE, DIM_QK, WIDTH_QK, rows>(p, to1, p.q, ATTN__ALIGNED_Q, s, head, row, count);
        copy_side<DOUT_DTYPE, DIM_V, WIDTH_V, rows>(p, to2, p.dout, ATTN__ALIGNED_DOUT, s, head, row, count);
    } else {
        const int head_kv = PASS_KEYS ? head : head / p.group;
        copy_side<DTYPE, DIM_QK, WIDTH_QK, rows>(p, to1, p.k, ATTN__ALIGNED_K, s, head_kv, row, count);
        copy_side<DTYPE, DIM_V, WIDTH_V, rows>(p, to2, p.v, ATTN__ALIGNED_V, s, head_kv, row, count);
    }
}

/* Brings the walk's block, and its queries' lse and delta, to a stage. */
INLINE void copy_block(const attn__params &p, const row_scratch &scratch, const tile_place &tile, const walk &w,
                       int stage) {
    int done = w.block * TILE_Y, left = w.rows - done;
    copy_pair<PASS_KEYS, TILE_Y>(p, AT_Y1 + stage * TILE_Y * PITCH_QK, AT_Y2 + stage * TILE_Y * PITCH_V, tile.sequence,
                                 w.head, w.first + done, left < TILE_Y ? left : TILE_Y);
    if (PASS_KEYS && threadIdx.x < 2 * TILE_Q / 4) {
        int n = threadIdx.x % (TILE_Q / 4) * 4;
        const float *from = threadIdx.x < TILE_Q / 4 ? scratch.lse : scratch.delta;
        from += (w.head * scratch.slots + w.slot + w.block) * TILE_Q + n;
        copy_16<F32>(shared_address(shared_memory()) + AT_STATS + stage * 2 * TILE_Q * 4 + threadIdx.x * 16, from, 16);
    }
    copies_commit();
}

/* Rows x of a sum to their tensor; rows past `rows` but inside the slot get zeros. */
template <int dtype, int dim, int columns>
INLINE void store_rows(const attn__params &p, const attn__tensor_ref &t, bool aligned, int s, int head, int64_t row,
                       int rows, int slot, float scale, const float (&sums)[X_BLOCKS][columns / 8][4]) {
    typedef element_t<dtype> element;
    const int first = warp_y() * columns + (lane_index() & 3) * 2;
#pragma unroll
    for (int n = 0; n < X_BLOCKS * 2; n++) {
        int x = x_at(n);
        if (x >= (p.accumulate ? rows : slot)) {
            continue;
        }
        element *to = (element *)t.data + row_offset(t, s, head, row + x);
#pragma unroll
        for (int c = 0; c < columns / 8; c++) {
            int column = first + c * 8;
            float low = x < rows ? sums[n >> 1][c][(n & 1) * 2] * scale : 0.0f;
            float high = x < rows ? sums[n >> 1][c][(n & 1) * 2 + 1] * scale : 0.0f;
            if (aligned && !p.accumulate && column + 1 < dim) {
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
                    element *at = to + (column + e) * t.stride[3];
                    *at = narrow<dtype>((e ? high : low) + (p.accumulate ? widen<dtype>(*at) : 0.0f));
                }
            }
        }
    }
}

typedef struct tile_sums {
    float first[X_BLOCKS][SLICE_QK / 8][4]; /* dK or dQ */
    float second[X_BLOCKS][SLICE_V / 8][4]; /* dV */
} tile_sums;

/* What follows P and dS, pair by pair. Overwrites dS in shared memory with P. */
INLINE void finish_carefully(const attn__params &p, const step_state &step, const float *lse,
                             const warp_factor &p_factor, const warp_factor &ds_factor, int y1, int y2, float *dq_slot,
                             tile_sums &sums) {
    const uint32_t own =
        shared_address(shared_memory()) + AT_DS + warp_x() * WARP_X * PITCH_S + warp_y() * WARP_Y * SIZE;
    store_factor(ds_factor, own);
    __syncthreads();
    add_carefully<SLICE_QK>(p, step, lse, sums.first, shared_memory(), AT_DS, y1, PITCH_QK);
    if constexpr (PASS_KEYS) {
        if (WITH_DQ && dq_slot) {
            dq_sums dq;
            product_dq_carefully(p, step, lse, dq, shared_memory(), AT_DS, AT_X1);
            add_dq(dq, dq_slot);
        }
        __syncthreads();
        store_factor(p_factor, own);
        __syncthreads();
        add_carefully<SLICE_V>(p, step, lse, sums.second, shared_memory(), AT_DS, y2, PITCH_V);
    }
}

INLINE void one_step(const attn__params &p, const step_state &step, bool masked, int stage, const float *lse_rows,
                     const float (&lse)[QUERIES], const float (&delta)[QUERIES], float *dq_slot, tile_sums &sums) {
    const uint32_t shared = shared_address(shared_memory());
    const int y1 = AT_Y1 + stage * TILE_Y * PITCH_QK, y2 = AT_Y2 + stage * TILE_Y * PITCH_V;
    warp_factor p_factor, ds_factor;
    bool wild = false;
    {
        warp_scores scores, gradients;
        product_rows<WIDTH_QK / STEP>(scores, shared + AT_X1 + warp_x() * WARP_X * PITCH_QK,
                                      shared + y1 + warp_y() * WARP_Y * PITCH_QK, PITCH_QK);
        product_rows<WIDTH_V / STEP>(gradients, shared + AT_X2 + warp_x() * WARP_X * PITCH_V,
                                     shared + y2 + warp_y() * WARP_Y * PITCH_V, PITCH_V);
        if (masked) {
            wild = gradients_of<true>(p, step, lse, delta, scores, gradients);
        } else if (!ALWAYS_MASKED) {
            gradients_of<false>(p, step, lse, delta, scores, gradients);
        }
        if (PASS_KEYS) {
            narrow_scores(p_factor, scores);
        }
        narrow_scores(ds_factor, gradients);
    }
    const uint32_t own = warp_x() * WARP_X * PITCH_S + warp_y() * WARP_Y * SIZE;
    if (WARPS_Y > 1 || WITH_DQ) {
        store_factor(ds_factor, shared + AT_DS + own);
    }
    if (WARPS_Y > 1 && PASS_KEYS) {
        store_factor(p_factor, shared + AT_P + own);
    }
    if (masked && __syncthreads_or(wild)) {
        finish_carefully(p, step, lse_rows, p_factor, ds_factor, y1, y2, dq_slot, sums);
        return;
    }
    if constexpr (PASS_KEYS) {
        add_own<SLICE_V>(sums.second, p_factor, shared + y2, PITCH_V);
    }
    add_own<SLICE_QK>(sums.first, ds_factor, shared + y1, PITCH_QK);
    if ((WARPS_Y > 1 || WITH_DQ) && !masked) {
        __syncthreads();
    }
    if constexpr (PASS_KEYS) {
        if (WITH_DQ && dq_slot) {
            dq_sums dq;
            product_dq(dq, shared + AT_DS, shared + AT_X1);
            add_dq(dq, dq_slot);
        }
        add_others<SLICE_V>(sums.second, shared + AT_P, shared + y2, PITCH_V);
    }
    add_others<SLICE_QK>(sums.first, shared + AT_DS, shared + y1, PITCH_QK);
}

/* The tile of this block of threads; false if it is empty. */
INLINE bool tile_find(const attn__params &p, int64_t number, int *run, int *block, int *head) {
    const int heads = PASS_KEYS ? p.heads_kv : p.heads_q;
    *head = (int)(number % heads);
    number /= heads;
    if ((PASS_KEYS ? ROWS_KV : ROWS_Q) == DENSE) { /* the tiles with most to do come first */
        *run = (int)(number % p.batch);
        *block = (int)(number / p.batch);
        if (!PASS_KEYS) {
            *block = (int)blocks_of(p.side_q.tokens, TILE_Q) - 1 - *block;
        }
        return true;
    }
    return PASS_KEYS ? slot_find<ROWS_KV>(p.side_kv, p.batch, number, TILE_KV, run, block)
                     : slot_find<ROWS_Q>(p.side_q, p.batch, number, TILE_Q, run, block);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    if (p.status && *p.status != 0) {
        return;
    }
    int run_number, block, head;
    if (!tile_find(p, p.first_tile + blockIdx.x, &run_number, &block, &head)) {
        return;
    }
    const rows_run x_run =
        PASS_KEYS ? side_run<ROWS_KV, USED_KV>(p.side_kv, run_number) : side_run<ROWS_Q, USED_Q>(p.side_q, run_number);
    const int done = block * TILE_X;
    const int slot = (int)smaller(x_run.slot - done, TILE_X), rows = (int)smaller(x_run.rows - done, TILE_X);
    if (slot <= 0) {
        return;
    }
    const row_scratch scratch = row_scratch_of(p);
    tile_place tile;
    tile.sequence = x_run.sequence;
    tile.head = head;
    tile.shift = row_shift(p, x_run.sequence);
    tile.low = x_run.position + done + (PASS_KEYS ? 0 : tile.shift);
    tile.rows = rows;

    tile_sums sums;
#pragma unroll
    for (int m = 0; m < X_BLOCKS; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
#pragma unroll
            for (int n = 0; n < SLICE_QK / 8; n++) {
                sums.first[m][n][c] = 0.0f;
            }
            if constexpr (PASS_KEYS) {
#pragma unroll
                for (int n = 0; n < SLICE_V / 8; n++) {
                    sums.second[m][n][c] = 0.0f;
                }
            }
        }
    }

    walk w = walk_start(p, tile);
    bool more = rows > 0 && w.run < w.run_end && walk_next(p, tile, w);
    float lse[QUERIES], delta[QUERIES];
    const float *tile_lse = 0;
    if (more) {
        copy_pair<!PASS_KEYS, TILE_X>(p, AT_X1, AT_X2, tile.sequence, head, x_run.first + done, rows);
        copy_block(p, scratch, tile, w, 0);
        if (!PASS_KEYS) {
            int64_t at = (head * scratch.slots + run_slot<ROWS_Q>(p.side_q, run_number, TILE_Q) + block) * TILE_Q;
            tile_lse = scratch.lse + at;
#pragma unroll
            for (int query = 0; query < QUERIES; query++) {
                lse[query] = tile_lse[query_at(query)];
                delta[query] = scratch.delta[at + query_at(query)];
            }
        }
    }
    int stage = 0;
    while (more) {
        step_state step;
        step.head = w.head;
        step.sequence = tile.sequence;
        const int64_t y_low = w.position + (int64_t)w.block * TILE_Y;
        step.shifted = PASS_KEYS ? y_low : tile.low;
        step.query_position = step.shifted - tile.shift;
        step.key_position = (int)(PASS_KEYS ? tile.low : y_low);
        step.keys = PASS_KEYS ? rows : w.rows - w.block * TILE_Y;
        const bool masked = !walk_full(w);
        float *dq_slot = 0;
        if (WITH_DQ && p.dq.data) {
            dq_slot = p.dq_sum + (w.head * scratch.slots + w.slot + w.block) * DQ_TILE;
        }
        copies_wait<0>();
        __syncthreads();
        more = walk_next(p, tile, w);
        if (STAGES > 1 && more) {
            copy_block(p, scratch, tile, w, stage ^ 1);
        }
        const float *rows_lse = tile_lse;
        if (PASS_KEYS) {
            rows_lse = (const float *)(shared_memory() + AT_STATS + stage * 2 * TILE_Q * 4);
#pragma unroll
            for (int query = 0; query < QUERIES; query += 2) {
                float2 pair = *(const float2 *)(rows_lse + query_at(query));
                lse[query] = pair.x;
                lse[query + 1] = pair.y;
                pair = *(const float2 *)(rows_lse + TILE_Q + query_at(query));
                delta[query] = pair.x;
                delta[query + 1] = pair.y;
            }
        }
        one_step(p, step, masked, stage, rows_lse, lse, delta, dq_slot, sums);
        if (STAGES > 1) {
            stage ^= 1;
        } else if (more) {
            __syncthreads();
            copy_block(p, scratch, tile, w, 0);
        }
    }

    const int64_t row = x_run.first + done;
    if constexpr (PASS_KEYS) {
        if (p.dk.data) {
            store_rows<DK_DTYPE, DIM_QK, SLICE_QK>(p, p.dk, p.aligned & ATTN__ALIGNED_DK, tile.sequence, head, row,
                                                   rows, slot, p.scale, sums.first);
        }
        if (p.dv.data) {
            store_rows<DV_DTYPE, DIM_V, SLICE_V>(p, p.dv, p.aligned & ATTN__ALIGNED_DV, tile.sequence, head, row, rows,
                                                 slot, 1.0f, sums.second);
        }
    } else {
        store_rows<DQ_DTYPE, DIM_QK, SLICE_QK>(p, p.dq, p.aligned & ATTN__ALIGNED_DQ, tile.sequence, head, row, rows,
                                               slot, p.scale, sums.first);
    }
}
