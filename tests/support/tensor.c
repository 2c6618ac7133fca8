/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

static const int axes_inner_first[ORDER_COUNT][4] = {
    [ORDER_BSHD] = {AXIS_DIM, AXIS_HEAD, AXIS_TOKEN, AXIS_BATCH},
    [ORDER_BHSD] = {AXIS_DIM, AXIS_TOKEN, AXIS_HEAD, AXIS_BATCH},
    [ORDER_BHDS] = {AXIS_TOKEN, AXIS_DIM, AXIS_HEAD, AXIS_BATCH},
    [ORDER_SBHD] = {AXIS_DIM, AXIS_HEAD, AXIS_BATCH, AXIS_TOKEN},
};

static int64_t at_least_one(int64_t n) {
    return n < 1 ? 1 : n;
}

int64_t form_layout(const form *f, attn_dtype dtype, const int64_t n[4], attn_layout *layout, int64_t *origin) {
    int64_t span = f->step ? f->step : 1, low = 0, high = 0;
    layout->dtype = dtype;
    for (int level = 0; level < 4; level++) {
        int axis = axes_inner_first[f->order][level];
        int64_t count = f->zero >> axis & 1 ? 1 : at_least_one(n[axis]);
        if (f->spread && f->spread_axis == axis) {
            span += f->spread;
        }
        layout->stride[axis] = f->zero >> axis & 1 ? 0 : f->negative >> axis & 1 ? -span : span;
        int64_t reach = (count - 1) * layout->stride[axis];
        low += reach < 0 ? reach : 0;
        high += reach > 0 ? reach : 0;
        span *= count;
        if (level == (f->order == ORDER_BSHD || f->order == ORDER_SBHD)) {
            span += f->pad;
        }
        if (level == 1) {
            span += f->gap;
        }
    }
    *origin = f->offset - low;
    return f->offset + high - low + 1;
}

static void pattern_of(attn_dtype dtype, bool output, unsigned char pattern[8]) {
    uint64_t nan64 = output ? 0x7ff5a5a5a5a5a5a5u : 0x7ff8123412341234u;
    uint32_t nan32 = output ? 0x7fa5a5a5u : 0x7fc01234u;
    uint16_t nan16 = output ? 0x7d5au : 0x7e34u, nanb = output ? 0x7fa5u : 0x7fc1u;
    switch (dtype) {
    case ATTN_F64: memcpy(pattern, &nan64, 8); break;
    case ATTN_F32: memcpy(pattern, &nan32, 4); break;
    case ATTN_F16: memcpy(pattern, &nan16, 2); break;
    case ATTN_BF16: memcpy(pattern, &nanb, 2); break;
    default: pattern[0] = 0xAA; break;
    }
}

static void note_elements(tensor *t) {
    for (int64_t x = 0; x < t->n[0] * t->n[1] * t->n[2] * t->n[3]; x++) {
        int64_t at[4] = {x / t->n[3] / t->n[2] / t->n[1], x / t->n[3] / t->n[2] % t->n[1], x / t->n[3] % t->n[2],
                         x % t->n[3]};
        fence_note(t->memory, (size_t)((t->origin + tensor_offset(t, at)) * t->size), (size_t)t->size);
    }
}

bool tensor_create(tensor *t, const form *f, attn_dtype dtype, const int64_t n[4], bool output) {
    unsigned char pattern[8];
    size_t size = attn_dtype_size(dtype);
    pattern_of(dtype, output, pattern);
    memcpy(t->n, n, sizeof t->n);
    t->shared = false;
    t->size = (int64_t)size;
    int64_t elements = form_layout(f, dtype, n, &t->layout, &t->origin);
    if (n[0] * n[1] * n[2] * n[3] == 0) {
        elements = f->offset;
        t->origin = f->offset;
    }
    t->memory = fence_create((size_t)elements * size, f->spread ? FENCE_SPARSE : f->edge, pattern, size);
    if (t->memory && t->memory->sparse) {
        note_elements(t);
    }
    return t->memory != NULL;
}

bool tensor_create_joint(tensor *const parts[3], attn_dtype dtype, const int64_t n[3][4], bool output) {
    int64_t row = 0, rows = n[0][AXIS_BATCH] * n[0][AXIS_TOKEN];
    unsigned char pattern[8];
    size_t size = attn_dtype_size(dtype);
    pattern_of(dtype, output, pattern);
    for (int p = 0; p < 3; p++) {
        row += n[p][AXIS_HEAD] * n[p][AXIS_DIM];
    }
    fence *memory = fence_create((size_t)(row * rows) * size, FENCE_END, pattern, size);
    int64_t column = 0;
    for (int p = 0; p < 3; p++) {
        tensor *t = parts[p];
        memcpy(t->n, n[p], sizeof t->n);
        t->size = (int64_t)size;
        t->layout.dtype = dtype;
        t->layout.stride[AXIS_DIM] = 1;
        t->layout.stride[AXIS_HEAD] = n[p][AXIS_DIM];
        t->layout.stride[AXIS_TOKEN] = row;
        t->layout.stride[AXIS_BATCH] = row * at_least_one(n[p][AXIS_TOKEN]);
        t->origin = rows > 0 && row > 0 ? column : 0;
        t->memory = memory;
        t->shared = p > 0;
        column += n[p][AXIS_HEAD] * n[p][AXIS_DIM];
    }
    return memory != NULL;
}

void tensor_destroy(tensor *t) {
    if (!t->shared) {
        fence_destroy(t->memory);
    }
    memset(t, 0, sizeof *t);
}

void *tensor_base(const tensor *t) {
    return t->memory->data + t->origin * t->size;
}

int64_t tensor_offset(const tensor *t, const int64_t at[4]) {
    const int64_t *s = t->layout.stride;
    return at[0] * s[0] + at[1] * s[1] + at[2] * s[2] + at[3] * s[3];
}

static unsigned char *element(const tensor *t, const int64_t at[4]) {
    return t->memory->data + (t->origin + tensor_offset(t, at)) * t->size;
}

void tensor_put(tensor *t, const int64_t at[4], double value) {
    if (t->layout.dtype == ATTN_U8) {
        *element(t, at) = (unsigned char)value; /* any byte but 0 means visible */
        return;
    }
    attn__store(t->layout.dtype, element(t, at), 0, value);
}

double tensor_get(const tensor *t, const int64_t at[4]) {
    return attn__load(t->layout.dtype, element(t, at), 0);
}

bool tensor_untouched(const tensor *t, const int64_t at[4]) {
    return !memcmp(element(t, at), t->memory->pattern, t->memory->pattern_size);
}

void tensor_erase(tensor *t, const int64_t at[4]) {
    memcpy(element(t, at), t->memory->pattern, t->memory->pattern_size);
}
