/* SPDX-License-Identifier: Apache-2.0
 * The small kernels around backward's products. Constant WORK:
 *     SUMS_TO_DQ   a block of threads turns one slot of float32 sums into rows of dq, scaled; rows past a used length
 *                  get zeros. LISTS: unless some sum is not finite; then the slot goes to the list
 *     SUM_PARTS    one for each tile of keys and kv head: the parts of dk and dv become dk and dv
 *     SUM_DSINK    one for each query head: adds the parts in their order, so the bits are the same on every run
 *     CLEAR_DBIAS  1024 elements of dbias each */
#include "gather.cuh"
#include "gradient_tile.cuh"

#define SUMS_TO_DQ  0
#define SUM_DSINK   1
#define CLEAR_DBIAS 2
#define SUM_PARTS   3

#define WORKERS   256
#define PITCH_ROW (WIDTH_QK + 4)

/* A warp's sums are DQ_M times 16 rows of 64 columns: 8 blocks of 8. */
#define BY_REGISTERS (LISTS && DQ_SUM == 1 && DQ_DTYPE != F32 && DQ_N == 8 && WARPS * 32 == WORKERS)

/* Straight from the order of add_dq to rows. False, with nothing written, if a sum is not finite. */
INLINE bool store_from_registers(const attn__params &p, const rows_run &run, int head, int first, int rows, int slot,
                                 const float *sums) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const float4 *from = (const float4 *)sums + warp * (DQ_M * 256) + lane;
    const float scale = p.scale;
    float4 x[DQ_M][8];
    float odd = 0.0f; /* 0 times anything that is not finite is NaN */
#pragma unroll
    for (int n = 0; n < DQ_M * 8; n++) {
        x[n / 8][n % 8] = from[n * 32];
    }
#pragma unroll
    for (int n = 0; n < DQ_M * 8; n++) {
        const float4 y = x[n / 8][n % 8];
        odd = fmaf(y.x, 0.0f, fmaf(y.y, 0.0f, fmaf(y.z, 0.0f, fmaf(y.w, 0.0f, odd))));
    }
    if (__syncthreads_or(!(odd == 0.0f))) {
        return false;
    }
    const int column = warp % DQ_WARPS_N * 64 + lane % 4 * 8, half = DQ_DTYPE == F32 ? F16 : DQ_DTYPE;
#pragma unroll
    for (int m = 0; m < DQ_M; m++) {
        const int row = (warp / DQ_WARPS_N * DQ_M + m) * 16 + lane / 4;
        uint16_t *to = (uint16_t *)p.dq.data + row_offset(p.dq, run.sequence, head, run.first + first + row) + column;
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            uint32_t upper[4], lower[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float4 y = x[m][n + i];
                upper[i] = narrow_pair<half>(y.x * scale, y.y * scale);
                lower[i] = narrow_pair<half>(y.z * scale, y.w * scale);
            }
            const uint4 zero = make_uint4(0, 0, 0, 0);
            const uint4 first_row = gather_row(upper[0], upper[1], upper[2], upper[3], lane % 4);
            const uint4 second_row = gather_row(lower[0], lower[1], lower[2], lower[3], lane % 4);
            if (column + n * 8 < DIM_QK && row < slot) {
                *(uint4 *)(to + n * 8) = row < rows ? first_row : zero;
            }
            if (column + n * 8 < DIM_QK && row + 8 < slot) {
                *(uint4 *)(to + 8 * p.dq.stride[2] + n * 8) = row + 8 < rows ? second_row : zero;
            }
        }
    }
    return true;
}

