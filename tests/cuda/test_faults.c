/* SPDX-License-Identifier: Apache-2.0
 * What can go wrong between the library and NVIDIA's: each fault is ordered from a stand-in and must come back as an
 * error that names it, with nothing written. */
#include "fixture.h"

#define REFUSED(wanted, field, part, ...)                                                                              \
    do {                                                                                                               \
        attn_config c = cuda_config("cuda", "");                                                                       \
        attn_context *none = (attn_context *)&c;                                                                       \
        attn_error error_of;                                                                                           \
        __VA_ARGS__;                                                                                                   \
        expect_error(attn_context_create(&none, &c, &error_of), &error_of, wanted, field, part);                       \
        assert_null(none);                                                                                             \
    } while (0)

static void test_no_driver(void **state) {
    (void)state;
    setenv("ATTN_LIBCUDA", "/nowhere/libcuda.so.1", 1);
    REFUSED(ATTN_ERR_DEVICE, "driver", "cannot be loaded: install NVIDIA's driver", (void)c);
    setenv("ATTN_LIBCUDA", FAKE_NVRTC, 1); /* a library, but of another kind */
    REFUSED(ATTN_ERR_DEVICE, "driver", "is too old: libcuda has no cuInit", (void)c);
}

static void test_driver_and_devices(void **state) {
    (void)state;
    fake_orders *orders = fake_driver();
    orders->version = 11010;
    REFUSED(ATTN_ERR_DEVICE, "driver", "speaks CUDA 11.1, must be at least 11.2", (void)c);
    orders->version = 0;
    orders->init = CUDA_ERROR_NO_DEVICE;
    REFUSED(ATTN_ERR_DEVICE, "device", "sees no GPU; nvidia-smi -L", (void)c);
    orders->init = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    REFUSED(ATTN_ERR_DEVICE, "driver", "different versions", (void)c);
    orders->init = 999;
    REFUSED(ATTN_ERR_DEVICE, "driver", "cuInit failed: CUDA_ERROR_OTHER 999 (as ordered)", (void)c);
    orders->init = 0;
    orders->devices = 0;
    REFUSED(ATTN_ERR_DEVICE, "device", "no GPU is there", (void)c);
    orders->devices = 2;
    REFUSED(ATTN_ERR_DEVICE, "device", "is cuda:2, must be below cuda:2", c.device = "cuda:2");
    REFUSED(ATTN_ERR_INVALID, "device", "must be \"cpu\", \"cuda\"", c.device = "cuda:x");
    orders->arch = 70;
    REFUSED(ATTN_ERR_DEVICE, "device", "sm_70, must be sm_75 (Turing) or later", (void)c);
    orders->arch = 90;
    REFUSED(ATTN_ERR_INVALID, "max_isa", "is \"sm_81\", must be sm_75", c.max_isa = "sm_81");
    REFUSED(ATTN_ERR_INVALID, "kernels", "cannot be read: No such file", c.kernels = "/nowhere/pack");
    assert_int_equal(orders->retained, 0); /* every refusal gave back what it had */
}

static void test_facts(void **state) {
    (void)state;
    fake_driver();
    fake_nvrtc();
    attn_config c = cuda_config("cuda:1", "");
    attn_context *context;
    context = opened(&c);
    assert_string_equal(context->config.device, "cuda:1");
    assert_string_equal(context->gpu->name, "NVIDIA H200");
    assert_int_equal(context->gpu->arch, 90);
    assert_int_equal(context->gpu->processors, 132);
    assert_int_equal(context->gpu->shared_block, 232448);
    assert_true(context->gpu->mma_cycle > 0 && context->gpu->memory_rate > 0);
    attn_context_destroy(context);
    c.max_isa = "sm_75";
    context = opened(&c);
    assert_int_equal(context->gpu->arch, 75);
    assert_int_equal(context->gpu->shared_block, 65536);
    assert_true(attn__cuda_ptx(context->cuda));
    attn_context_destroy(context);
}

/* --- Compiling --- */

