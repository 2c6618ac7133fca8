/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/backward_rows.h"

enum { ROWS_A_TILE = 32, THREADS = 128 };

static void add_kernel(attn_plan *plan, int role, const char *stem, int makes_dsink) {
    attn__kernel *kernel = attn__kernel_start(plan, role, "backward_rows.cu", stem);
    attn__kernel_set(kernel, "MAKE_DSINK", makes_dsink);
    attn__kernel_finish(kernel, plan, THREADS, 0);
}

void attn__backward_rows_prepare(attn_plan *plan, int role_delta, int role_dsink) {
    plan->gpu_choice.delta = attn__span_take(&plan->workspace, attn__cuda_delta_size(&plan->problem));
    add_kernel(plan, role_delta, "delta", 0);
    if (plan->problem.sink.dtype) {
        add_kernel(plan, role_dsink, "dsink", 1);
    }
}

attn_status attn__backward_rows_delta(attn__cuda_run *run, int role) {
    const attn_problem *p = &run->plan->problem;
    return run->args->delta
               ? ATTN_OK
               : attn__cuda_launch(run, role, attn__cuda_blocks(p, run->args, true, ROWS_A_TILE) * p->heads_q);
}

attn_status attn__backward_rows_dsink(attn__cuda_run *run, int role) {
    return run->args->dsink ? attn__cuda_launch(run, role, run->plan->problem.heads_q) : ATTN_OK;
}
