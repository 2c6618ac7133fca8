/* SPDX-License-Identifier: Apache-2.0
 * Backward's tiles and the products of one warp on them.
 *
 * A block of threads owns a tile of one side, x, and walks over blocks of the other, y. PASS_KEYS: x are keys, y
 * queries; otherwise the reverse. "1" is the pair that scores are made of (q, k), "2" the other (dout, v):
 *
 *     S = X1 Y1^T      dP = X2 Y2^T      TILE_X x TILE_Y, made of the scores P and dS
 *     keys:    dV += P Y2,  dK += dS Y1,  and dQ = dS^T X1 of the y block
 *     queries: dQ += dS Y1
 *
 * Warps: WARPS_X along x by WARPS_Y along y. In S and dP warp (wx, wy) has rows [wx * WARP_X, + WARP_X) and columns
 * [wy * WARP_Y, + WARP_Y); in the sums it has the same rows and a WARPS_Y-th of the head dimension. So a warp's own
 * part of P and dS is a factor straight from registers, and the others' come through shared memory, [x][y]. Wider warp
 * tiles read less of shared memory a product, which is what bounds these kernels (docs/cuda.md).
 *
 * Constants: PASS_KEYS, WITH_DQ (keys: dQ too), SPLIT (keys: the group's heads are shared out), TILE_Q, TILE_KV, WARPS,
 * WARPS_Y, STAGES, WIDTH_QK, WIDTH_V (head sizes filled up with zeros to multiples of 16 * WARPS_Y), DQ_WARPS_M. */
#pragma once
#include "copy.cuh"
#include "gradient_blocks.cuh"

#define THREADS    (WARPS * 32)
#define SIZE       ((int)sizeof(element_t<DTYPE>))
#define WARPS_X    (WARPS / WARPS_Y)
#define WARP_X     (TILE_X / WARPS_X)
#define WARP_Y     (TILE_Y / WARPS_Y)
#define X_BLOCKS   (WARP_X / 16)
#define Y_BLOCKS   (WARP_Y / 8)
#define STEP       (STEP_BYTES / SIZE) /* summed elements a step */
#define Y_STEPS    (WARP_Y / STEP)
#define SLICE_QK   (WIDTH_QK / WARPS_Y)
#define SLICE_V    (WIDTH_V / WARPS_Y)
#define DQ_WARPS_N (WARPS / DQ_WARPS_M)
#define DQ_ROWS    (TILE_Q / DQ_WARPS_M)
#define DQ_COLUMNS (WIDTH_QK / DQ_WARPS_N)
#define DQ_TILE    (TILE_Q * WIDTH_QK)

#define PITCH_QK TILE_PITCH(WIDTH_QK, SIZE)
#define PITCH_V  TILE_PITCH(WIDTH_V, SIZE)
#define PITCH_S  TILE_PITCH(TILE_Y, SIZE)

/* Bytes from the start of dynamic shared memory; the host asks for AT_END (mma_backward.c). */
#define AT_X1    0
#define AT_X2    (AT_X1 + TILE_X * PITCH_QK)
#define AT_Y1    (AT_X2 + TILE_X * PITCH_V)
#define AT_Y2    (AT_Y1 + STAGES * TILE_Y * PITCH_QK)
#define AT_DS    (AT_Y2 + STAGES * TILE_Y * PITCH_V)
#define AT_P     (AT_DS + DS_BUFFERS * TILE_X * PITCH_S)
#define AT_STATS (AT_P + (PASS_KEYS ? TILE_X * PITCH_S : 0))
#define AT_TILE  (AT_STATS + (PASS_KEYS ? STAGES * 2 * TILE_Q * 4 : 0))
#define AT_END   (AT_TILE + TILE_RECORD)
/* dQ of a step is made one step later. */
#define DS_BUFFERS (WITH_DQ ? 2 : 1)

extern __shared__ __align__(16) char attn__shared[];
INLINE char *shared_memory() {
    return attn__shared;
}

