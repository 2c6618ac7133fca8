/* SPDX-License-Identifier: Apache-2.0
 * `ffma` backward: delta, then a pass for dq over query rows and one or two for dk and dv over keys; dbias and dsink in
 * passes of their own. Nothing is added in an order left to chance, so ATTN_DETERMINISTIC costs nothing. */
#include "base/error.h"
#include "cuda/backward_rows.h"
#include "cuda/ffma.h"

enum { ROLE_DELTA = 0, ROLE_DQ, ROLE_DK, ROLE_DV, ROLE_DKV, ROLE_DBIAS, ROLE_DSINK };

/* One block's keys or queries in a pass that sums `columns` groups of 64 columns. */
static void add_pass(attn_plan *plan, int role, const char *source, const char *stem, int columns, int rows) {
    attn__kernel *kernel = attn__kernel_start(plan, role, source, stem);
    attn__kernel_set(kernel, "OUTER_QUERIES", role == ROLE_DQ || role == ROLE_DBIAS);
    attn__kernel_set(kernel, "MAKE_DQ", role == ROLE_DQ);
    attn__kernel_set(kernel, "MAKE_DK", role == ROLE_DK || role == ROLE_DKV);
    attn__kernel_set(kernel, "MAKE_DV", role == ROLE_DV || role == ROLE_DKV);
    attn__kernel_set(kernel, "ROWS", rows);
    attn__kernel_set(kernel, "DEPTH", FFMA_DEPTH);
    attn__kernel_set(kernel, "RESIDENT", attn__ffma_resident(rows, columns));
    attn__kernel_name(kernel, "_m%dn%d", 8 * rows, FFMA_INNER);
    attn__kernel_finish(kernel, plan, FFMA_THREADS, 0);
}

/* Do dk and dv fit one pass? P becomes dS in its place, so it must be all that dS needs; sums share the registers. */
static bool both_at_once(const attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    return p->softcap == 0 && p->dropout == 0 && attn__ffma_columns(p->dim_qk) + attn__ffma_columns(p->dim_v) <= 4;
}

attn_status attn__ffma_prepare_backward(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    const int qk = attn__ffma_columns(p->dim_qk), v = attn__ffma_columns(p->dim_v);
    choice->tile_q = 8 * attn__ffma_rows(plan, qk);
    choice->tile_kv = FFMA_INNER;
    choice->stages = 2;
    choice->warps = FFMA_THREADS / 32;
    choice->group = choice->splits = 1;
    choice->tensor_cores = false;
    plan->workspace = 0;
    attn__backward_rows_prepare(plan, ROLE_DELTA, ROLE_DSINK);
    add_pass(plan, ROLE_DQ, "backward_ffma.cu", "dq_ffma", qk, attn__ffma_rows(plan, qk));
    if (both_at_once(plan)) {
        add_pass(plan, ROLE_DKV, "backward_ffma.cu", "dkv_ffma", qk + v, attn__ffma_rows(plan, qk + v));
    } else {
        add_pass(plan, ROLE_DK, "backward_ffma.cu", "dk_ffma", qk, attn__ffma_rows(plan, qk));
        add_pass(plan, ROLE_DV, "backward_ffma.cu", "dv_ffma", v, attn__ffma_rows(plan, v));
    }
    if (p->dbias.dtype) {
        add_pass(plan, ROLE_DBIAS, "backward_ffma_bias.cu", "dbias_ffma", 1, attn__ffma_rows(plan, 1));
    }
    return attn__succeed(error);
}

static attn_status launch_keys(attn__cuda_run *run, int role, int columns) {
    const attn_plan *plan = run->plan;
    const int rows = 8 * attn__ffma_rows(plan, columns);
    return attn__cuda_launch(run, role,
                             attn__cuda_blocks(&plan->problem, run->args, false, rows) * plan->problem.heads_kv);
}

static attn_status launch_dbias(attn__cuda_run *run) {
    const attn_problem *p = &run->plan->problem;
    const int64_t *stride = p->dbias.stride, rows = 8 * attn__ffma_rows(run->plan, 1);
    const int64_t size[4] = {p->batch, p->heads_q, (p->tokens_q + rows - 1) / rows,
                             (p->tokens_kv + FFMA_INNER - 1) / FFMA_INNER};
    int64_t tiles = p->tokens_q && p->tokens_kv && p->batch ? 1 : 0;
    for (int axis = 0; axis < 4; axis++) {
        tiles *= stride[axis] ? size[axis] : 1;
    }
    return attn__cuda_launch(run, ROLE_DBIAS, tiles);
}

attn_status attn__ffma_run_backward(attn__cuda_run *run) {
    const attn_problem *p = &run->plan->problem;
    const attn_args *args = run->args;
    const int qk = attn__ffma_columns(p->dim_qk), v = attn__ffma_columns(p->dim_v);
    attn_status status = attn__backward_rows_delta(run, ROLE_DELTA);
    if (!status && args->dq) {
        status = attn__cuda_launch(run, ROLE_DQ,
                                   attn__cuda_blocks(p, args, true, run->plan->gpu_choice.tile_q) * p->heads_q);
    }
    if (both_at_once(run->plan)) {
        status = !status && (args->dk || args->dv) ? launch_keys(run, ROLE_DKV, qk + v) : status;
    } else {
        status = !status && args->dk ? launch_keys(run, ROLE_DK, qk) : status;
        status = !status && args->dv ? launch_keys(run, ROLE_DV, v) : status;
    }
    status = !status && args->dbias ? launch_dbias(run) : status;
    return status ? status : attn__backward_rows_dsink(run, ROLE_DSINK);
}
