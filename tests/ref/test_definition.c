/* SPDX-License-Identifier: Apache-2.0
 * The oracle against the formulas of the definition, evaluated element by element from plain lists of visible pairs;
 * gradients against central differences of the forward pass; what is stored past used lengths and what is not
 * touched; accumulation. Everything in float64. */
#include "ref/fixture.h"

#include "base/philox.h"

static double score(const fixture *f, int64_t qrow, int64_t krow, int64_t h) {
    const attn_problem *p = &f->problem;
    place q = place_of(f, false, qrow), k = place_of(f, true, krow);
    int64_t g = h / (p->heads_q / p->heads_kv);
    double s = 0, scale = f->feature->has_scale ? (double)f->feature->scale : 1 / sqrt((double)p->dim_qk);
    for (int64_t d = 0; d < p->dim_qk; d++) {
        s += get(f, Q, index_of(f, false, qrow, h, p->heads_q, p->dim_qk) + d) *
             get(f, K, index_of(f, true, krow, g, p->heads_kv, p->dim_qk) + d);
    }
    s *= scale;
    if (f->feature->softcap > 0) {
        s = f->feature->softcap * tanh(s / f->feature->softcap);
    }
    if (f->args.bias) {
        s += get(f, BIASES, pair_index(&p->bias, q.sequence, h, q.position, k.position));
    }
    if (f->args.alibi) {
        s -= get(f, SLOPES, h) * (double)llabs(shifted_of(f, q.sequence, q.position) - k.position);
    }
    return s;
}

static double keep(const fixture *f, place q, int64_t j, int64_t h) {
    float rate = f->feature->dropout;
    attn__dropout_key key = attn__dropout_key_make(f->args.seed, f->args.offset, rate);
    bool kept = attn__dropout_keep(key, q.position, j, h + f->args.head_first, q.sequence + f->args.batch_first);
    return rate == 0 ? 1 : kept ? 1 / (1 - (double)rate) : 0;
}

static void expect_close(const fixture *f, const char *what, int64_t at, double got, double want, double bound) {
    if (!(got == want || fabs(got - want) <= bound * fmax(1, fabs(want)))) {
        fail_msg("%s: %s[%lld] is %.12g, must be %.12g", f->feature->name, what, (long long)at, got, want);
    }
}

static void check_row(const fixture *f, int64_t qrow, int64_t h) {
    const attn_problem *p = &f->problem;
    place q = place_of(f, false, qrow);
    double sum = f->args.sink ? exp(get(f, SINKS, h)) : 0, o[16] = {0};
    int64_t g = h / (p->heads_q / p->heads_kv);
    for (int64_t krow = 0; krow < rows_of(f, true); krow++) {
        if (sees(f, qrow, krow, h)) {
            double e = exp(score(f, qrow, krow, h));
            sum += e;
            for (int64_t d = 0; d < p->dim_v; d++) {
                o[d] += e * keep(f, q, place_of(f, true, krow).position, h) *
                        get(f, V, index_of(f, true, krow, g, p->heads_kv, p->dim_v) + d);
            }
        }
    }
    int64_t at = index_of(f, false, qrow, h, p->heads_q, 1);
    expect_close(f, "lse", at, get(f, LSE, at), log(sum), 1e-12);
    for (int64_t d = 0; d < p->dim_v; d++) {
        expect_close(f, "o", at * p->dim_v + d, get(f, O, at * p->dim_v + d), sum > 0 ? o[d] / sum : 0, 1e-12);
    }
}

static void test_forward(void **state) {
    (void)state;
    for (int n = 0; n < FEATURES; n++) {
        fixture f;
        make(&f, &features[n], ATTN_F64);
        run_passes(&f, &attn__impl_reference, false);
        for (int64_t row = 0; row < rows_of(&f, false); row++) {
            for (int64_t h = 0; h < f.problem.heads_q && place_of(&f, false, row).position >= 0; h++) {
                check_row(&f, row, h);
            }
        }
        fixture_free(&f);
    }
}

