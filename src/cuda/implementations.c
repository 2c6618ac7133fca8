/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend's rows of the implementation table. */
#include "cuda/cuda.h"

static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                       attn_status (*launch)(attn__cuda_run *run), attn_error *error) {
    attn__cuda_run state;
    attn_status status = attn__cuda_begin(&state, plan, args, workspace, stream, error);
    return status ? status : attn__cuda_end(&state, launch(&state));
}

#define ATTN__CUDA_ROW(id, arch, cores, when)                                                                          \
    static attn_status id##_prepare(attn_plan *plan, attn_error *error) {                                              \
        return plan->problem.pass == ATTN_BACKWARD ? attn__##id##_prepare_backward(plan, error)                        \
                                                   : attn__##id##_prepare_forward(plan, error);                        \
    }                                                                                                                  \
    static attn_status id##_forward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream, \
                                    attn_error *error) {                                                               \
        return run(plan, args, workspace, stream, attn__##id##_run_forward, error);                                    \
    }                                                                                                                  \
    static attn_status id##_backward(const attn_plan *plan, const attn_args *args, void *workspace,                    \
                                     attn_stream stream, attn_error *error) {                                          \
        return run(plan, args, workspace, stream, attn__##id##_run_backward, error);                                   \
    }                                                                                                                  \
    const attn__impl attn__impl_##id = {.name = #id,                                                                   \
                                        .backend = #id,                                                                \
                                        .device = ATTN__CUDA,                                                          \
                                        .least_arch = (arch),                                                          \
                                        .tensor_cores = (cores),                                                       \
                                        .automatic = (when),                                                           \
                                        .prepare = id##_prepare,                                                       \
                                        .build = attn__cuda_build,                                                     \
                                        .forward = id##_forward,                                                       \
                                        .backward = id##_backward,                                                     \
                                        .release = attn__cuda_unbuild}

ATTN__CUDA_ROW(mma, 75, true, ATTN__AUTOMATIC);
ATTN__CUDA_ROW(ffma, 75, false, ATTN__AUTOMATIC);
ATTN__CUDA_ROW(cuda_native, 75, false, ATTN__BY_NAME);
