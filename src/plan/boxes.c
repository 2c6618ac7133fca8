/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/boxes.h"

enum { GRAIN = 16 };

/* Strides in bytes end below 2^40, extents at 2^32. */
#define MOST_STRIDE ((int64_t)1 << 40)
#define MOST_EXTENT ((int64_t)1 << 31)

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
        .box_heads = 1,
    };
    return shape;
}
