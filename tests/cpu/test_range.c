/* SPDX-License-Identifier: Apache-2.0
 * Scores at and beyond the ends of float32: whatever the scale, a result is the definition's or NaN, never another
 * number. A bias of the lowest float is a usual mask; a row that has nothing else averages its values. */
#include "problem/unit.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

enum { KEYS = 150, DIM = 32, ROWS = 70 };

typedef struct setting {
    const char *implementation;
    attn_dtype dtype;
    int rows;
    int64_t splits;
} setting;

static attn_context *context;
static double q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM];
static float bias[KEYS], sinks[1], o[ROWS * DIM], lse[ROWS];

static void *stored(attn_dtype dtype, const double *values, int count) {
    char *out = calloc((size_t)count, 4);
    assert_non_null(out);
    for (int n = 0; n < count; n++) {
        attn__store(dtype, out, n, values[n]);
    }
    return out;
}

/* <q_i, k_j> is (i % 7 + 1) * (j * 37 % KEYS): its greatest is unique; times -1 where `sign` is. */
static void fill(double sign) {
    memset(q, 0, sizeof q);
    memset(k, 0, sizeof k);
    for (int i = 0; i < ROWS; i++) {
        q[i * DIM] = sign * (i % 7 + 1);
    }
    for (int j = 0; j < KEYS; j++) {
        k[j * DIM] = j * 37 % KEYS;
        for (int d = 0; d < DIM; d++) {
            v[j * DIM + d] = (j * 5 + d * 3) % 64 - 20;
        }
    }
}

static void run(const setting *s, attn_problem p, bool with_sink) {
    void *data[3] = {stored(s->dtype, q, ROWS * DIM), stored(s->dtype, k, KEYS * DIM), stored(s->dtype, v, KEYS * DIM)};
    attn_hints hints = {.struct_size = sizeof hints, .implementation = s->implementation, .splits = s->splits};
    attn_plan *plan = NULL;
    attn_error error;
    p.o.dtype = ATTN_F32;
    if (with_sink) {
        p.sink.dtype = ATTN_F32;
    }
    expect_success(attn_plan_create(&plan, context, &p, &hints, &error), &error);
    size_t size = attn_plan_workspace(plan);
    void *workspace = aligned_alloc(64, (size + 64) / 64 * 64);
    assert_non_null(workspace);
    attn_args args = attn_args_init();
    args.q = data[0], args.k = data[1], args.v = data[2], args.o = o, args.lse = lse;
    args.bias = p.bias.dtype == ATTN_NONE ? NULL : bias;
    args.sink = with_sink ? sinks : NULL;
    memset(o, 0x7b, sizeof o);
    expect_success(attn_forward(plan, &args, workspace, size, NULL, &error), &error);
    attn_plan_destroy(plan);
    free(workspace);
    for (int n = 0; n < 3; n++) {
        free(data[n]);
    }
}

static attn_problem problem(const setting *s, float scale) {
    attn_problem p = attn_problem_dense(s->dtype, 1, 1, 1, s->rows, KEYS, DIM, DIM);
    p.flags = ATTN_HAS_SCALE;
    p.scale = scale;
    return p;
}

/* may_lose: NaN is allowed. */
static void expect_row(const setting *s, const char *what, int row, const double *want, double tolerance,
                       bool may_lose) {
    for (int d = 0; d < DIM; d++) {
        double got = o[row * DIM + d];
        if (!(fabs(got - want[d]) <= tolerance) && !(may_lose && isnan(got))) {
            fail_msg("%s, %s, %d rows, splits %d, %s: o[%d][%d] is %g, must be %g", s->implementation,
                     attn_dtype_name(s->dtype), s->rows, (int)s->splits, what, row, d, got, want[d]);
        }
    }
}

/* Scores so far apart that one key counts: the greatest product, or the least for a negative sign. */
static void expect_best(const setting *s, const char *what, bool greatest, bool may_lose) {
    int best = 0;
    for (int j = 0; j < KEYS; j++) {
        best = k[j * DIM] == (greatest ? KEYS - 1 : 0) ? j : best;
    }
    for (int row = 0; row < s->rows; row++) {
        expect_row(s, what, row, v + best * DIM, 1e-30, may_lose); /* no p is below 2^-126 */
    }
}

