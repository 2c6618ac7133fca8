/* SPDX-License-Identifier: Apache-2.0
 * Contexts, plans and runs for the verbs. */
#include "execute.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

cli_exit cli_context_create(attn_context **context, const char *device, int threads, cli_error *error) {
    attn_config config;
    attn_error cause;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.device = device;
    config.threads = threads;
    if (attn_context_create(context, &config, &cause)) {
        *context = NULL;
        return cli_fail_library(error, NULL, &cause);
    }
    return CLI_RIGHT;
}

cli_exit cli_place_open(cli_place *place, const char *device, int threads, cli_error *error) {
    place->host = NULL;
    cli_exit code = cli_context_create(&place->context, device, threads, error);
    if (!code && device && strcmp(device, "cpu") != 0) {
        code = cli_context_create(&place->host, NULL, 0, error);
    } else {
        place->host = place->context;
    }
    return code;
}

void cli_place_close(cli_place *place) {
    if (place->host != place->context) {
        attn_context_destroy(place->host);
    }
    attn_context_destroy(place->context);
    memset(place, 0, sizeof *place);
}

cli_exit cli_device_query(const attn_context *context, attn_device_info *info, cli_error *error) {
    attn_error cause;
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    return attn_device_query(context, info, &cause) ? cli_fail_library(error, NULL, &cause) : CLI_RIGHT;
}

static cli_exit plan_pass(cli_runner *runner, const attn_context *context, const attn_problem *whole, attn_pass pass,
                          const attn_hints *hints, cli_error *error) {
    attn_problem problem = *whole;
    attn_error cause;
    problem.pass = pass;
    if (pass == ATTN_FORWARD) {
        problem.flags &= ~(uint32_t)ATTN_ACCUMULATE;
    }
    if (attn_plan_create(&runner->plan[pass], context, &problem, hints, &cause)) {
        runner->plan[pass] = NULL;
        return cli_fail_library(error, pass == ATTN_BACKWARD ? "backward" : NULL, &cause);
    }
    size_t size = attn_plan_workspace(runner->plan[pass]);
    runner->workspace_size = size > runner->workspace_size ? size : runner->workspace_size;
    return CLI_RIGHT;
}

static cli_exit take_workspace(cli_runner *runner, cli_error *error) {
    attn_error cause;
    if (!runner->device) {
        return cli_memory_take(&runner->memory, &runner->workspace, (double)runner->workspace_size, "the workspace",
                               error);
    }
    if (attn_memory_create(&runner->workspace, runner->device, runner->workspace_size, &cause)) {
        return cli_fail_library(error, "the workspace", &cause);
    }
    return CLI_RIGHT;
}

cli_exit cli_runner_create(cli_runner *runner, const attn_context *context, const attn_problem *problem,
                           const attn_hints *hints, cli_error *error) {
    attn_device_info info;
    memset(runner, 0, sizeof *runner);
    cli_exit code = cli_device_query(context, &info, error);
    if (code) {
        return code;
    }
    runner->device = info.arch ? context : NULL;
    code = plan_pass(runner, context, problem, ATTN_FORWARD, hints, error);
    if (!code && problem->pass == ATTN_BACKWARD) {
        code = plan_pass(runner, context, problem, ATTN_BACKWARD, hints, error);
    }
    if (!code && runner->workspace_size) {
        code = take_workspace(runner, error);
    }
    if (code) {
        cli_runner_release(runner);
    }
    return code;
}

cli_exit cli_runner_run(const cli_runner *runner, const cli_case *at, attn_pass pass, cli_error *error) {
    attn_error cause;
    attn_args args = runner->device ? cli_mirror_args(&runner->mirror, at, pass) : cli_case_args(at, pass);
    attn_status status =
        pass == ATTN_FORWARD
            ? attn_forward(runner->plan[pass], &args, runner->workspace, runner->workspace_size, NULL, &cause)
            : attn_backward(runner->plan[pass], &args, runner->workspace, runner->workspace_size, NULL, &cause);
    return status ? cli_fail_library(error, pass == ATTN_BACKWARD ? "backward" : NULL, &cause) : CLI_RIGHT;
}

cli_exit cli_runner_run_all(cli_runner *runner, const cli_case *at, cli_error *error) {
    cli_exit code = CLI_RIGHT;
    if (runner->device) {
        cli_mirror_release(&runner->mirror);
        code = cli_mirror_create(&runner->mirror, runner->device, at, error);
    }
    code = code ? code : cli_runner_run(runner, at, ATTN_FORWARD, error);
    if (!code && runner->plan[ATTN_BACKWARD]) {
        code = cli_runner_run(runner, at, ATTN_BACKWARD, error);
    }
    return code || !runner->device ? code : cli_mirror_fetch(&runner->mirror, at, error);
}

cli_exit cli_runner_info(const cli_runner *runner, attn_plan_info *info, cli_error *error) {
    attn_error cause;
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    const attn_plan *plan = runner->plan[ATTN_BACKWARD] ? runner->plan[ATTN_BACKWARD] : runner->plan[ATTN_FORWARD];
    return attn_plan_query(plan, info, &cause) ? cli_fail_library(error, NULL, &cause) : CLI_RIGHT;
}

void cli_runner_release(cli_runner *runner) {
    for (int pass = 0; pass < 2; pass++) {
        if (runner->plan[pass]) {
            attn_plan_destroy(runner->plan[pass]);
        }
    }
    if (runner->device) {
        attn_memory_destroy(runner->device, runner->workspace);
        cli_mirror_release(&runner->mirror);
    }
    cli_memory_release(&runner->memory);
    memset(runner, 0, sizeof *runner);
}

void cli_progress(const char *format, ...) {
    if (!isatty(STDERR_FILENO)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
}

void cli_progress_plan(const char *what, const attn_plan_info *info) {
    if (info->expected_seconds > 1) {
        cli_progress("%s: %.3g GFLOP with %s, about %.0f s", what, info->flop / 1e9, info->implementation,
                     info->expected_seconds);
    }
}
