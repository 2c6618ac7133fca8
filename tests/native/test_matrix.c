/* SPDX-License-Identifier: Apache-2.0
 * The plain computation against the definition: random problems over all features, forms and types, with errors that
 * its roundings explain; the same bits for any number of threads; sizes around the blocks that products work in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "support/judge.h"
#include "support/machine.h"
#include "support/recipe.h"
#include "support/run.h"

/* Scores of size s that are rounded to a unit u are off by s * u, and so is the exponent of each probability. Gradients
 * of keys are sums over rows, where such errors add up like a random walk. */
static double allowed(const trial *t, double largest) {
    static const double unit[] = {[ATTN_F32] = 1e-5, [ATTN_F16] = 1e-2, [ATTN_BF16] = 8e-2};
    double terms = (double)(t->problem.batch * t->problem.heads_q * t->problem.tokens_q);
    return unit[t->problem.q.dtype] * fmax(sqrt(terms), largest);
}

static bool compare(const trial *t, const result *got, const result *want, char *text, size_t size) {
    for (int id = T_O; id < T_COUNT; id++) {
        int64_t count = want->value[id] && got->value[id] ? trial_size(t, id) : 0;
        double largest = 0, worst = 0;
        for (int64_t n = 0; n < count; n++) {
            double a = got->value[id][n], b = want->value[id][n];
            if (isnan(a) != isnan(b) || isinf(a) != isinf(b)) {
                snprintf(text, size, "%s[%lld] is %g, must be %g", tensor_name(id), (long long)n, a, b);
                return false;
            }
            if (isfinite(a)) {
                largest = fmax(largest, fabs(b));
                worst = fmax(worst, fabs(a - b));
            }
        }
        if (worst > allowed(t, largest)) {
            snprintf(text, size, "%s is off by %g, largest %g", tensor_name(id), worst, largest);
            return false;
        }
    }
    return true;
}

static void check(const recipe *p) {
    trial *t = recipe_trial(p);
    run_options oracle = {.oracle = true}, native = {.implementation = "native", .threads = 1}, more = native;
    result want, got, again;
    char name[400], text[300];
    more.threads = 3;
    recipe_text(p, name, sizeof name);
    if (run_trial(t, &oracle, &want) != RUN_DONE) {
        fail_msg("%s: oracle: %s %s", name, want.trouble, want.error.message);
    }
    if (run_trial(t, &native, &got) != RUN_DONE || run_trial(t, &more, &again) != RUN_DONE) {
        fail_msg("%s: native: %s %s", name, got.trouble, got.error.message);
    }
    if (!compare(t, &got, &want, text, sizeof text) || !results_equal(t, &got, &again, text, sizeof text)) {
        fail_msg("%s: %s", name, text);
    }
    result_free(&want);
    result_free(&got);
    result_free(&again);
    trial_destroy(t);
}

static void test_random(void **state) {
    (void)state;
    static const uint64_t recipes[] = {20, 120, 600, 3000};
    for (uint64_t seed = 1; seed <= recipes[machine_intensity()]; seed++) {
        recipe p = recipe_random(seed);
        if (p.dtype != ATTN_F64) {
            check(&p);
        }
    }
}

static void test_sizes(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 95, 96, 97, 127, 128, 129, 200}, dims[] = {1, 8, 31, 32, 33, 129};
    uint64_t seed = 1;
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++) {
        for (size_t b = 0; b < sizeof dims / sizeof *dims; b++) {
            recipe p = {.name = "sizes", .seed = seed++, .batch = 1, .heads_kv = 1, .group = 2};
            p.dtype = (attn_dtype[]){ATTN_F32, ATTN_F16, ATTN_BF16}[seed % 3];
            p.tokens_q = sizes[a];
            p.tokens_kv = sizes[(a * 5 + b) % (sizeof sizes / sizeof *sizes)];
            p.dim_qk = dims[b];
            p.dim_v = dims[(a + b * 5) % (sizeof dims / sizeof *dims)];
            p.band.kind = seed & 1 ? ATTN_CAUSAL : 0;
            check(&p);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
