/* SPDX-License-Identifier: Apache-2.0
 * Values at the ends of the range: rows whose every score is about the lowest float, as masks given as a bias often
 * make them, still average their values; a dropped pair whose value is infinite is 0 * inf; one number that is not
 * finite in a visible row shows in every result that the definition lets it reach, and nowhere else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>

#include "support/published.h"

enum { ROWS = 70, KEYS = 150, DIM = 64 };
enum { ALL_RESULTS = 5 };

/* Rows in turn: all keys at the lowest float; half of them; all at -3e38. */
static double low_bias(void *context, int64_t sequence, int64_t head, int64_t i, int64_t j) {
    (void)context;
    (void)sequence;
    (void)head;
    return i % 3 == 2 ? -3e38f : i % 3 == 1 && j % 2 ? 0 : -FLT_MAX;
}

static void low_scores(const char *implementation, attn_dtype dtype) {
    if (published_rounds_scores(implementation, dtype)) {
        return; /* to 16 bits, with the bias: -inf */
    }
    trial *t = published_trial(dtype, 1, 2, 2, ROWS, KEYS, DIM, DIM);
    published_constant(t, T_Q, 0); /* every score is its bias */
    trial_add(t, T_BIAS, dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32, 0);
    trial_set(t, T_BIAS, low_bias, NULL);
    published p = published_run(implementation, dtype, t);
    for (int head = 0; head < 2; head++) {
        for (int d = 0; d < DIM; d++) {
            double sum[2] = {0, 0};
            for (int j = 0; j < KEYS; j++) {
                sum[j % 2] += t->value[T_V][((int64_t)j * 2 + head) * DIM + d];
            }
            for (int row = 0; row < ROWS; row++) {
                published_is(&p, T_O, 0, head, row, d, row % 3 == 1 ? sum[1] / (KEYS / 2) : (sum[0] + sum[1]) / KEYS);
            }
        }
        for (int row = 0; row < ROWS; row++) {
            double lse = row % 3 == 1 ? log(KEYS / 2) : row % 3 ? -3e38f : -FLT_MAX;
            published_near(&p, T_LSE, 0, head, row, 0, lse, fabs(lse) * 1e-5);
        }
    }
    for (int id = T_DQ; id <= T_DV; id++) {
        for (int64_t i = 0; p.result.value[id] && i < trial_size(t, id); i++) {
            assert_true(isfinite(p.result.value[id][i]));
        }
    }
    published_end(&p);
}

static void test_lowest_scores(void **state) {
    (void)state;
    published_everywhere(low_scores);
}

static trial *infinite_trial(attn_dtype dtype) {
    trial *t = published_trial(dtype, 1, 2, 1, ROWS, KEYS, DIM, DIM);
    t->problem.dropout = 0.4f;
    t->seed = 20261130;
    for (int n = 0; n < 3; n++) { /* columns 0, 1 and 2 hold one value that is not finite each */
        t->value[T_V][(int64_t)(40 * n + 7) * DIM + n] = n == 2 ? NAN : n ? -INFINITY : INFINITY;
    }
    return t;
}

static int kind(double x) {
    return isnan(x) ? 3 : isinf(x) ? (x < 0 ? 2 : 1) : 0;
}

/* Kinds of the first `results` results, where the reference has them; seen: how many of each kind o has. */
static void same_kinds(const char *implementation, attn_dtype dtype, trial *mine, trial *reference, int results,
                       int64_t seen[4]) {
    static const tensor_id ids[ALL_RESULTS] = {T_O, T_LSE, T_DQ, T_DK, T_DV};
    published want = published_run("reference", ATTN_F64, reference);
    published got = published_run(implementation, dtype, mine);
    for (int n = 0; n < results; n++) {
        for (int64_t i = 0; got.result.value[ids[n]] && i < trial_size(got.trial, ids[n]); i++) {
            int is = kind(got.result.value[ids[n]][i]), must = kind(want.result.value[ids[n]][i]);
            if (is != must) {
                fail_msg("%s %s: %s[%lld] is of kind %d, must be of %d", implementation, attn_dtype_name(dtype),
                         tensor_name(ids[n]), (long long)i, is, must);
            }
            seen[is] += ids[n] == T_O;
        }
    }
    published_end(&got);
    published_end(&want);
}

static void dropped_infinity(const char *implementation, attn_dtype dtype) {
    int64_t seen[4] = {0};
    same_kinds(implementation, dtype, infinite_trial(dtype), infinite_trial(ATTN_F64), ALL_RESULTS, seen);
    assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
}

static void test_dropped_infinity(void **state) {
    (void)state;
    published_everywhere(dropped_infinity);
}

/* One number of `id`, in the second head. */
static trial *spoilt_trial(attn_dtype dtype, tensor_id id, double value, bool causal) {
    trial *t = published_trial(dtype, 1, 2, 2, ROWS, KEYS, DIM, DIM);
    t->problem.band.kind = causal ? ATTN_CAUSAL : 0;
    t->value[id][((int64_t)(id == T_Q || id == T_DOUT ? 40 : 100) * 2 + 1) * DIM + 3] = value;
    return t;
}

static void visible_numbers(const char *implementation, attn_dtype dtype) {
    static const tensor_id ids[] = {T_Q, T_K, T_V, T_DOUT};
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (int n = 0; n < 4 * 3 * 2; n++) {
        tensor_id id = ids[n % 4];
        double value = values[n / 4 % 3];
        int64_t seen[4] = {0};
        /* An infinite score: whether its weight counts as hidden or as 0 tells in gradients alone. */
        bool ends = isinf(value) && (id == T_Q || id == T_K);
        same_kinds(implementation, dtype, spoilt_trial(dtype, id, value, n / 12),
                   spoilt_trial(ATTN_F64, id, value, n / 12), ends ? 2 : ALL_RESULTS, seen);
        assert_true(seen[0] > 0 && (id == T_DOUT || seen[1] + seen[2] + seen[3] > 0));
    }
}

static void test_visible_numbers(void **state) {
    (void)state;
    published_everywhere(visible_numbers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowest_scores),
        cmocka_unit_test(test_dropped_infinity),
        cmocka_unit_test(test_visible_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
