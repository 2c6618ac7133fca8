/* SPDX-License-Identifier: Apache-2.0
 * Filling in defaults. The order matters: sizes are checked before plain layouts are made of them, layouts are
 * resolved before they are checked, so a default that cannot work is refused like a given one. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "problem/check.h"
#include "problem/problem.h"
#include "problem/tensors.h"

/* No two positions are as far apart. */
#define FARTHEST ((int64_t)1 << 32)

float attn__default_scale(int64_t dim_qk) {
    return (float)(1 / sqrt((double)dim_qk));
}

static void canonical_band(attn_band *band) {
    bool window = band->kind & ATTN_WINDOW, globals = band->kind & ATTN_GLOBALS;
    band->left = window && band->left < FARTHEST ? band->left : -1;
    band->right = window && band->right < FARTHEST ? band->right : -1;
    if (band->left < 0 && band->right < 0) {
        band->kind &= ~(uint32_t)ATTN_WINDOW;
        globals = false; /* an exemption from nothing */
    }
    if (!globals || band->globals == 0) {
        band->kind &= ~(uint32_t)ATTN_GLOBALS;
        band->globals = ATTN__NO_GLOBALS;
    } else if (band->globals > ATTN__MAX_TOKENS) {
        band->globals = ATTN__MAX_TOKENS;
    }
}

static void canonical_side(attn_rows rows, int64_t *total, int64_t *segments) {
    *total = rows == ATTN_DENSE ? 0 : *total;
    *segments = rows == ATTN_SEGMENTS ? *segments : 0;
}

static void canonical_scalars(attn_problem *p) {
    if (!(p->flags & ATTN_HAS_SCALE)) {
        p->scale = attn__default_scale(p->dim_qk);
        p->flags |= ATTN_HAS_SCALE;
    }
    p->softcap = p->softcap == 0 ? 0 : p->softcap; /* -0 becomes 0 */
    p->dropout = p->dropout == 0 ? 0 : p->dropout;
}

/* Flags that say nothing here are cleared, so that equal problems are equal. */
static void canonical_flags(attn_problem *p) {
    uint32_t idle = 0;
    idle |= p->pass == ATTN_FORWARD ? ATTN_ACCUMULATE | ATTN_DETERMINISTIC : 0;
    idle |= p->q.dtype != ATTN_F32 ? ATTN_ALLOW_TF32 : 0;
    idle |= p->dropout == 0 ? ATTN_DEVICE_SEED : 0;
    const bool packed = p->rows_q == ATTN_PACKED || (p->pass == ATTN_BACKWARD && p->rows_kv == ATTN_PACKED);
    const bool adds = p->flags & ~idle & ATTN_ACCUMULATE;
    idle |= !packed || adds || !(p->flags & ATTN_DEVICE_LENGTHS) ? ATTN_CLEAR_REST : 0;
    p->flags &= ~idle;
}

static attn_status fill_unset(attn_problem *p, const attn__tensor *tensor, attn_layout *layout, attn_error *error) {
    char field[28];
    for (int axis = 0; axis < 4; axis++) {
        if (layout->stride[axis]) {
            strcpy(field, tensor->name);
            return attn__fail(error, ATTN_ERR_INVALID, strcat(field, ".dtype"), "is none, but strides are set");
        }
    }
    if (tensor->unset == ATTN__UNSET_PLAIN || tensor->unset == ATTN__UNSET_PARTNER) {
        attn__tensor_normal(p, tensor, layout);
    }
    return ATTN_OK;
}

static attn_status canonical_layout(attn_problem *p, const attn__tensor *tensor, attn_error *error) {
    attn_layout *layout = attn__tensor_layout(p, tensor);
    if (tensor->backward && p->pass == ATTN_FORWARD) {
        memset(layout, 0, sizeof *layout);
    }
    if (layout->dtype == ATTN_NONE) {
        attn_status status = fill_unset(p, tensor, layout, error);
        if (status) {
            return status;
        }
    } else if (tensor->shape == ATTN__SHAPE_SCORES && tensor->backward && p->bias.dtype == ATTN_NONE) {
        return attn__fail(error, ATTN_ERR_INVALID, "dbias.dtype", "is %s, must be none: the problem has no bias",
                          attn_dtype_name(layout->dtype));
    }
    int64_t extent[4];
    unsigned read;
    attn__tensor_extents(p, tensor, extent, &read);
    for (int axis = 0; axis < 4; axis++) {
        if (!(read & 1u << axis)) {
            layout->stride[axis] = 0;
        }
    }
    return ATTN_OK;
}

attn_status attn__problem_canonical(const attn_problem *in, attn_problem *out, attn_error *error) {
    attn_problem p;
    if (!in) {
        return attn__fail(error, ATTN_ERR_INVALID, "problem", "is NULL");
    }
    attn_status status = attn__struct_minimum(in->struct_size, offsetof(attn_problem, lse), error);
    status = status ? status : attn__struct_read(&p, sizeof p, in, in->struct_size, error);
    status = status ? status : attn__check_sizes(&p, error);
    if (status) {
        return status;
    }
    canonical_band(&p.band);
    canonical_side(p.rows_q, &p.total_q, &p.segments_q);
    canonical_side(p.rows_kv, &p.total_kv, &p.segments_kv);
    canonical_scalars(&p);
    canonical_flags(&p);
    for (int n = 0; n < ATTN__TENSORS && !status; n++) {
        status = canonical_layout(&p, &attn__tensors[n], error);
    }
    status = status ? status : attn__check_layouts(&p, error);
    if (status) {
        return status;
    }
    *out = p;
    return attn__succeed(error);
}

attn_status attn_problem_check(const attn_problem *problem, attn_error *error) {
    attn_problem canonical;
    return attn__problem_canonical(problem, &canonical, error);
}
