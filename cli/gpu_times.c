/* SPDX-License-Identifier: Apache-2.0
 * The device works through rounds of runs that wait for nothing in between; filling the caches takes it longer than a
 * call takes the host, so every run is queued before the device reaches it. */
#include "gpu_times.h"

#include <string.h>

#include "ceilings.h"

#define FLUSH_BYTES ((size_t)256 << 20) /* twice the largest second-level cache of the known GPUs */
enum { ROUND = 10, WARM_UP = 3 };

typedef struct timer {
    const cli_runner *runner;
    const attn_plan *plan;
    attn_args args;
    attn_pass pass;
    void *flush;
    attn_event *start[ROUND], *end[ROUND];
} timer;

static attn_status create(timer *t, const cli_runner *runner, const cli_case *at, attn_error *cause) {
    memset(t, 0, sizeof *t);
    t->runner = runner;
    t->pass = at->problem.pass;
    t->plan = runner->plan[t->pass];
    t->args = cli_mirror_args(&runner->mirror, at, t->pass);
    attn_status status = attn_memory_create(&t->flush, runner->device, FLUSH_BYTES, cause);
    for (int n = 0; n < ROUND && !status; n++) {
        status = attn_event_create(&t->start[n], runner->device, cause);
        status = status ? status : attn_event_create(&t->end[n], runner->device, cause);
    }
    return status;
}

static void release(timer *t) {
    for (int n = 0; n < ROUND; n++) {
        attn_event_destroy(t->start[n]);
        attn_event_destroy(t->end[n]);
    }
    attn_memory_destroy(t->runner->device, t->flush);
}

static attn_status launch(const timer *t, double *host, attn_error *cause) {
    const cli_runner *r = t->runner;
    double before = cli_now();
    attn_status status = t->pass == ATTN_BACKWARD
                             ? attn_backward(t->plan, &t->args, r->workspace, r->workspace_size, NULL, cause)
                             : attn_forward(t->plan, &t->args, r->workspace, r->workspace_size, NULL, cause);
    *host = cli_now() - before;
    return status;
}

static attn_status run_round(const timer *t, int count, double *of_run, double *of_host, attn_error *cause) {
    attn_status status = ATTN_OK;
    for (int n = 0; n < count && !status; n++) {
        status = attn_memory_fill(t->runner->device, t->flush, (unsigned char)n, FLUSH_BYTES, NULL, cause);
        status = status ? status : attn_event_record(t->start[n], NULL, cause);
        status = status ? status : launch(t, &of_host[n], cause);
        status = status ? status : attn_event_record(t->end[n], NULL, cause);
    }
    status = status ? status : attn_stream_wait(t->runner->device, NULL, cause);
    for (int n = 0; n < count && !status; n++) {
        double milliseconds;
        status = attn_event_elapsed(t->start[n], t->end[n], &milliseconds, cause);
        of_run[n] = milliseconds * 1e-3;
    }
    return status;
}

cli_exit cli_gpu_measure(const cli_runner *runner, const cli_case *at, int least, double budget, double patience,
                         cli_gpu_times *times, cli_error *error) {
    timer t;
    attn_error cause;
    double unused[2][WARM_UP];
    times->count = 0;
    attn_status status = create(&t, runner, at, &cause);
    status = status ? status : run_round(&t, WARM_UP, unused[0], unused[1], &cause);
    for (double begin = cli_now(); !status && times->count < times->most;) {
        double now = cli_now() - begin;
        if ((times->count >= least && now >= budget) || (times->count > 0 && now >= patience)) {
            break;
        }
        int left = times->most - times->count, count = left < ROUND ? left : ROUND;
        status = run_round(&t, count, times->of_run + times->count, times->of_host + times->count, &cause);
        times->count += count;
    }
    release(&t);
    return status ? cli_fail_library(error, NULL, &cause) : CLI_RIGHT;
}

cli_exit cli_gpu_rates(const attn_context *context, attn_device_rates *rates, cli_error *error) {
    attn_error cause;
    memset(rates, 0, sizeof *rates);
    rates->struct_size = sizeof *rates;
    return attn_device_measure(context, rates, &cause) ? cli_fail_library(error, "ceilings", &cause) : CLI_RIGHT;
}

const char *cli_gpu_ceiling(const attn_device_rates *rates, const char *implementation, attn_dtype type, double *rate) {
    if (strcmp(implementation, "hopper") == 0) { /* no ceiling of warp-group products is measured */
        *rate = 0;
        return NULL;
    }
    if (strcmp(implementation, "mma") != 0) {
        *rate = rates->fma;
        return "fma";
    }
    *rate = type == ATTN_F32 ? rates->mma_tf32 : type == ATTN_F16 ? rates->mma_f16 : rates->mma_bf16;
    return type == ATTN_F32 ? "mma.tf32" : type == ATTN_F16 ? "mma.f16" : "mma.bf16";
}