/* What dout and dlse ask of the forward pass. */
static double loss(fixture *f) {
    const attn_problem *p = &f->problem;
    double sum = 0;
    run_passes(f, &attn__impl_reference, false);
    for (int64_t row = 0; row < rows_of(f, false); row++) {
        for (int64_t h = 0; h < p->heads_q && place_of(f, false, row).position >= 0; h++) {
            int64_t at = index_of(f, false, row, h, p->heads_q, 1);
            double lse = get(f, LSE, at);
            sum += f->args.dlse && lse != -INFINITY ? get(f, DLSES, at) * lse : 0;
            for (int64_t d = 0; d < p->dim_v; d++) {
                sum += get(f, O, at * p->dim_v + d) * get(f, DOUT, at * p->dim_v + d);
            }
        }
    }
    return sum;
}

static void check_gradient(fixture *f, const char *what, tensor input, tensor gradient) {
    const double step = 1e-5;
    for (int64_t n = 0; n < f->buffers[gradient].count; n++) {
        double before = get(f, input, n), got = get(f, gradient, n);
        if (before == -INFINITY) {
            assert_true(got == 0);
            continue;
        }
        put(f, input, n, before + step);
        double up = loss(f);
        put(f, input, n, before - step);
        double down = loss(f);
        put(f, input, n, before);
        expect_close(f, what, n, isnan(got) ? 0 : got, (up - down) / (2 * step), 1e-7);
    }
}

static void test_gradients(void **state) {
    (void)state;
    for (int n = 0; n < FEATURES; n++) {
        fixture f;
        make(&f, &features[n], ATTN_F64);
        run_passes(&f, &attn__impl_reference, true);
        check_gradient(&f, "dq", Q, DQ);
        check_gradient(&f, "dk", K, DK);
        check_gradient(&f, "dv", V, DV);
        check_gradient(&f, "dbias", BIASES, DBIAS);
        check_gradient(&f, "dsink", SINKS, DSINK);
        fixture_free(&f);
    }
}

/* Rows of no sequence keep their poison, rows past the used length hold exact zeros, all others are written. */
static void check_rows(const fixture *f, bool kv, tensor t, int64_t heads, int64_t dim, double padding) {
    for (int64_t row = 0; row < rows_of(f, kv); row++) {
        place at = place_of(f, kv, row);
        for (int64_t n = 0; n < heads * dim; n++) {
            double value = get(f, t, index_of(f, kv, row, n / dim, heads, dim) + n % dim);
            if (at.sequence < 0 ? !isnan(value) : at.position < 0 ? !same_bits(value, padding) : isnan(value)) {
                fail_msg("%s: tensor %d row %lld holds %g", f->feature->name, (int)t, (long long)row, value);
            }
        }
    }
}

static void test_what_is_written(void **state) {
    (void)state;
    for (int n = 0; n < FEATURES; n++) {
        fixture f;
        make(&f, &features[n], ATTN_F64);
        run_passes(&f, &attn__impl_reference, true);
        const attn_problem *p = &f.problem;
        check_rows(&f, false, O, p->heads_q, p->dim_v, 0);
        check_rows(&f, false, LSE, p->heads_q, 1, -INFINITY);
        check_rows(&f, false, DQ, p->heads_q, p->dim_qk, 0);
        check_rows(&f, true, DK, p->heads_kv, p->dim_qk, 0);
        check_rows(&f, true, DV, p->heads_kv, p->dim_v, 0);
        for (int64_t i = 0; i < f.buffers[DBIAS].count; i++) {
            assert_false(isnan(get(&f, DBIAS, i)));
        }
        fixture_free(&f);
    }
}

static void test_accumulate(void **state) {
    (void)state;
    static const double before = 0.75;
    for (int n = 0; n < FEATURES; n++) {
        fixture stored, added;
        make(&stored, &features[n], ATTN_F64);
        make(&added, &features[n], ATTN_F64);
        added.problem.flags |= ATTN_ACCUMULATE;
        for (tensor t = DQ; t <= DSINK; t++) {
            for (int64_t i = 0; i < added.buffers[t].count; i++) {
                put(&added, t, i, before);
            }
        }
        run_passes(&stored, &attn__impl_reference, true);
        run_passes(&added, &attn__impl_reference, true);
        for (tensor t = DQ; t <= DSINK; t++) {
            for (int64_t i = 0; i < added.buffers[t].count; i++) {
                double value = get(&stored, t, i);
                expect_close(&added, "sum", i, get(&added, t, i), isnan(value) ? before : before + value, 1e-14);
            }
        }
        fixture_free(&stored);
        fixture_free(&added);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_what_is_written),
        cmocka_unit_test(test_accumulate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
