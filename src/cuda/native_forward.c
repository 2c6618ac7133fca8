/* SPDX-License-Identifier: Apache-2.0
 * `cuda_native` forward in three steps: S = scale Q K^T; P = softmax(S), in place; O = P V. */
#include "base/error.h"
#include "cuda/native.h"

attn_status attn__cuda_native_prepare_forward(attn_plan *plan, attn_error *error) {
    attn_status status = attn__cuda_native_start(plan, false, error);
    attn__cuda_native_add_product(plan, ATTN__SCORES);
    attn__cuda_native_add_step(plan, ATTN__SOFTMAX);
    attn__cuda_native_add_product(plan, ATTN__OUTPUT);
    return status;
}

attn_status attn__cuda_native_run_forward(attn__cuda_run *run) {
    attn_status status = attn__cuda_native_product(run, ATTN__SCORES);
    status = status ? status : attn__cuda_native_step(run, ATTN__SOFTMAX);
    return status ? status : attn__cuda_native_product(run, ATTN__OUTPUT);
}