static void test_compiler(void **state) {
    (void)state;
    attn_plan plan;
    attn_error error;
    attn_context *context;
    attn_problem problem = packed_problem();
    attn_config c = cuda_config("gpu:a100", "");
    c.nvrtc = "/nowhere/libnvrtc.so.13";
    context = opened(&c); /* a cache or a pack may do */
    draft_plan(&plan, context, &problem, NULL);
    expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_COMPILE, "nvrtc",
                 "cannot be loaded: /nowhere/libnvrtc.so.13; set ATTN_NVRTC");
    assert_null(plan.built);
    attn_context_destroy(context);
    c.nvrtc = "";
    context = opened(&c);
    draft_plan(&plan, context, &problem, NULL);
    expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_COMPILE, "nvrtc", "switched off by setting");
    attn_context_destroy(context);

    fake_compiler *compiler = fake_nvrtc();
    c.nvrtc = NULL;
    compiler->major = 12;
    compiler->minor = 4;
    context = opened(&c);
    draft_plan(&plan, context, &problem, NULL);
    compiler->result = 5;
    expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_COMPILE, "nvrtc",
                 "does not know sm_80: use one of a newer toolkit");
    compiler->result = 6;
    compiler->log = "lengths.cu(3): warning: x\nlengths.cu(12): error: what is this\nmore\n";
    expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_COMPILE, "kernel",
                 "NVRTC 12.4, error 6: lengths.cu(12): error: what is this");
    compiler->result = 0;
    compiler->log = NULL;
    build_plan(&plan); /* a failure is not kept */
    assert_non_null(strstr(compiler->options, "--gpu-architecture=sm_80 -default-device"));
    assert_int_equal(context->cuda->kernels->code.registers, 42);
    assert_int_equal(context->cuda->kernels->code.stack_bytes, 8);
    assert_int_equal(context->cuda->kernels->code.spill_bytes, 16);
    attn__cuda_unbuild(&plan);
    attn_context_destroy(context);
}

/* A kernel with a constant more than there is room for, whether or not it would be compiled. */
static void test_room(void **state) {
    (void)state;
    attn_problem problem = packed_problem();
    attn_error error;
    for (int compiled = 0; compiled < 2; compiled++) {
        attn_plan plan;
        attn_config c = cuda_config("gpu:a100", "");
        fake_compiler *compiler = fake_nvrtc();
        c.options = compiled ? ATTN_COMPILE : 0;
        attn_context *context = opened(&c);
        draft_plan(&plan, context, &problem, "attn_wide");
        attn__kernel *kernel = &plan.gpu_choice.kernels[0];
        while (kernel->n_constants < ATTN__MAX_CONSTANTS) {
            attn__kernel_set(kernel, "MORE", 1);
        }
        build_plan(&plan);
        attn__cuda_unbuild(&plan);
        int before = compiler->compiled;
        attn__kernel_set(kernel, "MORE", 1);
        char limit[64];
        snprintf(limit, sizeof limit, "attn_wide has %d constants, must have at most %d", ATTN__MAX_CONSTANTS + 1,
                 ATTN__MAX_CONSTANTS);
        expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_INTERNAL, "kernel", limit);
        assert_null(plan.built);
        assert_int_equal(compiler->compiled, before);
        attn_context_destroy(context);
    }
}

static void test_loading(void **state) {
    (void)state;
    fake_orders *orders = fake_driver();
    fake_compiler *compiler = fake_nvrtc();
    attn_plan plan;
    attn_error error;
    attn_context *context;
    attn_problem problem = packed_problem();
    attn_config c = cuda_config("cuda", "");
    context = opened(&c);
    draft_plan(&plan, context, &problem, NULL);
    orders->load = CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_DEVICE, "driver",
                 "speaks CUDA 13.0 and takes no code of NVRTC 13.0: install a newer driver");
    orders->load = CUDA_ERROR_OUT_OF_MEMORY;
    expect_error(attn__cuda_build(&plan, &error), &error, ATTN_ERR_MEMORY, "kernel",
                 "cuModuleLoadDataEx failed: CUDA_ERROR_OUT_OF_MEMORY 2");
    orders->load = 0;
    assert_int_equal(orders->pushed, 0);
    build_plan(&plan);
    assert_non_null(strstr(compiler->options, "--gpu-architecture=sm_90a "));
    assert_int_equal(orders->loads, 1);
    attn__cuda_unbuild(&plan);
    attn_context_destroy(context);
    assert_int_equal(orders->unloads, 1);
    assert_int_equal(orders->retained, 0);
}

/* --- Running --- */

typedef struct stage {
    fake_orders *orders;
    attn_context *context;
    attn_plan plan;
    attn_args args;
    char *workspace;
    attn__cuda_run run;
    int32_t cu[5];
} stage;

static void open_stage(stage *s) {
    attn_problem problem = packed_problem();
    attn_config c = cuda_config("cuda", "");
    s->orders = fake_driver();
    fake_nvrtc();
    s->context = opened(&c);
    draft_plan(&s->plan, s->context, &problem, "attn_work");
    build_plan(&s->plan);
    s->workspace = aligned_alloc(64, (s->plan.workspace / 64 + 2) * 64);
    memset(s->workspace, 0x77, s->plan.workspace + 64);
    const int32_t cu[5] = {0, 128, 128, 200, 300};
    memcpy(s->cu, cu, sizeof cu);
    s->args = attn_args_init();
    s->args.cu_seqlens_q = s->cu;
}

static void close_stage(stage *s) {
    free(s->workspace);
    attn__cuda_unbuild(&s->plan);
    attn_context_destroy(s->context);
}

