/* SPDX-License-Identifier: Apache-2.0
 * Tiles of float32 products on the plain FMA units, for a block of 128 threads. Whatever the type in memory, values are
 * widened as they are loaded; every product and sum is float32.
 *
 * A tile has OUTER rows of one side (queries or keys) and INNER rows of the other. Thread (ty, tx) = (t / 16, t % 16)
 * owns the outer rows ty * ROWS ... ty * ROWS + ROWS - 1 and
 *   tile_dot   the inner rows tx, tx + 16, tx + 32, tx + 48 of the scores:         t[ROWS][OWN]
 *   tile_mix   the columns 64 * c + 4 * tx ... + 3 of a result of dim columns:      sum[ROWS][4 * COLUMNS(dim)]
 * The sides walk through shared memory in chunks (of DEPTH columns, of a few rows), two buffers of CHUNK floats in
 * turn: the next chunk is fetched into registers while one is worked on, so any head size fits.
 *
 * In between tiles lie in shared memory as [inner row][outer row], where each thread works on its own values in groups
 * of four outer rows: registers are for sums. As weights they go to tile_mix. A hidden pair's weight is -0.0f and no
 * visible pair's is: where a chunk holds NaN or inf, tile_mix leaves hidden pairs out of the sum.
 *
 * Constants: ROWS, 4 or 8; DEPTH, 8 or 16; TWO_TILES, the chunks' memory also holds a tile between products. */
#pragma once
#include "rows.cuh"

#define THREADS 128
#define OUTER   (8 * ROWS)
#define INNER   64
#define OWN     4
/* Rows of a chunk of columns lie PITCH floats apart: eight threads that read four floats each of neighbouring rows
 * touch every bank once. So do eight that write four weights each of neighbouring inner rows. */
#define PITCH        (DEPTH + 4)
#define WEIGHT_PITCH (OUTER + 4)
#define CHUNK        (TWO_TILES ? INNER * WEIGHT_PITCH / 2 : (64 + INNER) * PITCH + 8 * GROUP_GAP)
/* Floats between the outer rows of neighbouring threads, which read them at once: other banks. Four rows end there. */
#define GROUP_GAP    (ROWS == 8 ? 4 : 0)
#define COLUMNS(dim) (((dim) + 63) / 64)

#define HIDDEN_WEIGHT __int_as_float((int)0x80000000)

typedef struct tile_memory {
    float chunk[2][CHUNK];
    float weights[INNER * WEIGHT_PITCH];
} tile_memory;
static_assert((OUTER + INNER) * PITCH + 8 * GROUP_GAP <= CHUNK, "a chunk of columns fits");

/* The rows of a tile in memory: row r lies `base + r * step` elements from data. Rows outside [begin, end) read as 0.
 */
typedef struct tile_rows {
    const void *data;
    int64_t base, step, dim_step;
    int begin, end;
    bool aligned; /* 16-byte accesses along dim */
} tile_rows;

/* Row 0 of the tile is the buffer's row `row`. */
INLINE tile_rows tile_rows_of(const attn__tensor_ref &t, int s, int head, int64_t row, int begin, int end,
                              bool aligned) {
    tile_rows rows = {t.data, row_offset(t, s, head, row), t.stride[2], t.stride[3], begin, end, aligned};
    return rows;
}

/* The thread's number, computed anew where it is asked for: otherwise the compiler keeps every address that follows
 * from it in a register through the whole walk over the keys, and spills. */
INLINE int here() {
    int t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return t;
}
INLINE int tile_x() {
    return threadIdx.x % 16;
}
INLINE int tile_y() {
    return threadIdx.x / 16;
}

/* Four elements, 8 or 16 bytes at an address that is a multiple of that. */
template <int dtype> INLINE float4 load_vector(const void *data, int64_t at) {
    if constexpr (dtype == F32) {
        return *(const float4 *)((const float *)data + at);
    } else {
        uint2 pair = *(const uint2 *)((const uint16_t *)data + at);
        return make_float4(widen<dtype>((uint16_t)pair.x), widen<dtype>((uint16_t)(pair.x >> 16)),
                           widen<dtype>((uint16_t)pair.y), widen<dtype>((uint16_t)(pair.y >> 16)));
    }
}
template <int dtype> INLINE void store_vector(void *data, int64_t at, float4 x) {
    if constexpr (dtype == F32) {
        *(float4 *)((float *)data + at) = x;
    } else {
        *(uint2 *)((uint16_t *)data + at) = make_uint2(narrow_pair<dtype>(x.x, x.y), narrow_pair<dtype>(x.z, x.w));
    }
}

