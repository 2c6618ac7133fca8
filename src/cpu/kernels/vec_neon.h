/* SPDX-License-Identifier: Apache-2.0
 * NEON of aarch64: 4 lanes, 32 registers, so 6 x 4 accumulators; the broadcast becomes fmla by lane or ld1r. */
#ifndef ATTN_CPU_VEC_NEON_H
#define ATTN_CPU_VEC_NEON_H

#include <arm_neon.h>

#define ATTN_W         4
#define ATTN_NV        4
#define ATTN_ROWS      6
#define ATTN_HAVE_DOT2 0
#include "vec_types.h"

VEC_INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
/* vmaxq gives NaN where either is NaN; the contract (b where either is NaN) needs the comparison. */
VEC_INLINE vf vf_max(vf a, vf b) {
    return (vf)vbslq_f32(vcgtq_f32((float32x4_t)a, (float32x4_t)b), (float32x4_t)a, (float32x4_t)b);
}
VEC_INLINE vf vf_min(vf a, vf b) {
    return (vf)vbslq_f32(vcltq_f32((float32x4_t)a, (float32x4_t)b), (float32x4_t)a, (float32x4_t)b);
}
VEC_INLINE vf vf_round(vf x) {
    return (vf)vrndnq_f32((float32x4_t)x);
}
VEC_INLINE vf vf_ceil(vf x) {
    return (vf)vrndpq_f32((float32x4_t)x);
}
VEC_INLINE vi vi_of(vf x) {
    return (vi)vcvtnq_s32_f32((float32x4_t)x);
}
VEC_INLINE vf vf_of(vi x) {
    return (vf)vcvtq_f32_s32((int32x4_t)x);
}
VEC_INLINE vf vf_widen_f16(const uint16_t *p) {
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
VEC_INLINE void vf_narrow_f16(uint16_t *p, vf x) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
}
VEC_INLINE vf vf_sums(const vf a[4]) {
    float32x4_t low = vpaddq_f32((float32x4_t)a[0], (float32x4_t)a[1]);
    return (vf)vpaddq_f32(low, vpaddq_f32((float32x4_t)a[2], (float32x4_t)a[3]));
}
VEC_INLINE vf vf_widen_bf16(const uint16_t *p) {
    return (vf)vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16);
}

#endif
