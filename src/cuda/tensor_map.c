/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/tensor_map.h"

#include <string.h>

#include "base/error.h"

enum { BOX_BYTES = 128, GRAIN = 16 };

/* Strides in bytes end below 2^40, extents at 2^32. */
#define MOST_STRIDE ((int64_t)1 << 40)
#define MOST_EXTENT ((int64_t)1 << 31)

_Static_assert(sizeof(attn__map) == 128, "the driver's CUtensorMap");

bool attn__tensor_map_allows(const attn_layout *layout, const attn__map_shape *shape) {
    const int64_t extents[3] = {shape->batch, shape->heads, shape->rows};
    int64_t size = (int64_t)attn_dtype_size(shape->dtype);
    bool fits = layout->stride[3] == 1 || shape->dim == 1;
    for (int axis = 0; axis < 3; axis++) {
        int64_t stride = layout->stride[axis];
        fits = fits && extents[axis] <= MOST_EXTENT &&
               (extents[axis] <= 1 || (stride > 0 && stride < MOST_STRIDE / size && stride * size % GRAIN == 0));
    }
    return fits;
}

attn__map_shape attn__tensor_map_shape(const attn_problem *p, const attn_layout *layout, bool queries, bool value,
                                       int box_rows) {
    attn_rows rows = queries ? p->rows_q : p->rows_kv;
    attn__map_shape shape = {
        .dtype = layout->dtype,
        .dim = value ? p->dim_v : p->dim_qk,
        .rows = rows != ATTN_DENSE ? (queries ? p->total_q : p->total_kv)
                : queries          ? p->tokens_q
                                   : p->tokens_kv,
        .heads = queries ? p->heads_q : p->heads_kv,
        .batch = rows == ATTN_PACKED || (rows == ATTN_SEGMENTS && layout->stride[0] == 0) ? 1 : p->batch,
        .box_rows = box_rows,
    };
    return shape;
}

attn_status attn__tensor_map_make(const attn__driver *driver, attn__map *map, const attn__tensor_ref *tensor,
                                  const attn__map_shape *shape, const char *field, attn_error *error) {
    static const uint32_t ones[4] = {1, 1, 1, 1};
    const int type = shape->dtype == ATTN_F32   ? CU_TENSOR_MAP_FLOAT32
                     : shape->dtype == ATTN_F16 ? CU_TENSOR_MAP_FLOAT16
                                                : CU_TENSOR_MAP_BFLOAT16;
    const int64_t size = (int64_t)attn_dtype_size(shape->dtype), extents[3] = {shape->rows, shape->heads, shape->batch};
    uint64_t sizes[4] = {(uint64_t)shape->dim}, strides[3];
    uint32_t box[4] = {(uint32_t)(BOX_BYTES / size), (uint32_t)shape->box_rows, 1, 1};
    for (int axis = 0; axis < 3; axis++) {
        sizes[axis + 1] = extents[axis] > 1 ? (uint64_t)extents[axis] : 1;
        /* The one place along an axis of extent 1 is at 0: its stride only has to be legal. */
        strides[axis] = extents[axis] > 1 ? (uint64_t)(tensor->stride[2 - axis] * size) : GRAIN;
    }
    CUresult result = driver->TensorMapEncodeTiled(map, type, 4, tensor->data, sizes, strides, box, ones,
                                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                   CU_TENSOR_MAP_L2_256B, CU_TENSOR_MAP_FILL_ZERO);
    return result ? attn__driver_fail(driver, result, field, "cuTensorMapEncodeTiled", error) : ATTN_OK;
}