/* 16 rows at a time through shared memory: sums come in the order of add_dq, rows leave in theirs. */
INLINE void sums_to_dq(const attn__params &p, int64_t number) {
    __shared__ __align__(16) float line[16 * PITCH_ROW];
    const int64_t slots = query_slots(p);
    const int head = (int)quotient(number, slots);
    int n, block;
    if (!slot_find<ROWS_Q>(p.side_q, p.batch, number - head * slots, TILE_Q, &n, &block)) {
        return;
    }
    const rows_run run = side_run<ROWS_Q, USED_Q>(p.side_q, n);
    const int rows = run.rows - block * TILE_Q, slot = p.accumulate ? rows : run.slot - block * TILE_Q;
    const float *sums = p.dq_sum + number * DQ_TILE;
    typedef element_t<DQ_DTYPE> element;
    if (BY_REGISTERS && DIM_QK % 8 == 0 && (p.aligned & ATTN__ALIGNED_DQ) && !p.accumulate && boxes_read(p)) {
        if (!store_from_registers(p, run, head, block * TILE_Q, rows, slot, sums) && threadIdx.x == 0) {
            list_add(row_scratch_of(p).queries, (int)number);
        }
        return;
    }
    if (LISTS) {
        bool wild = !boxes_read(p);
        for (int at = (int)threadIdx.x; at < DQ_TILE / 4; at += WORKERS) {
            const float4 x = ((const float4 *)sums)[at];
            wild = wild || !is_finite(x.x) || !is_finite(x.y) || !is_finite(x.z) || !is_finite(x.w);
        }
        if (__syncthreads_or(wild)) {
            if (threadIdx.x == 0) {
                list_add(row_scratch_of(p).queries, (int)number);
            }
            return;
        }
    }
    for (int m16 = 0; m16 < TILE_Q / 16 && m16 * 16 < slot; m16++) {
        const int wm = m16 / DQ_M, m = m16 % DQ_M;
        for (int at = (int)threadIdx.x; at < WIDTH_QK / 8 * 32; at += WORKERS) {
            const int n8 = at / 32, lane = at % 32, warp = wm * DQ_WARPS_N + n8 / DQ_N;
            const float *from = sums + warp * (DQ_M * DQ_N * 128) + (m * DQ_N + n8 % DQ_N) * 128 + lane * DQ_LANE;
            float *to = line + (lane >> 2) * PITCH_ROW + n8 * 8 + (lane & 3) * 2;
            const float4 x = DQ_SUM == 1 ? *(const float4 *)from
                                         : make_float4(from[0], from[DQ_SUM], from[2 * DQ_SUM], from[3 * DQ_SUM]);
            *(float2 *)to = make_float2(x.x, x.y);
            *(float2 *)(to + 8 * PITCH_ROW) = make_float2(x.z, x.w);
        }
        __syncthreads();
        if (DIM_QK % 4 == 0 && (p.aligned & ATTN__ALIGNED_DQ) && !p.accumulate) {
            for (int at = (int)threadIdx.x; at < 16 * (DIM_QK / 4); at += WORKERS) {
                const int r = at / (DIM_QK / 4), column = at % (DIM_QK / 4) * 4, row = m16 * 16 + r;
                if (row < slot) {
                    float4 x = *(const float4 *)(line + r * PITCH_ROW + column);
                    const float scale = p.scale;
                    x = row < rows ? make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale)
                                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    element *to = (element *)p.dq.data +
                                  row_offset(p.dq, run.sequence, head, run.first + block * TILE_Q + row) + column;
                    if constexpr (DQ_DTYPE == F32) {
                        *(float4 *)to = x;
                    } else {
                        *(uint2 *)to = make_uint2(narrow_pair<DQ_DTYPE>(x.x, x.y), narrow_pair<DQ_DTYPE>(x.z, x.w));
                    }
                }
            }
        } else {
            for (int at = (int)threadIdx.x; at < 16 * DIM_QK; at += WORKERS) {
                const int r = at / DIM_QK, column = at % DIM_QK, row = m16 * 16 + r;
                if (row < slot) {
                    float x = row < rows ? line[r * PITCH_ROW + column] * p.scale : 0.0f;
                    element *to = (element *)p.dq.data +
                                  row_offset(p.dq, run.sequence, head, run.first + block * TILE_Q + row) +
                                  column * p.dq.stride[3];
                    *to = narrow<DQ_DTYPE>(x + (p.accumulate ? widen<DQ_DTYPE>(*to) : 0.0f));
                }
            }
        }
        __syncthreads();
    }
}

