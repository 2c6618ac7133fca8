/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/native.h"

#include "base/error.h"

enum { TILE = 64, THREADS = 128, ROWS = 8, DEPTH = 8 };

/* Roles: a pass has each product and each step once. */
static int role_of_product(attn__product product) {
    return (int)product;
}
static int role_of_step(attn__step step) {
    return 8 + (int)step;
}

static size_t times(size_t a, int64_t b) {
    size_t result;
    return __builtin_mul_overflow(a, (size_t)b, &result) ? SIZE_MAX : result;
}

attn_status attn__cuda_native_start(attn_plan *plan, bool both, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    const size_t element = attn_dtype_size(p->q.dtype);
    const size_t matrix = times(times(times(times(element, p->tokens_kv), p->tokens_q), p->heads_q), p->batch);
    plan->workspace = 0;
    choice->tile_q = choice->tile_kv = TILE;
    choice->stages = 2;
    choice->warps = THREADS / 32;
    choice->group = choice->splits = 1;
    choice->tensor_cores = false;
    choice->scores = attn__span_take(&plan->workspace, matrix);
    if (both) {
        choice->extra = attn__span_take(&plan->workspace, matrix);
    }
    return attn__plan_scores_fit(plan, error);
}

void attn__cuda_native_add_product(attn_plan *plan, attn__product product) {
    static const char *const stems[] = {"native_scores", "native_dproducts", "native_output",
                                        "native_dq",     "native_dk",        "native_dv"};
    attn__kernel *kernel = attn__kernel_start(plan, role_of_product(product), "native_products.cu", stems[product]);
    attn__kernel_set(kernel, "PRODUCT", product);
    attn__kernel_set(kernel, "ROWS", ROWS);
    attn__kernel_set(kernel, "DEPTH", DEPTH);
    attn__kernel_finish(kernel, plan, THREADS, 0);
}

void attn__cuda_native_add_step(attn_plan *plan, attn__step step) {
    static const char *const stems[] = {"native_softmax", "native_gradient", "native_dbias"};
    attn__kernel *kernel = attn__kernel_start(plan, role_of_step(step), "native_rows.cu", stems[step]);
    attn__kernel_set(kernel, "STEP", step);
    attn__kernel_finish(kernel, plan, THREADS, 0);
}

attn_status attn__cuda_native_product(attn__cuda_run *run, attn__product product) {
    const attn_problem *p = &run->plan->problem;
    const bool queries = product != ATTN__DK && product != ATTN__DV;
    const bool scores = product == ATTN__SCORES || product == ATTN__DPRODUCTS;
    const int64_t dim = scores ? 1 : product == ATTN__DQ || product == ATTN__DK ? p->dim_qk : p->dim_v;
    const int64_t blocks = attn__cuda_blocks(p, run->args, queries, TILE) * (queries ? p->heads_q : p->heads_kv);
    return attn__cuda_launch(run, role_of_product(product), blocks * ((dim + 63) / 64));
}

static int64_t dbias_tiles(const attn_problem *p) {
    const int64_t *stride = p->dbias.stride;
    int64_t rows = (stride[0] ? p->batch : 1) * (stride[1] ? p->heads_q : 1) * (stride[2] ? p->tokens_q : 1);
    return p->tokens_q && p->tokens_kv && p->batch ? rows * (stride[3] ? (p->tokens_kv + THREADS - 1) / THREADS : 1)
                                                   : 0;
}

attn_status attn__cuda_native_step(attn__cuda_run *run, attn__step step) {
    const attn_problem *p = &run->plan->problem;
    return attn__cuda_launch(run, role_of_step(step),
                             step == ATTN__DBIAS ? dbias_tiles(p)
                                                 : attn__cuda_blocks(p, run->args, true, 1) * p->heads_q);
}
