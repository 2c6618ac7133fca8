/* SPDX-License-Identifier: Apache-2.0
 * Plans and runs as the public header states them: unpacks what the caller gave, calls the rooms in order. No decision
 * is taken here. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend.h"
#include "base/error.h"
#include "context.h"
#include "plan/choose.h"
#include "plan/cost.h"
#include "problem/problem.h"

int attn_version(void) {
    return ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH;
}

/* --- Plans --- */

static void log_choice(const attn_plan *plan) {
    const attn_context *context = plan->context;
    for (int n = 0; n < plan->n_refusals; n++) {
        attn__context_log(context, ATTN__TOPIC_DISPATCH, &plan->problem, "%s,refused,%s", plan->refusals[n].name,
                          plan->refusals[n].reason);
    }
    if (plan->impl) {
        attn__context_log(context, ATTN__TOPIC_DISPATCH, &plan->problem, "%s,chosen,", plan->impl->name);
    }
}

static void log_plan(const attn_plan *plan) {
    attn_plan_info info;
    if (!attn__context_logs(plan->context, ATTN__TOPIC_PLAN)) {
        return;
    }
    attn__plan_info_fill(plan, &info);
    attn__context_log(plan->context, ATTN__TOPIC_PLAN, &plan->problem,
                      "%s,threads %d,block_q %lld,block_kv %lld,splits %lld,workspace %zu", plan->impl->name,
                      info.threads, (long long)info.block_q, (long long)info.block_kv, (long long)info.splits,
                      plan->workspace);
}

/* Decides everything into *plan without allocating; impl->release is owed on success. */
static attn_status decide(attn_plan *plan, const attn_context *context, const attn_problem *problem,
                          const attn_hints *hints, attn_error *error) {
    memset(plan, 0, sizeof *plan);
    if (!context) {
        return attn__fail(error, ATTN_ERR_INVALID, "context", "is NULL");
    }
    plan->context = context;
    plan->machine = context->machine;
    plan->gpu = context->gpu;
    attn_status status = attn__problem_canonical(problem, &plan->problem, error);
    status = status ? status : attn__hints_read(hints, &plan->hints, error);
    if (status) {
        return status;
    }
    status = attn__plan_choose(plan, attn__implementations, context->limit, error);
    log_choice(plan);
    return status ? status : attn__succeed(error);
}

static void undo(attn_plan *plan) {
    if (plan->impl->release) {
        plan->impl->release(plan);
    }
}

attn_status attn_supported(const attn_context *context, const attn_problem *problem, const attn_hints *hints,
                           attn_error *error) {
    attn_plan plan;
    attn_status status = decide(&plan, context, problem, hints, error);
    if (status == ATTN_OK) {
        undo(&plan);
    }
    return status;
}

attn_status attn_plan_create(attn_plan **out, const attn_context *context, const attn_problem *problem,
                             const attn_hints *hints, attn_error *error) {
    attn_plan draft;
    if (!out) {
        return attn__fail(error, ATTN_ERR_INVALID, "plan", "is NULL");
    }
    *out = NULL;
    attn_status status = decide(&draft, context, problem, hints, error);
    if (status) {
        return status;
    }
    attn_plan *plan = attn__context_allocate(context, sizeof *plan);
    if (!plan) {
        undo(&draft);
        return attn__fail(error, ATTN_ERR_MEMORY, "plan", "%zu bytes could not be allocated", sizeof *plan);
    }
    *plan = draft;
    if (plan->impl->build) {
        status = plan->impl->build(plan, error);
        if (status) {
            attn_plan_destroy(plan);
            return status;
        }
    }
    log_plan(plan);
    *out = plan;
    return ATTN_OK;
}

void attn_plan_destroy(attn_plan *plan) {
    if (plan) {
        undo(plan);
        attn__context_release(plan->context, plan);
    }
}

size_t attn_plan_workspace(const attn_plan *plan) {
    return plan ? plan->workspace : 0;
}

attn_status attn_plan_query(const attn_plan *plan, attn_plan_info *out, attn_error *error) {
    if (!plan || !out) {
        return attn__fail(error, ATTN_ERR_INVALID, plan ? "info" : "plan", "is NULL");
    }
    attn_status status = attn__struct_minimum(out->struct_size, sizeof out->struct_size, error);
    if (status) {
        return status;
    }
    attn_plan_info info;
    attn__plan_info_fill(plan, &info);
    attn__struct_write(out, &info, sizeof info);
    return attn__succeed(error);
}

