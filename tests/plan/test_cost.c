/* SPDX-License-Identifier: Apache-2.0
 * Costs counted by hand, the roofline of a machine given by its facts, and the layout of workspaces. */
#include "problem/unit.h"

#include "backend.h"
#include "plan/cost.h"

static attn_plan_info cost_of(const char *text) {
    attn_problem p;
    attn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(attn_problem_parse(&p, text, NULL), ATTN_OK);
    attn__plan_cost(&p, &info);
    return info;
}

static void test_flop(void **state) {
    (void)state;
    assert_true(cost_of("fwd:bf16:b2:hq32:hk8:s4096:d128").flop == 4.0 * 2 * 32 * 4096 * 4096 * 128);
    assert_true(cost_of("bwd:bf16:b2:hq32:hk8:s4096:d128").flop == 10.0 * 2 * 32 * 4096 * 4096 * 128);
    assert_true(cost_of("fwd:f32:b1:h3:sq5:skv7:dqk11:dv13").flop == 2.0 * 3 * 5 * 7 * (11 + 13));
    assert_true(cost_of("bwd:f32:b1:h3:sq5:skv7:dqk11:dv13").flop == 2.0 * 3 * 5 * 7 * (3 * 11 + 2 * 13));
    assert_true(cost_of("fwd:f32:b1:h1:s100:d1:causal").flop == 4.0 * 100 * 101 / 2);
    assert_true(cost_of("fwd:f32:b0:h1:s100:d1").flop == 0);
}

static void test_bytes(void **state) {
    (void)state;
    double q = 2 * 8 * 5 * 16, kv = 2 * 2 * 7 * 16, lse = 2 * 8 * 5 * 4;
    assert_true(cost_of("fwd:f16:b2:hq8:hk2:sq5:skv7:d16").bytes == 2 * (2 * q + 2 * kv) + lse);
    assert_true(cost_of("fwd:f16:b2:hq8:hk2:sq5:skv7:d16:o=f32").bytes == 2 * (q + 2 * kv) + 4 * q + lse);
    /* A broadcast bias counts once; a mask of a byte an element. */
    assert_true(cost_of("fwd:f16:b2:hq8:hk2:sq5:skv7:d16:bias=f32[0,0,7,1]:mask=u8").bytes ==
                2 * (2 * q + 2 * kv) + lse + 4 * 35 + 2 * 8 * 35);
    /* Backward reads q, k, v, o, dout, lse and writes dq, dk, dv. */
    assert_true(cost_of("bwd:f16:b2:hq8:hk2:sq5:skv7:d16").bytes == 2 * (4 * q + 4 * kv) + lse);
    assert_true(cost_of("fwd:f32:b4:h1:s5:d2:packed_q=9:packed_kv=6").bytes == 4 * (2 * 9 * 2 + 2 * 6 * 2 + 9));
    assert_true(cost_of("fwd:f32:b0:h1:s5:d2").bytes == 0);
}

static void test_memory(void **state) {
    (void)state;
    assert_true(cost_of("fwd:bf16:b2:hq32:hk8:s4096:d128").memory_native == 2.0 * 32 * 4096 * 4096 * 2);
    assert_true(cost_of("bwd:f32:b2:hq32:hk8:s4096:d128").memory_native == 2 * 2.0 * 32 * 4096 * 4096 * 4);
    assert_true(cost_of("fwd:bf16:b1:h1:s2147483647:d1:causal").memory_native > 9.2e18);
}

static attn_plan plan_of(const char *text, const attn__impl *impl) {
    attn_plan plan;
    memset(&plan, 0, sizeof plan);
    assert_int_equal(attn_problem_parse(&plan.problem, text, NULL), ATTN_OK);
    plan.impl = impl;
    plan.workspace = 12345;
    plan.machine = (attn__machine){.threads = 4, .hertz = 2e9, .memory_rate = 1e10};
    plan.choice = (attn__choice){.threads = 3, .block_q = 64, .block_kv = 32, .splits = 2};
    return plan;
}

static void test_roofline(void **state) {
    (void)state;
    const attn__impl fast = {.name = "avx512bf16"}, unknown = {.name = "reference"};
    attn_plan_info info;
    attn_plan plan = plan_of("fwd:bf16:b1:h8:s4096:d128", &fast);
    attn__plan_info_fill(&plan, &info);
    assert_true(info.peak_flops == 64 * 2e9 * 4 && info.peak_bytes == 1e10);
    assert_true(info.expected_seconds == info.flop / info.peak_flops);
    assert_string_equal(info.bound, "compute");
    assert_true(info.memory_fused == 12345 && info.threads == 3);
    assert_true(info.block_q == 64 && info.block_kv == 32 && info.splits == 2);
    plan = plan_of("fwd:f32:b1:h8:s4096:d128", &fast);
    attn__plan_info_fill(&plan, &info);
    assert_true(info.peak_flops == 32 * 2e9 * 4);
    plan = plan_of("fwd:bf16:b1:h8:sq1:skv4096:d128", &fast);
    attn__plan_info_fill(&plan, &info);
    assert_true(info.expected_seconds == info.bytes / 1e10);
    assert_string_equal(info.bound, "memory");
    plan = plan_of("fwd:bf16:b1:h8:s4096:d128", &unknown);
    attn__plan_info_fill(&plan, &info);
    assert_true(info.peak_flops == 0 && info.expected_seconds == 0);
    assert_string_equal(info.bound, "unknown");
}

static void test_spans(void **state) {
    (void)state;
    size_t total = 0;
    attn__span a = attn__span_take(&total, 1), b = attn__span_take(&total, 64), c = attn__span_take(&total, 0),
               d = attn__span_take(&total, 65);
    assert_true(a.offset == 0 && a.size == 1);
    assert_true(b.offset == 64 && b.size == 64 && c.offset == 128 && d.offset == 128);
    assert_true(total == 193);
    attn__span_take(&total, SIZE_MAX - 200);
    assert_true(total == SIZE_MAX);
    attn__span_take(&total, 1);
    assert_true(total == SIZE_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flop),     cmocka_unit_test(test_bytes), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_roofline), cmocka_unit_test(test_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
