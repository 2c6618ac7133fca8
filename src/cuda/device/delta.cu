/* SPDX-License-Identifier: Apache-2.0
 * Before backward's products: a block of threads takes TILE_Q query rows of one head. Writes what the products read of
 * these rows (gradient_blocks.cuh): lse in the scores' units and delta, the caller's or the sum of dout * o, less dlse.
 * Clears the rows' float32 sums of dq and, first of all, the lists of tiles, and leaves the block's part of dsink:
 * dsink = - sum over rows exp(sink - lse) * (delta - dlse).
 *
 * lse is brought to the units in which scores are computed: the product of a bare score (SCORE_PLAIN) with the rounded
 * factor scale * log2(e) must meet an lse multiplied by that same rounded factor, or the difference grows with |lse|.
 * Other scores are in natural units.
 *
 * Constants: WIDTH_QK, CLEAR_DQ, LISTS, STATS_BY_LANE, HAS_DLSE, HAS_SINK, O_DTYPE, DOUT_DTYPE, DIM_V, SCORE_PLAIN. */
#include "gradient_blocks.cuh"

#define WARPS 8

/* Lanes that share a row: as many as have 16 bytes of it each, so that narrow heads fill a warp too. */
#define LANES (DIM_V > 128 ? 32 : DIM_V > 64 ? 16 : 8)
#define ROWS  (WARPS * 32 / LANES) /* at once */

#define AT_ONCE 4 /* rows of a thread under way */

/* A thread's part of the sum of dout * o of one row. */
INLINE float row_delta(const attn__params &p, int64_t o, int64_t dout) {
    const int lane = (int)(threadIdx.x % LANES);
    float sum = 0.0f;
    for (int column = lane * 8; column < DIM_V; column += LANES * 8) {
        for (int n = 0; n < 8 && column + n < DIM_V; n++) {
            sum = fmaf(load_element<O_DTYPE>(p.o.data, o + (column + n) * p.o.stride[3]),
                       load_element<DOUT_DTYPE>(p.dout.data, dout + (column + n) * p.dout.stride[3]), sum);
        }
    }
    return sum;
}
INLINE float piece_delta(uint4 a, uint4 b, float sum) {
    const int half = O_DTYPE == F32 ? F16 : O_DTYPE;
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        sum = fmaf(widen<half>((uint16_t)x[n]), widen<half>((uint16_t)y[n]), sum);
        sum = fmaf(widen<half>((uint16_t)(x[n] >> 16)), widen<half>((uint16_t)(y[n] >> 16)), sum);
    }
    return sum;
}
/* That of rows first, first + ROWS, ... of a run, those below `count`; all loads are under way before any is used. The
 * same columns a lane in the same order either way: the bits do not tell how the tensors lie. */
INLINE void row_deltas(const attn__params &p, int s, int head, int64_t run_first, int first, int count,
                       float (&sums)[AT_ONCE]) {
    const bool pieces = O_DTYPE == DOUT_DTYPE && O_DTYPE != F32 && DIM_V % 8 == 0 && (p.aligned & ATTN__ALIGNED_O) &&
                        (p.aligned & ATTN__ALIGNED_DOUT);
    const int lane = (int)(threadIdx.x % LANES);
    int64_t o[AT_ONCE], dout[AT_ONCE];
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++) {
        o[n] = row_offset(p.o, s, head, run_first + first + n * ROWS);
        dout[n] = row_offset(p.dout, s, head, run_first + first + n * ROWS);
        sums[n] = 0.0f;
        if (!pieces && first + n * ROWS < count) {
            sums[n] = row_delta(p, o[n], dout[n]);
        }
    }
    for (int column = lane * 8; pieces && column < DIM_V; column += LANES * 8) {
        uint4 a[AT_ONCE], b[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            a[n] = b[n] = make_uint4(0, 0, 0, 0);
            if (first + n * ROWS < count) {
                a[n] = *(const uint4 *)((const uint16_t *)p.o.data + o[n] + column);
                b[n] = *(const uint4 *)((const uint16_t *)p.dout.data + dout[n] + column);
            }
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            sums[n] = piece_delta(a[n], b[n], sums[n]);
        }
    }
}
INLINE float sum_over_lanes(float sum) {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    }
    return sum;
}

