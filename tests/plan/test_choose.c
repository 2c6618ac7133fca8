/* SPDX-License-Identifier: Apache-2.0
 * The choice as a pure function: lists and machines that are not this one's. */
#include "problem/unit.h"

#include "base/error.h"
#include "plan/choose.h"
#include "problem/problem.h"

static attn_status prepare_fine(attn_plan *plan, attn_error *error) {
    plan->workspace = 640;
    plan->choice.threads = plan->machine.threads;
    return attn__succeed(error);
}
static attn_status prepare_refuses(attn_plan *plan, attn_error *error) {
    plan->workspace = 1 << 20; /* neither may stay */
    plan->choice.splits = 7;
    return attn__fail(error, ATTN_ERR_UNSUPPORTED, "tokens_kv", "is 9, must be at most 8");
}
static attn_status prepare_breaks(attn_plan *plan, attn_error *error) {
    (void)plan;
    return attn__fail(error, ATTN_ERR_INTERNAL, "kernels", "do not fit");
}
static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                       attn_error *error) {
    (void)plan, (void)args, (void)workspace, (void)stream;
    return attn__succeed(error);
}

#define IMPL(name_, room, needs_, automatic_, prepare_, backward_)                                                     \
    {                                                                                                                  \
        .name = name_, .backend = room, .needs = needs_, .automatic = automatic_, .prepare = prepare_, .forward = run, \
        .backward = backward_                                                                                          \
    }
static const attn__impl amx = IMPL("amx", "cpu", ATTN__ISA_AMX | ATTN__ISA_AVX512, ATTN__AUTOMATIC, prepare_fine, NULL),
                        wide = IMPL("avx512", "cpu", ATTN__ISA_AVX512, ATTN__AUTOMATIC, prepare_fine, run),
                        picky = IMPL("picky", "cpu", ATTN__ISA_AVX2, ATTN__AUTOMATIC, prepare_refuses, run),
                        avx2 = IMPL("avx2", "cpu", ATTN__ISA_AVX2, ATTN__AUTOMATIC, prepare_fine, run),
                        native = IMPL("native", "native", 0, ATTN__BY_NAME, prepare_fine, run),
                        oracle = IMPL("reference", "reference", 0, ATTN__FOR_F64, prepare_fine, run),
                        broken = IMPL("broken", "reference", 0, ATTN__AUTOMATIC, prepare_breaks, run);
static const attn__impl *const list[] = {&amx, &wide, &picky, &avx2, &native, &oracle, NULL};

enum { AVX512 = ATTN__ISA_AVX2 | ATTN__ISA_AVX512, SERVER = AVX512 | ATTN__ISA_AVX512BF16 | ATTN__ISA_AMX };

static attn_plan draft(uint32_t isa, const char *text, const char *named) {
    attn_plan plan;
    memset(&plan, 0, sizeof plan);
    assert_int_equal(attn_problem_parse(&plan.problem, text, NULL), ATTN_OK);
    plan.machine.isa = isa;
    plan.machine.threads = 48;
    plan.hints.implementation = named;
    return plan;
}

#define SMALL "f32:b1:h1:s9:d8"

