/* SPDX-License-Identifier: Apache-2.0
 * Rows of a product, which four lanes hold two columns at a time, in 16-byte pieces. */
#pragma once
#include "types.cuh"

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
