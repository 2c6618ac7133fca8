/* SPDX-License-Identifier: Apache-2.0
 * Tensor-core products of one warp, and how their factors come out of shared memory.
 *
 * Everything is counted in *steps* of 32 bytes along the summed dimension: 16 elements of f16 and bf16, 8 of f32 (which
 * is taken as tf32). One step of a 16 x 8 product is mma(): A is 4 words a lane, B is 2, the sum is 4 floats. With
 * g = lane / 4 and t = lane % 4 a lane holds of
 *     sum, 16 x 8     d[0], d[1]: row g, columns 2t, 2t + 1;  d[2], d[3]: row g + 8
 *     A, 16 x step    a[0]: row g, a[1]: row g + 8, both in the step's first 16 bytes; a[2], a[3]: in its last 16
 *     B, step x 8     b0: column g in the first 16 bytes, b1: in the last
 * where word t of 16 bytes is elements 2t, 2t + 1 (16 bit) or element t (f32). Two neighbouring 16 x 8 sums of 16-bit
 * problems narrowed pair by pair are one step of A, which is how probabilities become a factor: sum_as_a(). With f32
 * one 16 x 8 sum is one step of A, its columns in the order 0 2 4 6 1 3 5 7: load_b_columns() reads rows in that order.
 *
 * Tiles lie in shared memory row by row, TILE_PITCH(dim, size) bytes a row: an odd number of 16-byte units, so that
 * eight rows read at one column lie in distinct banks, and that all addresses are a lane's base plus constants.
 *
 * From sm_75: ldmatrix. sm_75 has no products of bf16 and tf32 and half the step for f16, taken twice. */
#pragma once
#include "types.cuh"

#define STEP_BYTES 32
/* Bytes of `dim` elements filled up to whole steps. */
#define STEPS(dim, size)      (((dim) * (size) + STEP_BYTES - 1) / STEP_BYTES)
#define TILE_PITCH(dim, size) (STEPS(dim, size) * STEP_BYTES + 16)

INLINE int lane_index() {
    return (int)(threadIdx.x & 31);
}
/* The thread's number, computed anew: what depends on it is not kept in registers through a loop that is short of them.
 */
INLINE int thread_index_again() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
INLINE uint32_t shared_address(const void *memory) {
    return (uint32_t)__cvta_generic_to_shared(memory);
}

/* d = a b + c. c may be constants: 0 then costs no register. */
template <int dtype>
INLINE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float c0, float c1, float c2,
                float c3) {
    if constexpr (dtype == F16) {
#if __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
#else
        asm("{.reg .f32 x, y, z, w;\n"
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {x,y,z,w}, {%4,%5}, {%8}, {%10,%11,%12,%13};\n"
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%6,%7}, {%9}, {x,y,z,w};}"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
#endif
    } else if constexpr (dtype == BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
    }
}
/* d += a b */
template <int dtype> INLINE void mma_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma<dtype>(d, a, b0, b1, d[0], d[1], d[2], d[3]);
}
/* d = a b */
template <int dtype> INLINE void mma_set(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma<dtype>(d, a, b0, b1, 0.0f, 0.0f, 0.0f, 0.0f);
}

/* Four 8 x 8 blocks of 16-bit elements (8 rows of 16 bytes each); lane 8n + r gives the address of row r of block n. */
INLINE void ldmatrix(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
INLINE void ldmatrix_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
INLINE uint32_t load_word(uint32_t address) {
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address));
    return x;
}

/* f32 to tf32, to nearest; the tensor cores would cut off. */
INLINE uint32_t tf32_round(uint32_t x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
    return y;
}
template <int dtype> INLINE void round_factors(uint32_t (&r)[4]) {
    if constexpr (dtype == F32) {
        for (int n = 0; n < 4; n++) {
            r[n] = tf32_round(r[n]);
        }
    }
}