/* Columns d ... d + 3 of a row, d a multiple of 4, from element `at` on; 0 from column dim on, or where there is no
 * such row. Rows that may be read in vectors hold whole vectors. */
template <int dtype, int dim> INLINE float4 load_four(const tile_rows &rows, int64_t at, bool there, int d) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!there || d >= dim) {
        return x;
    }
    if (dim % 4 == 0 && rows.aligned) {
        return load_vector<dtype>(rows.data, at);
    }
    x.x = load_element<dtype>(rows.data, at);
    if (d + 1 < dim) {
        x.y = load_element<dtype>(rows.data, at + rows.dim_step);
    }
    if (d + 2 < dim) {
        x.z = load_element<dtype>(rows.data, at + 2 * rows.dim_step);
    }
    if (d + 3 < dim) {
        x.w = load_element<dtype>(rows.data, at + 3 * rows.dim_step);
    }
    return x;
}

INLINE void tile_clear(float (&t)[ROWS][OWN]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int n = 0; n < OWN; n++) {
            t[r][n] = 0.0f;
        }
    }
}

/* One side's part of a chunk of columns: thread t holds columns 4 * (t % across) ... + 3 of the rows t / across + n *
 * apart. */
template <int side, int dtype, int dim> struct chunk_part {
    static constexpr int across = DEPTH / 4, apart = THREADS / across, vectors = side * across;
    static constexpr int each = (vectors + THREADS - 1) / THREADS;
    int64_t at[each];
    float4 next[each];

    __device__ __forceinline__ void start(const tile_rows &rows, int t) {
#pragma unroll
        for (int n = 0; n < each; n++) {
            at[n] = rows.base + (t / across + apart * n) * rows.step + t % across * 4 * rows.dim_step;
        }
    }
    __device__ __forceinline__ void fetch(const tile_rows &rows, int first, int t) {
        if (dim % DEPTH == 0 && vectors % THREADS == 0 && rows.aligned && rows.begin <= 0 && rows.end >= side) {
#pragma unroll
            for (int n = 0; n < each; n++) {
                next[n] = load_vector<dtype>(rows.data, at[n]);
                at[n] += DEPTH;
            }
            return;
        }
#pragma unroll
        for (int n = 0; n < each; n++) {
            const int row = t / across + apart * n;
            next[n] = load_four<dtype, dim>(rows, at[n], row >= rows.begin && row < rows.end, first + t % across * 4);
            at[n] += DEPTH * rows.dim_step;
        }
    }
    /* A gap after every `group` rows. */
    template <int group> __device__ __forceinline__ void put(float *to, int t) const {
#pragma unroll
        for (int n = 0; n < each; n++) {
            const int row = t / across + apart * n;
            if (vectors % THREADS == 0 || t + THREADS * n < vectors) {
                *(float4 *)(to + row * PITCH + row / group * GROUP_GAP + t % across * 4) = next[n];
            }
        }
    }
};

/* sum[r][n] += <outer row, inner row> over dim columns. */
template <int outer_dtype, int inner_dtype, int dim>
INLINE void tile_dot(float (&sum)[ROWS][OWN], const tile_rows &outer, const tile_rows &inner, tile_memory &memory) {
    const int t = here();
    chunk_part<OUTER, outer_dtype, dim> next_outer;
    chunk_part<INNER, inner_dtype, dim> next_inner;
    next_outer.start(outer, t);
    next_inner.start(inner, t);
    next_outer.fetch(outer, 0, t);
    next_inner.fetch(inner, 0, t);
    __syncthreads(); /* the chunks' last readers are done */
#pragma unroll 1
    for (int first = 0; first < dim; first += DEPTH) {
        float *left = memory.chunk[first / DEPTH & 1], *right = left + OUTER * PITCH + 8 * GROUP_GAP;
        next_outer.template put<ROWS>(left, t);
        next_inner.template put<INNER>(right, t);
        __syncthreads();
        if (first + DEPTH < dim) {
            next_outer.fetch(outer, first + DEPTH, t);
            next_inner.fetch(inner, first + DEPTH, t);
        }
        left += t / 16 * (ROWS * PITCH + GROUP_GAP);
        right += t % 16 * PITCH;
#pragma unroll 1 /* unrolled, all its loads would come first, each in registers of its own */
        for (int d = 0; d < DEPTH; d += 4) {
            float4 b[OWN], a[2];
            a[0] = *(const float4 *)(left + d);
#pragma unroll
            for (int n = 0; n < OWN; n++) {
                b[n] = *(const float4 *)(right + 16 * n * PITCH + d);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r + 1 < ROWS) {
                    a[(r + 1) & 1] = *(const float4 *)(left + (r + 1) * PITCH + d);
                }
                const float4 x = a[r & 1];
#pragma unroll
                for (int n = 0; n < OWN; n++) {
                    sum[r][n] = fmaf(x.x, b[n].x, sum[r][n]);
                }
#pragma unroll
                for (int n = 0; n < OWN; n++) {
                    sum[r][n] = fmaf(x.y, b[n].y, sum[r][n]);
                }
#pragma unroll
                for (int n = 0; n < OWN; n++) {
                    sum[r][n] = fmaf(x.z, b[n].z, sum[r][n]);
                }
#pragma unroll
                for (int n = 0; n < OWN; n++) {
                    sum[r][n] = fmaf(x.w, b[n].w, sum[r][n]);
                }
            }
        }
    }
}

