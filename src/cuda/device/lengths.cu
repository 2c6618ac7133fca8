/* SPDX-License-Identifier: Apache-2.0
 * Lengths and segments on the device. Constant TASK:
 *   UPLOAD  writes words that travel as kernel parameters, so that a captured graph holds them and no host memory has
 *           to outlive the call;
 *   CHECK   compares lengths that lie in device memory with the problem, by the rules that the host applies to its own,
 *           and leaves the first breach, or 0, in *status. Where rows past the last sequence are to be written, many
 *           blocks do so; each of them checks by itself whether it may. */
#include "types.cuh"

#include "lengths.h"

#define UPLOAD 0
#define CHECK  1

#define PACKED   1
#define SEGMENTS 2

/* --- Check --- */

INLINE void report(int *found, int array, int64_t index, int rule) {
    atomicMin(found, ATTN__WORD(array, index, rule));
}

INLINE void check_cu(const attn__check_side &c, int batch, int array, int *found) {
    const int *cu = c.side.cu;
    if (threadIdx.x == 0 && cu && cu[0] != 0) { /* without sequences it may be NULL */
        report(found, array, 0, ATTN__RULE_START);
    }
    for (int64_t n = threadIdx.x; n < batch; n += blockDim.x) {
        int64_t before = cu[n], after = cu[n + 1];
        if (after < before) {
            report(found, array, n + 1, ATTN__RULE_DECREASES);
        } else if (after - before > c.side.tokens) {
            report(found, array, n + 1, ATTN__RULE_TOKENS);
        } else if (after > c.side.total) {
            report(found, array, n + 1, ATTN__RULE_TOTAL);
        }
    }
}

INLINE void check_used(const attn__check_side &c, int batch, int array, int *found) {
    for (int64_t n = threadIdx.x; n < batch; n += blockDim.x) {
        int64_t used = c.side.used[n];
        int64_t slot = c.layout == PACKED ? (int64_t)c.side.cu[n + 1] - c.side.cu[n] : c.side.tokens;
        if (used < 0) {
            report(found, array, n, ATTN__RULE_NEGATIVE);
        } else if (used > slot) {
            report(found, array, n, ATTN__RULE_SLOT);
        }
    }
}

INLINE void check_whole_lengths(const attn__check_side &c, int batch, int array, int *found) {
    for (int64_t n = threadIdx.x; n < batch; n += blockDim.x) {
        int length = c.side.lengths[n];
        if (length < 0) {
            report(found, array, n, ATTN__RULE_NEGATIVE);
        } else if (length > c.side.tokens) {
            report(found, array, n, ATTN__RULE_TOKENS);
        }
    }
}

/* Each segment alone. */
INLINE void check_segment(const attn__check_side &c, int batch, int n, int array, int *found) {
    attn__segment_ref g = c.side.segments[n];
    if (g.sequence < 0 || g.sequence >= batch) {
        report(found, array, n, ATTN__RULE_SEQUENCE);
    } else if (g.first < 0 || g.rows < 0 || g.position < 0) {
        report(found, array, n, ATTN__RULE_NEGATIVE);
    } else if (g.first > c.side.total || g.rows > c.side.total - g.first) {
        report(found, array, n, ATTN__RULE_TOTAL);
    } else if (g.position > c.side.lengths[g.sequence] || g.rows > c.side.lengths[g.sequence] - g.position) {
        report(found, array, n, ATTN__RULE_LENGTH);
    } else if (n && g.sequence < c.side.segments[n - 1].sequence) {
        report(found, array, n, ATTN__RULE_ORDER);
    }
}

INLINE bool meet(int64_t a, int64_t b, int64_t a_rows, int64_t b_rows) {
    return a < b + b_rows && b < a + a_rows && a_rows > 0 && b_rows > 0;
}

