/* SPDX-License-Identifier: Apache-2.0
 * What a device's units do at most, one kernel for each: results depend on all of the work, and nothing else takes
 * time. Tensor-core factors are bits at random, since zeros take less power and let the clock rise.
 *
 * Constants: WORK; DTYPE of the products. */
#include "mma.cuh"

#include "ceilings.h"

/* Words of float values below 1 in size, whatever the type. */
INLINE uint32_t factor_word(uint32_t n) {
    n = (n ^ 61u) * 2654435761u;
    n ^= n >> 15;
    if constexpr (DTYPE == F32) {
        return 0x3f000000u | (n & 0x807fffffu);
    } else {
        return (DTYPE == F16 ? 0x38003800u : 0x3f003f00u) | (n & (DTYPE == F16 ? 0x83ff83ffu : 0x807f807fu));
    }
}

INLINE float multiply_add(const attn__ceiling_params &p) {
    float x[ATTN__CHAINS], sum = 0.0f;
    for (int n = 0; n < ATTN__CHAINS; n++) {
        x[n] = (float)(threadIdx.x + n);
    }
    for (int round = 0; round < p.rounds; round++) {
        for (int step = 0; step < ATTN__STEPS; step++) {
            for (int n = 0; n < ATTN__CHAINS; n++) {
                x[n] = fmaf(x[n], p.factor, p.factor);
            }
        }
    }
    for (int n = 0; n < ATTN__CHAINS; n++) {
        sum += x[n];
    }
    return sum;
}

INLINE float exponentials(const attn__ceiling_params &p) {
    float x[ATTN__CHAINS], sum = 0.0f;
    for (int n = 0; n < ATTN__CHAINS; n++) {
        x[n] = p.factor * (float)n;
    }
    for (int round = 0; round < p.rounds; round++) {
        for (int step = 0; step < ATTN__STEPS; step++) {
            for (int n = 0; n < ATTN__CHAINS; n++) {
                x[n] = exp2_fast(-x[n]);
            }
        }
    }
    for (int n = 0; n < ATTN__CHAINS; n++) {
        sum += x[n];
    }
    return sum;
}

INLINE float products(const attn__ceiling_params &p) {
    float d[ATTN__MMA_SUMS][4], sum = 0.0f;
    uint32_t a[4], b[2];
    for (int n = 0; n < 4; n++) {
        a[n] = factor_word(threadIdx.x * 8 + n);
    }
    for (int n = 0; n < 2; n++) {
        b[n] = factor_word(threadIdx.x * 8 + 4 + n);
    }
    for (int n = 0; n < ATTN__MMA_SUMS; n++) {
        for (int i = 0; i < 4; i++) {
            d[n][i] = p.factor * (float)n;
        }
    }
    for (int round = 0; round < p.rounds; round++) {
        for (int step = 0; step < ATTN__MMA_STEPS; step++) {
            for (int n = 0; n < ATTN__MMA_SUMS; n++) {
                mma_add<DTYPE>(d[n], a, b[0], b[1]);
            }
        }
    }
    for (int n = 0; n < ATTN__MMA_SUMS; n++) {
        for (int i = 0; i < 4; i++) {
            sum += d[n][i];
        }
    }
    return sum;
}

/* Consecutive threads take consecutive units. */
INLINE float read_memory(const attn__ceiling_params &p) {
    const uint4 *from = (const uint4 *)p.from;
    uint32_t seen = 0;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 8
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < p.units; n += stride) {
        uint4 x = from[n];
        seen ^= x.x ^ x.y ^ x.z ^ x.w;
    }
    return __uint_as_float(seen);
}

INLINE float copy_memory(const attn__ceiling_params &p) {
    const uint4 *from = (const uint4 *)p.from;
    uint4 *to = (uint4 *)p.to;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 8
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < p.units; n += stride) {
        to[n] = from[n];
    }
    return 0.0f;
}

extern "C" __global__ void ATTN_KERNEL(const __grid_constant__ attn__ceiling_params p) {
    float result;
    if constexpr (WORK == ATTN__WORK_FMA) {
        result = multiply_add(p);
    } else if constexpr (WORK == ATTN__WORK_EXP) {
        result = exponentials(p);
    } else if constexpr (WORK == ATTN__WORK_MMA) {
        result = products(p);
    } else if constexpr (WORK == ATTN__WORK_READ) {
        result = read_memory(p);
    } else {
        result = copy_memory(p);
    }
    if (result == p.never) {
        p.out[(int64_t)blockIdx.x * blockDim.x + threadIdx.x] = result;
    }
}
