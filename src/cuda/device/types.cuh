/* SPDX-License-Identifier: Apache-2.0
 * Element types of device code. 16-bit floats travel as uint16_t and pairs of them as uint32_t; conversions are single
 * PTX instructions, so no header of the toolkit is needed. Compiled with -default-device: unmarked functions are device
 * functions. */
#pragma once
#include <stdint.h>

#include "params.h"

/* As attn_dtype of the public header. */
#define F32  1
#define F16  2
#define BF16 3

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f
#define INFINITY_F __int_as_float(0x7f800000)
#define FLOAT_MAX  3.402823466e38f

#define INLINE static __device__ __forceinline__

template <int dtype> struct element {
    typedef uint16_t type;
};
template <> struct element<F32> {
    typedef float type;
};
template <int dtype> using element_t = typename element<dtype>::type;

INLINE float f16_to_f32(uint16_t x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
INLINE float bf16_to_f32(uint16_t x) {
    return __uint_as_float((uint32_t)x << 16);
}
INLINE uint16_t f32_to_f16(float x) {
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
INLINE uint16_t f32_to_bf16(float x) {
#if __CUDA_ARCH__ >= 800
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

template <int dtype> INLINE float widen(element_t<dtype> x) {
    if constexpr (dtype == F32) {
        return x;
    } else if constexpr (dtype == F16) {
        return f16_to_f32(x);
    } else {
        return bf16_to_f32(x);
    }
}
template <int dtype> INLINE element_t<dtype> narrow(float x) {
    if constexpr (dtype == F32) {
        return x;
    } else if constexpr (dtype == F16) {
        return f32_to_f16(x);
    } else {
        return f32_to_bf16(x);
    }
}

/* Two values as one word, `low` at the lower address. */
template <int dtype> INLINE uint32_t narrow_pair(float low, float high) {
    uint32_t pair;
    if constexpr (dtype == F16) {
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
        pair = (uint32_t)f32_to_f16(low) | (uint32_t)f32_to_f16(high) << 16;
#endif
    } else {
#if __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
        pair = (uint32_t)f32_to_bf16(low) | (uint32_t)f32_to_bf16(high) << 16;
#endif
    }
    return pair;
}

/* A thread's sums: rows row and row + 8 of the tile, columns from `column` on as a product leaves them (wgmma.cuh). */
typedef struct output_place {
    int row, column, lane;
} output_place;

/* Element `at` of a tensor of type dtype. */
template <int dtype> INLINE float load_element(const void *data, int64_t at) {
    return widen<dtype>(((const element_t<dtype> *)data)[at]);
}
template <int dtype> INLINE void store_element(void *data, int64_t at, float value) {
    ((element_t<dtype> *)data)[at] = narrow<dtype>(value);
}

/* 2^x; denormal results are flushed to 0, -inf gives 0. */
INLINE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE bool is_finite(float x) {
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}
INLINE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
INLINE int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}
