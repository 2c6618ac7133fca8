/* SPDX-License-Identifier: Apache-2.0
 * `cuda_native` backward: S = scale Q K^T and dout V^T; dbias from both; P and the scores' gradients in their places;
 * dQ, dK and dV as products of those. */
#include "base/error.h"
#include "cuda/backward_rows.h"
#include "cuda/native.h"

enum { ROLE_DELTA = 16, ROLE_DSINK = 17 };

attn_status attn__cuda_native_prepare_backward(attn_plan *plan, attn_error *error) {
    attn_status status = attn__cuda_native_start(plan, true, error);
    attn__backward_rows_prepare(plan, ROLE_DELTA, ROLE_DSINK);
    attn__cuda_native_add_product(plan, ATTN__SCORES);
    attn__cuda_native_add_product(plan, ATTN__DPRODUCTS);
    if (plan->problem.dbias.dtype) {
        attn__cuda_native_add_step(plan, ATTN__DBIAS);
    }
    attn__cuda_native_add_step(plan, ATTN__GRADIENT);
    attn__cuda_native_add_product(plan, ATTN__DQ);
    attn__cuda_native_add_product(plan, ATTN__DK);
    attn__cuda_native_add_product(plan, ATTN__DV);
    return status;
}

attn_status attn__cuda_native_run_backward(attn__cuda_run *run) {
    const attn_args *args = run->args;
    attn_status status = attn__backward_rows_delta(run, ROLE_DELTA);
    status = status ? status : attn__backward_rows_dsink(run, ROLE_DSINK);
    status = status ? status : attn__cuda_native_product(run, ATTN__SCORES);
    status = status ? status : attn__cuda_native_product(run, ATTN__DPRODUCTS);
    status = !status && args->dbias ? attn__cuda_native_step(run, ATTN__DBIAS) : status;
    status = status ? status : attn__cuda_native_step(run, ATTN__GRADIENT);
    status = !status && args->dq ? attn__cuda_native_product(run, ATTN__DQ) : status;
    status = !status && args->dk ? attn__cuda_native_product(run, ATTN__DK) : status;
    return !status && args->dv ? attn__cuda_native_product(run, ATTN__DV) : status;
}