/* Rows of dk or dv of a tile of keys. */
template <int dtype, int dim>
INLINE void sum_rows(const attn__params &p, const attn__tensor_ref &t, int value, const rows_run &run, int head,
                     int64_t key_slot, int done, float scale) {
    const int rows = run.rows - done, slot = p.accumulate ? rows : run.slot - done;
    for (int at = (int)threadIdx.x; at < TILE_KV * dim && t.data; at += WORKERS) {
        const int row = at / dim, column = at % dim;
        if (row >= slot) {
            return;
        }
        float sum = 0.0f;
        for (int part = 0; part < p.splits && row < rows; part++) {
            attn__tensor_ref from;
            key_part_of(p, part, head, key_slot, value, &from);
            sum += ((const float *)from.data)[at];
        }
        element_t<dtype> *to = (element_t<dtype> *)t.data + row_offset(t, run.sequence, head, run.first + done + row) +
                               column * t.stride[3];
        *to = narrow<dtype>(sum * scale + (p.accumulate ? widen<dtype>(*to) : 0.0f));
    }
}
INLINE void sum_parts(const attn__params &p, int64_t number) {
    const int64_t slots = key_slots(p), slot = number % slots;
    const int head = (int)(number / slots);
    int n, block;
    if (slot_find<ROWS_KV>(p.side_kv, p.batch, slot, TILE_KV, &n, &block)) {
        const rows_run run = side_run<ROWS_KV, USED_KV>(p.side_kv, n);
        sum_rows<DK_DTYPE, DIM_QK>(p, p.dk, 0, run, head, slot, block * TILE_KV, p.scale);
        sum_rows<DV_DTYPE, DIM_V>(p, p.dv, 1, run, head, slot, block * TILE_KV, 1.0f);
    }
}

INLINE void sum_dsink(const attn__params &p, int head) {
    __shared__ float parts[WORKERS];
    const row_scratch scratch = row_scratch_of(p);
    float sum = 0.0f;
    for (int64_t at = threadIdx.x; at < scratch.slots; at += WORKERS) {
        sum += scratch.sinks[head * scratch.slots + at];
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int half = WORKERS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            parts[threadIdx.x] += parts[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        float *to = (float *)p.dsink.data + head * p.dsink.stride[1];
        *to = parts[0] + (p.accumulate ? *to : 0.0f);
    }
}

INLINE void clear_dbias(const attn__params &p, int64_t number) {
    const attn__tensor_ref &t = p.dbias;
    const int64_t n[4] = {t.stride[0] ? p.batch : 1, t.stride[1] ? p.heads_q : 1, t.stride[2] ? p.side_q.tokens : 1,
                          t.stride[3] ? p.side_kv.tokens : 1};
    for (int part = 0; part < 4; part++) {
        int64_t at = number * 1024 + part * WORKERS + threadIdx.x, offset = 0;
        if (at >= n[0] * n[1] * n[2] * n[3]) {
            return;
        }
        for (int axis = 3; axis >= 0; axis--) {
            offset += at % n[axis] * t.stride[axis];
            at /= n[axis];
        }
        ((float *)t.data)[offset] = 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(WORKERS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    wait_for_launches();
    if (p.status && *p.status != 0) {
        return;
    }
    const int64_t number = p.first_tile + blockIdx.x;
    if constexpr (WORK == SUMS_TO_DQ) {
        sums_to_dq(p, number);
    } else if constexpr (WORK == SUM_PARTS) {
        sum_parts(p, number);
    } else if constexpr (WORK == SUM_DSINK) {
        sum_dsink(p, (int)number);
    } else {
        clear_dbias(p, number);
    }
}
