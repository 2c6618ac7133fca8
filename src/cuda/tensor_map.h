/* SPDX-License-Identifier: Apache-2.0
 * Tensor maps for the copy engine of sm_90, made by the driver on the host at each run: no allocation, no call that
 * waits, about a microsecond a map. */
#ifndef ATTN_CUDA_TENSOR_MAP_H
#define ATTN_CUDA_TENSOR_MAP_H

#include "cuda/device.h"
#include "cuda/device/maps.h"
#include "plan/boxes.h"

/* `field` names the tensor in errors. The address must be a multiple of 16. */
attn_status attn__tensor_map_make(const attn__driver *driver, attn__map *map, const attn__tensor_ref *tensor,
                                  const attn__map_shape *shape, const char *field, attn_error *error);

#endif
