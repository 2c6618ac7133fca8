/* SPDX-License-Identifier: Apache-2.0
 * A step's second products one pair at a time, leaving hidden pairs out: 0 * NaN must not reach a sum. Slow and rare:
 * only steps with hidden pairs come here, and only if a raw product in them is not finite. P and dS are read from
 * shared memory as the tensor cores would have read them. */
#pragma once
#include "gradient_score.cuh"

INLINE float shared_element(const char *shared, int at) {
    return widen<DTYPE>(*(const element_t<DTYPE> *)(shared + at));
}

/* Does query row (of its tile) see the key row? alive: the row sees anything at all. */
INLINE bool pair_visible(const attn__params &p, const step_state &step, int query, int key, bool alive) {
    if (!alive || key >= step.keys) {
        return false;
    }
    int64_t i = step.query_position + query;
    int j = step.key_position + key;
    if (!band_sees(p, band_of_row(p, step.shifted + query, POSITION_MAX), j)) {
        return false;
    }
    if (HAS_MASK) {
        if (!mask_shows(p, step.sequence, step.head, i, j)) {
            return false;
        }
    }
    if (BIAS_DTYPE) {
        const attn__tensor_ref &t = p.bias;
        int64_t at = step.sequence * t.stride[0] + step.head * t.stride[1] + i * t.stride[2] + j * t.stride[3];
        return load_element < BIAS_DTYPE ? BIAS_DTYPE : F32 > (t.data, at) != -INFINITY_F;
    }
    return true;
}

/* sums[row][column] += factor[x][y] * rows of y; lse: of the query tile's rows. */
template <int columns>
INLINE void add_carefully(const attn__params &p, const step_state &step, const place &at, const float *lse,
                          float (&sums)[X_BLOCKS][columns / 8][4], const char *shared, int factor, int y, int pitch) {
    const int column = at.y * columns + (at.lane & 3) * 2;
#pragma unroll 1
    for (int row = 0; row < TILE_Y; row++) {
#pragma unroll
        for (int n = 0; n < X_BLOCKS * 2; n++) {
            int x = x_at(at, n), query = PASS_KEYS ? row : x, key = PASS_KEYS ? x : row;
            if (!pair_visible(p, step, query, key, lse[stat_at(query)] != INFINITY_F)) {
                continue;
            }
            float f = shared_element(shared, factor + x * PITCH_S + row * SIZE);
#pragma unroll
            for (int c = 0; c < columns / 4; c++) {
                int at = y + row * pitch + (column + (c >> 1) * 8 + (c & 1)) * SIZE;
                sums[n >> 1][c >> 1][(n & 1) * 2 + (c & 1)] += f * shared_element(shared, at);
            }
        }
    }
}

/* dQ of the y block (PASS_KEYS), the warp's part. */
INLINE void product_dq_carefully(const attn__params &p, const step_state &step, const place &at, const float *lse,
                                 dq_sums &sums, const char *shared, int ds, int keys) {
    const int wm = at.warp / DQ_WARPS_N, wn = at.warp % DQ_WARPS_N;
    const int first = wm * DQ_ROWS + (at.lane >> 2), column = wn * DQ_COLUMNS + (at.lane & 3) * 2;
    clear_dq(sums);
#pragma unroll 1
    for (int key = 0; key < TILE_KV; key++) {
#pragma unroll
        for (int n = 0; n < DQ_M * 2; n++) {
            int query = first + n * 8;
            if (!pair_visible(p, step, query, key, lse[stat_at(query)] != INFINITY_F)) {
                continue;
            }
            float f = shared_element(shared, ds + key * PITCH_S + query * SIZE);
#pragma unroll
            for (int c = 0; c < DQ_N * 2; c++) {
                int at = keys + key * PITCH_QK + (column + (c >> 1) * 8 + (c & 1)) * SIZE;
                sums[n >> 1][c >> 1][(n & 1) * 2 + (c & 1)] += f * shared_element(shared, at);
            }
        }
    }
}
