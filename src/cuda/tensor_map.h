/* SPDX-License-Identifier: Apache-2.0
 * Tensor maps for the copy engine of sm_90, made by the driver on the host at each run: no allocation, no call that
 * waits, about a microsecond a map. */
#ifndef ATTN_CUDA_TENSOR_MAP_H
#define ATTN_CUDA_TENSOR_MAP_H

#include "cuda/device.h"
#include "cuda/device/maps.h"
#include "plan/boxes.h"

/* `field` names the tensor in errors. No map is made of an address that is no multiple of 16: the kernels see such a
 * tensor by params.aligned and read it otherwise. Of a tensor without rows nothing is read but the zeros outside it, so
 * that its map may have any address: `spare` is one of memory that the run has in any case. */
attn_status attn__tensor_map_make(const attn__cuda_run *run, attn__map *map, const attn__tensor_ref *tensor,
                                  const attn__map_shape *shape, const void *spare, const char *field);

#endif
