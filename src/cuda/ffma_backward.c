/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "cuda/cuda.h"

attn_status attn__ffma_prepare_backward(attn_plan *plan, attn_error *error) {
    (void)plan;
    return attn__fail(error, ATTN_ERR_UNSUPPORTED, "pass", "is backward, which ffma does not run");
}

attn_status attn__ffma_run_backward(attn__cuda_run *run) {
    return attn__fail(run->error, ATTN_ERR_INTERNAL, "plan", "was never prepared");
}
