/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include <inttypes.h>

#include "base/error.h"

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

attn_status attn__plan_scores_fit(const attn_plan *plan, attn_error *error) {
    if (plan->workspace >= PTRDIFF_MAX) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "tokens_kv",
                          "is %" PRId64
                          ": storing batch * heads_q * tokens_q * tokens_kv scores exceeds the address space",
                          plan->problem.tokens_kv);
    }
    return attn__succeed(error);
}
