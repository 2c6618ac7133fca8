/* SPDX-License-Identifier: Apache-2.0
 * Tensor maps: how the copy engine of sm_90 sees a tensor, as boxes [batch, head, row, dim]. The same bytes on host and
 * device; the host's driver fills them (tensor_map.c), a kernel takes them as its second parameter:
 *     ATTN_KERNEL(const __grid_constant__ attn__params p, const __grid_constant__ attn__maps maps) */
#ifndef ATTN_CUDA_MAPS_H
#define ATTN_CUDA_MAPS_H

#define ATTN__MAP_ALIGNMENT 64

typedef struct attn__map {
    unsigned long long word[16];
} __attribute__((aligned(ATTN__MAP_ALIGNMENT))) attn__map;

/* Those that a kernel does not use stay zero. */
typedef struct attn__maps {
    attn__map q, k, v, o;
    attn__map dout, dq, dk, dv;
} attn__maps;

#endif
