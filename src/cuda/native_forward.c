/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "cuda/cuda.h"

attn_status attn__cuda_native_prepare_forward(attn_plan *plan, attn_error *error) {
    (void)plan;
    return attn__fail(error, ATTN_ERR_UNSUPPORTED, "pass", "is forward, which cuda_native does not run");
}

attn_status attn__cuda_native_run_forward(attn__cuda_run *run) {
    return attn__fail(run->error, ATTN_ERR_INTERNAL, "plan", "was never prepared");
}
