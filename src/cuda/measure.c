/* SPDX-License-Identifier: Apache-2.0
 * What a device's units do at most, measured by the kernels of device/ceilings.cu. They are compiled and kept as the
 * kernels of a plan are, for which a draft of one stands in. */
#include <stdio.h>
#include <string.h>

#include "attn/attn_device.h"
#include "base/error.h"
#include "cuda/device.h"
#include "cuda/device/ceilings.h"
#include "problem/problem.h"

#define BUFFER_BYTES ((size_t)512 << 20) /* several times the largest second-level cache */
enum { RUNS = 5, BLOCKS_A_PROCESSOR = 8, THREADS = 256, MMA_THREADS = 128 };

static const struct work {
    const char *name;
    int which, threads;
    attn_dtype dtype;
    int rounds;
    size_t rate; /* field of attn_device_rates */
} works[] = {
    {"fma", ATTN__WORK_FMA, THREADS, ATTN_F32, 4096, offsetof(attn_device_rates, fma)},
    {"f16", ATTN__WORK_MMA, MMA_THREADS, ATTN_F16, 16384, offsetof(attn_device_rates, mma_f16)},
    {"bf16", ATTN__WORK_MMA, MMA_THREADS, ATTN_BF16, 16384, offsetof(attn_device_rates, mma_bf16)},
    {"tf32", ATTN__WORK_MMA, MMA_THREADS, ATTN_F32, 16384, offsetof(attn_device_rates, mma_tf32)},
    {"exp", ATTN__WORK_EXP, THREADS, ATTN_F32, 512, offsetof(attn_device_rates, exp)},
    {"read", ATTN__WORK_READ, THREADS, ATTN_F32, 1, offsetof(attn_device_rates, read)},
    {"copy", ATTN__WORK_COPY, THREADS, ATTN_F32, 1, offsetof(attn_device_rates, copy)},
};
enum { WORKS = sizeof works / sizeof works[0] };

static bool exists(const attn__gpu *gpu, const struct work *work) {
    return work->which != ATTN__WORK_MMA || work->dtype == ATTN_F16 || gpu->arch >= 80;
}

/* Operations, or bytes, of one launch. */
static double amount(const struct work *work, unsigned blocks) {
    double threads = (double)blocks * work->threads, rounds = work->rounds;
    switch (work->which) {
    case ATTN__WORK_FMA: return 2 * threads * rounds * ATTN__CHAINS * ATTN__STEPS;
    case ATTN__WORK_EXP: return threads * rounds * ATTN__CHAINS * ATTN__STEPS;
    case ATTN__WORK_MMA: /* 16 x 8 x 16, of tf32 16 x 8 x 8 */
        return threads / 32 * rounds * ATTN__MMA_SUMS * ATTN__MMA_STEPS * (work->dtype == ATTN_F32 ? 2048 : 4096);
    case ATTN__WORK_READ: return (double)BUFFER_BYTES;
    default: return 2 * (double)BUFFER_BYTES;
    }
}

static attn_status draft(attn_plan *plan, const attn_context *context, attn_error *error) {
    attn_problem any = attn_problem_dense(ATTN_F32, 1, 1, 1, 1, 1, 1, 1);
    memset(plan, 0, sizeof *plan);
    plan->context = context;
    plan->gpu = context->gpu;
    for (int n = 0; n < WORKS; n++) {
        attn__gpu_choice *choice = &plan->gpu_choice;
        if (!exists(plan->gpu, &works[n])) {
            continue;
        }
        attn__kernel *kernel = &choice->kernels[choice->n_kernels];
        choice->roles[choice->n_kernels++] = n;
        kernel->source = "ceilings.cu";
        kernel->threads = works[n].threads;
        snprintf(kernel->name, sizeof kernel->name, "attn_ceiling_%s__sm%d", works[n].name, plan->gpu->arch);
        attn__kernel_set(kernel, "WORK", works[n].which);
        attn__kernel_set(kernel, "DTYPE", works[n].dtype);
    }
    return attn__problem_canonical(&any, &plan->problem, error);
}

typedef struct bench {
    const attn_plan *plan;
    void *out, *from, *to;
    attn_event *start, *end;
} bench;

