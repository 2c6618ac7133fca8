/* SPDX-License-Identifier: Apache-2.0
 * Plans and runs through the public calls: same answers from asking and planning, texts, refusals, workspace, the
 * one-call form; nothing is written by a call that fails. */
#include "problem/unit.h"

#include <stdlib.h>

static attn_context *context;

static attn_problem parsed(const char *text) {
    attn_problem p;
    attn_error error;
    expect_success(attn_problem_parse(&p, text, &error), &error);
    return p;
}

static attn_plan *planned(const char *text, const char *name) {
    attn_problem p = parsed(text);
    attn_hints hints = {.struct_size = sizeof hints, .implementation = name};
    attn_plan *plan = NULL;
    attn_error error;
    expect_success(attn_plan_create(&plan, context, &p, &hints, &error), &error);
    assert_non_null(plan);
    return plan;
}

static void test_asking_and_planning_agree(void **state) {
    (void)state;
    static const char *const texts[] = {"fwd:f32:b1:h1:s3:d8", "fwd:f32:b1:h1:s3:d600", "bwd:f64:b1:h1:s3:d8",
                                        "fwd:f16:b1:h1:s3:dqk8:dv700"};
    static const char *const names[] = {NULL, "reference", "generic", "native", "neon9"};
    for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
        for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
            attn_problem p = parsed(texts[t]);
            attn_hints hints = {.struct_size = sizeof hints, .implementation = names[n]};
            attn_error asked, told;
            attn_plan *plan;
            memset(&asked, 0, sizeof asked);
            memset(&told, 0, sizeof told);
            attn_status status = attn_supported(context, &p, &hints, &asked);
            assert_int_equal(attn_plan_create(&plan, context, &p, &hints, &told), status);
            assert_int_equal(plan != NULL, status == ATTN_OK);
            assert_string_equal(asked.field, told.field);
            assert_string_equal(asked.message, told.message);
            attn_plan_destroy(plan);
        }
    }
    attn_error error;
    attn_problem p = parsed("fwd:f32:b1:h1:s3:d600");
    expect_error(attn_supported(context, &p, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "dim_qk",
                 "generic: dim_qk is 600, must be at most 576; native, reference: runs only when");
}

static void test_errors(void **state) {
    (void)state;
    attn_problem p = parsed("fwd:f32:b1:h1:s3:d8");
    attn_plan *plan = (attn_plan *)(void *)&p;
    attn_error error;
    expect_error(attn_plan_create(NULL, context, &p, NULL, &error), &error, ATTN_ERR_INVALID, "plan", "is NULL");
    expect_error(attn_plan_create(&plan, NULL, &p, NULL, &error), &error, ATTN_ERR_INVALID, "context", "is NULL");
    assert_null(plan);
    expect_error(attn_plan_create(&plan, context, NULL, NULL, &error), &error, ATTN_ERR_INVALID, "problem", "is NULL");
    expect_error(attn_supported(NULL, &p, NULL, &error), &error, ATTN_ERR_INVALID, "context", "is NULL");
    p.dropout = 2;
    expect_error(attn_supported(context, &p, NULL, &error), &error, ATTN_ERR_INVALID, "dropout", "is 2");
    p.dropout = 0;
    attn_hints hints = {.struct_size = sizeof hints, .splits = -1};
    expect_error(attn_plan_create(&plan, context, &p, &hints, &error), &error, ATTN_ERR_INVALID, "hints.splits",
                 "is -1");
    attn_plan_info info = {.struct_size = sizeof info};
    expect_error(attn_plan_query(NULL, &info, &error), &error, ATTN_ERR_INVALID, "plan", "is NULL");
    attn_plan_destroy(NULL);
    assert_int_equal(attn_plan_workspace(NULL), 0);
    assert_int_equal(attn_plan_describe(NULL, NULL, 0), 0);
    assert_int_equal(attn_plan_refusal(NULL, 0, NULL, NULL), 0);
    plan = planned("fwd:f32:b1:h1:s3:d8", "reference");
    expect_error(attn_plan_query(plan, NULL, &error), &error, ATTN_ERR_INVALID, "info", "is NULL");
    attn_plan_destroy(plan);
}

