/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

attn__span attn__span_take(size_t *total, size_t size) {
    const size_t step = ATTN_WORKSPACE_ALIGNMENT;
    attn__span span = {*total, size};
    size_t rounded;
    if (__builtin_add_overflow(*total, step - 1, &span.offset)) {
        span.offset = *total = SIZE_MAX;
        return span;
    }
    span.offset -= span.offset % step;
    rounded = span.offset;
    if (__builtin_add_overflow(rounded, size, total)) {
        *total = SIZE_MAX;
    }
    return span;
}
