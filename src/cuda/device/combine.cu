/* SPDX-License-Identifier: Apache-2.0
 * Joins the parts that the splits of forward_mma.cu left: for each row
 *     lse = ln sum_s exp(lse_s) [+ exp(sink)],  o = sum_s exp(lse_s - lse) o_s
 * in the order of the splits, so that the same parts give the same bits. A part that saw nothing (lse_s = -inf) has no
 * influence.
 *
 * A block takes TOKENS rows of one head, one after another; its threads lie along DIM_V. Constants beside those of the
 * problem: TOKENS, THREADS. partial_o is [split][row][DIM_V], partial_lse [split][row], row as row_number() counts. */
#include "schedule.cuh"
#include "softmax.cuh"

INLINE void join_row(const attn__params &p, const rows_run &run, int head, int row, float sink) {
    const int64_t at = row_number(p, run, head, row), each = row_count(p);
    const float *lse = p.partial_lse + at;
    float top = sink, sum = 0.0f;
    for (int s = 0; s < p.splits; s++) {
        top = fmaxf(top, lse[s * each]); /* a NaN is passed over here and found in the sum */
    }
    top = top == -INFINITY_F ? 0.0f : top;
    for (int s = 0; s < p.splits; s++) {
        sum += exp2_fast((lse[s * each] - top) * LOG2E);
    }
    sum += HAS_SINK ? exp2_fast((sink - top) * LOG2E) : 0.0f;
    const float scale = sum == 0.0f ? 0.0f : (HAS_DROPOUT ? p.keep_scale : 1.0f) / sum;
    for (int column = (int)threadIdx.x; column < DIM_V; column += THREADS) {
        const float *part = p.partial_o + at * DIM_V + column;
        float o = 0.0f;
#pragma unroll 4
        for (int s = 0; s < p.splits; s++) {
            float part_lse = lse[s * each], x = part[s * each * DIM_V];
            float weight = exp2_fast((part_lse - top) * LOG2E) * scale;
            x = is_finite(x) ? weight * x : x; /* what is visible and infinite stays so, however small its weight */
            o += part_lse == -INFINITY_F ? 0.0f : x;
        }
        store_element<O_DTYPE>(p.o.data, row_offset(p.o, run.sequence, head, run.first + row) + column * p.o.stride[3],
                               o);
    }
    if (threadIdx.x == 0 && p.lse.data) {
        ((float *)p.lse.data)[row_offset(p.lse, run.sequence, head, run.first + row)] =
            sum == 0.0f ? -INFINITY_F : top + log2_fast(sum) * LN2;
    }
}

/* Rows of the slot past the used length. */
INLINE void empty_row(const attn__params &p, const rows_run &run, int head, int row) {
    for (int column = (int)threadIdx.x; column < DIM_V; column += THREADS) {
        store_element<O_DTYPE>(p.o.data, row_offset(p.o, run.sequence, head, run.first + row) + column * p.o.stride[3],
                               0.0f);
    }
    if (threadIdx.x == 0 && p.lse.data) {
        ((float *)p.lse.data)[row_offset(p.lse, run.sequence, head, run.first + row)] = -INFINITY_F;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    if (p.status && *p.status) {
        return;
    }
    tile_place place = place_tile(p, p.first_tile + blockIdx.x, p.heads_q, 1, 1, TOKENS, 0);
    if (!place.exists) {
        return;
    }
    const int head = place.column;
    const float sink = HAS_SINK ? ((const float *)p.sink.data)[head * p.sink.stride[1]] : -INFINITY_F;
    for (int row = place.first; row < place.first + TOKENS && row < place.run.slot; row++) {
        if (row < place.run.rows) {
            join_row(p, place.run, head, row, sink);
        } else {
            empty_row(p, place.run, head, row);
        }
    }
}
