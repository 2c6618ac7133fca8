/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper: how rows of q, k, v and dout come to shared memory. By boxes; one thread of a warp starts them.
 *
 * DETERMINISTIC: a row's bits must not depend on addresses, nor on what other sequences hold. So a tensor whose address
 * no box can begin at is read element by element, by all lanes of the loading warp, to the same places; and where the
 * rows of other sequences follow, boxes end with the sequence: the map then has two axes that both go from row to row
 * (tensor_map.c), one of which ends after as many rows as a box has. Without it both cases are seen in results that are
 * not finite, or known beforehand, and backward_mma.cu makes the tile with other bits. */
#pragma once
#include "hopper/backward_records.cuh"

/* Does this thread act for its warp? */
INLINE bool leads() {
    return !DETERMINISTIC || threadIdx.x % 32 == 0;
}
/* Does a tensor come by boxes? */
INLINE bool boxed(const attn__params &p, unsigned aligned) {
    return !DETERMINISTIC || (p.aligned & aligned);
}
INLINE void lanes_meet() {
    if (DETERMINISTIC) {
        __syncwarp();
    }
}

/* Do rows of other sequences follow those of a sequence? */
template <int layout> INLINE bool rows_shared(const attn__tensor_ref &t) {
    return layout != DENSE && t.stride[0] == 0;
}

/* Rows that a tile of a tensor is: `left` from `row` on are of the sequence. */
typedef struct rows_place {
    int64_t row;
    int left, head, sequence;
} rows_place;

/* As a box has them: those that exist. */
template <int layout>
INLINE int rows_there(const attn__side_ref &side, const attn__tensor_ref &t, const rows_place &at) {
    return rows_shared<layout>(t) ? at.left : (int)smaller((layout == DENSE ? side.tokens : side.total) - at.row, 1024);
}

/* The two coordinates of a box beside column and head. */
typedef struct box_place {
    int row, outer;
} box_place;
template <int layout, int rows> INLINE box_place box_at(const attn__tensor_ref &t, const rows_place &at) {
    if (DETERMINISTIC && rows_shared<layout>(t)) {
        const int past = rows - (at.left < 0 ? 0 : at.left < rows ? at.left : rows);
        return {past, (int)at.row + rows - past};
    }
    return {(int)at.row, batch_of(t, at.sequence)};
}

/* Panels from `first` on, as boxes bring them. By all lanes; whoever waits must hear of it afterwards. */
template <int layout, int dim, int panels, int rows>
INLINE void panels_read(uint32_t to, const attn__side_ref &side, const attn__tensor_ref &t, int first,
                        const rows_place &at) {
    const uint16_t *data = (const uint16_t *)t.data + row_offset(t, at.sequence, at.head, at.row);
    const int there = rows_there<layout>(side, t, at);
#pragma unroll 1
    for (int n = (int)(threadIdx.x & 31); n < panels * rows * 64; n += 32) {
        const int panel = n / (rows * 64), r = n / 64 % rows, c = n % 64, column = (first + panel) * 64 + c;
        const uint16_t x = r < there && column < dim ? data[r * t.stride[2] + column] : (uint16_t)0;
        const uint32_t place = to + panel * rows * 128 + r * 128 + ((c >> 3 ^ (r & 7)) << 4) + (c & 7) * 2;
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(place), "h"(x) : "memory");
    }
    fence_async();
    __syncwarp();
}
