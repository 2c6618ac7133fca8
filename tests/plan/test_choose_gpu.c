/* SPDX-License-Identifier: Apache-2.0
 * What the CUDA implementations choose, on every known GPU without one: a pure function of problem, hints and facts,
 * within the GPU's limits, with code that does not depend on what are run-time parameters. */
#include "problem/unit.h"

#include <stdlib.h>

#include "backend.h"
#include "plan/choose.h"
#include "plan/gpu.h"
#include "problem/problem.h"

static const char *const texts[] = {
    "fwd:f16:b2:hq8:hk2:s4096:d64",
    "fwd:bf16:b2:hq8:hk2:s4096:d128:causal",
    "fwd:bf16:b64:hq32:hk8:sq1:skv8192:d128",
    "fwd:bf16:b1:hq32:hk8:sq1:skv131072:d128:used_kv",
    "fwd:f16:b1:h16:s2048:d256:softcap=30",
    "fwd:f16:b1:h16:s2048:dqk192:dv128",
    "fwd:f32:b1:h16:s2048:d128:tf32",
    "fwd:f32:b1:h16:s2048:dqk576:dv512:mask=u8",
    "fwd:f32:b3:h2:s77:d1:packed_q=100:packed_kv=100:window=3,0:globals=2",
    "bwd:bf16:b2:hq8:hk2:s4096:d128:causal",
    "bwd:f16:b2:hq8:hk2:s4096:d64:deterministic",
    "bwd:f16:b1:h16:s2048:d256:dropout=0.1",
    "bwd:f32:b1:h16:s2048:d64:bias=f32:alibi=f32:sink=f32",
    "bwd:f32:b1:h4:s100:d80:segments_q=200,4:segments_kv=200,4:tf32",
    "fwd:bf16:b0:h4:s10:d64",
    "bwd:bf16:b1:h4:sq10:skv0:d64",
};
enum { TEXTS = sizeof texts / sizeof texts[0] };
static const char *const names[] = {"hopper", "mma", "ffma", "cuda_native"};
enum { NAMES = sizeof names / sizeof names[0] };

/* A choice made in memory that held `filling` before. */
static attn_status choose(attn_plan *plan, const char *text, const attn__gpu *gpu, const attn_hints *hints,
                          int filling) {
    attn_error error;
    memset(plan, filling, sizeof *plan);
    plan->context = NULL;
    plan->gpu = gpu;
    plan->impl = NULL;
    plan->built = NULL;
    plan->hints = *hints;
    memset(&plan->machine, 0, sizeof plan->machine);
    expect_success(attn_problem_parse(&plan->problem, text, &error), &error);
    return attn__plan_choose(plan, attn__implementations, NULL, &error);
}

static void expect_same(const attn_plan *a, const attn_plan *b) {
    assert_ptr_equal(a->impl, b->impl);
    assert_true(a->workspace == b->workspace);
    assert_memory_equal(&a->gpu_choice, &b->gpu_choice, sizeof a->gpu_choice);
    assert_int_equal(a->n_refusals, b->n_refusals);
    for (int n = 0; n < a->n_refusals; n++) {
        assert_string_equal(a->refusals[n].reason, b->refusals[n].reason);
    }
}

static void expect_legal(const attn_plan *plan) {
    const attn__gpu_choice *c = &plan->gpu_choice;
    const attn__span spans[] = {c->lengths, c->status, c->partial_o, c->partial_lse,
                                c->delta,   c->dq,     c->scores,    c->extra};
    assert_in_range(c->n_kernels, plan->problem.batch ? 1 : 0, ATTN__MAX_KERNELS);
    assert_true(c->tensor_cores == plan->impl->tensor_cores);
    for (int n = 0; n < c->n_kernels; n++) {
        const attn__kernel *k = &c->kernels[n];
        assert_in_range(k->threads, 32, 1024);
        assert_true((int64_t)k->shared <= plan->gpu->shared_block);
        assert_true(attn__gpu_blocks(plan->gpu, k->threads, k->shared) >= 1);
        assert_in_range(k->n_constants, 0, ATTN__MAX_CONSTANTS);
        assert_in_range(strlen(k->name), 1, sizeof k->name - 1);
        char target[16];
        snprintf(target, sizeof target, "__sm%d", plan->gpu->arch);
        assert_non_null(strstr(k->name, target));
        assert_int_equal(strncmp(k->name, "attn_", 5), 0);
    }
    for (size_t n = 0; n < sizeof spans / sizeof spans[0]; n++) {
        assert_true(spans[n].offset % ATTN_WORKSPACE_ALIGNMENT == 0);
        assert_true(spans[n].size == 0 || spans[n].offset + spans[n].size <= plan->workspace);
    }
}

