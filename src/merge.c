/* SPDX-License-Identifier: Apache-2.0
 * Attention over a union of keys from attention over its parts. Rows are independent; within a row everything is
 * float64 and rounded once. Elements are read before the element at the same place is written, and lse last, so that
 * a part may be the result when it is laid out alike.
 *
 * Limits: serial; one pass over the parts for each CHUNK elements of a row. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "base/error.h"
#include "problem/problem.h"

enum { CHUNK = 64, FIELD = 28 };

/* --- Checks --- */

static attn_status check_sizes(const attn_merge_args *a, attn_error *error) {
    const struct {
        const char *field;
        int64_t value, low;
    } sizes[] = {{"batch", a->batch, 0},
                 {"heads", a->heads, 0},
                 {"tokens", a->tokens, 0},
                 {"dim", a->dim, 1},
                 {"parts", a->parts, 1}};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        if (sizes[n].value < sizes[n].low || sizes[n].value > ATTN__MAX_TOKENS) {
            return attn__fail(error, ATTN_ERR_INVALID, sizes[n].field,
                              "is %" PRId64 ", must be at least %" PRId64 " and at most %" PRId64, sizes[n].value,
                              sizes[n].low, ATTN__MAX_TOKENS);
        }
    }
    return ATTN_OK;
}

static attn_status check_dtype(const char *field, attn_dtype dtype, attn_error *error) {
    if (dtype == ATTN_F16 || dtype == ATTN_BF16 || dtype == ATTN_F32 || dtype == ATTN_F64) {
        return ATTN_OK;
    }
    return attn__fail(error, ATTN_ERR_INVALID, field, "is %s (%d), must be f16, bf16, f32 or f64",
                      attn_dtype_name(dtype), (int)dtype);
}

static uint64_t magnitude(int64_t value) {
    return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

/* Among the axes that are not done (there is one): the one of smallest stride. */
static int next_axis(const attn_layout *layout, const bool *done, int axes) {
    int best = 0;
    while (done[best]) {
        best++;
    }
    for (int other = best + 1; other < axes; other++) {
        if (!done[other] && magnitude(layout->stride[other]) < magnitude(layout->stride[best])) {
            best = other;
        }
    }
    return best;
}

/* Offsets stay within 63 bits of bytes; elements of an output do not share addresses: with the axes sorted by
 * stride, each stride passes what the smaller ones reach together. axes: 4, or 3 for lse. */
static attn_status check_strides(const attn_merge_args *a, const char *name, const attn_layout *layout, int axes,
                                 bool written, attn_error *error) {
    const int64_t extent[4] = {a->batch, a->heads, a->tokens, a->dim};
    int64_t reach = 0, size = (int64_t)attn_dtype_size(layout->dtype);
    bool done[4] = {false};
    char field[FIELD];
    for (int n = 0; n < axes; n++) {
        int axis = next_axis(layout, done, axes);
        int64_t stride = layout->stride[axis], length, bytes;
        done[axis] = true;
        snprintf(field, sizeof field, "%s.stride[%d]", name, axis);
        if (stride == INT64_MIN ||
            __builtin_mul_overflow(llabs(stride), extent[axis] > 1 ? extent[axis] - 1 : 1, &length) ||
            __builtin_add_overflow(reach, length, &length) ||
            __builtin_mul_overflow(length + (length < INT64_MAX), size, &bytes)) {
            return attn__fail(error, ATTN_ERR_INVALID, field,
                              "is %" PRId64 ", over %" PRId64 " elements offsets must stay within 2^63 - 1 bytes",
                              stride, extent[axis]);
        }
        if (extent[axis] < 2) {
            continue;
        }
        if (written && llabs(stride) <= reach) {
            return attn__fail(error, ATTN_ERR_INVALID, field,
                              "is %" PRId64 ", must be at least %" PRId64
                              " in size: elements of an output must not overlap",
                              stride, reach + 1);
        }
        reach = length;
    }
    return ATTN_OK;
}

static attn_status check_pointer(const char *name, int64_t index, const void *pointer, attn_dtype dtype,
                                 attn_error *error) {
    char field[FIELD];
    if (pointer && (uintptr_t)pointer % attn_dtype_size(dtype) == 0) {
        return ATTN_OK;
    }
    snprintf(field, sizeof field, "%s", name);
    if (index >= 0) {
        snprintf(field, sizeof field, "%s[%" PRId64 "]", name, index);
    }
    if (!pointer) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is NULL");
    }
    return attn__fail(error, ATTN_ERR_INVALID, field, "is %p, must be a multiple of its element size %zu", pointer,
                      attn_dtype_size(dtype));
}

