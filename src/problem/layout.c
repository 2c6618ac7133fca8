/* SPDX-License-Identifier: Apache-2.0
 * Types, strides and offsets of resolved layouts.
 *
 * Offsets: the farthest element in either direction must be reachable with a 63-bit count of bytes, where an axis of
 * extent 0 or 1 counts as one step, so that kernels may form base + stride freely.
 *
 * Overlap: two elements of an output must not share an address. Deciding that exactly is a number-theory problem;
 * the rule here is the one that every real layout meets: with the axes sorted by |stride|, each stride must be larger
 * than the farthest offset that the smaller ones reach together. */
#include "problem/check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"
#include "problem/tensors.h"

typedef struct axes {
    const attn__tensor *tensor;
    const attn_layout *layout;
    int64_t extent[4];
    unsigned read;
} axes;

static const char *axis_field(const axes *a, int axis, char field[28]) {
    snprintf(field, 28, "%s.stride[%d]", a->tensor->name, axis);
    return field;
}

static attn_status check_type(const attn_problem *problem, const axes *a, attn_error *error) {
    if (attn__tensor_type_legal(problem, a->tensor, a->layout->dtype)) {
        return ATTN_OK;
    }
    char field[28];
    snprintf(field, sizeof field, "%s.dtype", a->tensor->name);
    return attn__fail(error, ATTN_ERR_INVALID, field, "is %s (%d), must be %s", attn_dtype_name(a->layout->dtype),
                      (int)a->layout->dtype, attn__tensor_type_text(problem, a->tensor));
}

static attn_status check_offsets(const axes *a, attn_error *error) {
    int64_t size = (int64_t)attn_dtype_size(a->layout->dtype), reach = size;
    for (int axis = 0; axis < 4; axis++) {
        int64_t stride = a->layout->stride[axis], steps = a->extent[axis] > 2 ? a->extent[axis] - 1 : 1, bytes;
        if (!(a->read & 1u << axis)) {
            continue;
        }
        /* INT64_MIN has no magnitude, hence the test on the negative side of 0. */
        if (__builtin_mul_overflow(stride > 0 ? -stride : stride, steps, &bytes) ||
            __builtin_mul_overflow(bytes, size, &bytes) || __builtin_sub_overflow(reach, bytes, &reach)) {
            char field[28];
            return attn__fail(error, ATTN_ERR_INVALID, axis_field(a, axis, field),
                              "is %" PRId64 ", over %" PRId64 " elements of %" PRId64
                              " bytes offsets must stay within 2^63 - 1 bytes",
                              stride, a->extent[axis], size);
        }
    }
    return ATTN_OK;
}

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
}

static bool is_empty(const axes *a) {
    return !a->extent[0] || !a->extent[1] || !a->extent[2] || !a->extent[3];
}

/* Offsets are checked, so sums of reaches cannot overflow. */
static attn_status check_overlap(const axes *a, attn_error *error) {
    bool sums = a->tensor->shape == ATTN__SHAPE_SCORES; /* dbias is summed over axes of stride 0 */
    char field[28];
    int order[4], count = 0;
    for (int axis = 0; axis < 4; axis++) {
        int64_t stride = a->layout->stride[axis];
        if (!(a->read & 1u << axis) || a->extent[axis] == 1 || (stride == 0 && sums)) {
            continue;
        }
        if (stride == 0) {
            return attn__fail(error, ATTN_ERR_INVALID, axis_field(a, axis, field),
                              "is 0 over %" PRId64 " elements: an output cannot be broadcast", a->extent[axis]);
        }
        int place = count++;
        while (place > 0 && magnitude(a->layout->stride[order[place - 1]]) > magnitude(stride)) {
            order[place] = order[place - 1];
            place--;
        }
        order[place] = axis;
    }
    int64_t reach = 0;
    for (int n = 0; n < count; n++) {
        int64_t stride = a->layout->stride[order[n]];
        if (magnitude(stride) <= reach) {
            return attn__fail(error, ATTN_ERR_INVALID, axis_field(a, order[n], field),
                              "is %" PRId64 ", must be at least %" PRId64
                              " in size: an output's axes, sorted by stride, must not overlap",
                              stride, reach + 1);
        }
        reach += magnitude(stride) * (a->extent[order[n]] - 1);
    }
    return ATTN_OK;
}

attn_status attn__check_layouts(const attn_problem *problem, attn_error *error) {
    for (int n = 0; n < ATTN__TENSORS; n++) {
        axes a = {&attn__tensors[n], attn__tensor_layout_const(problem, &attn__tensors[n]), {0}, 0};
        if (a.layout->dtype == ATTN_NONE && a.tensor->unset != ATTN__UNSET_REFUSED) {
            continue;
        }
        attn__tensor_extents(problem, a.tensor, a.extent, &a.read);
        attn_status status = check_type(problem, &a, error);
        status = status ? status : check_offsets(&a, error);
        if (!status && a.tensor->written & 1 << problem->pass && !is_empty(&a)) {
            /* Segments of all sequences may lie in one run of rows; that their rows differ is checked with them. */
            if (a.tensor->shape != ATTN__SHAPE_SCORES && a.layout->stride[0] == 0 &&
                attn__tensor_rows(problem, a.tensor) == ATTN_SEGMENTS) {
                a.extent[0] = 1;
            }
            status = check_overlap(&a, error);
        }
        if (status) {
            return status;
        }
    }
    return ATTN_OK;
}