/* This thread's values of a tile, and back by groups of four outer rows: x[n] has rows y * ROWS + group ... + 3 of
 * inner row tx + 16 n. A thread reads only what it wrote, until the next barrier. */
INLINE float *tile_place(float *tile, int group, int n) {
    return tile + (tile_x() + 16 * n) * WEIGHT_PITCH + tile_y() * ROWS + group;
}
INLINE void tile_put(float *tile, const float (&t)[ROWS][OWN]) {
#pragma unroll
    for (int n = 0; n < OWN; n++) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            *(float4 *)tile_place(tile, r, n) = make_float4(t[r][n], t[r + 1][n], t[r + 2][n], t[r + 3][n]);
        }
    }
}
INLINE void group_get(float *tile, int group, float (&x)[OWN][4]) {
#pragma unroll
    for (int n = 0; n < OWN; n++) {
        *(float4 *)x[n] = *(const float4 *)tile_place(tile, group, n);
    }
}
INLINE void group_put(float *tile, int group, const float (&x)[OWN][4]) {
#pragma unroll
    for (int n = 0; n < OWN; n++) {
        *(float4 *)tile_place(tile, group, n) = *(const float4 *)x[n];
    }
}

/* x, and with it 0 or NaN added to *test. */
INLINE float4 tested(float4 x, float *test) {
    *test = fmaf(x.x, 0.0f, *test);
    *test = fmaf(x.y, 0.0f, *test);
    *test = fmaf(x.z, 0.0f, *test);
    *test = fmaf(x.w, 0.0f, *test);
    return x;
}

/* `lines` inner rows' part of four columns. In a careful chunk hidden pairs are left out, so that 0 * NaN does not
 * reach the sum. */
template <bool careful, int lines, int unrolled>
INLINE void mix_lines(float (&sum)[ROWS][4], const float *weights, const float *chunk) {
#pragma unroll(unrolled)
    for (int line = 0; line < lines; line++) {
        const float4 v = *(const float4 *)(chunk + 64 * line);
        float w[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r += 4) {
            *(float4 *)(w + r) = *(const float4 *)(weights + line * WEIGHT_PITCH + r);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool hidden = careful && __float_as_uint(w[r]) == 0x80000000u;
            sum[r][0] = fmaf(w[r], hidden ? 0.0f : v.x, sum[r][0]);
            sum[r][1] = fmaf(w[r], hidden ? 0.0f : v.y, sum[r][1]);
            sum[r][2] = fmaf(w[r], hidden ? 0.0f : v.z, sum[r][2]);
            sum[r][3] = fmaf(w[r], hidden ? 0.0f : v.w, sum[r][3]);
        }
    }
}

#define LINES   (DEPTH == 16 && !TWO_TILES ? 32 : 16) /* inner rows of a chunk of 64 columns */
#define VECTORS (LINES / 8)                           /* of it, a thread */

/* Inner rows first ... first + LINES - 1, columns 64 * c ... + 63. */
template <int dtype, int dim>
INLINE void fetch_lines(float4 (&next)[VECTORS], const tile_rows &inner, int c, int first) {
    const int t = here(), d = 64 * c + t % 16 * 4;
    if (dim % 64 == 0 && inner.aligned && inner.begin <= first && inner.end >= first + LINES) {
        int64_t at = inner.base + (first + t / 16) * inner.step + d;
#pragma unroll
        for (int n = 0; n < VECTORS; n++) {
            next[n] = load_vector<dtype>(inner.data, at);
            at += 8 * inner.step;
        }
        return;
    }
#pragma unroll
    for (int n = 0; n < VECTORS; n++) {
        const int row = first + t / 16 + 8 * n;
        next[n] = load_four<dtype, dim>(inner, inner.base + row * inner.step + d * inner.dim_step,
                                        row >= inner.begin && row < inner.end, d);
    }
}

