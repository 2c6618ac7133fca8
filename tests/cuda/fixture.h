/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the CUDA runtime share: the stand-in driver, a folder for kernels, and plans whose kernels are
 * those of lengths.cu alone, so that no test here depends on an implementation. */
#ifndef TESTS_CUDA_FIXTURE_H
#define TESTS_CUDA_FIXTURE_H

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "attn/attn_device.h"
#include "attn/attn_kernels.h"
#include "cuda/device.h"
#include "fake/driver.h"
#include "fake/nvrtc.h"
#include "problem/problem.h"
#include "problem/unit.h"

#define WITH_FAKE_DRIVER setenv("ATTN_LIBCUDA", FAKE_DRIVER, 1)

/* The block of orders, fresh. The library stays loaded. */
static inline fake_orders *fake_driver(void) {
    void *library = dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_NODELETE);
    assert_non_null(library);
    fake_orders *orders = dlsym(library, "fake_orders");
    assert_non_null(orders);
    memset(orders, 0, sizeof *orders);
    orders->devices = 2;
    orders->arch = 90;
    WITH_FAKE_DRIVER;
    return orders;
}

static inline attn_config cuda_config(const char *device, const char *cache) {
    attn_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.device = device;
    config.cache = cache;
    config.options = ATTN_COMPILE;
    return config;
}

/* The same for the stand-in compiler, which contexts that set no nvrtc then use. */
static inline fake_compiler *fake_nvrtc(void) {
    void *library = dlopen(FAKE_NVRTC, RTLD_NOW | RTLD_NODELETE);
    assert_non_null(library);
    fake_compiler *orders = dlsym(library, "fake_compiler");
    assert_non_null(orders);
    memset(orders, 0, sizeof *orders);
    setenv("ATTN_NVRTC", FAKE_NVRTC, 1);
    return orders;
}

static inline attn_problem packed_problem(void) {
    attn_problem p = attn_problem_dense(ATTN_BF16, 4, 2, 2, 128, 128, 64, 64);
    p.rows_q = ATTN_PACKED;
    p.total_q = 300;
    p.q.stride[0] = p.o.stride[0] = 0;
    return p;
}

static inline attn_context *opened(const attn_config *config) {
    attn_context *context;
    attn_error error;
    expect_success(attn_context_create(&context, config, &error), &error);
    return context;
}

/* A plan by hand: the kernels for lengths, nothing else. `name` (may be NULL) adds a kernel of that name. */
static inline void draft_plan(attn_plan *plan, const attn_context *context, const attn_problem *problem,
                              const char *name) {
    attn_error error;
    memset(plan, 0, sizeof *plan);
    plan->context = context;
    plan->gpu = context->gpu;
    expect_success(attn__problem_canonical(problem, &plan->problem, &error), &error);
    if (name) {
        attn__kernel *kernel = &plan->gpu_choice.kernels[plan->gpu_choice.n_kernels++];
        kernel->source = "lengths.cu";
        kernel->threads = 64;
        attn__kernel_name(kernel, "%s", name);
        attn__kernel_set(kernel, "TASK", 2);
    }
    attn__cuda_plan_lengths(plan);
}

static inline void build_plan(attn_plan *plan) {
    attn_error error;
    if (attn__cuda_build(plan, &error)) {
        fail_msg("%s %s", error.field, error.message);
    }
}

/* An empty folder of its own; the path is valid until the next call. */
static inline const char *fresh_folder(void) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/attn-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

/* Calls each on every file, and tells how many there are. */
static inline int each_file(const char *folder, void (*each)(const char *path)) {
    char path[1024];
    int count = 0;
    DIR *open = opendir(folder);
    for (struct dirent *entry = open ? readdir(open) : NULL; entry; entry = readdir(open)) {
        if (entry->d_name[0] != '.') {
            count++;
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            if (each) {
                each(path);
            }
        }
    }
    if (open) {
        closedir(open);
    }
    return count;
}

static inline void remove_file(const char *path) {
    unlink(path);
}
static inline void remove_folder(const char *folder) {
    each_file(folder, remove_file);
    rmdir(folder);
}

#endif