static attn_status launch(const bench *b, int n, attn_error *error) {
    const attn_plan *plan = b->plan;
    const attn__cuda_built *built = plan->built;
    const struct work *work = &works[plan->gpu_choice.roles[n]];
    unsigned blocks = (unsigned)(plan->gpu->processors * BLOCKS_A_PROCESSOR);
    attn__ceiling_params p = {.out = b->out,
                              .from = b->from,
                              .to = b->to,
                              .units = (long long)(BUFFER_BYTES / 16),
                              .factor = 0.5f,
                              .never = -1.25f,
                              .rounds = work->rounds};
    void *list[] = {&p};
    CUresult result = built->cuda->driver.LaunchKernel(built->functions[n], blocks, 1, 1, (unsigned)work->threads, 1, 1,
                                                       0, NULL, list, NULL);
    return result ? attn__driver_fail(&built->cuda->driver, result, "launch", plan->gpu_choice.kernels[n].name, error)
                  : ATTN_OK;
}

/* The best of some runs, after one that does not count. */
static attn_status measure(const bench *b, int n, attn_device_rates *rates, attn_error *error) {
    const struct work *work = &works[b->plan->gpu_choice.roles[n]];
    double least = 0, all = amount(work, (unsigned)(b->plan->gpu->processors * BLOCKS_A_PROCESSOR));
    attn_status status = launch(b, n, error);
    for (int run = 0; run < RUNS && !status; run++) {
        double milliseconds = 0;
        status = attn_event_record(b->start, NULL, error);
        status = status ? status : launch(b, n, error);
        status = status ? status : attn_event_record(b->end, NULL, error);
        status = status ? status : attn_event_elapsed(b->start, b->end, &milliseconds, error);
        least = run == 0 || milliseconds < least ? milliseconds : least;
    }
    if (!status && least > 0) {
        double rate = all / (least * 1e-3);
        memcpy((char *)rates + work->rate, &rate, sizeof rate);
    }
    return status;
}

static attn_status measure_all(const attn_plan *plan, attn_device_rates *rates, attn_error *error) {
    const attn_context *context = plan->context;
    bench b = {.plan = plan};
    bool pushed = false;
    size_t threads = (size_t)plan->gpu->processors * BLOCKS_A_PROCESSOR * THREADS;
    attn_status status = attn_memory_create(&b.out, context, threads * sizeof(float), error);
    status = status ? status : attn_memory_create(&b.from, context, BUFFER_BYTES, error);
    status = status ? status : attn_memory_create(&b.to, context, BUFFER_BYTES, error);
    status = status ? status : attn_memory_fill(context, b.from, 0x5a, BUFFER_BYTES, NULL, error);
    status = status ? status : attn_event_create(&b.start, context, error);
    status = status ? status : attn_event_create(&b.end, context, error);
    status = status ? status : attn__cuda_enter(context->cuda, &pushed, error);
    for (int n = 0; n < plan->gpu_choice.n_kernels && !status; n++) {
        status = measure(&b, n, rates, error);
    }
    attn__cuda_leave(context->cuda, pushed);
    attn_event_destroy(b.start);
    attn_event_destroy(b.end);
    attn_memory_destroy(context, b.out);
    attn_memory_destroy(context, b.from);
    attn_memory_destroy(context, b.to);
    return status;
}

attn_status attn_device_measure(const attn_context *context, attn_device_rates *out, attn_error *error) {
    attn_plan plan;
    attn_device_rates rates;
    if (!context || !out) {
        return attn__fail(error, ATTN_ERR_INVALID, context ? "rates" : "context", "is NULL");
    }
    attn_status status = attn__struct_minimum(out->struct_size, sizeof out->struct_size, error);
    if (!status && !context->cuda) {
        status = attn__fail(error, ATTN_ERR_DEVICE, "device", "is cpu, must be a GPU");
    }
    status = status ? status : draft(&plan, context, error);
    status = status ? status : attn__cuda_build(&plan, error);
    if (status) {
        return status;
    }
    memset(&rates, 0, sizeof rates);
    status = context->cuda->opened
                 ? measure_all(&plan, &rates, error)
                 : attn__fail(error, ATTN_ERR_DEVICE, "device", "is %s: facts of a GPU, which cannot be measured",
                              context->config.device);
    attn__cuda_unbuild(&plan);
    if (status) {
        return status;
    }
    attn__struct_write(out, &rates, sizeof rates);
    return attn__succeed(error);
}
