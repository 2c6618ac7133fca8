/* SPDX-License-Identifier: Apache-2.0
 * Running a case: context, plan of each pass, workspace. */
#ifndef CLI_EXECUTE_H
#define CLI_EXECUTE_H

#include "mirror.h"

/* device NULL: "cpu"; threads 0: the library's choice. */
cli_exit cli_context_create(attn_context **context, const char *device, int threads, cli_error *error);

/* Where a verb works: a context of the device asked for, and one of the host for what judges it; the same on the CPU.
 * Close it also when opening failed. */
typedef struct cli_place {
    attn_context *context, *host;
} cli_place;
cli_exit cli_place_open(cli_place *place, const char *device, int threads, cli_error *error);
void cli_place_close(cli_place *place);

/* Facts of the context's device; device->arch is 0 on the CPU. */
cli_exit cli_device_query(const attn_context *context, attn_device_info *info, cli_error *error);

typedef struct cli_runner {
    const attn_context *device; /* NULL on the CPU */
    attn_plan *plan[2];         /* by attn_pass; backward is NULL for a forward problem */
    void *workspace;
    size_t workspace_size;
    cli_memory memory;
    cli_mirror mirror; /* of the case that ran last, on a device */
} cli_runner;

/* Plans the problem's passes; hints may be NULL. A forward plan precedes a backward one, whose lse and output it
 * makes. */
cli_exit cli_runner_create(cli_runner *runner, const attn_context *context, const attn_problem *problem,
                           const attn_hints *hints, cli_error *error);
/* On a device: starts the pass over the twin that cli_runner_run_all left there, and does not wait. */
cli_exit cli_runner_run(const cli_runner *runner, const cli_case *at, attn_pass pass, cli_error *error);
/* All passes of the problem; on a device inputs travel there and outputs back. */
cli_exit cli_runner_run_all(cli_runner *runner, const cli_case *at, cli_error *error);
void cli_runner_release(cli_runner *runner);

/* The facts of the plan of the problem's own pass. */
cli_exit cli_runner_info(const cli_runner *runner, attn_plan_info *info, cli_error *error);

/* A line on stderr that the next one replaces, if stderr is a terminal; an empty one clears it. */
void cli_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says what is about to run, when it will take long. */
void cli_progress_plan(const char *what, const attn_plan_info *info);

#endif