static void test_pure_and_legal(void **state) {
    (void)state;
    static attn_plan a, b;
    int made = 0;
    for (int g = 0; g < ATTN__GPUS; g++) {
        for (int t = 0; t < TEXTS; t++) {
            for (int n = -1; n < NAMES; n++) {
                const attn_hints hints = {.struct_size = sizeof hints, .implementation = n < 0 ? NULL : names[n]};
                attn_status first = choose(&a, texts[t], &attn__gpus[g], &hints, 0);
                assert_int_equal(choose(&b, texts[t], &attn__gpus[g], &hints, 0xa5), first);
                assert_true(first == ATTN_OK || first == ATTN_ERR_UNSUPPORTED);
                if (first == ATTN_OK) {
                    expect_same(&a, &b);
                    expect_legal(&a);
                    made++;
                }
            }
        }
    }
    assert_true(made > 0);
}

/* Two kernels of one name have the same constants, and texts that differ in parameters alone have the same kernels. */
static void test_parameters_are_no_code(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"fwd:bf16:b2:hq8:hk2:s4096:d128:causal", "fwd:bf16:b2:hq8:hk2:s4096:d128:causal:scale=0.3"},
        {"fwd:bf16:b2:hq8:hk2:s4096:d128:causal", "fwd:bf16:b2:hq8:hk2:s4096:d128:causal:topleft"},
        {"fwd:bf16:b2:hq8:hk2:s4096:d128", "fwd:bf16:b2:hq8:hk2:s4096:d128:q=[bhsd]:k=[bhsd]:v=[bhsd]:o=[bhsd]"},
        {"fwd:bf16:b2:hq8:hk2:s4096:d128:window=100,0", "fwd:bf16:b2:hq8:hk2:s4096:d128:window=1000,7"},
        {"fwd:f16:b2:h8:s4096:d64:softcap=30", "fwd:f16:b2:h8:s4096:d64:softcap=5.5"},
        {"fwd:f16:b2:h8:s4096:d64:bias=f32", "fwd:f16:b2:h8:s4096:d64:bias=f32[0,0,4096,1]"},
        {"bwd:f16:b2:h8:s4096:d64:dropout=0.1", "bwd:f16:b2:h8:s4096:d64:dropout=0.9"},
        {"bwd:bf16:b2:hq8:hk2:s4096:d128:causal", "bwd:bf16:b2:hq8:hk2:s4099:d128:causal"},
        {"bwd:f32:b2:h8:s4096:d64:packed_q=5000:packed_kv=5000",
         "bwd:f32:b2:h8:s4096:d64:packed_q=6000:packed_kv=6001"},
    };
    static attn_plan a, b;
    for (int g = 0; g < ATTN__GPUS; g++) {
        for (size_t t = 0; t < sizeof pairs / sizeof pairs[0]; t++) {
            const attn_hints hints = {.struct_size = sizeof hints};
            if (choose(&a, pairs[t][0], &attn__gpus[g], &hints, 0)) {
                continue;
            }
            assert_int_equal(choose(&b, pairs[t][1], &attn__gpus[g], &hints, 0), ATTN_OK);
            assert_int_equal(a.gpu_choice.n_kernels, b.gpu_choice.n_kernels);
            for (int n = 0; n < a.gpu_choice.n_kernels; n++) {
                if (strcmp(a.gpu_choice.kernels[n].name, b.gpu_choice.kernels[n].name) != 0) {
                    print_message("%s\n%s\n", pairs[t][0], pairs[t][1]);
                }
                assert_string_equal(a.gpu_choice.kernels[n].name, b.gpu_choice.kernels[n].name);
                assert_memory_equal(&a.gpu_choice.kernels[n], &b.gpu_choice.kernels[n], sizeof(attn__kernel));
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pure_and_legal),
        cmocka_unit_test(test_parameters_are_no_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
