/* SPDX-License-Identifier: Apache-2.0
 * Element types: exact widening, rounding to nearest even, and one-element access by type.
 * Slow paths only; the kernels convert whole vectors. */
#ifndef ATTN_BASE_DTYPE_H
#define ATTN_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "attn/attn.h"

static inline uint32_t attn__f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float attn__bits_f32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline float attn__bf16_to_f32(uint16_t half) {
    return attn__bits_f32((uint32_t)half << 16);
}

static inline uint16_t attn__f32_to_bf16(float value) {
    uint32_t bits = attn__f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u); /* NaN stays NaN even if its payload is cut off */
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float attn__f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) {
        return attn__bits_f32(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    if (rest < 0x400u) { /* subnormal: rest * 2^-24, exact */
        float magnitude = (float)rest * attn__bits_f32(0x33800000u);
        return attn__bits_f32(sign | attn__f32_bits(magnitude));
    }
    return attn__bits_f32(sign | ((rest << 13) + 0x38000000u));
}

static inline uint16_t attn__f32_to_f16(float value) {
    uint32_t bits = attn__f32_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    }
    if (rest >= 0x477ff000u) { /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (rest < 0x38800000u) { /* below 2^-14: adding 0.5 leaves the subnormal's bits, rounded by the FPU */
        float shifted = attn__bits_f32(rest) + 0.5f;
        return (uint16_t)(sign | (attn__f32_bits(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
}

/* Element `index` of an array of any type as double, and back (rounded once from double for f64 and f32; by way
 * of float32 for 16-bit types). */
static inline double attn__load(attn_dtype dtype, const void *base, int64_t index) {
    switch (dtype) {
    case ATTN_F64: return ((const double *)base)[index];
    case ATTN_F32: return ((const float *)base)[index];
    case ATTN_F16: return attn__f16_to_f32(((const uint16_t *)base)[index]);
    case ATTN_BF16: return attn__bf16_to_f32(((const uint16_t *)base)[index]);
    case ATTN_U8: return ((const uint8_t *)base)[index];
    default: return 0;
    }
}
static inline void attn__store(attn_dtype dtype, void *base, int64_t index, double value) {
    switch (dtype) {
    case ATTN_F64: ((double *)base)[index] = value; break;
    case ATTN_F32: ((float *)base)[index] = (float)value; break;
    case ATTN_F16: ((uint16_t *)base)[index] = attn__f32_to_f16((float)value); break;
    case ATTN_BF16: ((uint16_t *)base)[index] = attn__f32_to_bf16((float)value); break;
    case ATTN_U8: ((uint8_t *)base)[index] = value != 0; break;
    default: break;
    }
}

#endif
