/* SPDX-License-Identifier: Apache-2.0
 * The oracle's workspace: one walk both measures and carves. */
#include "ref/ref.h"

/* The next rows * columns pieces of 8 bytes; *total saturates at SIZE_MAX. */
static void *take(char *base, size_t *total, int64_t rows, int64_t columns) {
    size_t offset = *total;
    if (offset == SIZE_MAX || (rows > 0 && (size_t)columns > (SIZE_MAX - 1 - offset) / 8 / (size_t)rows)) {
        *total = SIZE_MAX;
        return NULL;
    }
    *total = offset + (size_t)rows * (size_t)columns * 8;
    return base ? base + offset : NULL;
}

ref_extent attn__ref_dbias_extent(const attn_problem *problem) {
    ref_extent extent = {{problem->batch, problem->heads_q, problem->tokens_q, problem->tokens_kv}};
    for (int axis = 0; axis < 4; axis++) {
        if (problem->dbias.stride[axis] == 0 && extent.size[axis] > 1) {
            extent.size[axis] = 1;
        }
    }
    return extent;
}

static int64_t product(int64_t a, int64_t b) {
    int64_t result;
    return __builtin_mul_overflow(a, b, &result) ? INT64_MAX : result;
}

size_t attn__ref_carve(const attn_problem *problem, void *base, ref_workspace *workspace) {
    const int64_t keys = problem->tokens_kv, dim_qk = problem->dim_qk, dim_v = problem->dim_v;
    size_t total = 0;
    *workspace = (ref_workspace){0};
    workspace->rows_q = take(base, &total, problem->tokens_q, 2);
    workspace->rows_kv = take(base, &total, keys, 2);
    workspace->q = take(base, &total, 1, dim_qk);
    workspace->out = take(base, &total, 1, dim_v);
    workspace->k = take(base, &total, keys, dim_qk);
    workspace->v = take(base, &total, keys, dim_v);
    workspace->seen = take(base, &total, keys, 1);
    workspace->score = take(base, &total, keys, 1);
    workspace->slope = take(base, &total, keys, 1);
    if (problem->pass == ATTN_BACKWARD) {
        workspace->dout = take(base, &total, 1, dim_v);
        workspace->dq = take(base, &total, 1, dim_qk);
        workspace->dk = take(base, &total, keys, dim_qk);
        workspace->dv = take(base, &total, keys, dim_v);
        workspace->dsink = take(base, &total, problem->heads_q, 1);
        if (problem->dbias.dtype != ATTN_NONE) {
            ref_extent extent = attn__ref_dbias_extent(problem);
            workspace->dbias =
                take(base, &total, product(extent.size[0], extent.size[1]), product(extent.size[2], extent.size[3]));
        }
    }
    return total;
}

size_t attn_ref_workspace(const attn_problem *problem) {
    ref_workspace workspace;
    return attn__ref_carve(problem, NULL, &workspace);
}