/* sum[r][...] += weights of the outer row times columns 64 * c ... + 63 of the rows of `inner`. next holds their first
 * chunk, and afterwards that of column group c + 1, if there is one to follow. */
template <int dtype, int dim>
INLINE void mix_columns(float (&sum)[ROWS][4], float4 (&next)[VECTORS], const tile_rows &inner, tile_memory &memory,
                        int c, bool follows, int t) {
    constexpr int unrolled = TWO_TILES && COLUMNS(dim) == 2 ? 1 : 2;
#pragma unroll 1
    for (int first = 0; first < INNER; first += LINES) {
        float *chunk = memory.chunk[first / LINES & 1] + 4 * t, test = 0.0f;
#pragma unroll
        for (int n = 0; n < VECTORS; n++) {
            *(float4 *)(chunk + 4 * THREADS * n) = tested(next[n], &test);
        }
        const bool careful = __syncthreads_or(test != 0.0f);
        if (first + LINES < INNER) {
            fetch_lines<dtype, dim>(next, inner, c, first + LINES);
        } else if (follows) {
            fetch_lines<dtype, dim>(next, inner, c + 1, 0);
        }
        const float *weights = memory.weights + first * WEIGHT_PITCH + t / 16 * ROWS;
        chunk += 4 * (t % 16 - t);
        if (careful) {
            mix_lines<true, LINES, 1>(sum, weights, chunk);
        } else {
            mix_lines<false, LINES, unrolled>(sum, weights, chunk);
        }
    }
}

/* sum[r][...] += weights of the outer row times the rows of `inner`, dim columns. The tile's part is summed apart: long
 * sums then err by the number of tiles and of a tile's rows, not by their product. */
template <int dtype, int dim>
INLINE void tile_mix(float (&sum)[ROWS][4 * COLUMNS(dim)], const tile_rows &inner, tile_memory &memory) {
    static_assert(LINES * 64 <= CHUNK, "a chunk of rows fits");
    const int t = here();
    float4 next[VECTORS];
    fetch_lines<dtype, dim>(next, inner, 0, 0);
    __syncthreads(); /* weights are there, the chunks' last readers done */
#pragma unroll
    for (int c = 0; c < COLUMNS(dim); c++) {
        float part[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            part[r][0] = part[r][1] = part[r][2] = part[r][3] = 0.0f;
        }
        mix_columns<dtype, dim>(part, next, inner, memory, c, c + 1 < COLUMNS(dim), t);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int n = 0; n < 4; n++) {
                sum[r][4 * c + n] += part[r][n];
                asm volatile("" : "+f"(sum[r][4 * c + n])); /* added now, or all parts would wait in registers */
            }
        }
    }
}

/* Columns d ... d + 3 of the row at element `at`, d a multiple of 4; added to what is there if `accumulate`. */
template <int dtype, int dim>
INLINE void store_four(const attn__tensor_ref &t, int64_t at, int d, float4 x, bool aligned, bool accumulate) {
    if (aligned && d + 4 <= dim) {
        if (accumulate) {
            float4 before = load_vector<dtype>(t.data, at + d);
            x = make_float4(before.x + x.x, before.y + x.y, before.z + x.z, before.w + x.w);
        }
        store_vector<dtype>(t.data, at + d, x);
        return;
    }
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        if (d + n < dim) {
            const int64_t to = at + (d + n) * t.stride[3];
            const float before = accumulate ? load_element<dtype>(t.data, to) : 0.0f;
            store_element<dtype>(t.data, to, before + values[n]);
        }
    }
}

/* The thread's columns of one result row, times scale, added to what is there if `accumulate`. */
template <int dtype, int dim>
INLINE void store_row(const attn__tensor_ref &t, int64_t at, const float (&sum)[4 * COLUMNS(dim)], float scale,
                      bool aligned, bool accumulate) {
#pragma unroll
    for (int c = 0; c < COLUMNS(dim); c++) {
        const float4 x =
            make_float4(sum[4 * c] * scale, sum[4 * c + 1] * scale, sum[4 * c + 2] * scale, sum[4 * c + 3] * scale);
        store_four<dtype, dim>(t, at, 64 * c + 4 * tile_x(), x, aligned, accumulate);
    }
}
template <int dtype, int dim> INLINE void store_zeros(const attn__tensor_ref &t, int64_t at, bool aligned) {
    float zeros[4 * COLUMNS(dim)];
#pragma unroll
    for (int c = 0; c < 4 * COLUMNS(dim); c++) {
        zeros[c] = 0.0f;
    }
    store_row<dtype, dim>(t, at, zeros, 0.0f, aligned, false);
}