static bool same_layout(const attn_layout *a, const attn_layout *b) {
    return a->dtype == b->dtype && memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

static attn_status check_pointers(const attn_merge_args *a, attn_error *error) {
    if (!a->o_parts || !a->lse_parts) {
        return attn__fail(error, ATTN_ERR_INVALID, a->o_parts ? "lse_parts" : "o_parts", "is NULL");
    }
    for (int64_t p = 0; p < a->parts; p++) {
        attn_status status = check_pointer("o_parts", p, a->o_parts[p], a->o.dtype, error);
        status = status ? status : check_pointer("lse_parts", p, a->lse_parts[p], a->lse.dtype, error);
        if (status) {
            return status;
        }
        if (a->o_result == a->o_parts[p] && !same_layout(&a->o, &a->result)) {
            return attn__fail(error, ATTN_ERR_INVALID, "o_result",
                              "is o_parts[%" PRId64 "], but result is not laid out as o is", p);
        }
    }
    attn_status status = check_pointer("o_result", -1, a->o_result, a->result.dtype, error);
    if (!status && a->lse_result) {
        status = check_pointer("lse_result", -1, a->lse_result, a->lse.dtype, error);
    }
    return status;
}

/* Copies *in, fills in the layouts that are unset, and checks everything. */
static attn_status check_args(const attn_merge_args *in, attn_merge_args *a, attn_error *error) {
    if (!in) {
        return attn__fail(error, ATTN_ERR_INVALID, "args", "is NULL");
    }
    attn_status status = attn__struct_minimum(in->struct_size, offsetof(attn_merge_args, lse_result), error);
    status = status ? status : attn__struct_read(a, sizeof *a, in, in->struct_size, error);
    status = status ? status : check_sizes(a, error);
    if (status) {
        return status;
    }
    if (a->lse.dtype == ATTN_NONE) {
        a->lse = (attn_layout){ATTN_F32, {a->heads * a->tokens, a->tokens, 1, 0}};
    }
    if (a->result.dtype == ATTN_NONE) {
        a->result = a->o;
    }
    status = check_dtype("o.dtype", a->o.dtype, error);
    status = status ? status : check_dtype("result.dtype", a->result.dtype, error);
    if (!status && a->lse.dtype != ATTN_F32 && a->lse.dtype != ATTN_F64) {
        status = attn__fail(error, ATTN_ERR_INVALID, "lse.dtype", "is %s (%d), must be f32 or f64",
                            attn_dtype_name(a->lse.dtype), (int)a->lse.dtype);
    }
    status = status ? status : check_strides(a, "o", &a->o, 4, false, error);
    status = status ? status : check_strides(a, "result", &a->result, 4, true, error);
    status = status ? status : check_strides(a, "lse", &a->lse, 3, a->lse_result != NULL, error);
    bool empty = a->batch == 0 || a->heads == 0 || a->tokens == 0;
    return status || empty ? status : check_pointers(a, error);
}

/* --- The merge of one row --- */

/* What the parts' lse say: the lse of the union, and the one part with weight (-1: none, or several). */
typedef struct row_weight {
    double lse;
    int64_t only;
    bool any;
} row_weight;

static row_weight weigh(const attn_merge_args *a, int64_t at) {
    row_weight row = {-INFINITY, -1, false};
    double largest = -INFINITY, sum = 0;
    for (int64_t p = 0; p < a->parts; p++) {
        double lse = attn__load(a->lse.dtype, a->lse_parts[p], at);
        if (lse != -INFINITY) {
            row.only = row.any || isnan(lse) ? -1 : p;
            row.any = true;
        }
        largest = fmax(largest, lse); /* a NaN shows in the sum */
    }
    for (int64_t p = 0; p < a->parts && row.any; p++) {
        sum += exp(attn__load(a->lse.dtype, a->lse_parts[p], at) - largest);
    }
    row.lse = row.any ? largest + log(sum) : -INFINITY;
    return row;
}

static void merge_chunk(const attn_merge_args *a, const row_weight *row, int64_t lse_at, int64_t o_at, int64_t to,
                        int64_t count) {
    double sum[CHUNK] = {0};
    for (int64_t p = 0; p < a->parts; p++) {
        double lse = attn__load(a->lse.dtype, a->lse_parts[p], lse_at);
        double weight = exp(lse - row->lse);
        for (int64_t d = 0; d < count && lse != -INFINITY; d++) {
            sum[d] += weight * attn__load(a->o.dtype, a->o_parts[p], o_at + d * a->o.stride[3]);
        }
    }
    for (int64_t d = 0; d < count; d++) {
        attn__store(a->result.dtype, a->o_result, to + d * a->result.stride[3], sum[d]);
    }
}

static void copy_element(attn_dtype from_type, const void *from, int64_t from_at, attn_dtype to_type, void *to,
                         int64_t to_at) {
    size_t size = attn_dtype_size(from_type);
    if (from_type == to_type) { /* also the payload of a NaN */
        memmove((char *)to + to_at * (int64_t)size, (const char *)from + from_at * (int64_t)size, size);
    } else {
        attn__store(to_type, to, to_at, attn__load(from_type, from, from_at));
    }
}

static void merge_row(const attn_merge_args *a, int64_t lse_at, int64_t o_at, int64_t to) {
    row_weight row = weigh(a, lse_at);
    if (row.only >= 0) {
        for (int64_t d = 0; d < a->dim; d++) {
            copy_element(a->o.dtype, a->o_parts[row.only], o_at + d * a->o.stride[3], a->result.dtype, a->o_result,
                         to + d * a->result.stride[3]);
        }
        if (a->lse_result) {
            copy_element(a->lse.dtype, a->lse_parts[row.only], lse_at, a->lse.dtype, a->lse_result, lse_at);
        }
        return;
    }
    for (int64_t d = 0; d < a->dim; d += CHUNK) {
        int64_t count = a->dim - d < CHUNK ? a->dim - d : CHUNK;
        merge_chunk(a, &row, lse_at, o_at + d * a->o.stride[3], to + d * a->result.stride[3], count);
    }
    if (a->lse_result) {
        attn__store(a->lse.dtype, a->lse_result, lse_at, row.lse);
    }
}

attn_status attn_merge(const attn_merge_args *in, attn_error *error) {
    attn_merge_args a;
    attn_status status = check_args(in, &a, error);
    if (status) {
        return status;
    }
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.heads; h++) {
            for (int64_t t = 0; t < a.tokens; t++) {
                const int64_t *lse = a.lse.stride, *o = a.o.stride, *to = a.result.stride;
                merge_row(&a, b * lse[0] + h * lse[1] + t * lse[2], b * o[0] + h * o[1] + t * o[2],
                          b * to[0] + h * to[1] + t * to[2]);
            }
        }
    }
    return attn__succeed(error);
}
