/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend's rows of the implementation table. */
#include "cuda/device.h"

static attn_status run(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                       attn_status (*launch)(attn__cuda_run *run), attn_error *error) {
    attn__cuda_run state;
    attn_status status = attn__cuda_begin(&state, plan, args, workspace, stream, error);
    return status ? status : attn__cuda_end(&state, launch(&state));
}

typedef attn_status (*prepare_fn)(attn_plan *plan, attn_error *error);

static attn_status prepare(attn_plan *plan, prepare_fn forward, prepare_fn backward, attn_error *error) {
    attn_status status = (plan->problem.pass == ATTN_BACKWARD ? backward : forward)(plan, error);
    if (status == ATTN_OK) {
        attn__cuda_plan_lengths(plan);
    }
    return status;
}

#define ATTN__CUDA_ROW(id, arch, cores, when)                                                                          \
    static attn_status id##_prepare(attn_plan *plan, attn_error *error) {                                              \
        return prepare(plan, attn__##id##_prepare_forward, attn__##id##_prepare_backward, error);                      \
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

ATTN__CUDA_ROW(hopper, 90, true, ATTN__AUTOMATIC);
ATTN__CUDA_ROW(mma, 75, true, ATTN__AUTOMATIC);
ATTN__CUDA_ROW(ffma, 75, false, ATTN__AUTOMATIC);
ATTN__CUDA_ROW(cuda_native, 75, false, ATTN__BY_NAME);
