/* SPDX-License-Identifier: Apache-2.0
 * Plain C over the compiler's 4-lane vectors: SSE2 on x86-64, NEON on aarch64, scalars elsewhere. */
#ifndef ATTN_CPU_VEC_GENERIC_H
#define ATTN_CPU_VEC_GENERIC_H

#include "base/dtype.h"

#ifndef ATTN_W /* a test may take other widths */
#define ATTN_W         4
#define ATTN_NV        2
#define ATTN_ROWS      4
#define ATTN_HAVE_DOT2 0
#endif
#include "vec_types.h"

VEC_INLINE vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}
VEC_INLINE vf vf_max(vf a, vf b) {
    return vf_select(a > b, a, b);
}
VEC_INLINE vf vf_min(vf a, vf b) {
    return vf_select(a < b, a, b);
}
/* Adding 1.5 * 2^23 leaves no fraction bits; larger numbers are whole already. */
VEC_INLINE vf vf_round(vf x) {
    vf magic = vf_set(12582912.0f);
    return vf_select(vf_abs(x) < vf_set(4194304.0f), (x + magic) - magic, x);
}
VEC_INLINE vf vf_ceil(vf x) {
    vf nearest = vf_round(x);
    return nearest + vf_select(nearest < x, vf_set(1.0f), vf_set(0.0f));
}
VEC_INLINE vi vi_of(vf x) {
    return __builtin_convertvector(vf_round(x), vi);
}
VEC_INLINE vf vf_of(vi x) {
    return __builtin_convertvector(x, vf);
}
VEC_INLINE vf vf_widen_f16(const uint16_t *p) {
    vf x = {0};
    for (int lane = 0; lane < ATTN_W; lane++) {
        x[lane] = attn__f16_to_f32(p[lane]);
    }
    return x;
}
VEC_INLINE void vf_narrow_f16(uint16_t *p, vf x) {
    for (int lane = 0; lane < ATTN_W; lane++) {
        p[lane] = attn__f32_to_f16(x[lane]);
    }
}
VEC_INLINE vf vf_sums(const vf a[ATTN_W]) {
    vf sums = {0};
#pragma GCC unroll 16
    for (int i = 0; i < ATTN_W; i++) {
        for (int lane = 0; lane < ATTN_W; lane += 4) {
            sums[i] += (a[i][lane] + a[i][lane + 1]) + (a[i][lane + 2] + a[i][lane + 3]);
        }
    }
    return sums;
}
VEC_INLINE vf vf_widen_bf16(const uint16_t *p) {
    vi bits = {0};
    for (int lane = 0; lane < ATTN_W; lane++) {
        bits[lane] = (int32_t)((uint32_t)p[lane] << 16);
    }
    return (vf)bits;
}

#endif
