/* SPDX-License-Identifier: Apache-2.0
 * What code depends on, and what it does not: a second problem that differs in batch, heads, lengths, strides, scale or
 * window alone compiles nothing, and planning it takes at most 50 us. The compiler is a stand-in; kernels are those of
 * every implementation that takes the problem. */
#include <time.h>

#include "backend.h"
#include "fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__OPTIMIZE__) == 0
#define MICROSECONDS 2000
#else
#define MICROSECONDS 50
#endif

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

/* Microseconds to make the plan, or -1 if the implementation refuses. */
static double plan_once(const attn_context *context, const attn_problem *problem, const char *implementation) {
    attn_hints hints;
    attn_plan *plan;
    attn_error error;
    memset(&hints, 0, sizeof hints);
    hints.struct_size = sizeof hints;
    hints.implementation = implementation;
    double start = now();
    attn_status status = attn_plan_create(&plan, context, problem, &hints, &error);
    double taken = now() - start;
    if (status == ATTN_ERR_UNSUPPORTED) {
        return -1;
    }
    if (status) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    attn_plan_destroy(plan);
    return taken;
}

static attn_problem base_problem(attn_pass pass) {
    attn_problem p = attn_problem_dense(ATTN_BF16, 4, 8, 8, 2048, 2048, 128, 128);
    p.pass = pass;
    p.band.kind = ATTN_CAUSAL | ATTN_WINDOW;
    p.band.left = 300;
    p.band.right = 0;
    return p;
}

/* The n-th way in which a problem may differ and share code; false past the last. */
static bool vary(int n, attn_problem *p) {
    switch (n) {
    case 0: p->batch = 7; return true;
    case 1: /* strides: heads before tokens, and a longer row */
        p->q = attn_layout_bhsd(ATTN_BF16, p->heads_q, p->tokens_q, p->dim_qk);
        p->q.stride[2] = 160;
        p->q.stride[1] = 160 * p->tokens_q;
        p->q.stride[0] = p->heads_q * p->q.stride[1];
        return true;
    case 2:
        p->flags |= ATTN_HAS_SCALE;
        p->scale = 0.125f;
        return true;
    case 3: p->band.left = 1500; return true; /* a wide window may have another tile */
    case 4: p->band.left = 1; return true;
    case 5: *p = attn_problem_dense(ATTN_BF16, 4, 16, 16, 2048, 2048, 128, 128); break;
    case 6: *p = attn_problem_dense(ATTN_BF16, 4, 8, 8, 2049, 2300, 128, 128); break;
    case 7: *p = attn_problem_dense(ATTN_BF16, 4, 8, 8, 1900, 1900, 128, 128); break;
    default: return false;
    }
    attn_problem first = base_problem(ATTN_FORWARD);
    p->band = first.band;
    return true;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool check_pass(const attn_context *context, const char *implementation, attn_pass pass) {
    enum { RUNS = 101 };
    static double taken[RUNS];
    attn_problem problem = base_problem(pass);
    if (plan_once(context, &problem, implementation) < 0) {
        return false;
    }
    int compiled = context->cuda->compiled;
    assert_true(compiled > 0);
    for (int n = 0; problem = base_problem(pass), vary(n, &problem); n++) {
        problem.pass = pass;
        assert_true(plan_once(context, &problem, implementation) >= 0);
        if (context->cuda->compiled != compiled) {
            fail_msg("%s, pass %d: variation %d compiled %d kernels", implementation, pass, n,
                     context->cuda->compiled - compiled);
        }
    }
    for (int n = 0; n < RUNS; n++) {
        problem = base_problem(pass);
        problem.batch = n + 1;
        taken[n] = plan_once(context, &problem, implementation);
    }
    qsort(taken, RUNS, sizeof taken[0], compare);
    printf("%s, pass %d: %d kernels, planned again in %.1f us (median)\n", implementation, pass, compiled,
           taken[RUNS / 2]);
    assert_true(taken[RUNS / 2] <= MICROSECONDS);
    /* What code does depend on. */
    problem = base_problem(pass);
    problem.band.kind = 0;
    assert_true(plan_once(context, &problem, implementation) >= 0);
    assert_true(context->cuda->compiled > compiled);
    return true;
}

static void test_planning(void **state) {
    (void)state;
    int checked = 0;
    attn_config c = cuda_config("gpu:h200", "");
    fake_nvrtc();
    for (const attn__impl *const *impl = attn__implementations; *impl; impl++) {
        for (int pass = ATTN_FORWARD; (*impl)->device == ATTN__CUDA && pass <= ATTN_BACKWARD; pass++) {
            attn_context *context;
            context = opened(&c);
            checked += check_pass(context, (*impl)->name, (attn_pass)pass);
            attn_context_destroy(context);
        }
    }
    assert_true(checked > 0);
}

/* Without ATTN_COMPILE plans explain themselves and need no compiler. */
static void test_facts_alone(void **state) {
    (void)state;
    attn_context *context;
    attn_config c = cuda_config("gpu:t4", "");
    fake_compiler *compiler = fake_nvrtc();
    c.options = 0;
    c.nvrtc = "";
    context = opened(&c);
    attn_problem problem = attn_problem_dense(ATTN_F16, 4, 8, 8, 2048, 2048, 128, 128);
    for (const attn__impl *const *impl = attn__implementations; *impl; impl++) {
        if ((*impl)->device == ATTN__CUDA) {
            plan_once(context, &problem, (*impl)->name);
        }
    }
    assert_int_equal(compiler->compiled, 0);
    attn_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_planning), cmocka_unit_test(test_facts_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
