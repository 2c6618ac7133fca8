/* SPDX-License-Identifier: Apache-2.0
 * What the tests of problems, plans and the interface share: cmocka, and one way to look at an error. */
#ifndef ATTN_TESTS_PROBLEM_UNIT_H
#define ATTN_TESTS_PROBLEM_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "attn/attn.h"

/* The status, the whole field and a part of the message; the message must be one sentence without line breaks. */
#define expect_error(returned, error, wanted, field_text, part)                                                        \
    do {                                                                                                               \
        const attn_error *error_ = (error);                                                                            \
        int returned_ = (int)(returned), good_ = returned_ == (int)(wanted) && error_->status == (wanted) &&           \
                                                 strcmp(error_->field, field_text) == 0 &&                             \
                                                 strstr(error_->message, part) && !strchr(error_->message, '\n');      \
        if (!good_) {                                                                                                  \
            printf("%s:%d: got %d, field \"%s\", message \"%s\"; wanted %d, \"%s\", \"%s\"\n", __FILE__, __LINE__,     \
                   returned_, error_->field, error_->message, (int)(wanted), field_text, part);                        \
        }                                                                                                              \
        assert_true(good_);                                                                                            \
    } while (0)

/* Success also fills the error, with nothing. */
#define expect_success(call, error)                                                                                    \
    do {                                                                                                               \
        memset((error), 0x5a, sizeof *(error));                                                                        \
        int returned_ = (int)(call);                                                                                   \
        if (returned_) {                                                                                               \
            printf("%s:%d: got %d, field \"%s\", message \"%s\"\n", __FILE__, __LINE__, returned_, (error)->field,     \
                   (error)->message);                                                                                  \
        }                                                                                                              \
        assert_int_equal(returned_, ATTN_OK);                                                                          \
        assert_int_equal((error)->status, ATTN_OK);                                                                    \
        assert_string_equal((error)->field, "");                                                                       \
        assert_string_equal((error)->message, "");                                                                     \
    } while (0)

static inline int same_floats(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static inline int same_layouts(const attn_layout *a, const attn_layout *b) {
    return a->dtype == b->dtype && memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

/* Field by field, floats by their bits: padding holds nothing. */
static inline int same_problems(const attn_problem *a, const attn_problem *b) {
    const attn_layout *x = &a->q, *y = &b->q;
    int same = a->struct_size == b->struct_size && a->pass == b->pass && a->flags == b->flags && a->batch == b->batch &&
               a->heads_q == b->heads_q && a->heads_kv == b->heads_kv && a->tokens_q == b->tokens_q &&
               a->tokens_kv == b->tokens_kv && a->dim_qk == b->dim_qk && a->dim_v == b->dim_v &&
               a->rows_q == b->rows_q && a->rows_kv == b->rows_kv && a->total_q == b->total_q &&
               a->total_kv == b->total_kv && a->segments_q == b->segments_q && a->segments_kv == b->segments_kv &&
               a->band.kind == b->band.kind && a->band.corner == b->band.corner && a->band.left == b->band.left &&
               a->band.right == b->band.right && a->band.globals == b->band.globals &&
               same_floats(a->scale, b->scale) && same_floats(a->softcap, b->softcap) &&
               same_floats(a->dropout, b->dropout);
    for (size_t n = 0; n < (sizeof *a - offsetof(attn_problem, q)) / sizeof(attn_layout); n++) {
        same = same && same_layouts(&x[n], &y[n]);
    }
    return same;
}

#endif
