/* SPDX-License-Identifier: Apache-2.0
 * dK and dV from registers to memory. A hidden NaN or inf that met the zero of its pair left a NaN in the sums, which
 * never goes away: so a tile with a value that is not finite goes to the list of tiles, and backward_mma.cu makes it
 * once more, leaving hidden pairs out. Where outputs are added to, such a tile must not be stored before. */
#pragma once
#include "hopper/backward_products.cuh"

/* Lanes 4 g ... 4 g + 3 hold, in x[j], columns 8 j + 2 t, + 1 of one row; then lane t holds columns 8 t ... 8 t + 7. */
INLINE uint4 gather_row(uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3, int t) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, t & 1 ? x0 : x1, 1);
    (t & 1 ? x0 : x1) = other;
    other = __shfl_xor_sync(0xffffffffu, t & 1 ? x2 : x3, 1);
    (t & 1 ? x2 : x3) = other;
    other = __shfl_xor_sync(0xffffffffu, t & 2 ? x0 : x2, 2);
    (t & 2 ? x0 : x2) = other;
    other = __shfl_xor_sync(0xffffffffu, t & 2 ? x1 : x3, 2);
    (t & 2 ? x1 : x3) = other;
    return make_uint4(x0, x1, x2, x3);
}

/* Whole 16 bytes of 16-bit elements; to: this thread's first row. */
template <int dtype, int dim>
INLINE void store_pieces(uint16_t *to, int64_t stride, int lane, int rows_left, int slot_left, float scale,
                         const float (&sums)[NO]) {
    const int t = lane & 3;
#pragma unroll
    for (int j = 0; j < NO / 4; j += 4) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float factor = scale;
            uint32_t x[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int at = 4 * (j + n) + 2 * half;
                x[n] = narrow_pair<dtype>(sums[at] * factor, sums[at + 1] * factor);
            }
            uint4 piece = gather_row(x[0], x[1], x[2], x[3], t);
            if (half * 8 >= rows_left) {
                piece = make_uint4(0, 0, 0, 0);
            }
            if (half * 8 < slot_left && j * 8 + t * 8 < dim) {
                *(uint4 *)(to + half * 8 * stride + j * 8 + t * 8) = piece;
            }
        }
    }
}

/* Any type, any strides, and added to what is there. */
template <int dtype, int dim>
INLINE void store_elements(element_t<dtype> *to, const attn__tensor_ref &t, bool accumulate, int lane, int rows_left,
                           int slot_left, float scale, const float (&sums)[NO]) {
#pragma unroll
    for (int n = 0; n < NO; n++) {
        const int half = n >> 1 & 1, column = n / 4 * 8 + (lane & 3) * 2 + (n & 1);
        if (half * 8 < (accumulate ? rows_left : slot_left) && column < dim) {
            element_t<dtype> *at = to + half * 8 * t.stride[2] + column * t.stride[3];
            const float x = half * 8 < rows_left ? sums[n] * scale : 0.0f;
            *at = narrow<dtype>(x + (accumulate ? widen<dtype>(*at) : 0.0f));
        }
    }
}

template <int dtype, int dim>
INLINE void store_sums(const attn__params &p, const worker &w, const attn__tensor_ref &t, unsigned aligned, int64_t at,
                       int rows, int slot_rows, float scale, const float (&sums)[NO]) {
    if (!t.data) {
        return;
    }
    element_t<dtype> *to = (element_t<dtype> *)t.data + at + w.row * t.stride[2];
    if constexpr (dtype != F32) {
        if ((p.aligned & aligned) && !p.accumulate) {
            store_pieces<dtype, dim>(to, t.stride[2], w.lane, rows - w.row, slot_rows - w.row, scale, sums);
            return;
        }
    }
    store_elements<dtype, dim>(to, t, p.accumulate, w.lane, rows - w.row, slot_rows - w.row, scale, sums);
}

/* A part of a group's query heads (SPLIT): float32, not scaled, in a tensor of its own. */
INLINE void store_part(const attn__params &p, const worker &w, const output_record &output, const float (&dk)[NO],
                       const float (&dv)[NO]) {
    const int slots = (int)key_slots(p), place = output.number / slots;
    attn__tensor_ref part;
    key_part_of(p, output.part, place % p.heads_kv, output.number % slots, 0, &part);
    store_elements<F32, DIM_QK>((float *)part.data + w.row * part.stride[2], part, false, w.lane, output.rows - w.row,
                                output.rows - w.row, 1.0f, dk);
    key_part_of(p, output.part, place % p.heads_kv, output.number % slots, 1, &part);
    store_elements<F32, DIM_V>((float *)part.data + w.row * part.stride[2], part, false, w.lane, output.rows - w.row,
                               output.rows - w.row, 1.0f, dv);
}

INLINE bool all_finite(const float (&dk)[NO], const float (&dv)[NO]) {
    float zero = 0.0f;
#pragma unroll
    for (int n = 0; n < NO; n++) {
        zero = fmaf(dk[n], 0.0f, zero);
        zero = fmaf(dv[n], 0.0f, zero);
    }
    return zero == 0.0f;
}
/* Over all computing threads. */
INLINE bool any_of_both(bool x) {
    int any;
    asm volatile("{.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbarrier.cta.red.or.pred q, 1, 256, p;\n"
                 "selp.b32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"((int)x)
                 : "memory");
    return any != 0;
}

INLINE void store_tile(const attn__params &p, const worker &w, const output_record &output, const float (&dk)[NO],
                       const float (&dv)[NO]) {
    bool wild = !all_finite(dk, dv);
    wild = p.accumulate ? any_of_both(wild) : __any_sync(0xffffffffu, wild);
    if (wild) {
        if (w.lane == 0 && (!p.accumulate || w.row == 0)) {
            list_add(row_scratch_of(p).keys, output.number);
        }
        return;
    }
    if constexpr (SPLIT) {
        store_part(p, w, output, dk, dv);
    } else {
        store_sums<DV_DTYPE, DIM_V>(p, w, p.dv, ATTN__ALIGNED_DV, output.dv, output.rows, output.slot_rows, 1.0f, dv);
        store_sums<DK_DTYPE, DIM_QK>(p, w, p.dk, ATTN__ALIGNED_DK, output.dk, output.rows, output.slot_rows, p.scale,
                                     dk);
    }
}
