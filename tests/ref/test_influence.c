/* SPDX-License-Identifier: Apache-2.0
 * What is hidden has no influence, pair by pair: one key row (or query row) after the other is filled with NaN or inf,
 * and every result that does not see it must come out bit by bit as before, while rows that see a NaN must show it.
 * For both implementations that promise it for each pair: the oracle and the plain computation. */
#include "ref/fixture.h"

typedef struct subject {
    const attn__impl *impl;
    attn_dtype dtype;
    uint32_t isa_without;
} subject;

static const subject subjects[] = {
    {&attn__impl_reference, ATTN_F64, 0}, {&attn__impl_native, ATTN_F32, 0},   {&attn__impl_native, ATTN_F32, ~0u},
    {&attn__impl_native, ATTN_F16, 0},    {&attn__impl_native, ATTN_F16, ~0u}, {&attn__impl_native, ATTN_BF16, 0},
    {&attn__impl_native, ATTN_BF16, ~0u},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

static void fill_row(fixture *f, tensor t, bool kv, int64_t row, int64_t heads, int64_t dim, double value) {
    for (int64_t n = 0; n < heads * dim; n++) {
        put(f, t, index_of(f, kv, row, n / dim, heads, dim) + n % dim, value);
    }
}

/* Is one row and head of a tensor the same in both? */
static void expect_same(const fixture *a, const fixture *b, tensor t, bool kv, int64_t row, int64_t head, int64_t heads,
                        int64_t dim) {
    for (int64_t d = 0; d < dim; d++) {
        int64_t at = index_of(a, kv, row, head, heads, dim) + d;
        if (!same_bits(get(a, t, at), get(b, t, at))) {
            fail_msg("%s, %s: tensor %d row %lld head %lld is %g, was %g", a->feature->name,
                     attn_dtype_name(a->problem.q.dtype), (int)t, (long long)row, (long long)head, get(a, t, at),
                     get(b, t, at));
        }
    }
}

static bool some_head_sees(const fixture *f, int64_t qrow, int64_t krow, int64_t g) {
    const int64_t group = f->problem.heads_q / f->problem.heads_kv;
    bool any = false;
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        any = any || sees(f, qrow, krow, h);
    }
    return any;
}

/* Does some row see both keys, in the heads of g? Its lse and delta carry one key's poison to the other. */
static bool linked(const fixture *f, int64_t a, int64_t b, int64_t g) {
    for (int64_t row = 0; row < rows_of(f, false); row++) {
        if (some_head_sees(f, row, a, g) && some_head_sees(f, row, b, g)) {
            return true;
        }
    }
    return false;
}

static void check_key(const fixture *clean, const subject *x, int64_t krow, double value) {
    fixture f;
    make(&f, clean->feature, x->dtype);
    f.isa_without = x->isa_without;
    const attn_problem *p = &f.problem;
    fill_row(&f, K, true, krow, p->heads_kv, p->dim_qk, value);
    fill_row(&f, V, true, krow, p->heads_kv, p->dim_v, value);
    run_passes(&f, x->impl, true);
    for (int64_t row = 0; row < rows_of(&f, false); row++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            int64_t at = index_of(&f, false, row, h, p->heads_q, 1);
            if (!sees(&f, row, krow, h)) {
                expect_same(&f, clean, O, false, row, h, p->heads_q, p->dim_v);
                expect_same(&f, clean, LSE, false, row, h, p->heads_q, 1);
                expect_same(&f, clean, DQ, false, row, h, p->heads_q, p->dim_qk);
            } else if (isnan(value)) {
                assert_true(isnan(get(&f, LSE, at)) && isnan(get(&f, O, at * p->dim_v)));
            }
        }
    }
    for (int64_t row = 0; row < rows_of(&f, true); row++) {
        for (int64_t g = 0; g < p->heads_kv; g++) {
            if (!linked(&f, row, krow, g)) {
                expect_same(&f, clean, DK, true, row, g, p->heads_kv, p->dim_qk);
                expect_same(&f, clean, DV, true, row, g, p->heads_kv, p->dim_v);
            }
        }
    }
    fixture_free(&f);
}

static void check_query(const fixture *clean, const subject *x, int64_t qrow) {
    fixture f;
    make(&f, clean->feature, x->dtype);
    f.isa_without = x->isa_without;
    const attn_problem *p = &f.problem;
    fill_row(&f, Q, false, qrow, p->heads_q, p->dim_qk, NAN);
    fill_row(&f, DOUT, false, qrow, p->heads_q, p->dim_v, NAN);
    run_passes(&f, x->impl, true);
    for (int64_t row = 0; row < rows_of(&f, false); row++) {
        for (int64_t h = 0; h < p->heads_q && row != qrow; h++) {
            expect_same(&f, clean, O, false, row, h, p->heads_q, p->dim_v);
            expect_same(&f, clean, LSE, false, row, h, p->heads_q, 1);
            expect_same(&f, clean, DQ, false, row, h, p->heads_q, p->dim_qk);
        }
    }
    for (int64_t row = 0; row < rows_of(&f, true); row++) {
        for (int64_t g = 0; g < p->heads_kv; g++) {
            if (!some_head_sees(&f, qrow, row, g)) {
                expect_same(&f, clean, DK, true, row, g, p->heads_kv, p->dim_qk);
                expect_same(&f, clean, DV, true, row, g, p->heads_kv, p->dim_v);
            }
        }
    }
    fixture_free(&f);
}

static void test_subject(const subject *x) {
    for (int n = 0; n < FEATURES; n++) {
        fixture clean;
        make(&clean, &features[n], x->dtype);
        clean.isa_without = x->isa_without;
        run_passes(&clean, x->impl, true);
        for (int64_t row = 0; row < rows_of(&clean, true); row++) {
            check_key(&clean, x, row, NAN);
            check_key(&clean, x, row, INFINITY);
        }
        for (int64_t row = 0; row < rows_of(&clean, false); row++) {
            check_query(&clean, x, row);
        }
        fixture_free(&clean);
    }
}

static void test_reference(void **state) {
    (void)state;
    test_subject(&subjects[0]);
}

static void test_native(void **state) {
    (void)state;
    for (int n = 1; n < SUBJECTS; n++) {
        test_subject(&subjects[n]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_native),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
