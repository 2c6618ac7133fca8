/* SPDX-License-Identifier: Apache-2.0
 * The table of known GPUs: each row within what its architecture allows and near the published rates; names as people
 * and drivers write them; lowering to an older architecture. */
#include "problem/unit.h"

#include <math.h>

#include "backend.h"
#include "plan/gpu.h"

static void test_rows_are_legal(void **state) {
    (void)state;
    int before = 0;
    for (int n = 0; n < ATTN__GPUS; n++) {
        const attn__gpu *gpu = &attn__gpus[n];
        assert_true(gpu->arch >= before && attn__gpu_arch(gpu->arch) == gpu->arch);
        before = gpu->arch;
        assert_true(gpu->processors >= 40 && gpu->processors <= 200);
        assert_true(gpu->shared_block == (gpu->arch == 75 ? 64 : gpu->shared_processor / 1024 - 1) * 1024);
        assert_true(gpu->shared_block >= 65536 && gpu->shared_processor <= 228 * 1024);
        assert_true(gpu->registers_processor == 65536);
        assert_true(gpu->l2_bytes >= (int64_t)4 << 20 && gpu->memory_bytes > gpu->l2_bytes);
        assert_true(gpu->hertz > 1e9 && gpu->hertz < 3e9 && gpu->memory_rate >= 3e11 && gpu->memory_rate <= 8e12);
        assert_true(gpu->fma_cycle > 0 && gpu->mma_cycle >= 2 * gpu->fma_cycle);
        assert_true(gpu->mma_tf32_cycle == (gpu->arch < 80 ? 0 : gpu->mma_cycle / 2));
        /* An architecture's own limits are no lowering. */
        attn__gpu lowered = *gpu;
        attn__gpu_lower(&lowered, gpu->arch);
        assert_memory_equal(&lowered, gpu, sizeof lowered);
    }
}

/* TFLOP/s of data sheets: float32, and dense tensor-core products of f16 with float32 sums (0: warp-wide
 * instructions stay below what the sheet counts). */
static void test_rates_are_the_published_ones(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double f32, f16;
    } rows[] = {{"t4", 8.1, 65},    {"rtx8000", 16.3, 130.5}, {"a100", 19.5, 312},      {"a100-40gb", 19.5, 312},
                {"a10", 31.2, 125}, {"l4", 30.3, 121},        {"rtx4090", 82.6, 165},   {"h100", 60, 0},
                {"h200", 60, 0},    {"b200", 70, 0},          {"rtx5090", 104.8, 209.5}};
    assert_int_equal(sizeof rows / sizeof rows[0], ATTN__GPUS);
    for (int n = 0; n < ATTN__GPUS; n++) {
        const attn__gpu *gpu = attn__gpu_find(rows[n].name);
        assert_non_null(gpu);
        double cycles = gpu->processors * gpu->hertz * 1e-12;
        assert_true(fabs(cycles * gpu->fma_cycle / rows[n].f32 - 1) < 0.02);
        assert_true(rows[n].f16 == 0 || fabs(cycles * gpu->mma_cycle / rows[n].f16 - 1) < 0.02);
    }
}

static void test_names(void **state) {
    (void)state;
    assert_ptr_equal(attn__gpu_find("H200"), attn__gpu_find("h200"));
    assert_string_equal(attn__gpu_find("A100")->name, "a100");
    assert_true(attn__gpu_find("a100-40gb")->memory_rate < attn__gpu_find("a100")->memory_rate);
    assert_null(attn__gpu_find("a1"));
    assert_null(attn__gpu_find("a1000"));
    assert_null(attn__gpu_find(""));
}

static attn__gpu completed(const char *name, int arch) {
    attn__gpu gpu = {.name = name, .arch = arch};
    attn__gpu_complete(&gpu);
    return gpu;
}

static void test_completion(void **state) {
    (void)state;
    assert_true(completed("NVIDIA GeForce RTX 4090", 89).mma_cycle == 512);
    assert_true(completed("NVIDIA L4", 89).mma_cycle == 1024);
    assert_true(completed("NVIDIA A100-SXM4-80GB", 80).memory_rate == 2039e9);
    assert_true(completed("NVIDIA A10", 86).hertz == 1.695e9);
    assert_true(completed("Tesla T4", 75).mma_tf32_cycle == 0);
    /* Unknown names: the same architecture, else the one before it. */
    assert_true(completed("NVIDIA L40S", 89).fma_cycle == 256);
    assert_true(completed("NVIDIA A10G", 86).memory_rate == 600e9);
    assert_true(completed("Orin", 87).fma_cycle == 256);
    assert_true(completed("NVIDIA B300", 103).mma_cycle == 2048);
    assert_true(completed("something", 130).mma_cycle == 512);
    /* What the driver told stays. */
    attn__gpu gpu = {.name = "NVIDIA H200", .arch = 90, .hertz = 1.98e9, .memory_rate = 4.9e12};
    attn__gpu_complete(&gpu);
    assert_true(gpu.hertz == 1.98e9 && gpu.memory_rate == 4.9e12 && gpu.mma_cycle == 2560);
}