/* Tiles work in log2 units, which end sooner. */
static bool loses(const setting *s) {
    return s->dtype == ATTN_BF16 && strcmp(s->implementation, "amx") == 0;
}

static void scales(const setting *s) {
    static const float list[] = {1e5f, 1e20f, 1e30f, 5e35f, 1e37f, 1e38f, 3e38f, FLT_MAX};
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        for (int side = 0; side < 4; side++) {
            fill(side & 1 ? -1 : 1);
            bool greatest = !(side & 1) == !(side & 2);
            run(s, problem(s, side & 2 ? -list[n] : list[n]), false);
            expect_best(s, "scale", greatest, loses(s));
            for (int row = 0; row < s->rows; row++) {
                assert_true(lse[row] != -INFINITY);
            }
            attn_problem p = problem(s, side & 2 ? -list[n] : list[n]);
            memset(bias, 0, sizeof bias);
            p.bias = (attn_layout){.dtype = ATTN_F32, .stride = {0, 0, 0, 1}};
            run(s, p, false);
            expect_best(s, "scale with a bias", greatest, true);
        }
    }
}

static void lowest_bias(const setting *s) {
    for (int half = 0; half < 2; half++) {
        attn_problem p = problem(s, 1e-3f);
        double mean[DIM] = {0};
        int counted = 0;
        fill(1);
        memset(q, 0, sizeof q); /* every score is its bias */
        p.bias = (attn_layout){.dtype = ATTN_F32, .stride = {0, 0, 0, 1}};
        for (int j = 0; j < KEYS; j++) {
            bias[j] = half && j % 2 ? 0 : -FLT_MAX;
            if (!half || j % 2) {
                counted++;
                for (int d = 0; d < DIM; d++) {
                    mean[d] += v[j * DIM + d];
                }
            }
        }
        for (int d = 0; d < DIM; d++) {
            mean[d] /= counted;
        }
        run(s, p, false);
        for (int row = 0; row < s->rows; row++) {
            expect_row(s, half ? "half the keys at the lowest bias" : "all keys at the lowest bias", row, mean, 1e-4,
                       false);
            assert_true(isfinite(lse[row]));
        }
    }
}

/* A scale near 0 leaves the sink its weight. */
static void sink_alone(const setting *s) {
    static const float list[] = {1e-44f, 1e-38f, 1e-31f, 1e-29f, 0};
    fill(1);
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        double want[DIM] = {0};
        sinks[0] = 5;
        for (int j = 0; j < KEYS; j++) {
            for (int d = 0; d < DIM; d++) {
                want[d] += v[j * DIM + d] / (KEYS + exp(5));
            }
        }
        run(s, problem(s, list[n]), true);
        for (int row = 0; row < s->rows; row++) {
            expect_row(s, "sink", row, want, s->dtype == ATTN_BF16 ? 2e-2 : 1e-4, false); /* p may be rounded */
            assert_true(fabs(lse[row] - log(KEYS + exp(5))) < 1e-5);
        }
    }
}

static void for_all(void (*check)(const setting *)) {
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    for (int n = 0; n < attn_implementation_count(); n++) {
        attn_implementation implementation = {.struct_size = sizeof implementation};
        attn_error error;
        expect_success(attn_implementation_get(context, n, &implementation, &error), &error);
        if (!implementation.available || strcmp(implementation.name, "native") == 0 ||
            strcmp(implementation.name, "reference") == 0) {
            continue;
        }
        for (int form = 0; form < 12; form++) {
            setting s = {implementation.name, types[form % 3], form / 3 % 2 ? 3 : ROWS, form / 6 ? 2 : 0};
            check(&s);
        }
    }
}

static void test_scales(void **state) {
    (void)state;
    for_all(scales);
}
static void test_lowest_bias(void **state) {
    (void)state;
    for_all(lowest_bias);
}
static void test_sink_alone(void **state) {
    (void)state;
    for_all(sink_alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_lowest_bias),
        cmocka_unit_test(test_sink_alone),
    };
    attn_error error;
    if (attn_context_create(&context, NULL, &error)) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    attn_context_destroy(context);
    return failed;
}