static void test_running(void **state) {
    (void)state;
    stage s;
    attn_error error;
    open_stage(&s);
    /* The device's context is made current for the time of the run only. */
    assert_int_equal(attn__cuda_begin(&s.run, &s.plan, &s.args, s.workspace, NULL, &error), ATTN_OK);
    assert_int_equal(s.orders->pushed, 1);
    assert_memory_equal(s.workspace, s.cu, sizeof s.cu);
    assert_ptr_equal(s.run.params.side_q.cu, s.workspace);
    assert_int_equal(attn__cuda_launch(&s.run, 0, 77), ATTN_OK);
    assert_string_equal(s.orders->name, "attn_work");
    assert_int_equal(s.orders->blocks, 77);
    assert_int_equal(s.orders->threads, 64);
    assert_int_equal(attn__cuda_launch(&s.run, 0, 0), ATTN_OK); /* nothing */
    assert_int_equal(s.orders->launches, 2);
    assert_int_equal(attn__cuda_launch(&s.run, 0, 5000000000), ATTN_OK); /* three launches */
    assert_int_equal(s.orders->launches, 5);
    assert_int_equal(s.run.params.first_tile, 2 * (int64_t)0x7fffffff);
    assert_int_equal(s.run.params.tiles, 5000000000);
    assert_int_equal(attn__cuda_end(&s.run, ATTN_OK), ATTN_OK);
    assert_int_equal(s.orders->pushed, 0);
    assert_int_equal(s.orders->synchronised, 0);
    /* Current already: nothing is pushed. */
    s.orders->current = s.context->cuda->handle;
    assert_int_equal(attn__cuda_begin(&s.run, &s.plan, &s.args, s.workspace, (attn_stream)2, &error), ATTN_OK);
    assert_int_equal(s.orders->pushed, 0);
    assert_int_equal(attn__cuda_end(&s.run, ATTN_OK), ATTN_OK);
    close_stage(&s);
}

static void test_run_faults(void **state) {
    (void)state;
    stage s;
    attn_error error;
    attn_context *other;
    attn_stream stream;
    open_stage(&s);
    s.orders->launch = 700;
    expect_error(attn__cuda_begin(&s.run, &s.plan, &s.args, s.workspace, NULL, &error), &error, ATTN_ERR_DEVICE,
                 "launch", "attn_upload__sm90 failed: CUDA_ERROR_OTHER 700");
    assert_int_equal(s.orders->pushed, 0);
    s.orders->launch = 0;
    s.orders->push = 201;
    expect_error(attn__cuda_begin(&s.run, &s.plan, &s.args, s.workspace, NULL, &error), &error, ATTN_ERR_DEVICE,
                 "device", "making its context current failed");
    s.orders->push = 0;
    attn_config c = cuda_config("cuda:1", "");
    other = opened(&c);
    expect_success(attn_stream_create(&stream, other, &error), &error);
    expect_error(attn__cuda_begin(&s.run, &s.plan, &s.args, s.workspace, stream, &error), &error, ATTN_ERR_INVALID,
                 "stream", "belongs to another CUDA context");
    assert_int_equal(s.orders->pushed, 0);
    assert_int_equal(s.orders->launches, 0);
    attn_context_destroy(other);
    expect_error(attn__cuda_launch_raw(&s.run, 55, 1, &s.run), &error, ATTN_ERR_INTERNAL, "plan",
                 "has no kernel for role 55");
    close_stage(&s);

    /* Facts alone do not run. */
    attn_plan plan;
    attn_problem problem = packed_problem();
    c = cuda_config("gpu:h200", "");
    other = opened(&c);
    draft_plan(&plan, other, &problem, NULL);
    build_plan(&plan);
    expect_error(attn__cuda_begin(&s.run, &plan, &s.args, NULL, NULL, &error), &error, ATTN_ERR_DEVICE, "device",
                 "is gpu:h200: facts of a GPU");
    attn__cuda_unbuild(&plan);
    attn_context_destroy(other);
}

/* --- Memory --- */

static void test_memory(void **state) {
    (void)state;
    fake_orders *orders = fake_driver();
    attn_config c = cuda_config("cuda", "");
    attn_context *context;
    attn_error error;
    void *memory;
    context = opened(&c);
    orders->allocate = CUDA_ERROR_OUT_OF_MEMORY;
    expect_error(attn_memory_create(&memory, context, 1000, &error), &error, ATTN_ERR_MEMORY, "memory",
                 "1000 bytes could not be allocated on cuda:0");
    assert_null(memory);
    orders->allocate = 0;
    expect_success(attn_memory_create(&memory, context, 1000, &error), &error);
    attn_memory_destroy(context, memory);
    assert_int_equal(orders->allocated, 0);
    assert_int_equal(orders->pushed, 0);
    attn_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_driver), cmocka_unit_test(test_driver_and_devices),
        cmocka_unit_test(test_facts),     cmocka_unit_test(test_compiler),
        cmocka_unit_test(test_room),      cmocka_unit_test(test_loading),
        cmocka_unit_test(test_running),   cmocka_unit_test(test_run_faults),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
