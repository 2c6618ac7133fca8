/* SPDX-License-Identifier: Apache-2.0
 * Rows of a tensor brought into a tile of shared memory, 16 bytes at a time, with zeros wherever the tensor has
 * nothing: rows past the last one, columns past dim up to whole steps. Tiles: see mma.cuh.
 *
 * From sm_80 the copies are asynchronous (cp.async): copies_commit() closes a group of them, copies_wait<n>() waits
 * until at most the n youngest groups are under way; a barrier must follow before other threads' rows are read. On
 * sm_75 they are plain loads and stores, and the two do nothing.
 *
 * Tensors whose rows are not 16-byte aligned and contiguous (`aligned` is false) are copied element by element: a
 * branch that all threads take alike. */
#pragma once
#include "mma.cuh"

INLINE void store_shared_16(uint32_t address, uint4 x) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
INLINE uint4 load_shared_16(uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address));
    return x;
}

/* 16 bytes from elements `from`, `from` + stride ... of which `count` exist. */
template <int dtype> INLINE uint4 gather_16(const element_t<dtype> *from, int64_t stride, int count) {
    const int each = 16 / (int)sizeof(element_t<dtype>);
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < each; n++) {
        if (n < count) {
            if constexpr (dtype == F32) {
                word[n] = __float_as_uint(from[n * stride]);
            } else {
                word[n / 2] |= (uint32_t)from[n * stride] << (n % 2 * 16);
            }
        }
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* 16 bytes to shared memory, of which the first `bytes` (0 ... 16) are read; the rest are zeros. `from` is aligned. */
template <int dtype> INLINE void copy_16(uint32_t to, const element_t<dtype> *from, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#else
    uint4 x = make_uint4(0, 0, 0, 0);
    if (bytes == 16) {
        x = *(const uint4 *)from;
    } else if (bytes > 0) {
        x = gather_16<dtype>(from, 1, bytes / (int)sizeof(element_t<dtype>));
    }
    store_shared_16(to, x);
#endif
}
/* All 16 bytes: a third of the instructions, since no count shifts the address. */
INLINE void copy_whole_16(uint32_t to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
    store_shared_16(to, *(const uint4 *)from);
#endif
}

INLINE void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int pending> INLINE void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* The aligned form of copy_rows: a row is whole units of 16 bytes, and one of zeros where it ends within a step. Where
 * the threads take whole rows at a time, a thread's column never changes. `all`: every row exists. */
template <int dtype, int dim, int rows, int threads, bool all>
INLINE void copy_units(uint32_t tile, const element_t<dtype> *base, int64_t row_stride, int count) {
    const int size = (int)sizeof(element_t<dtype>), pitch = TILE_PITCH(dim, size), units = STEPS(dim, size) * 2;
    const int there = dim * size / 16;
    if constexpr (threads % units == 0 && rows * units % threads == 0) {
        const int at_once = threads / units;
        int thread = thread_index_again(), row = thread / units, column = thread % units;
        const element_t<dtype> *from = base + row * row_stride + column * (16 / size);
        const int64_t step = at_once * row_stride;
        tile += row * pitch + column * 16;
#pragma unroll
        for (int n = 0; n < rows / at_once; n++) {
            if ((all || row + n * at_once < count) && (there == units || column < there)) {
                copy_whole_16(tile + n * at_once * pitch, from);
            } else {
                store_shared_16(tile + n * at_once * pitch, make_uint4(0, 0, 0, 0));
            }
            from += step;
        }
    } else {
#pragma unroll
        for (int n = 0; n < (rows * units + threads - 1) / threads; n++) {
            int unit = n * threads + thread_index_again(), row = unit / units, column = unit % units;
            if (rows * units % threads == 0 || row < rows) {
                if ((all || row < count) && (there == units || column < there)) {
                    copy_whole_16(tile + row * pitch + column * 16, base + row * row_stride + column * (16 / size));
                } else {
                    store_shared_16(tile + row * pitch + column * 16, make_uint4(0, 0, 0, 0));
                }
            }
        }
    }
}

/* Copies a tile of `rows` rows of columns [0, dim) by `threads` threads. data, at: address and offset (in elements) of
 * row 0; row r lies r * row_stride further. Rows from `count` on are filled with zeros and not read. Does not wait. */
template <int dtype, int dim, int rows, int threads>
INLINE void copy_rows(uint32_t tile, const void *data, int64_t at, int64_t row_stride, int64_t dim_stride, int count,
                      bool aligned) {
    typedef element_t<dtype> element;
    const int size = (int)sizeof(element), pitch = TILE_PITCH(dim, size), units = STEPS(dim, size) * 2;
    const element *base = (const element *)data + at;
    if (aligned && count >= rows) {
        copy_units<dtype, dim, rows, threads, true>(tile, base, row_stride, count);
    } else if (aligned) {
        copy_units<dtype, dim, rows, threads, false>(tile, base, row_stride, count);
    } else {
#pragma unroll 1
        for (int unit = (int)threadIdx.x; unit < rows * units; unit += threads) {
            int row = unit / units, first = unit % units * (16 / size);
            const element *from = base + row * row_stride + first * dim_stride;
            store_shared_16(tile + row * pitch + first * size,
                            gather_16<dtype>(from, dim_stride, row < count ? dim - first : 0));
        }
    }
}

/* The same, a unit a thread at a time, so that copies lie between other work: unit n < FEED_UNITS of each thread. For
 * aligned rows that all exist; only where the threads take whole rows at a time (CAN_FEED). */
#define FEED_ROWS(dim, size, threads)        ((threads) / (STEPS(dim, size) * 2))
#define FEED_UNITS(dim, size, rows, threads) ((rows) / FEED_ROWS(dim, size, threads))
#define CAN_FEED(dim, size, rows, threads)                                                                             \
    ((dim) * (size) % STEP_BYTES == 0 && (threads) % (STEPS(dim, size) * 2) == 0 &&                                    \
     (rows)*STEPS(dim, size) * 2 % (threads) == 0)

typedef struct row_feed {
    const char *from;
    uint32_t to;
} row_feed;

template <int dtype, int dim, int threads>
INLINE row_feed feed_rows(uint32_t tile, const void *data, int64_t at, int64_t row_stride) {
    const int size = (int)sizeof(element_t<dtype>), units = STEPS(dim, size) * 2;
    int thread = thread_index_again(), row = thread / units, column = thread % units;
    row_feed feed = {(const char *)data + (at + row * row_stride) * size + column * 16,
                     tile + row * TILE_PITCH(dim, size) + column * 16};
    return feed;
}
template <int dtype, int dim, int threads> INLINE void feed_unit(row_feed &feed, int64_t row_stride, int n, bool on) {
    const int size = (int)sizeof(element_t<dtype>), rows = FEED_ROWS(dim, size, threads);
    if (on) {
        copy_whole_16(feed.to + n * rows * TILE_PITCH(dim, size), feed.from);
    }
    feed.from += rows * row_stride * size;
}
