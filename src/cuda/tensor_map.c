/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/tensor_map.h"

#include <string.h>

#include "base/error.h"

enum { BOX_BYTES = 128, GRAIN = 16 };

_Static_assert(sizeof(attn__map) == 128, "the driver's CUtensorMap");

static attn_status encode(const attn__cuda_run *run, attn__map *map, const attn__tensor_ref *tensor,
                          const attn__map_shape *shape, const char *field) {
    static const uint32_t ones[4] = {1, 1, 1, 1};
    const int type = shape->dtype == ATTN_F32   ? CU_TENSOR_MAP_FLOAT32
                     : shape->dtype == ATTN_F16 ? CU_TENSOR_MAP_FLOAT16
                                                : CU_TENSOR_MAP_BFLOAT16;
    const int64_t size = (int64_t)attn_dtype_size(shape->dtype), extents[3] = {shape->rows, shape->heads, shape->batch};
    char *base = tensor->data;
    uint64_t sizes[4] = {(uint64_t)shape->dim}, strides[3];
    uint32_t box[4] = {(uint32_t)(BOX_BYTES / size), (uint32_t)shape->box_rows, (uint32_t)shape->box_heads, 1};
    for (int axis = 0; axis < 3; axis++) {
        sizes[axis + 1] = extents[axis] > 1 ? (uint64_t)extents[axis] : 1;
        /* The one place along an axis of extent 1 is at 0: its stride only has to be legal. */
        strides[axis] = extents[axis] > 1 ? (uint64_t)(tensor->stride[2 - axis] * size) : GRAIN;
    }
    if (shape->sequences) { /* the base need not be memory: boxes before the tensor's first row are never asked for */
        sizes[1] = (uint64_t)shape->box_rows;
        sizes[3] = (uint64_t)(shape->box_rows + (shape->rows > 1 ? shape->rows : 1));
        strides[2] = strides[0];
        base = (char *)((uintptr_t)base - strides[0] * (uintptr_t)shape->box_rows);
    }
    const attn__driver *driver = &run->plan->context->cuda->driver;
    CUresult result =
        driver->TensorMapEncodeTiled(map, type, 4, base, sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_256B, CU_TENSOR_MAP_FILL_ZERO);
    return result ? attn__driver_fail(driver, result, field, "cuTensorMapEncodeTiled", run->error) : ATTN_OK;
}

attn_status attn__tensor_map_make(const attn__cuda_run *run, attn__map *map, const attn__tensor_ref *tensor,
                                  const attn__map_shape *shape, const void *spare, const char *field) {
    attn__tensor_ref ref = *tensor;
    attn__map_shape box = *shape;
    if (box.rows == 0 || !ref.data) {
        ref.data = (char *)(uintptr_t)((uintptr_t)spare / GRAIN * GRAIN);
        box.rows = box.heads = box.batch = 1;
    }
    return (uintptr_t)ref.data % GRAIN == 0 ? encode(run, map, &ref, &box, field) : ATTN_OK;
}
