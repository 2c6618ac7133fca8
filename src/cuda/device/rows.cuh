/* SPDX-License-Identifier: Apache-2.0
 * How sequences lie in the buffers: the one place that knows dense, packed and segmented rows. A *run* is a stretch of
 * consecutive rows of one sequence: row `first + r` holds position `position + r`. Dense and packed sequences are one
 * run; a shard's sequence is a list of runs, ascending in the list (not always in position).
 *
 * Constants: ROWS_Q, ROWS_KV (0 dense, 1 packed, 2 segments); USED_Q, USED_KV (0 or 1). */
#pragma once
#include "types.cuh"

#define DENSE    0
#define PACKED   1
#define SEGMENTS 2

typedef struct rows_run {
    int64_t first;    /* row of the buffers */
    int64_t position; /* of that row in its sequence */
    int rows;         /* rows that count */
    int slot;         /* rows of the slot: those past `rows` get zeros (used lengths) */
    int sequence;
} rows_run;

/* a / b of numbers that are not negative; 64-bit division costs several times as much. */
INLINE int64_t quotient(int64_t a, int64_t b) {
    return ((a | b) >> 32) == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/* S_q or S_kv of the definition. */
template <int layout, int used> INLINE int side_length(const attn__side_ref &side, int s) {
    if (layout == SEGMENTS) {
        return side.lengths[s];
    }
    if (used) {
        return side.used[s];
    }
    return layout == PACKED ? side.cu[s + 1] - side.cu[s] : side.tokens;
}

/* Runs on this side: sequences, or the length of the list. */
template <int layout> INLINE int side_runs(const attn__side_ref &side, int batch) {
    return layout == SEGMENTS ? side.n_segments : batch;
}

template <int layout, int used> INLINE rows_run side_run(const attn__side_ref &side, int n) {
    rows_run run;
    if (layout == SEGMENTS) {
        attn__segment_ref segment = side.segments[n];
        run.first = segment.first;
        run.position = segment.position;
        run.rows = run.slot = (int)segment.rows;
        run.sequence = (int)segment.sequence;
    } else {
        run.first = layout == PACKED ? side.cu[n] : 0;
        run.position = 0;
        run.slot = layout == PACKED ? side.cu[n + 1] - side.cu[n] : side.tokens;
        run.rows = used ? side.used[n] : run.slot;
        run.sequence = n;
    }
    return run;
}

/* The runs [*begin, *end) of sequence s. Lists are short and sorted by sequence. */
template <int layout> INLINE void side_range(const attn__side_ref &side, int s, int *begin, int *end) {
    if (layout != SEGMENTS) {
        *begin = s;
        *end = s + 1;
        return;
    }
    int low = 0, high = side.n_segments;
    while (low < high) {
        int middle = (low + high) / 2;
        if (side.segments[middle].sequence < s) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *begin = low;
    while (low < side.n_segments && side.segments[low].sequence == s) {
        low++;
    }
    *end = low;
}

/* i' - i of sequence s. */
INLINE int64_t row_shift(const attn__params &p, int s) {
    if (p.top_left) {
        return 0;
    }
    return (int64_t)side_length<ROWS_KV, USED_KV>(p.side_kv, s) - side_length<ROWS_Q, USED_Q>(p.side_q, s);
}

/* Sequences whose rows lie in one buffer are one place of the outermost axis of a tensor's map (maps.h); each tensor
 * has strides of its own. */
INLINE int batch_of(const attn__tensor_ref &tensor, int sequence) {
    return tensor.stride[0] != 0 ? sequence : 0;
}

/* Element offset of (sequence, head, row, 0). Packed tensors have stride[0] = 0. */
INLINE int64_t row_offset(const attn__tensor_ref &t, int s, int head, int64_t row) {
    return s * t.stride[0] + head * t.stride[1] + row * t.stride[2];
}