static void test_description(void **state) {
    (void)state;
    attn_plan *plan = planned("fwd:bf16:b1:h2:s300:d64:causal", "generic");
    char text[4096], cut[64];
    size_t length = attn_plan_describe(plan, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_int_equal(attn_plan_describe(plan, NULL, 0), length);
    assert_int_equal(attn_plan_describe(plan, cut, sizeof cut), length);
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_int_equal(memcmp(cut, text, sizeof cut - 1), 0);
    for (size_t size = 0; size < length; size++) {
        assert_int_equal(attn_plan_describe(plan, text, size), length);
    }
    attn_plan_describe(plan, text, sizeof text);
    char line[64];
    snprintf(line, sizeof line, "workspace       %zu bytes\n", attn_plan_workspace(plan));
    assert_non_null(strstr(text, line));
    assert_non_null(strstr(text, "problem         fwd:bf16:b1:hq2:hk2:sq300:skv300:d64:causal\n"));
    assert_non_null(strstr(text, "implementation  generic (asked for)\n"));
    assert_non_null(strstr(text, "the unfused path stores 351.6 KiB of scores\n"));
    const char *name, *reason;
    int count = 0;
    while (attn_plan_refusal(plan, count, &name, &reason)) {
        snprintf(line, sizeof line, "passed over     %.16s: ", name);
        assert_non_null(strstr(text, line));
        assert_non_null(strstr(text, reason));
        count++;
    }
    assert_int_equal(attn_plan_refusal(plan, count, NULL, NULL), 0);
    assert_int_equal(attn_plan_refusal(plan, -1, NULL, NULL), 0);
    attn_plan_info info = {.struct_size = sizeof info};
    attn_error error;
    expect_success(attn_plan_query(plan, &info, &error), &error);
    assert_string_equal(info.implementation, "generic");
    assert_true(info.memory_fused == (double)attn_plan_workspace(plan));
    assert_true(info.flop == 4.0 * 2 * 64 * 300 * 301 / 2 && info.expected_seconds > 0);
    attn_plan_destroy(plan);
}

static void test_run_errors(void **state) {
    (void)state;
    static const float in[64] = {1, 2, 3};
    float out[64];
    attn_plan *plan = planned("fwd:f32:b1:h1:s3:d8", "reference");
    size_t size = attn_plan_workspace(plan);
    assert_true(size > 0);
    char *workspace = aligned_alloc(64, (size + 127) / 64 * 64);
    attn_args args = attn_args_init();
    attn_error error;
    args.q = args.k = args.v = in;
    args.o = out;
    memset(out, 0x5a, sizeof out);
    expect_error(attn_forward(NULL, &args, workspace, size, NULL, &error), &error, ATTN_ERR_INVALID, "plan", "is NULL");
    expect_error(attn_forward(plan, NULL, workspace, size, NULL, &error), &error, ATTN_ERR_INVALID, "args", "is NULL");
    expect_error(attn_forward(plan, &args, NULL, size, NULL, &error), &error, ATTN_ERR_WORKSPACE, "workspace",
                 "is NULL, the plan needs");
    expect_error(attn_forward(plan, &args, workspace, size - 1, NULL, &error), &error, ATTN_ERR_WORKSPACE,
                 "workspace_size", "must be at least");
    expect_error(attn_forward(plan, &args, workspace + 32, size, NULL, &error), &error, ATTN_ERR_WORKSPACE, "workspace",
                 "must be a multiple of 64");
    expect_error(attn_forward(plan, &args, workspace, size, (attn_stream)(void *)out, &error), &error, ATTN_ERR_INVALID,
                 "stream", "must be NULL on the CPU");
    expect_error(attn_backward(plan, &args, workspace, size, NULL, &error), &error, ATTN_ERR_INVALID, "pass",
                 "of the plan is forward, call attn_forward");
    args.mask = in;
    expect_error(attn_forward(plan, &args, workspace, size, NULL, &error), &error, ATTN_ERR_INVALID, "mask",
                 "must be NULL");
    args.mask = NULL;
    for (size_t n = 0; n < sizeof out; n++) {
        assert_int_equal(((unsigned char *)out)[n], 0x5a); /* none of them wrote */
    }
    assert_int_equal(attn_forward(plan, &args, workspace, size - 1, NULL, NULL), ATTN_ERR_WORKSPACE);
    expect_success(attn_forward(plan, &args, workspace, size, NULL, &error), &error);
    attn_plan_destroy(plan);
    plan = planned("bwd:f32:b1:h1:s3:d8", "reference");
    expect_error(attn_forward(plan, &args, workspace, size, NULL, &error), &error, ATTN_ERR_INVALID, "pass",
                 "of the plan is backward, call attn_backward");
    attn_plan_destroy(plan);
    free(workspace);
}

/* The caller's structs may go away once the plan is made. */
static void test_plan_keeps_nothing(void **state) {
    (void)state;
    attn_problem p = parsed("fwd:f64:b1:h1:s2:d2");
    char name[] = "reference";
    attn_hints hints = {.struct_size = sizeof hints, .implementation = name};
    attn_plan *plan;
    attn_error error;
    expect_success(attn_plan_create(&plan, context, &p, &hints, &error), &error);
    memset(&p, 0xff, sizeof p);
    memset(&hints, 0xff, sizeof hints);
    memset(name, 'x', sizeof name - 1);
    char text[4096];
    attn_plan_describe(plan, text, sizeof text);
    assert_non_null(strstr(text, "fwd:f64:b1:hq1:hk1:sq2:skv2:d2\nimplementation  reference (asked for)"));
    attn_plan_destroy(plan);
}

static void test_one_call(void **state) {
    (void)state;
    /* q = 0: every key weighs the same, so o is the mean of the visible v. */
    const double q[4] = {0}, k[4] = {1, 2, 3, 4}, v[4] = {1, 10, 3, 30};
    double o[4] = {-1, -1, -1, -1}, lse[2] = {-1, -1};
    attn_problem p = parsed("fwd:f64:b1:h1:s2:d2:causal");
    attn_args args = attn_args_init();
    attn_error error;
    args.q = q;
    args.k = k;
    args.v = v;
    args.o = o;
    args.lse = lse;
    expect_success(attn_run(&p, &args, &error), &error);
    assert_true(o[0] == 1 && o[1] == 10 && o[2] == 2 && o[3] == 20 && lse[0] == 0);
    p.heads_kv = 0;
    expect_error(attn_run(&p, &args, &error), &error, ATTN_ERR_INVALID, "heads_q", "multiple of heads_kv = 0");
    p = parsed("fwd:f64:b1:h1:s2:d2:causal");
    args.v = NULL;
    expect_error(attn_run(&p, &args, &error), &error, ATTN_ERR_INVALID, "v", "is NULL");
    expect_error(attn_run(NULL, &args, &error), &error, ATTN_ERR_INVALID, "problem", "is NULL");
    /* Backward through the same call: rows of o do not depend on q here, dv is the weights' sum. */
    const double dout[4] = {1, 1, 1, 1};
    double dv[4] = {-1, -1, -1, -1};
    attn_problem b = parsed("bwd:f64:b1:h1:s2:d2:causal");
    args.v = v;
    args.dout = dout;
    args.dv = dv;
    expect_success(attn_run(&b, &args, &error), &error);
    assert_true(dv[0] == 1.5 && dv[1] == 1.5 && dv[2] == 0.5 && dv[3] == 0.5);
}

static void test_version(void **state) {
    (void)state;
    assert_int_equal(attn_version(), ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH);
}

static int make_context(void **state) {
    (void)state;
    return attn_context_create(&context, NULL, NULL);
}
static int drop_context(void **state) {
    (void)state;
    attn_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_asking_and_planning_agree),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_run_errors),
        cmocka_unit_test(test_plan_keeps_nothing),
        cmocka_unit_test(test_one_call),
        cmocka_unit_test(test_version),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
