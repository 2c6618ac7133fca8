/* SPDX-License-Identifier: Apache-2.0
 * dK and dV from registers to memory. A hidden NaN or inf that met the zero of its pair left a NaN in the sums, which
 * never goes away: so a tile with a value that is not finite goes to the list of tiles, and backward_mma.cu makes it
 * once more, leaving hidden pairs out. Where outputs are added to, such a tile must not be stored before. */
#pragma once
#include "gather.cuh"
#include "hopper/backward_records.cuh"

/* Whole 16 bytes of 16-bit elements; to: row 0 and column 0 of the tile. */
template <int dtype, int dim, int count>
INLINE void store_pieces(const output_place &at, uint16_t *to, int64_t stride, int rows, int slot_rows, float scale,
                         const float (&sums)[count]) {
    const int t = at.lane & 3, rows_left = rows - at.row, slot_left = slot_rows - at.row;
    to += at.row * stride + at.column;
#pragma unroll
    for (int j = 0; j < count / 4; j += 4) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float factor = scale;
            uint32_t x[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int i = 4 * (j + n) + 2 * half;
                x[n] = narrow_pair<dtype>(sums[i] * factor, sums[i + 1] * factor);
            }
            uint4 piece = gather_row(x[0], x[1], x[2], x[3], t);
            if (half * 8 >= rows_left) {
                piece = make_uint4(0, 0, 0, 0);
            }
            if (half * 8 < slot_left && at.column + j * 8 + t * 8 < dim) {
                *(uint4 *)(to + half * 8 * stride + j * 8 + t * 8) = piece;
            }
        }
    }
}

/* Any type, any strides, and added to what is there. */
template <int dtype, int dim, int count>
INLINE void store_elements(const output_place &at, element_t<dtype> *to, const attn__tensor_ref &t, bool accumulate,
                           int rows, int slot_rows, float scale, const float (&sums)[count]) {
    const int rows_left = rows - at.row, slot_left = slot_rows - at.row;
    to += at.row * t.stride[2];
#pragma unroll
    for (int n = 0; n < count; n++) {
        const int half = n >> 1 & 1, column = at.column + n / 4 * 8 + (at.lane & 3) * 2 + (n & 1);
        if (half * 8 < (accumulate ? rows_left : slot_left) && column < dim) {
            element_t<dtype> *one = to + half * 8 * t.stride[2] + column * t.stride[3];
            const float x = half * 8 < rows_left ? sums[n] * scale : 0.0f;
            *one = narrow<dtype>(x + (accumulate ? widen<dtype>(*one) : 0.0f));
        }
    }
}

template <int dtype, int dim, int count>
INLINE void store_sums(const attn__params &p, const output_place &at, const attn__tensor_ref &t, unsigned aligned,
                       int64_t offset, int rows, int slot_rows, float scale, const float (&sums)[count]) {
    if (!t.data) {
        return;
    }
    element_t<dtype> *to = (element_t<dtype> *)t.data + offset;
    if constexpr (dtype != F32) {
        if ((p.aligned & aligned) && !p.accumulate) {
            store_pieces<dtype, dim>(at, to, t.stride[2], rows, slot_rows, scale, sums);
            return;
        }
    }
    store_elements<dtype, dim>(at, to, t, p.accumulate, rows, slot_rows, scale, sums);
}

/* dv (value) or dk. SPLIT: a part of a group's query heads, float32, not scaled, in a tensor of its own. */
template <bool value, int count>
INLINE void store_gradient(const attn__params &p, const output_place &at, const output_record &output,
                           const float (&sums)[count]) {
    if constexpr (SPLIT) {
        const int slots = (int)key_slots(p), place = output.number / slots;
        attn__tensor_ref part;
        key_part_of(p, output.part, place % p.heads_kv, output.number % slots, value, &part);
        store_elements<F32, value ? DIM_V : DIM_QK>(at, (float *)part.data, part, false, output.rows, output.rows, 1.0f,
                                                    sums);
    } else if constexpr (value) {
        store_sums<DV_DTYPE, DIM_V>(p, at, p.dv, ATTN__ALIGNED_DV, output.dv, output.rows, output.slot_rows, 1.0f,
                                    sums);
    } else {
        store_sums<DK_DTYPE, DIM_QK>(p, at, p.dk, ATTN__ALIGNED_DK, output.dk, output.rows, output.slot_rows, p.scale,
                                     sums);
    }
}

template <int count> INLINE bool all_finite(const float (&dk)[count], const float (&dv)[count]) {
    float zero = 0.0f;
#pragma unroll
    for (int n = 0; n < count; n++) {
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

/* Lists a tile that must not be stored. first: of all computing threads; wild: a sum of this thread is not finite. */
INLINE bool list_wild(const attn__params &p, const output_record &output, bool first, int lane, bool wild) {
    wild = p.accumulate ? any_of_both(wild) : __any_sync(0xffffffffu, wild);
    if (wild && (p.accumulate ? first : lane == 0)) {
        list_add(row_scratch_of(p).keys, output.number);
    }
    return wild;
}

/* first: this thread is the first that computes. */
template <int count>
INLINE void store_tile(const attn__params &p, const output_place &at, bool first, const output_record &output,
                       const float (&dk)[count], const float (&dv)[count]) {
    if (!list_wild(p, output, first, at.lane, !all_finite(dk, dv))) {
        store_gradient<true>(p, at, output, dv);
        store_gradient<false>(p, at, output, dk);
    }
}