static void test_architectures(void **state) {
    (void)state;
    static const int pairs[][2] = {{70, 0},  {75, 75}, {80, 80},   {86, 86},   {87, 86},   {89, 89},
                                   {90, 90}, {99, 90}, {100, 100}, {103, 100}, {120, 120}, {121, 120}};
    for (size_t n = 0; n < sizeof pairs / sizeof pairs[0]; n++) {
        assert_int_equal(attn__gpu_arch(pairs[n][0]), pairs[n][1]);
    }
    attn__gpu gpu = *attn__gpu_find("h200");
    attn__gpu_lower(&gpu, 75);
    assert_true(gpu.arch == 75 && gpu.shared_block == 65536 && gpu.shared_processor == 65536);
    assert_true(gpu.processors == 132 && gpu.mma_tf32_cycle == 0 && gpu.mma_cycle == 2560);
    gpu = *attn__gpu_find("h200");
    attn__gpu_lower(&gpu, 80);
    assert_true(gpu.arch == 80 && gpu.shared_block == 163 * 1024 && gpu.mma_tf32_cycle == 1280);
}

static void test_blocks(void **state) {
    (void)state;
    const attn__gpu *h200 = attn__gpu_find("h200"), *t4 = attn__gpu_find("t4"), *l4 = attn__gpu_find("l4");
    assert_int_equal(attn__gpu_blocks(h200, 128, 0), 16); /* 2048 threads */
    assert_int_equal(attn__gpu_blocks(h200, 32, 0), 32);
    assert_int_equal(attn__gpu_blocks(h200, 128, 227 * 1024), 1);
    assert_int_equal(attn__gpu_blocks(h200, 128, 113 * 1024), 2);
    assert_int_equal(attn__gpu_blocks(h200, 128, 114 * 1024), 1); /* each block takes 1 KiB more */
    assert_int_equal(attn__gpu_blocks(t4, 256, 32 * 1024), 2);
    assert_int_equal(attn__gpu_blocks(t4, 256, 0), 4);
    assert_int_equal(attn__gpu_blocks(l4, 128, 24 * 1024), 4);
    assert_int_equal(attn__gpu_blocks(l4, 128, 99 * 1024 + 1), 0);
}

/* A plan as a backend leaves it, described. */
static void test_description(void **state) {
    (void)state;
    static attn_plan plan;
    const attn__impl mma = {.name = "mma", .backend = "mma", .device = ATTN__CUDA};
    char text[4096], cut[100];
    size_t total = 0;
    memset(&plan, 0, sizeof plan);
    assert_int_equal(attn_problem_parse(&plan.problem, "bwd:bf16:b1:hq32:hk8:s4096:d128:causal", NULL), ATTN_OK);
    plan.gpu = attn__gpu_find("a100");
    plan.impl = &mma;
    plan.gpu_choice = (attn__gpu_choice){.tile_q = 64,
                                         .tile_kv = 128,
                                         .stages = 2,
                                         .warps = 8,
                                         .group = 4,
                                         .splits = 1,
                                         .tensor_cores = true,
                                         .n_kernels = 2,
                                         .delta = attn__span_take(&total, 32 * 4096 * 4),
                                         .dq = attn__span_take(&total, 32 * 4096 * 128 * 4)};
    plan.gpu_choice.kernels[0] = (attn__kernel){.name = "attn_delta_bf16_d128__sm80", .threads = 128};
    plan.gpu_choice.kernels[1] =
        (attn__kernel){.name = "attn_bwd_bf16_d128_m64n128__sm80", .threads = 256, .shared = 80 * 1024};
    plan.workspace = total;
    plan.n_refusals = 1;
    plan.refusals[0] = (attn__refusal){"sm90", "needs sm_90, the device is sm_80"};
    size_t length = attn_plan_describe(&plan, text, sizeof text);
    assert_true(length == strlen(text) && attn_plan_describe(&plan, cut, sizeof cut) == length);
    assert_string_equal(
        text,
        "problem         bwd:bf16:b1:hq32:hk8:sq4096:skv4096:d128:causal\n"
        "device          a100: sm_80, 108 processors, 163 KiB of shared memory a block at most\n"
        "implementation  mma (the first that accepts)\n"
        "passed over     sm90: needs sm_90, the device is sm_80\n"
        "tile            64 queries x 128 keys, 2 stages, 8 warps\n"
        "form            tensor cores, 4 query heads a tile, keys split in 1\n"
        "kernel          attn_delta_bf16_d128__sm80: 128 threads, 0 B of shared memory, up to 16 blocks a "
        "processor\n"
        "kernel          attn_bwd_bf16_d128_m64n128__sm80: 256 threads, 80 KiB of shared memory, up to 2 blocks a "
        "processor\n"
        "workspace       67633152 bytes: delta 512 KiB, dq sums 64 MiB\n"
        "memory          64.5 MiB beyond inputs and outputs; the unfused path stores 2 GiB of scores\n"
        "work            343.7 GFLOP, 160.5 MiB in and out\n"
        "expected        1.1 ms, compute-bound, at 311.9 TFLOP/s and 2.039 TB/s\n");
    attn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(attn_plan_query(&plan, &info, NULL), ATTN_OK);
    assert_true(info.threads == 128 && info.block_q == 64 && info.block_kv == 128 && info.splits == 1);
    assert_true(fabs(info.peak_flops - 108 * 1.41e9 * 2048) < 1 && info.peak_bytes == 2039e9);
    plan.gpu_choice.tensor_cores = false;
    assert_int_equal(attn_plan_query(&plan, &info, NULL), ATTN_OK);
    assert_true(fabs(info.peak_flops - 108 * 1.41e9 * 128) < 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_legal), cmocka_unit_test(test_rates_are_the_published_ones),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_completion),
        cmocka_unit_test(test_architectures),  cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_description),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
