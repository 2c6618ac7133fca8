/* SPDX-License-Identifier: Apache-2.0
 * An opened GPU, or the compiler and cache alone for a "gpu:..." context; and its kernels.
 *
 * Kernels are compiled or loaded once, on first demand, and live as long as the context: plans share them. The list
 * grows at its head and entries are never removed while the context lives, except one whose compilation failed; the
 * lock guards list and states, and is not held while a kernel is compiled. */
#ifndef ATTN_CUDA_DEVICE_H
#define ATTN_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>

#include "base/text.h"
#include "context.h"
#include "cuda/cuda.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/open.h"
#include "plan/gpu.h"

/* Machine code of one kernel as it is compiled, kept and packed. */
typedef struct attn__code {
    char *data; /* cubin, or PTX with its terminating NUL; the context's memory */
    size_t size;
    /* As the assembler reports them; -1 where it did not (PTX). */
    int registers, stack_bytes, spill_bytes;
    bool serialized; /* it told that warp-group products wait for one another; known where it was compiled */
} attn__code;

typedef struct attn__cuda_kernel {
    struct attn__cuda_kernel *next;
    attn__kernel kernel; /* what was asked for: name, source, constants */
    bool ready;          /* false: a thread is at it */
    attn__code code;     /* "gpu:..." contexts and lists; its data are dropped once loaded */
    CUmodule module;
    CUfunction function;
} attn__cuda_kernel;

struct attn__cuda {
    const attn_context *context; /* whose allocator is used */
    char name[64];               /* "cuda:0", "gpu:a100" */
    bool opened;                 /* a real device */
    bool compiles;               /* plan creation compiles: a real device, or ATTN_COMPILE */
    bool retained;               /* `handle` is the primary context, which we hold */
    int arch;                    /* of the device; gpu.arch is that of the code */
    attn__gpu gpu;
    char gpu_name[96];
    attn__driver driver;
    CUdevice device;
    CUcontext handle;
    attn__nvrtc nvrtc;
    char folder[1024]; /* of kernels on disk; "": none */
    char *pack;        /* records of the file that the context was given; NULL: none */
    size_t pack_size;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    attn__cuda_kernel *kernels;
    int compiled; /* kernels that NVRTC compiled, for tests */
};

/* Code for an older architecture than the device's is PTX, which the driver translates; so is code for a device of a
 * major version that the table of architectures does not know. */
static inline bool attn__cuda_ptx(const attn__cuda *cuda) {
    int known = attn__gpu_arch(cuda->arch);
    return cuda->opened && (cuda->gpu.arch != known || known / 10 != cuda->arch / 10);
}

/* Makes the device's context current. *pushed: attn__cuda_leave undoes it. */
attn_status attn__cuda_enter(const attn__cuda *cuda, bool *pushed, attn_error *error);
void attn__cuda_leave(const attn__cuda *cuda, bool pushed);

/* "sm_90a", "compute_80": what code is compiled for. */
void attn__cuda_target(const attn__cuda *cuda, char target[16]);
/* What is compiled, the embedded sources aside, and with which flags. */
void attn__cuda_source(const attn__kernel *kernel, attn__text *text);
extern const char attn__cuda_flags[];
/* Compiles one kernel with NVRTC (compile.c). code->data is the caller's to release. */
attn_status attn__cuda_compile(attn__cuda *cuda, const attn__kernel *kernel, attn__code *code, attn_error *error);

/* The kernel's code, from wherever it is cheapest (cache.c). *origin tells in a word: "pack", "disk", "compiled". */
attn_status attn__cuda_code(attn__cuda *cuda, const attn__kernel *kernel, attn__code *code, const char **origin,
                            attn_error *error);
/* Reads the file of packed kernels that a context was given. */
attn_status attn__cuda_open_pack(attn__cuda *cuda, const char *path, const char *field, attn_error *error);

/* Loads code into the device's context and prepares the kernel's shared memory (module.c). */
attn_status attn__cuda_load(attn__cuda *cuda, attn__cuda_kernel *entry, attn_error *error);

/* What a plan's runs need; plan->built. */
typedef struct attn__cuda_built {
    attn__cuda *cuda;
    attn__params params; /* all that arguments do not decide */
    unsigned aligned;    /* bits that sizes and strides allow */
    CUfunction functions[ATTN__MAX_KERNELS];
} attn__cuda_built;

/* Parameters that follow from the problem alone (params.c). */
void attn__params_of_problem(const attn_plan *plan, attn__params *params, unsigned *aligned);
/* The rest: pointers, alignment, seeds, spans of the workspace. */
void attn__params_of_args(const attn_plan *plan, const attn__cuda_built *built, const attn_args *args, void *workspace,
                          attn__params *params);

/* Lengths and segments (lengths.c): the span and the kernels that they need, at the end of prepare; bringing them to
 * the device or having them checked there, at the start of a run. */
void attn__cuda_plan_lengths(attn_plan *plan);
attn_status attn__cuda_bring_lengths(attn__cuda_run *run);

/* Roles of kernels that every implementation shares; implementations number theirs from 0. */
enum { ATTN__ROLE_UPLOAD = 100, ATTN__ROLE_CHECK = 101 };

/* Launches the kernel of that role with a parameter block of its own. */
attn_status attn__cuda_launch_raw(attn__cuda_run *run, int role, unsigned blocks, void *parameters);
/* The same for a kernel that itself waits for what comes before it in the stream (launch_wait in launch.cuh): its
 * blocks may begin as those of the kernel before end. */
attn_status attn__cuda_launch_early(attn__cuda_run *run, int role, unsigned blocks, void *parameters);

#endif