INLINE void load_words(uint32_t &x, uint32_t &y, uint32_t address) {
    asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];" : "=r"(x), "=r"(y) : "r"(address));
}
INLINE void store_word(uint32_t address, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
INLINE void store_words(uint32_t address, uint32_t x, uint32_t y) {
    asm volatile("st.shared.v2.b32 [%0], {%1,%2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

template <int dtype> INLINE void store_shared(uint32_t address, float x) {
    if constexpr (dtype == F32) {
        store_word(address, __float_as_uint(x));
    } else {
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(narrow<dtype>(x)) : "memory");
    }
}

/* Scores of a warp, and the same narrowed to a product's factor: Y_STEPS steps of A. */
typedef float warp_scores[X_BLOCKS][Y_BLOCKS][4];
typedef uint32_t warp_factor[X_BLOCKS][Y_STEPS][4];

/* Where a thread stands. Asked for anew in each step: what depends on it would otherwise fill registers through the
 * loop. */
typedef struct place {
    int lane, warp, x, y; /* x, y: the warp's place along the tile's sides */
} place;
INLINE place place_again() {
    const int thread = thread_index_again();
    place at = {thread & 31, thread / 32, thread / 32 / WARPS_Y, thread / 32 % WARPS_Y};
    return at;
}

/* scores = rows of x times rows of y over `steps` steps; x, y: addresses of the warp's first rows. */
template <int steps> INLINE void product_rows(const place &at, warp_scores &scores, uint32_t x, uint32_t y, int pitch) {
    x += lane_of_rows(pitch, at.lane);
    y += lane_of_columns(pitch, at.lane);
#pragma unroll
    for (int step = 0; step < steps; step++) {
        uint32_t a[X_BLOCKS][4];
#pragma unroll
        for (int m = 0; m < X_BLOCKS; m++) {
            load_a<DTYPE>(a[m], x + m * 16 * pitch + step * STEP_BYTES);
        }
#pragma unroll
        for (int n = 0; n < Y_BLOCKS; n += 2) {
            uint32_t b[4];
            load_b<DTYPE>(b, y + n * 8 * pitch + step * STEP_BYTES);
#pragma unroll
            for (int m = 0; m < X_BLOCKS; m++) {
                if (step == 0) {
                    mma_set<DTYPE>(scores[m][n], a[m], b[0], b[1]);
                    mma_set<DTYPE>(scores[m][n + 1], a[m], b[2], b[3]);
                } else {
                    mma_add<DTYPE>(scores[m][n], a[m], b[0], b[1]);
                    mma_add<DTYPE>(scores[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
}

INLINE void narrow_scores(warp_factor &factor, const warp_scores &scores) {
#pragma unroll
    for (int m = 0; m < X_BLOCKS; m++) {
#pragma unroll
        for (int step = 0; step < Y_STEPS; step++) {
            const int n = step * SUMS_A_STEP(DTYPE), right = n + SUMS_A_STEP(DTYPE) - 1;
            sum_as_a<DTYPE>(factor[m][step], scores[m][n], scores[m][right]);
        }
    }
}

/* A factor to shared memory, [x][y]; to: the warp's first row and column. */
INLINE void store_factor(const place &place, const warp_factor &factor, uint32_t to) {
    const int lane = place.lane;
#pragma unroll
    for (int m = 0; m < X_BLOCKS; m++) {
#pragma unroll
        for (int step = 0; step < Y_STEPS; step++) {
            const uint32_t(&a)[4] = factor[m][step];
            uint32_t at = to + m * 16 * PITCH_S + step * STEP_BYTES;
#if __CUDA_ARCH__ >= 900
            if (DTYPE != F32) {
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                                 at + lane_of_rows(PITCH_S, lane)),
                             "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                             : "memory");
                continue;
            }
#endif
            at += (lane >> 2) * PITCH_S;
            if (DTYPE == F32) {
                at += (lane & 3) * 8;
                store_words(at, a[0], a[2]);
                store_words(at + 8 * PITCH_S, a[1], a[3]);
            } else {
                at += (lane & 3) * 4;
                store_word(at, a[0]);
                store_word(at + 8 * PITCH_S, a[1]);
                store_word(at + 16, a[2]);
                store_word(at + 8 * PITCH_S + 16, a[3]);
            }
        }
    }
}

/* One step of another warp's factor; address: first row and step. f32 comes in the order of load_b_columns. */
INLINE void load_factor(const place &at, uint32_t (&a)[4], uint32_t address) {
    if constexpr (DTYPE == F32) {
        const int lane = at.lane;
        address += (lane >> 2) * PITCH_S + (lane & 3) * 8;
        load_words(a[0], a[2], address);
        load_words(a[1], a[3], address + 8 * PITCH_S);
    } else {
        load_a<DTYPE>(a, address + lane_of_rows(PITCH_S, at.lane));
    }
}

/* sums += one step of a factor times 16 or 8 rows of y; y: address of the rows at the warp's first column, with
 * lane_of_summed_rows. */
template <int columns>
INLINE void add_step(float (&sums)[X_BLOCKS][columns / 8][4], const uint32_t (&a)[X_BLOCKS][4], uint32_t y, int pitch) {
#pragma unroll
    for (int n = 0; n < columns / 8; n += 2) {
        uint32_t b[4];
        load_b_columns<DTYPE>(b, y + n * 8 * SIZE, pitch);
#pragma unroll
        for (int m = 0; m < X_BLOCKS; m++) {
            mma_add<DTYPE>(sums[m][n], a[m], b[0], b[1]);
            mma_add<DTYPE>(sums[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

/* sums += the warp's own factor times its rows of y. */
template <int columns>
INLINE void add_own(const place &at, float (&sums)[X_BLOCKS][columns / 8][4], const warp_factor &factor, uint32_t y,
                    int pitch) {
    y += at.y * (WARP_Y * pitch + columns * SIZE) + lane_of_summed_rows<DTYPE>(pitch, at.lane);
#pragma unroll
    for (int step = 0; step < Y_STEPS; step++) {
        uint32_t a[X_BLOCKS][4];
#pragma unroll
        for (int m = 0; m < X_BLOCKS; m++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                a[m][c] = factor[m][step][c];
            }
        }
        add_step<columns>(sums, a, y + step * STEP * pitch, pitch);
    }
}

/* sums += the other warps' factors of the same rows, from shared memory, times their rows of y. */
template <int columns>
INLINE void add_others(const place &at, float (&sums)[X_BLOCKS][columns / 8][4], uint32_t factors, uint32_t y,
                       int pitch) {
    factors += at.x * WARP_X * PITCH_S;
    y += at.y * columns * SIZE + lane_of_summed_rows<DTYPE>(pitch, at.lane);
#pragma unroll 1
    for (int k = 1; k < WARPS_Y; k++) {
        int other = (at.y + k) % WARPS_Y;
        uint32_t from = factors + other * WARP_Y * SIZE, rows = y + other * WARP_Y * pitch;
#pragma unroll
        for (int step = 0; step < Y_STEPS; step++) {
            uint32_t a[X_BLOCKS][4];
#pragma unroll
            for (int m = 0; m < X_BLOCKS; m++) {
                load_factor(at, a[m], from + m * 16 * PITCH_S + step * STEP_BYTES);
            }
            add_step<columns>(sums, a, rows + step * STEP * pitch, pitch);
        }
    }
}

#define DQ_M (DQ_ROWS / 16)
#define DQ_N (DQ_COLUMNS / 8)
typedef float dq_sums[DQ_M][DQ_N][4];

INLINE void clear_dq(dq_sums &sums) {
#pragma unroll
    for (int m = 0; m < DQ_M; m++) {
#pragma unroll
        for (int n = 0; n < DQ_N; n++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                sums[m][n][c] = 0.0f;
            }
        }
    }
}

/* dQ of the y block, the warp's part: dS^T (from shared memory) times keys. */
INLINE void product_dq(const place &at, dq_sums &sums, uint32_t ds, uint32_t keys) {
    int wm = at.warp / DQ_WARPS_N, wn = at.warp % DQ_WARPS_N;
    ds += wm * DQ_ROWS * SIZE + (DTYPE == F32 ? lane_of_words(PITCH_S, at.lane) : lane_of_columns(PITCH_S, at.lane));
    keys += wn * DQ_COLUMNS * SIZE + lane_of_summed_rows<DTYPE>(PITCH_QK, at.lane);
    clear_dq(sums);
#pragma unroll
    for (int step = 0; step < TILE_KV / STEP; step++) {
        uint32_t a[DQ_M][4];
#pragma unroll
        for (int m = 0; m < DQ_M; m++) {
            load_a_columns<DTYPE>(a[m], ds + m * 16 * SIZE + step * STEP * PITCH_S, PITCH_S);
        }
#pragma unroll
        for (int n = 0; n < DQ_N; n += 2) {
            uint32_t b[4];
            load_b_columns<DTYPE>(b, keys + n * 8 * SIZE + step * STEP * PITCH_QK, PITCH_QK);
#pragma unroll
            for (int m = 0; m < DQ_M; m++) {
                mma_add<DTYPE>(sums[m][n], a[m], b[0], b[1]);
                mma_add<DTYPE>(sums[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Where sum c of 16 x 8 block (m, n) of a warp and lane lies in a slot of dq_sum: what one instruction adds is one
 * stretch of memory. From sm_90 four sums go in one. backward_sums.cu reads the same order. */
#if __CUDA_ARCH__ >= 900
#define DQ_LANE 4
#define DQ_SUM  1
#else
#define DQ_LANE 1
#define DQ_SUM  32
#endif
INLINE void add_dq(const place &at, const dq_sums &sums, float *slot) {
    slot += at.warp * (DQ_M * DQ_N * 128) + at.lane * DQ_LANE;
#pragma unroll
    for (int m = 0; m < DQ_M; m++) {
#pragma unroll
        for (int n = 0; n < DQ_N; n++) {
            float *to = slot + (m * DQ_N + n) * 128;
            const float(&d)[4] = sums[m][n];
#if __CUDA_ARCH__ >= 900
            asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(d[0]), "f"(d[1]), "f"(d[2]),
                         "f"(d[3])
                         : "memory");
#else
#pragma unroll
            for (int c = 0; c < 4; c++) {
                asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + c * DQ_SUM), "f"(d[c]) : "memory");
            }
#endif
        }
    }
}
