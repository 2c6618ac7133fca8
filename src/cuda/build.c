/* SPDX-License-Identifier: Apache-2.0
 * Kernels of a plan: found in the context's memory, else loaded or compiled once, whatever the number of threads that
 * ask for them. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "cuda/device.h"

static bool same_kernel(const attn__kernel *a, const attn__kernel *b) {
    if (strcmp(a->name, b->name) != 0 || strcmp(a->source, b->source) != 0 || a->n_constants != b->n_constants ||
        a->shared != b->shared) {
        return false;
    }
    for (int n = 0; n < a->n_constants; n++) {
        if (a->constants[n].value != b->constants[n].value || strcmp(a->constants[n].name, b->constants[n].name) != 0) {
            return false;
        }
    }
    return true;
}

/* Under the lock. */
static attn__cuda_kernel *find(const attn__cuda *cuda, const attn__kernel *kernel) {
    attn__cuda_kernel *entry = cuda->kernels;
    while (entry && !same_kernel(&entry->kernel, kernel)) {
        entry = entry->next;
    }
    return entry;
}

static void unlink_entry(attn__cuda *cuda, const attn__cuda_kernel *entry) {
    attn__cuda_kernel **at = &cuda->kernels;
    while (*at != entry) {
        at = &(*at)->next;
    }
    *at = entry->next;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static attn_status make(const attn_plan *plan, attn__cuda_kernel *entry, attn_error *error) {
    attn__cuda *cuda = plan->context->cuda;
    const char *origin = "";
    bool timed = attn__context_logs(plan->context, ATTN__TOPIC_JIT);
    double start = timed ? now() : 0;
    attn_status status = attn__cuda_code(cuda, &entry->kernel, &entry->code, &origin, error);
    if (!status && cuda->opened) {
        status = attn__cuda_load(cuda, entry, error);
    }
    attn__context_release(cuda->context, entry->code.data);
    entry->code.data = NULL;
    if (timed) {
        attn__context_log(plan->context, ATTN__TOPIC_JIT, &plan->problem, "%s,%s,%.6f", entry->kernel.name,
                          status ? attn_status_name(status) : origin, now() - start);
    }
    return status;
}

/* Makes a kernel that nobody else is at; called and left under the lock. */
static attn_status make_new(const attn_plan *plan, const attn__kernel *kernel, attn__cuda_kernel **out,
                            attn_error *error) {
    attn__cuda *cuda = plan->context->cuda;
    attn__cuda_kernel *entry = attn__context_allocate(cuda->context, sizeof *entry);
    if (!entry) {
        return attn__fail(error, ATTN_ERR_MEMORY, "kernel", "%zu bytes could not be allocated", sizeof *entry);
    }
    memset(entry, 0, sizeof *entry);
    entry->kernel = *kernel;
    entry->next = cuda->kernels;
    cuda->kernels = entry;
    pthread_mutex_unlock(&cuda->lock);
    attn_status status = make(plan, entry, error);
    pthread_mutex_lock(&cuda->lock);
    entry->ready = true;
    if (status) { /* those who wait for it try by themselves, and get an error of their own */
        unlink_entry(cuda, entry);
        attn__context_release(cuda->context, entry);
        entry = NULL;
    }
    pthread_cond_broadcast(&cuda->changed);
    *out = entry;
    return status;
}

static attn_status take(const attn_plan *plan, const attn__kernel *kernel, attn__cuda_kernel **out, attn_error *error) {
    attn__cuda *cuda = plan->context->cuda;
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&cuda->lock);
    attn__cuda_kernel *entry = find(cuda, kernel);
    while (entry && !entry->ready) {
        pthread_cond_wait(&cuda->changed, &cuda->lock);
        entry = find(cuda, kernel);
    }
    if (!entry) {
        status = make_new(plan, kernel, &entry, error);
    }
    pthread_mutex_unlock(&cuda->lock);
    *out = entry;
    return status;
}

/* What attn__kernel_start and attn__kernel_set had no room for. Nothing looks at a plan's kernels before. */
static attn_status check_room(const attn__gpu_choice *choice, attn_error *error) {
    if (choice->n_kernels > ATTN__MAX_KERNELS) {
        return attn__fail(error, ATTN_ERR_INTERNAL, "plan", "has %d kernels, must have at most %d", choice->n_kernels,
                          ATTN__MAX_KERNELS);
    }
    for (int n = 0; n < choice->n_kernels; n++) {
        const attn__kernel *kernel = &choice->kernels[n];
        if (kernel->n_constants > ATTN__MAX_CONSTANTS) {
            return attn__fail(error, ATTN_ERR_INTERNAL, "kernel", "%.100s has %d constants, must have at most %d",
                              kernel->name, kernel->n_constants, ATTN__MAX_CONSTANTS);
        }
    }
    return ATTN_OK;
}

attn_status attn__cuda_build(attn_plan *plan, attn_error *error) {
    attn__cuda *cuda = plan->context->cuda;
    const attn__gpu_choice *choice = &plan->gpu_choice;
    attn_status fits = check_room(choice, error);
    if (fits || !cuda->compiles) {
        return fits;
    }
    attn__cuda_built *built = attn__context_allocate(plan->context, sizeof *built);
    if (!built) {
        return attn__fail(error, ATTN_ERR_MEMORY, "plan", "%zu bytes could not be allocated", sizeof *built);
    }
    memset(built, 0, sizeof *built);
    built->cuda = cuda;
    attn__params_of_problem(plan, &built->params, &built->aligned);
    for (int n = 0; n < choice->n_kernels; n++) {
        attn__cuda_kernel *entry;
        attn_status status = take(plan, &choice->kernels[n], &entry, error);
        if (status) {
            attn__context_release(plan->context, built);
            return status;
        }
        built->functions[n] = entry->function;
    }
    plan->built = built;
    return ATTN_OK;
}

void attn__cuda_unbuild(attn_plan *plan) {
    attn__context_release(plan->context, plan->built);
    plan->built = NULL;
}
