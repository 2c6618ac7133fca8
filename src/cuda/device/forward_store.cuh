/* SPDX-License-Identifier: Apache-2.0
 * The end of a forward tile: rows are scaled in registers, laid out row by row in shared memory, which is free by then,
 * and from there stored 16 bytes at a time, each warp its own 16 rows. Also the values' side of the careful modes
 * (forward_mma.cu). */
#pragma once
#include "forward_score.cuh"

#define STAGED       (SPLIT ? F32 : O_DTYPE)
#define SIZE_STAGED  ((int)sizeof(element_t<STAGED>))
#define PITCH_STAGED ((DIM_PART * SIZE_STAGED + 15) / 16 * 16 + 16)
#define SUM_LIMIT    1.0e30f

/* Careful modes: values that are not finite become 0 (mode 1); else the count of what the mode looks for. */
INLINE void patch_values(uint32_t values, int mode) {
    typedef element_t<DTYPE> element;
    const uint32_t infinity = DTYPE == F32 ? 0x7f800000u : DTYPE == BF16 ? 0x7f80u : 0x7c00u;
    const uint32_t sign = DTYPE == F32 ? 0x80000000u : 0x8000u;
    const uint32_t one = DTYPE == F32 ? 0x3f800000u : DTYPE == BF16 ? 0x3f80u : 0x3c00u;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < BYTES_V / SIZE; at += THREADS) {
        uint32_t address = values + at * SIZE, x;
        if (SIZE == 4) {
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address));
        } else {
            asm volatile("{.reg .b16 y; ld.shared.b16 y, [%1]; cvt.u32.u16 %0, y;}" : "=r"(x) : "r"(address));
        }
        bool odd = (x & infinity) == infinity, nan = odd && (x & ~sign & ~infinity & (sign - 1));
        if (mode == 1) {
            x = odd ? 0 : x;
        } else if (mode == MODE_DROPPED) {
            x = odd ? one : 0;
        } else {
            x = nan || x == (infinity | (mode == 3 ? sign : 0u)) ? one : 0;
        }
        if (SIZE == 4) {
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
        } else {
            asm volatile("{.reg .b16 y; cvt.u16.u32 y, %1; st.shared.b16 [%0], y;}" ::"r"(address), "r"(x) : "memory");
        }
    }
}

/* Scales the rows by what is left to do; w.sum becomes their natural lse. True: something is not finite, or a sum is
 * out of range. */
INLINE bool scale_rows(const attn__params &p, const tile_work &tile, warp_rows &w, int mode) {
    const float unit = reference_log2(p, mode);
    float odd = 0.0f; /* 0 times anything that is not finite is NaN */
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = quad_sum(w.sum[strip][half]), reference = w.reference[strip][half], scale = 1.0f;
            float row_odd = sum < SUM_LIMIT ? 0.0f : INFINITY_F;
            if (mode < 2) {
                if (HAS_SINK && !SPLIT) {
                    int head = head_of(tile, row_of(strip, half));
                    float sink = ((const float *)p.sink.data)[head * p.sink.stride[1]];
                    sink = SCORE_PLAIN ? sink * LOG2E / unit : sink;
                    if (sink != -INFINITY_F) {
                        float now = fmaxf(reference, sink);
                        scale = exp2_fast((reference - now) * unit);
                        sum = sum * scale + exp2_fast((sink - now) * unit);
                        reference = now;
                    }
                }
                scale = sum == 0.0f ? 0.0f : scale / sum;
                scale *= HAS_DROPOUT && !SPLIT ? p.keep_scale : 1.0f;
            }
            w.sum[strip][half] = natural_lse(reference, reference_natural(p, mode), sum);
#pragma unroll
            for (int n = 0; n < OUTPUTS; n++) {
                w.o[strip][n][2 * half] *= scale;
                w.o[strip][n][2 * half + 1] *= scale;
                row_odd = fmaf(w.o[strip][n][2 * half], 0.0f, row_odd);
                row_odd = fmaf(w.o[strip][n][2 * half + 1], 0.0f, row_odd);
            }
            odd += row_of(strip, half) / PACK < tile.rows ? row_odd * 0.0f : 0.0f;
        }
    }
    return odd != 0.0f;
}

/* Lays out a strip of the warp's rows. */
INLINE void stage_strip(const warp_rows &w, int strip, uint32_t staged) {
    const uint32_t at = staged + (lane_index() >> 2) * PITCH_STAGED + lane_index() % 4 * 2 * SIZE_STAGED;
#pragma unroll
    for (int n = 0; n < OUTPUTS; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float left = w.o[strip][n][2 * half], right = w.o[strip][n][2 * half + 1];
            const uint32_t to = at + half * 8 * PITCH_STAGED + n * 8 * SIZE_STAGED;
            if (SIZE_STAGED == 4) {
                asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(left), "f"(right) : "memory");
            } else {
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to),
                             "r"(narrow_pair < STAGED == F32 ? F16 : STAGED > (left, right))
                             : "memory");
            }
        }
    }
}

