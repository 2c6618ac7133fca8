/* SPDX-License-Identifier: Apache-2.0
 * The end of a tile: outputs divided by their sums, and lse. Where outputs are STAGED a warp leaves its 16 rows in the
 * tile's query buffer, which no product reads any more, and the copy engine takes them; rows that end inside the 16,
 * and all rows where the address is not a multiple of 16, go straight from the registers. */
#pragma once
#include "hopper/forward_softmax.cuh"

/* A warp's first row. */
INLINE int first_row(const forward_place &at) {
    return at.row - (at.lane >> 2);
}

/* Rows that are written: the tensor's end is clipped by the map where it is that of the slot. */
INLINE bool clips(const forward_tile &tile, const forward_place &at) {
    return ROWS_Q == DENSE || __all_sync(0xffffffffu, first_row(at) + 16 <= tile.slot);
}

/* Sums of whole rows, the sink taken in; each row's lse is written. scale: what outputs are multiplied by. */
INLINE void finish_rows(const attn__params &p, const forward_tile &tile, const forward_place &at,
                        const float (&reference)[2], const float (&part)[2], float (&scale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.row + 8 * half;
        float sum = quad_sum(part[half]), now = reference[half], shrink = 1.0f;
        if (HAS_SINK) {
            const float sink = ((const float *)p.sink.data)[(tile.head + at.head) * p.sink.stride[1]] * LOG2E;
            if (sink != -INFINITY_F) {
                now = fmaxf(now, sink);
                shrink = exp2_fast(reference[half] - now);
                sum = sum * shrink + exp2_fast(sink - now);
            }
        }
        scale[half] = sum == 0.0f ? 0.0f : shrink / sum;
        if (USED_Q && row >= tile.rows) {
            sum = 0.0f;
        }
        if ((at.lane & 3) == 0 && row < tile.slot && p.lse.data) {
            float *lse = (float *)p.lse.data + row_offset(p.lse, tile.sequence, tile.head + at.head, tile.row + row);
            *lse = natural_lse(now, LN2, sum);
        }
    }
}

/* Which rows' outputs are finite: 0 times each is summed, two at once; what is not finite makes that NaN. */
typedef struct output_test {
    uint32_t zero[2]; /* of rows `half` */
} output_test;

INLINE void test_pair(uint32_t pair, uint32_t &zero) {
    if constexpr (DTYPE == F16) {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(zero) : "r"(pair), "r"(0));
    } else {
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zero) : "r"(pair), "r"(0));
    }
}

/* Two outputs as a word. */
INLINE uint32_t output_pair(const forward_rows &w, int n, const float (&scale)[2], const bool (&counts)[2],
                            output_test &test) {
    const int half = n / 2 & 1;
    uint32_t pair = narrow_pair<DTYPE>(w.o[n] * scale[half], w.o[n + 1] * scale[half]);
    pair = !USED_Q || counts[half] ? pair : 0;
    test_pair(pair, test.zero[half]);
    return pair;
}

INLINE void exchange(uint32_t &a, uint32_t &b, bool odd, int distance) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? a : b, distance);
    a = odd ? other : a;
    b = odd ? b : other;
}

/* From registers: a transposition in each four lanes gives a lane 16 bytes of its own. */
INLINE void store_rows(const attn__params &p, const forward_tile &tile, const forward_place &at, const forward_rows &w,
                       const float (&scale)[2], output_test &test) {
    const bool counts[2] = {at.row < tile.rows, at.row + 8 < tile.rows}, aligned = (p.aligned & ATTN__ALIGNED_O) != 0;
    const int quarter = at.lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at.row + 8 * half;
        const int64_t offset = row_offset(p.o, tile.sequence, tile.head + at.head, tile.row + row);
        uint16_t *o = (uint16_t *)p.o.data + offset;
#pragma unroll
        for (int n = 0; n < SUMS; n += 16) {
            uint32_t x[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = n + 4 * i < SUMS ? output_pair(w, n + 4 * i + 2 * half, scale, counts, test) : 0;
            }
            exchange(x[0], x[1], quarter & 1, 1);
            exchange(x[2], x[3], quarter & 1, 1);
            exchange(x[0], x[2], quarter & 2, 2);
            exchange(x[1], x[3], quarter & 2, 2);
            const int column = 2 * n + 8 * quarter;
            if (row >= tile.slot || column >= DIM_V) {
                continue;
            }
            if (aligned) {
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(o + column), "r"(x[0]), "r"(x[1]),
                             "r"(x[2]), "r"(x[3])
                             : "memory");
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    o[column + i] = (uint16_t)(x[i / 2] >> (16 * (i & 1)));
                }
            }
        }
    }
}

/* By way of shared memory; `buffer` is the tile's queries. */
INLINE void stage_rows(const attn__params &p, const attn__maps &maps, const forward_tile &tile, const forward_place &at,
                       const forward_rows &w, const float (&scale)[2], uint32_t buffer, output_test &test) {
    const bool counts[2] = {at.row < tile.rows, at.row + 8 < tile.rows};
    const int first = at.group * 64 + at.warp * 16, r = first + (at.lane & 15);
    const int row = PACK == 1 ? first : first_row(at);
#pragma unroll
    for (int n = 0; n < SUMS / 8; n++) {
        const uint32_t piece = (n % 4) * 2 + (at.lane >> 4);
        const uint32_t to = buffer + (n / 4) * PANEL_Q + r * 128 + ((piece ^ (r & 7)) << 4);
        uint32_t x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = output_pair(w, 8 * n + 2 * i, scale, counts, test);
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
                     "r"(x[2]), "r"(x[3])
                     : "memory");
    }
    fence_async();
    __syncwarp();
    if (at.lane == 0) {
#pragma unroll
        for (int panel = 0; panel < PANELS_V; panel++) {
            box_store(maps.o, buffer + panel * PANEL_Q + first * 128, 64 * panel, tile.row + row, tile.head + at.head,
                      batch_of(p.o, tile.sequence));
        }
        stores_commit();
    }
}