/* A lane's part of the addresses below; kept in a register each, the rest are constants. */
INLINE uint32_t lane_of_rows(int pitch,
                             int lane = lane_index()) { /* load_a, load_b_columns: 16 rows, then 16 bytes on */
    return (uint32_t)((lane & 15) * pitch + (lane >> 4) * 16);
}
INLINE uint32_t lane_of_columns(
    int pitch, int lane = lane_index()) { /* load_b, load_a_columns: 8 rows, 16 bytes on, then the next 8 rows */
    return (uint32_t)(((lane & 7) + (lane >> 4) * 8) * pitch + (lane & 8) * 2);
}
/* f32 by words: rows 2t of the summed dimension, column g. */
INLINE uint32_t lane_of_words(int pitch, int lane = lane_index()) {
    return (uint32_t)((lane & 3) * 2 * pitch + (lane >> 2) * 4);
}
template <int dtype> INLINE uint32_t lane_of_summed_rows(int pitch, int lane = lane_index()) {
    return dtype == F32 ? lane_of_words(pitch, lane) : lane_of_rows(pitch, lane);
}

/* A from rows [m][k]. address: first row and step of the block, plus lane_of_rows. */
template <int dtype> INLINE void load_a(uint32_t (&a)[4], uint32_t address) {
    ldmatrix(a, address);
    round_factors<dtype>(a);
}
/* B of 16 columns from rows [n][k] (keys by dim): b[0], b[1] for columns 0-7, b[2], b[3] for 8-15. address: first row
 * and step, plus lane_of_columns. */
template <int dtype> INLINE void load_b(uint32_t (&b)[4], uint32_t address) {
    ldmatrix(b, address);
    round_factors<dtype>(b);
}
/* B of 16 columns from rows [k][n], that is, the summed dimension runs over rows (values). address: first row (16 rows
 * a step of 16-bit elements, 8 of f32) and column, plus lane_of_summed_rows. */
template <int dtype> INLINE void load_b_columns(uint32_t (&b)[4], uint32_t address, int pitch) {
    if constexpr (dtype == F32) { /* k = t, t + 4 are rows 2t, 2t + 1: the order of sum_as_a */
        b[0] = load_word(address);
        b[1] = load_word(address + pitch);
        b[2] = load_word(address + 32);
        b[3] = load_word(address + pitch + 32);
        round_factors<dtype>(b);
    } else {
        ldmatrix_transposed(b, address);
    }
}
/* A of 16 rows from rows [k][m]: the product's rows run along the tile's columns (backward's transposed factors).
 * address: first row and column, plus lane_of_columns (16 bit) or lane_of_words (f32, in the order of sum_as_a). */
template <int dtype> INLINE void load_a_columns(uint32_t (&a)[4], uint32_t address, int pitch) {
    if constexpr (dtype == F32) {
        a[0] = load_word(address);
        a[1] = load_word(address + 32);
        a[2] = load_word(address + pitch);
        a[3] = load_word(address + pitch + 32);
        round_factors<dtype>(a);
    } else {
        ldmatrix_transposed(a, address);
    }
}

/* Sums a step of A takes: 2 of 16-bit types, 1 of f32. */
#define SUMS_A_STEP(dtype) ((dtype) == F32 ? 1 : 2)

/* Sums left (columns 0-7) and right (8-15; not read for f32) as one step of A. */
template <int dtype> INLINE void sum_as_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    if constexpr (dtype == F32) {
        a[0] = tf32_round(__float_as_uint(left[0]));
        a[1] = tf32_round(__float_as_uint(left[2]));
        a[2] = tf32_round(__float_as_uint(left[1]));
        a[3] = tf32_round(__float_as_uint(left[3]));
    } else {
        a[0] = narrow_pair<dtype>(left[0], left[1]);
        a[1] = narrow_pair<dtype>(left[2], left[3]);
        a[2] = narrow_pair<dtype>(right[0], right[1]);
        a[3] = narrow_pair<dtype>(right[2], right[3]);
    }
}