static void test_best_first(void **state) {
    (void)state;
    attn_error error;
    attn_plan plan = draft(SERVER, "fwd:" SMALL, NULL);
    assert_int_equal(attn__plan_choose(&plan, list, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &amx);
    assert_int_equal(plan.n_refusals, 0);
    assert_int_equal(plan.choice.threads, 48);
    assert_int_equal(plan.workspace, 640);

    plan = draft(SERVER, "bwd:" SMALL, NULL);
    assert_int_equal(attn__plan_choose(&plan, list, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &wide);
    assert_string_equal(plan.refusals[0].reason, "pass is backward, must be forward");

    plan = draft(ATTN__ISA_AVX2, "fwd:" SMALL, NULL);
    assert_int_equal(attn__plan_choose(&plan, list, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &avx2);
    assert_int_equal(plan.n_refusals, 3);
    assert_string_equal(plan.refusals[0].name, "amx");
    assert_string_equal(plan.refusals[0].reason, "this machine lacks avx512");
    assert_string_equal(plan.refusals[1].reason, "this machine lacks avx512");
    assert_string_equal(plan.refusals[2].name, "picky");
    assert_string_equal(plan.refusals[2].reason, "tokens_kv is 9, must be at most 8");
    assert_int_equal(plan.workspace, 640);
    assert_int_equal(plan.choice.splits, 0);

    plan = draft(SERVER, "fwd:f64:b1:h1:s9:d8", NULL);
    assert_int_equal(attn__plan_choose(&plan, list, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &oracle);
    assert_string_equal(plan.refusals[0].reason, "q.dtype is f64, must be f32, f16 or bf16");
    assert_string_equal(plan.refusals[4].reason, "runs only when hints.implementation names it");
}

static void test_limit(void **state) {
    (void)state;
    attn_error error;
    attn_plan plan = draft(SERVER, "fwd:" SMALL, NULL);
    assert_int_equal(attn__plan_choose(&plan, list, &avx2, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &avx2);
    assert_string_equal(plan.refusals[0].reason, "max_isa is avx2");
    plan = draft(SERVER, "fwd:" SMALL, "amx");
    expect_error(attn__plan_choose(&plan, list, &avx2, &error), &error, ATTN_ERR_UNSUPPORTED, "hints.implementation",
                 "is amx: max_isa is avx2");
}

static void test_named(void **state) {
    (void)state;
    attn_error error;
    attn_plan plan = draft(SERVER, "fwd:" SMALL, "native");
    assert_int_equal(attn__plan_choose(&plan, list, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &native);
    assert_int_equal(plan.n_refusals, 4);
    assert_string_equal(plan.refusals[3].reason, "hints.implementation is native");

    char name[] = "avx2"; /* the caller's string may go away */
    plan = draft(SERVER, "fwd:" SMALL, name);
    assert_int_equal(attn__plan_choose(&plan, list, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.hints.implementation, avx2.name);

    plan = draft(AVX512, "fwd:" SMALL, "amx");
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_DEVICE, "hints.implementation",
                 "is amx: this machine lacks amx");
    plan = draft(SERVER, "fwd:" SMALL, "neon"); /* known, but not in this list */
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_DEVICE, "hints.implementation",
                 "is neon, which is not in this build; it has amx, avx512, picky, avx2, native, reference");
    plan = draft(SERVER, "bwd:" SMALL, "amx");
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "pass",
                 "is backward, must be forward (amx)");
    plan = draft(SERVER, "fwd:f32:b1:h1:s9:dqk8:dv577", "avx2");
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "dim_v",
                 "is 577, must be at most 576 (avx2)");
    plan = draft(SERVER, "fwd:" SMALL, "picky");
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "tokens_kv",
                 "is 9, must be at most 8 (picky)");
    plan = draft(SERVER, "fwd:" SMALL, "sse9");
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_INVALID, "hints.implementation",
                 "is \"sse9\", must be one of amx, avx512, picky, avx2, native, reference");
}

static void test_all_refuse(void **state) {
    (void)state;
    attn_error error;
    attn_plan plan = draft(ATTN__ISA_AVX2, "fwd:f32:b1:h1:s9:d600", NULL);
    expect_error(attn__plan_choose(&plan, list, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "dim_qk",
                 "amx, avx512: this machine lacks avx512; picky, avx2: dim_qk is 600, must be at most 576; "
                 "native, reference: runs only when hints.implementation names it");
    assert_null(plan.impl);
    const attn__impl *const none[] = {NULL};
    expect_error(attn__plan_choose(&plan, none, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "problem", "");
}

static void test_broken_preparation(void **state) {
    (void)state;
    attn_error error;
    const attn__impl *const one[] = {&broken, &oracle, NULL};
    attn_plan plan = draft(0, "fwd:" SMALL, NULL);
    expect_error(attn__plan_choose(&plan, one, NULL, &error), &error, ATTN_ERR_INTERNAL, "kernels", "do not fit");
    assert_null(plan.impl);
}

static void test_hints(void **state) {
    (void)state;
    attn_error error;
    attn_hints out, hints = {.struct_size = sizeof hints, .block_q = 64, .block_kv = 128, .splits = 2};
    assert_int_equal(attn__hints_read(NULL, &out, &error), ATTN_OK);
    assert_true(out.implementation == NULL && out.block_q == 0 && out.splits == 0);
    assert_int_equal(attn__hints_read(&hints, &out, &error), ATTN_OK);
    assert_true(out.block_q == 64 && out.block_kv == 128 && out.splits == 2);
    hints.block_q = -1;
    expect_error(attn__hints_read(&hints, &out, &error), &error, ATTN_ERR_INVALID, "hints.block_q",
                 "is -1, must be at least 0");
    hints.block_q = 0;
    hints.block_kv = (int64_t)1 << 40;
    expect_error(attn__hints_read(&hints, &out, &error), &error, ATTN_ERR_INVALID, "hints.block_kv", "must be at");
    hints.block_kv = 0;
    hints.splits = INT64_MIN;
    expect_error(attn__hints_read(&hints, &out, &error), &error, ATTN_ERR_INVALID, "hints.splits", "must be at least");
    hints.splits = 0;
    hints.stages = -2;
    expect_error(attn__hints_read(&hints, &out, &error), &error, ATTN_ERR_INVALID, "hints.stages", "is -2, must be at");
    hints.stages = 3;
    hints.tensor_cores = (attn_tensor_cores)3;
    expect_error(attn__hints_read(&hints, &out, &error), &error, ATTN_ERR_INVALID, "hints.tensor_cores",
                 "is 3, must be 0 (chosen), 1 (off) or 2 (on)");
    hints.tensor_cores = ATTN_TENSOR_CORES_ON;
    assert_int_equal(attn__hints_read(&hints, &out, &error), ATTN_OK);
    assert_true(out.stages == 3 && out.tensor_cores == ATTN_TENSOR_CORES_ON);
}

/* Contexts of a GPU see its implementations alone; architecture and the hint on tensor cores decide among them. */
static void test_gpu(void **state) {
    (void)state;
    const attn__impl mma = {.name = "mma",
                            .backend = "mma",
                            .device = ATTN__CUDA,
                            .least_arch = 80,
                            .tensor_cores = true,
                            .automatic = ATTN__AUTOMATIC,
                            .prepare = prepare_fine,
                            .forward = run},
                     ffma = {.name = "ffma",
                             .backend = "ffma",
                             .device = ATTN__CUDA,
                             .least_arch = 75,
                             .automatic = ATTN__AUTOMATIC,
                             .prepare = prepare_fine,
                             .forward = run};
    const attn__impl *const both[] = {&wide, &mma, &ffma, NULL};
    const attn__gpu turing = {.arch = 75}, ampere = {.arch = 80};
    attn_error error;
    attn_plan plan = draft(SERVER, "fwd:f16:b1:h1:s9:d8", NULL);
    plan.gpu = &ampere;
    assert_int_equal(attn__plan_choose(&plan, both, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &mma);
    assert_int_equal(plan.n_refusals, 0);
    plan.hints.tensor_cores = ATTN_TENSOR_CORES_OFF;
    assert_int_equal(attn__plan_choose(&plan, both, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &ffma);
    assert_string_equal(plan.refusals[0].reason, "hints.tensor_cores is off");
    plan.hints.tensor_cores = ATTN_TENSOR_CORES_ON;
    plan.gpu = &turing;
    expect_error(attn__plan_choose(&plan, both, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "problem",
                 "mma: needs sm_80, the device is sm_75; ffma: hints.tensor_cores is on, it uses none");
    plan.hints.tensor_cores = ATTN_TENSOR_CORES_CHOSEN;
    plan.hints.implementation = "avx512";
    expect_error(attn__plan_choose(&plan, both, NULL, &error), &error, ATTN_ERR_UNSUPPORTED, "hints.implementation",
                 "is avx512: runs on the CPU, the context is of a GPU");
}

/* More refusals than a plan keeps: the choice is still made. */
static void test_many(void **state) {
    (void)state;
    const attn__impl *many[ATTN__MAX_REFUSALS + 5];
    attn_error error;
    for (int n = 0; n < ATTN__MAX_REFUSALS + 3; n++) {
        many[n] = &wide;
    }
    many[ATTN__MAX_REFUSALS + 3] = &avx2;
    many[ATTN__MAX_REFUSALS + 4] = NULL;
    attn_plan plan = draft(ATTN__ISA_AVX2, "fwd:" SMALL, NULL);
    assert_int_equal(attn__plan_choose(&plan, many, NULL, &error), ATTN_OK);
    assert_ptr_equal(plan.impl, &avx2);
    assert_int_equal(plan.n_refusals, ATTN__MAX_REFUSALS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_first),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_named),
        cmocka_unit_test(test_all_refuse),
        cmocka_unit_test(test_broken_preparation),
        cmocka_unit_test(test_hints),
        cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