int attn_plan_refusal(const attn_plan *plan, int index, const char **name, const char **reason) {
    if (!plan || index < 0 || index >= plan->n_refusals) {
        return 0;
    }
    if (name) {
        *name = plan->refusals[index].name;
    }
    if (reason) {
        *reason = plan->refusals[index].reason;
    }
    return 1;
}

/* --- Runs --- */

static attn_status check_workspace(const attn_plan *plan, const void *workspace, size_t size, attn_error *error) {
    if (plan->workspace == 0) {
        return ATTN_OK;
    }
    if (size < plan->workspace) {
        return attn__fail(error, ATTN_ERR_WORKSPACE, "workspace_size", "is %zu, must be at least %zu", size,
                          plan->workspace);
    }
    if (!workspace) {
        return attn__fail(error, ATTN_ERR_WORKSPACE, "workspace", "is NULL, the plan needs %zu bytes", plan->workspace);
    }
    if ((uintptr_t)workspace % ATTN_WORKSPACE_ALIGNMENT) {
        return attn__fail(error, ATTN_ERR_WORKSPACE, "workspace", "is %p, must be a multiple of %d", workspace,
                          ATTN_WORKSPACE_ALIGNMENT);
    }
    return ATTN_OK;
}

static attn_status check_run(const attn_plan *plan, attn_pass pass, const attn_args *in, attn_args *args,
                             const void *workspace, size_t size, attn_stream stream, attn_error *error) {
    if (!plan) {
        return attn__fail(error, ATTN_ERR_INVALID, "plan", "is NULL");
    }
    if (plan->problem.pass != pass) {
        return attn__fail(error, ATTN_ERR_INVALID, "pass", "of the plan is %s, call attn_%s",
                          pass == ATTN_FORWARD ? "backward" : "forward", pass == ATTN_FORWARD ? "backward" : "forward");
    }
    if (stream && !plan->gpu) {
        return attn__fail(error, ATTN_ERR_INVALID, "stream", "is set, must be NULL on the CPU");
    }
    attn_status status = attn__args_check(&plan->problem, in, args, error);
    return status ? status : check_workspace(plan, workspace, size, error);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static attn_status run(const attn_plan *plan, attn_pass pass, const attn_args *in, void *workspace, size_t size,
                       attn_stream stream, attn_error *error) {
    attn_args args;
    attn_status status = check_run(plan, pass, in, &args, workspace, size, stream, error);
    if (status) {
        return status;
    }
    bool timed = attn__context_logs(plan->context, ATTN__TOPIC_EXEC);
    double start = timed ? now() : 0;
    status =
        (pass == ATTN_BACKWARD ? plan->impl->backward : plan->impl->forward)(plan, &args, workspace, stream, error);
    if (timed) {
        attn__context_log(plan->context, ATTN__TOPIC_EXEC, &plan->problem, "%s,%s,%.6f", plan->impl->name,
                          attn_status_name(status), now() - start);
    }
    return status ? status : attn__succeed(error);
}

attn_status attn_forward(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_size,
                         attn_stream stream, attn_error *error) {
    return run(plan, ATTN_FORWARD, args, workspace, workspace_size, stream, error);
}

attn_status attn_backward(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_size,
                          attn_stream stream, attn_error *error) {
    return run(plan, ATTN_BACKWARD, args, workspace, workspace_size, stream, error);
}

/* Runs the plan with a workspace of its own from the context's allocator. */
static attn_status run_plan(const attn_context *context, const attn_plan *plan, const attn_args *args,
                            attn_error *error) {
    size_t size = plan->workspace, padded;
    char *memory = NULL;
    size_t slack = 0;
    if (size) {
        if (!__builtin_add_overflow(size, (size_t)ATTN_WORKSPACE_ALIGNMENT, &padded)) {
            memory = attn__context_allocate(context, padded);
        }
        if (!memory) {
            return attn__fail(error, ATTN_ERR_MEMORY, "workspace", "%zu bytes could not be allocated", size);
        }
        slack = ATTN_WORKSPACE_ALIGNMENT - (uintptr_t)memory % ATTN_WORKSPACE_ALIGNMENT;
    }
    attn_status status = run(plan, plan->problem.pass, args, memory ? memory + slack : NULL, size, NULL, error);
    attn__context_release(context, memory);
    return status;
}

attn_status attn_run(const attn_problem *problem, const attn_args *args, attn_error *error) {
    attn_context *context;
    attn_plan *plan;
    attn_status status = attn_context_create(&context, NULL, error);
    if (status) {
        return status;
    }
    status = attn_plan_create(&plan, context, problem, NULL, error);
    if (status == ATTN_OK) {
        status = run_plan(context, plan, args, error);
        attn_plan_destroy(plan);
    }
    attn_context_destroy(context);
    return status;
}
