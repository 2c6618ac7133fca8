/* SPDX-License-Identifier: Apache-2.0
 * `ffma` forward: one kernel; a block for each OUTER rows of a run and head. */
#include "base/error.h"
#include "cuda/ffma.h"
#include "plan/gpu.h"

enum { ROLE_FORWARD = 0 };

attn_status attn__ffma_prepare_forward(attn_plan *plan, attn_error *error) {
    attn__gpu_choice *choice = &plan->gpu_choice;
    const int columns = attn__ffma_columns(plan->problem.dim_v), rows = attn__ffma_rows(plan, columns);
    choice->tile_q = 8 * rows;
    choice->tile_kv = FFMA_INNER;
    choice->stages = 2;
    choice->warps = FFMA_THREADS / 32;
    choice->group = choice->splits = 1;
    choice->tensor_cores = false;
    attn__kernel *kernel = attn__kernel_start(plan, ROLE_FORWARD, "forward_ffma.cu", "fwd_ffma");
    attn__kernel_set(kernel, "ROWS", rows);
    const int resident = attn__ffma_resident(rows, columns);
    const bool room = attn__gpu_blocks(plan->gpu, FFMA_THREADS, FFMA_LONG_SHARED) >= resident;
    attn__kernel_set(kernel, "DEPTH", room ? FFMA_LONG_DEPTH : FFMA_DEPTH);
    attn__kernel_set(kernel, "RESIDENT", resident);
    attn__kernel_name(kernel, "_m%dn%d", choice->tile_q, choice->tile_kv);
    attn__kernel_finish(kernel, plan, FFMA_THREADS, 0);
    plan->workspace = 0;
    return attn__succeed(error);
}

attn_status attn__ffma_run_forward(attn__cuda_run *run) {
    const attn_plan *plan = run->plan;
    int64_t blocks = attn__cuda_blocks(&plan->problem, run->args, true, plan->gpu_choice.tile_q);
    return attn__cuda_launch(run, ROLE_FORWARD, blocks * plan->problem.heads_q);
}
