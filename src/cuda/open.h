/* SPDX-License-Identifier: Apache-2.0
 * What a context needs to know of the CUDA room. */
#ifndef ATTN_CUDA_OPEN_H
#define ATTN_CUDA_OPEN_H

#include <stdbool.h>

#include "attn/attn.h"
#include "cuda/nvrtc.h"
#include "plan/plan.h"

typedef struct attn__cuda attn__cuda;

/* Configuration and environment, resolved; strings are read during the call only. */
typedef struct attn__cuda_settings {
    const char *device;        /* "cuda", "cuda:N", "gpu:NAME" */
    const char *arch;          /* "sm_80": older code than the device's; NULL: its own */
    const char *arch_field;    /* "max_isa" or the variable it came from, for errors */
    const char *driver;        /* path of libcuda; NULL: by its soname */
    const char *nvrtc;         /* path of libnvrtc; NULL: sought; "": none */
    const char *cache;         /* folder; "": none */
    const char *kernels;       /* file of packed kernels; NULL: none */
    const char *kernels_field; /* "kernels" or the variable it came from, for errors */
    attn__nvrtc_places places; /* where a compiler is sought */
    bool compile;              /* ATTN_COMPILE */
} attn__cuda_settings;

/* Opens a device for a context, whose allocator is used. The context may move until attn__cuda_own. */
attn_status attn__cuda_open(attn__cuda **cuda, const attn_context *context, const attn__cuda_settings *settings,
                            attn_error *error);
void attn__cuda_own(attn__cuda *cuda, const attn_context *context);
void attn__cuda_close(attn__cuda *cuda, const attn_context *context);

/* Facts that plans are made from, and the context's device by its full name ("cuda:0"); live as long as `cuda`. */
const attn__gpu *attn__cuda_gpu(const attn__cuda *cuda);
const char *attn__cuda_name(const attn__cuda *cuda);

#endif
