/* SPDX-License-Identifier: Apache-2.0
 * What backward needs of query rows alone, in float32. MAKE_DSINK 0: delta = sum over dim of dout * o, where the caller
 * gives none; a warp takes a row. MAKE_DSINK 1: a block takes a head and sums, always in the same order,
 *     dsink = sum over rows of exp(sink - lse) * (dlse - delta)
 *
 * Constants: those of every backward kernel; MAKE_DSINK. */
#include "rows.cuh"

#define THREADS     128
#define ROWS_A_TILE 32

INLINE float warp_sum(float x) {
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) {
        x += __shfl_xor_sync(0xffffffffu, x, mask);
    }
    return x;
}

INLINE void make_delta(const attn__params &p) {
    const int64_t lists = (int64_t)side_runs<ROWS_Q>(p.side_q, p.batch) * p.heads_q, tile = p.first_tile + blockIdx.x;
    const rows_run run = side_run<ROWS_Q, USED_Q>(p.side_q, (int)(tile % lists / p.heads_q));
    const int head = (int)(tile % lists % p.heads_q), lane = threadIdx.x % 32;
    const int64_t first = tile / lists * ROWS_A_TILE;
    for (int64_t row = first + threadIdx.x / 32; row < smaller(first + ROWS_A_TILE, run.rows); row += THREADS / 32) {
        const int64_t o = row_offset(p.o, run.sequence, head, run.first + row);
        const int64_t dout = row_offset(p.dout, run.sequence, head, run.first + row);
        float sum = 0.0f;
        for (int d = lane; d < DIM_V; d += 32) {
            sum = fmaf(load_element<O_DTYPE>(p.o.data, o + d * p.o.stride[3]),
                       load_element<DOUT_DTYPE>(p.dout.data, dout + d * p.dout.stride[3]), sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            ((float *)p.delta.data)[row_offset(p.delta, run.sequence, head, run.first + row)] = sum;
        }
    }
}

INLINE float row_dsink(const attn__params &p, const rows_run &run, int head, int64_t row, float sink) {
    const float lse = ((const float *)p.lse.data)[row_offset(p.lse, run.sequence, head, row)];
    if (lse == -INFINITY_F) {
        return 0.0f;
    }
    float shift = ((const float *)p.delta.data)[row_offset(p.delta, run.sequence, head, row)];
    if (p.dlse.data) {
        shift -= ((const float *)p.dlse.data)[row_offset(p.dlse, run.sequence, head, row)];
    }
    return -exp2_fast((sink - lse) * LOG2E) * shift;
}

INLINE void make_dsink(const attn__params &p) {
    __shared__ float parts[THREADS / 32];
    const int head = (int)(p.first_tile + blockIdx.x), runs = side_runs<ROWS_Q>(p.side_q, p.batch);
    const float sink = ((const float *)p.sink.data)[head * p.sink.stride[1]];
    float sum = 0.0f;
    for (int n = 0; n < runs && sink != -INFINITY_F; n++) {
        const rows_run run = side_run<ROWS_Q, USED_Q>(p.side_q, n);
        for (int64_t row = threadIdx.x; row < run.rows; row += THREADS) {
            sum += row_dsink(p, run, head, run.first + row, sink);
        }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float *at = (float *)p.dsink.data + head * p.dsink.stride[1];
        float total = p.accumulate ? *at : 0.0f;
        for (int n = 0; n < THREADS / 32; n++) {
            total += parts[n];
        }
        *at = total;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    if (p.status && *p.status) {
        return;
    }
    if (MAKE_DSINK) {
        make_dsink(p);
    } else {
        make_delta(p);
    }
}