/* Lists whose neighbours ascend in row and position hold nothing twice; others are compared pair by pair. */
INLINE void check_pairs(const attn__check_side &c, int array, int *found) {
    const attn__segment_ref *list = c.side.segments;
    bool ascends = true;
    for (int n = threadIdx.x + 1; n < c.side.n_segments; n += blockDim.x) {
        attn__segment_ref x = list[n - 1], y = list[n];
        ascends =
            ascends && y.first >= x.first + x.rows && (x.sequence != y.sequence || y.position >= x.position + x.rows);
    }
    if (__syncthreads_and(ascends)) {
        return;
    }
    for (int n = threadIdx.x + 1; n < c.side.n_segments; n += blockDim.x) {
        attn__segment_ref y = list[n];
        for (int m = 0; m < n; m++) {
            attn__segment_ref x = list[m];
            bool same = x.sequence == y.sequence;
            if (same && meet(x.position, y.position, x.rows, y.rows)) {
                report(found, array, n, ATTN__RULE_POSITIONS);
            } else if (c.written && (same || c.shared) && meet(x.first, y.first, x.rows, y.rows)) {
                report(found, array, n, ATTN__RULE_ROWS);
            }
        }
    }
}

/* Later steps read what earlier ones have found sound, so each waits for the one before. */
INLINE void check_side(const attn__check_side &c, int batch, int kv, int *found) {
    if (c.layout == PACKED) {
        check_cu(c, batch, ATTN__WORD_CU + kv, found);
    }
    if (c.layout == SEGMENTS) {
        check_whole_lengths(c, batch, ATTN__WORD_LENGTHS + kv, found);
    } else if (c.side.used) {
        check_used(c, batch, ATTN__WORD_USED + kv, found);
    }
    __syncthreads();
    if (c.layout == SEGMENTS) {
        for (int n = threadIdx.x; n < c.side.n_segments; n += blockDim.x) {
            check_segment(c, batch, n, ATTN__WORD_SEGMENTS + kv, found);
        }
        if (__syncthreads_and(*(volatile int *)found == 0x7fffffff)) {
            check_pairs(c, ATTN__WORD_SEGMENTS + kv, found);
        }
    }
    __syncthreads();
}

/* --- Rows past the last sequence --- */

INLINE void put(char *to, int size, attn__u64 value) {
    if (size == 8) {
        *(attn__u64 *)(void *)to = value;
    } else if (size == 4) {
        *(unsigned *)(void *)to = (unsigned)value;
    } else {
        *(unsigned short *)(void *)to = (unsigned short)value;
    }
}

/* A few threads a row; by 16 bytes where rows are whole pieces of them. */
INLINE void clear_rest(const attn__rest &r, const attn__check_side &c, int batch) {
    const attn__i64 *stride = r.tensor.stride;
    const attn__u64 steps = (attn__u64)r.tensor.data | (attn__u64)(stride[1] * r.size) |
                            (attn__u64)(stride[2] * r.size) | (attn__u64)r.dim * r.size;
    const bool wide = r.value == 0 && stride[3] == 1 && steps % 16 == 0;
    const int pieces = wide ? r.dim * r.size / 16 : r.dim, begin = c.side.cu ? c.side.cu[batch] : 0;
    const int64_t step = wide ? 16 : stride[3] * r.size;
    int threads = 1;
    while (threads < pieces && threads < 32) {
        threads *= 2;
    }
    const int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, rows = gridDim.x * blockDim.x / threads;
    for (int head = 0; head < r.heads; head++) {
        for (int64_t row = begin + at / threads; row < c.side.total; row += rows) {
            char *line = (char *)r.tensor.data + (head * stride[1] + row * stride[2]) * r.size;
            for (int n = (int)(at % threads); n < pieces; n += threads) {
                if (wide) {
                    *(uint4 *)(void *)(line + n * step) = make_uint4(0, 0, 0, 0);
                } else {
                    put(line + n * step, r.size, r.value);
                }
            }
        }
    }
}

/* --- Entries --- */

#if TASK == UPLOAD
extern "C" __global__ void ATTN_KERNEL(const __grid_constant__ attn__upload p) {
    for (int n = threadIdx.x; n < p.words; n += blockDim.x) {
        p.to[n] = p.data[n];
    }
}
#else
extern "C" __global__ void __launch_bounds__(1024) ATTN_KERNEL(const __grid_constant__ attn__check p) {
    __shared__ int found;
    if (threadIdx.x == 0) {
        found = 0x7fffffff;
    }
    __syncthreads();
    check_side(p.q, p.batch, 0, &found);
    check_side(p.kv, p.batch, 1, &found);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *p.status = found == 0x7fffffff ? 0 : found;
    }
    for (int n = 0; n < ATTN__RESTS; n++) {
        if (p.rest[n].tensor.data && found == 0x7fffffff) {
            clear_rest(p.rest[n], p.rest[n].kv ? p.kv : p.q, p.batch);
        }
    }
}
#endif
