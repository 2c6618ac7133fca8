/* SPDX-License-Identifier: Apache-2.0
 * The table that an implementation fills. src/plan/choose.c walks the list best first; the first that
 * the machine has and that accepts the problem wins. A new backend adds rows, never cases elsewhere. */
#ifndef ATTN_BACKEND_H
#define ATTN_BACKEND_H

#include "attn/attn.h"
#include "plan/plan.h"

typedef enum attn__automatic {
    ATTN__BY_NAME = 0,   /* only when asked for by name */
    ATTN__AUTOMATIC = 1, /* whenever it accepts */
    ATTN__FOR_F64 = 2    /* by itself for f64 tensors, else by name */
} attn__automatic;

typedef enum attn__device { ATTN__CPU = 0, ATTN__CUDA = 1 } attn__device;

struct attn__impl {
    const char *name;
    const char *backend; /* the room that runs it: "cpu", "native", "reference", "cuda" */
    attn__device device; /* contexts of another device do not see it */
    int least_arch;      /* CUDA: oldest architecture, 75 for sm_75 */
    bool tensor_cores;   /* CUDA: its products run there; what hints.tensor_cores allows */
    uint32_t needs;      /* attn__isa bits that must all be there */
    attn__automatic automatic;
    /* Fills plan->choice and plan->workspace from plan->problem, hints and machine alone. ERR_UNSUPPORTED passes the
     * problem on to the next implementation; field and message tell why. */
    attn_status (*prepare)(attn_plan *plan, attn_error *error);
    /* Optional. Makes what runs need and sets plan->built: compiles kernels. Called once, when a plan is created,
     * never by the support query; plan->impl->release undoes it. */
    attn_status (*build)(attn_plan *plan, attn_error *error);
    /* NULL: this pass is refused. args are checked. Workspace is large enough and aligned. */
    attn_status (*forward)(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                           attn_error *error);
    attn_status (*backward)(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                            attn_error *error);
    void (*release)(attn_plan *plan); /* optional */
    const void *kernels;              /* the backend's own table */
};

/* All implementations, best first, NULL-terminated. */
extern const attn__impl *const attn__implementations[];

/* Facts of this machine (src/cpu/machine.c). */
void attn__machine_detect(attn__machine *machine);

#endif