/* One staged element goes to its place; modes from 2 on add an infinity or NaN where it counts something. */
INLINE void store_staged(void *data, int64_t at, element_t<STAGED> x, int mode) {
    element_t<STAGED> *to = (element_t<STAGED> *)data + at;
    if (mode < 2) {
        *to = x;
    } else if (widen<STAGED>(x) > 0.0f) {
        const float added = mode == 2 ? INFINITY_F : mode == 3 ? -INFINITY_F : __int_as_float(0x7fffffff);
        *to = narrow<STAGED>(widen<STAGED>(*to) + added);
    }
}

/* Stores the strip's 16 rows, the first of which is row `row` of the tile. Rows of the slot past the used length are
 * zeros. */
INLINE void store_strip(const attn__params &p, const tile_work &tile, int row, const unsigned char *staged, int mode) {
    const rows_run &run = tile.run;
    const int units = PITCH_STAGED / 16 - 1, each = 16 / SIZE_STAGED;
    const int64_t stride = SPLIT ? 1 : p.o.stride[3];
    const bool aligned = (SPLIT ? DIM_V % 4 == 0 : (p.aligned & ATTN__ALIGNED_O) != 0) && DIM_PART % each == 0 &&
                         (DIM_V - DIM_PART) % each == 0 && mode < 2;
#pragma unroll 1
    for (int n = lane_index(); n < 16 * units; n += 32) {
        const int r = n / units, column = n % units * each, token = (row + r) / PACK, local = tile.first + token;
        if (token >= TOKENS || local >= run.slot || (SPLIT && token >= tile.rows)) {
            continue;
        }
        const int head = head_of(tile, row + r);
        const unsigned char *from = staged + r * PITCH_STAGED + column * SIZE_STAGED;
        void *data = SPLIT ? (void *)p.partial_o : p.o.data;
        int64_t at = SPLIT ? (tile.view.split * row_count(p) + row_number(p, run, head, local)) * DIM_V
                           : row_offset(p.o, run.sequence, head, run.first + local);
        at += (tile.column_v + column) * stride;
        if (aligned) {
            *(uint4 *)((element_t<STAGED> *)data + at) =
                token < tile.rows ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
            continue;
        }
        for (int c = 0; c < each && column + c < DIM_PART; c++) {
            const element_t<STAGED> x = ((const element_t<STAGED> *)from)[c];
            store_staged(data, at + c * stride, token < tile.rows ? x : (element_t<STAGED>)0, mode);
        }
    }
}

INLINE void store_lse(const attn__params &p, const tile_work &tile, const warp_rows &w) {
    const rows_run &run = tile.run;
#pragma unroll
    for (int n = 0; n < STRIPS * 2; n++) {
        const int row = row_of(n / 2, n % 2), token = row / PACK, head = head_of(tile, row), local = tile.first + token;
        if (lane_index() % 4 || token >= TOKENS || local >= run.slot || (SPLIT && token >= tile.rows)) {
            continue;
        }
        const float lse = token < tile.rows ? w.sum[n / 2][n % 2] : -INFINITY_F;
        if (SPLIT) {
            p.partial_lse[tile.view.split * row_count(p) + row_number(p, run, head, local)] = lse;
        } else if (p.lse.data) {
            ((float *)p.lse.data)[row_offset(p.lse, run.sequence, head, run.first + local)] = lse;
        }
    }
}

/* True: the tile must be done again, in the next mode. */
INLINE bool finish_rows(const attn__params &p, tile_work &tile, warp_rows &w, unsigned char *memory) {
    const int mode = tile.mode;
    bool bad = scale_rows(p, tile, w, mode);
    bad = __syncthreads_or(bad) ||
          (SCORE_PLAIN && tile.far); /* also: shared memory is free, and all threads have read the mode */
    if (threadIdx.x == 0) {
        tile.mode++;
    }
    if (mode == 0 && bad) {
        return true;
    }
    unsigned char *staged = memory + (threadIdx.x >> 5) * 16 * PITCH_STAGED;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
        stage_strip(w, strip, shared_address(staged));
        __syncwarp();
        store_strip(p, tile, (threadIdx.x >> 5) * STRIPS * 16 + strip * 16, staged, mode);
        __syncwarp();
    }
    if (mode < 2 && tile.column_v == 0) {
        store_lse(p, tile, w);
    }
    return mode > 0 && mode < LAST_MODE;
}