/* One row's part of dsink. */
INLINE float row_dsink(const attn__params &p, int head, float lse, float delta) {
    float sink = ((const float *)p.sink.data)[head * p.sink.stride[1]];
    return sink == -INFINITY_F || lse == -INFINITY_F ? 0.0f : -exp2_fast((sink - lse) * LOG2E) * delta;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    wait_for_launches();
    if (p.status && *p.status != 0) {
        return;
    }
    const row_scratch scratch = row_scratch_of(p);
    const int64_t number = p.first_tile + blockIdx.x;
    if (LISTS && number == 0 && threadIdx.x == 0) {
        *scratch.next_tile = *scratch.keys.count = *scratch.queries.count = 0;
    }
    if (scratch.slots == 0) {
        return;
    }
    const int head = (int)quotient(number, scratch.slots);
    const int64_t slot = number - head * scratch.slots;
    int n, block;
    rows_run run;
    int count = 0;
    if (slot_find<ROWS_Q>(p.side_q, p.batch, slot, TILE_Q, &n, &block)) {
        run = side_run<ROWS_Q, USED_Q>(p.side_q, n);
        count = (int)smaller(run.rows - block * TILE_Q, TILE_Q);
    }
    float dsink = 0.0f;
    if (count > 0) {
        if (CLEAR_DQ && p.dq.data) {
            float4 *sums = (float4 *)(p.dq_sum + number * (TILE_Q * WIDTH_QK));
            for (int at = (int)threadIdx.x; at < TILE_Q * WIDTH_QK / 4; at += WARPS * 32) {
                sums[at] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
        }
        if (DETERMINISTIC && threadIdx.x < TURNS) {
            scratch.turns[number * TURNS + threadIdx.x] = 0;
        }
        const float factor = p.scale * LOG2E;
        const double units = SCORE_PLAIN ? (double)factor / (double)p.scale : 1.0;
        for (int r0 = (int)threadIdx.x / LANES; r0 < TILE_Q; r0 += AT_ONCE * ROWS) {
            float deltas[AT_ONCE] = {}, lses[AT_ONCE];
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const int r = r0 + n * ROWS;
                lses[n] = -INFINITY_F;
                if (r < count) {
                    const int64_t row = run.first + block * TILE_Q + r;
                    lses[n] = ((const float *)p.lse.data)[row_offset(p.lse, run.sequence, head, row)];
                }
            }
            if (!p.delta.data) {
                row_deltas(p, run.sequence, head, run.first + block * TILE_Q, r0, count, deltas);
            }
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                const int r = r0 + n * ROWS;
                const int64_t row = run.first + block * TILE_Q + r;
                const float lse = lses[n];
                float lse2 = INFINITY_F, delta = sum_over_lanes(deltas[n]);
                if (r < count) {
                    if (p.delta.data) {
                        delta = ((const float *)p.delta.data)[row_offset(p.delta, run.sequence, head, row)];
                    }
                    if (HAS_DLSE && p.dlse.data) {
                        delta -= ((const float *)p.dlse.data)[row_offset(p.dlse, run.sequence, head, row)];
                    }
                    if (HAS_SINK && threadIdx.x % LANES == 0) {
                        dsink += row_dsink(p, head, lse, delta);
                    }
                    if (lse == -INFINITY_F) {
                        delta = 0.0f;
                    } else {
                        /* +inf marks rows that see nothing, so a true one is kept apart */
                        lse2 = lse == INFINITY_F ? 3.4e38f : (float)((double)lse * units);
                        lse2 = fabsf(lse2) == INFINITY_F ? copysignf(3.4e38f, lse2) : lse2;
                    }
                }
                if (threadIdx.x % LANES == 0 && r < TILE_Q) {
                    float *stats = scratch.stats + number * (2 * TILE_Q);
                    stats[stat_at(r)] = lse2;
                    stats[TILE_Q + stat_at(r)] = delta;
                }
            }
        }
    }
    if (HAS_SINK) {
        __shared__ float parts[WARPS];
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            dsink += __shfl_xor_sync(0xffffffffu, dsink, lanes);
        }
        if (threadIdx.x % 32 == 0) {
            parts[threadIdx.x / 32] = dsink;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int other = 1; other < WARPS; other++) {
                dsink += parts[other];
            }
            scratch.sinks[number] = dsink;
        }
    }
}
