/* SPDX-License-Identifier: Apache-2.0
 * The table of known GPUs: each row within what its architecture allows and near the published rates; names as people
 * and drivers write them; lowering to an older architecture. */
#include "problem/unit.h"

#include <math.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_legal), cmocka_unit_test(test_rates_are_the_published_ones),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_completion),
        cmocka_unit_test(test_architectures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
