/* SPDX-License-Identifier: Apache-2.0
 * attn plan: what would run, without running it. One problem is described in full; a sweep makes a table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "execute.h"
#include "settings.h"
#include "verbs.h"

typedef struct plan_options {
    cli_common common;
    cli_features features;
    cli_shape shape;
    const char *gpu;
} plan_options;
static const cli_option gpu_options[] = {
    {"--gpu", CLI_WORD, offsetof(plan_options, gpu), "NAME  plan for a known GPU, present or not: t4, a100, h200 ...",
     NULL, 0, 0},
};

/* The plan's own words: as they are, or as a field of the JSON object. */
static cli_exit describe(cli_report *report, const attn_plan *plan, cli_format format, cli_error *error) {
    size_t size = attn_plan_describe(plan, NULL, 0);
    char *text = malloc(size + 1);
    if (!text) {
        return cli_fail(error, CLI_UNRUN, "out of memory for the plan's description");
    }
    attn_plan_describe(plan, text, size + 1);
    if (format == CLI_TEXT) {
        fputs(text, stdout);
    } else {
        const char *name, *reason;
        cli_report_head_text(report, "plan", text);
        for (int i = 0; attn_plan_refusal(plan, i, &name, &reason); i++) {
            cli_report_remark(report, "%s: %s", name, reason);
        }
    }
    free(text);
    return CLI_RIGHT;
}

static void row(cli_report *report, const attn_problem *problem, const attn_plan *plan, const attn_plan_info *info) {
    char text[2048];
    attn_problem_format(problem, text, sizeof text);
    cli_report_row(report);
    cli_report_text(report, "problem", text);
    cli_report_text(report, "implementation", info->implementation);
    cli_report_integer(report, "threads", info->threads);
    cli_report_integer(report, "block_q", info->block_q);
    cli_report_integer(report, "block_kv", info->block_kv);
    cli_report_integer(report, "splits", info->splits);
    cli_report_integer(report, "workspace", (int64_t)attn_plan_workspace(plan));
    cli_report_integer(report, "memory_native", (int64_t)info->memory_native);
    cli_report_real(report, "gflop", info->flop / 1e9, 6);
    cli_report_real(report, "mbytes", info->bytes / 1e6, 6);
    if (info->expected_seconds > 0) {
        cli_report_real(report, "expected_ms", info->expected_seconds * 1e3, 4);
    } else { /* no rate is assumed for it */
        cli_report_missing(report, "expected_ms");
    }
    cli_report_text(report, "bound", info->bound);
}

static cli_exit plan_one(cli_report *report, const attn_context *context, const attn_problem *problem,
                         const attn_hints *hints, bool alone, cli_format format, cli_error *error) {
    attn_plan *plan;
    attn_error cause;
    attn_plan_info info;
    if (attn_plan_create(&plan, context, problem, hints, &cause)) {
        return cli_fail_library(error, NULL, &cause);
    }
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    cli_exit code = CLI_RIGHT;
    if (attn_plan_query(plan, &info, &cause)) {
        code = cli_fail_library(error, NULL, &cause);
    } else {
        code = alone ? describe(report, plan, format, error) : CLI_RIGHT;
        if (!alone || format != CLI_TEXT) {
            row(report, problem, plan, &info);
        }
    }
    attn_plan_destroy(plan);
    return code;
}

static cli_exit plan_all(cli_report *report, const plan_options *given, const cli_sweep *sweep, const char *device,
                         cli_error *error) {
    const cli_words *names = &given->common.implementation;
    const cli_integers *threads = &given->common.threads;
    int n_names = names->count ? names->count : 1, n_threads = threads->count ? threads->count : 1;
    bool alone = sweep->count * n_names * n_threads == 1;
    cli_exit code = CLI_RIGHT;
    for (int t = 0; t < n_threads && !code; t++) {
        attn_context *context;
        code = cli_context_create(&context, device, threads->count ? (int)threads->value[t] : 0, error);
        if (code) {
            return code;
        }
        for (int p = 0; p < sweep->count && !code; p++) {
            for (int n = 0; n < n_names && !code; n++) {
                const attn_hints hints = cli_common_hints(&given->common, names->count ? names->value[n] : NULL);
                code = plan_one(report, context, &sweep->problems[p], &hints, alone,
                                (cli_format)given->common.format.value, error);
            }
        }
        attn_context_destroy(context);
    }
    return code ? code : cli_report_print(report, error);
}

/* --gpu NAME is the device "gpu:NAME". */
static cli_exit take_gpu(plan_options *given, char *device, size_t size, cli_error *error) {
    if (!given->gpu) {
        return CLI_RIGHT;
    }
    if (given->common.device) {
        return cli_fail(error, CLI_USAGE, "--gpu: contradicts --device %s", given->common.device);
    }
    snprintf(device, size, "gpu:%s", given->gpu);
    given->common.device = device;
    return CLI_RIGHT;
}

cli_exit cli_plan(int argc, char **argv, cli_error *error) {
    static plan_options given;
    static const cli_defaults defaults = {1, 8, 8, 2048, 2048, 64, {"f32"}, {"fwd"}};
    memset(&given, 0, sizeof given);
    const cli_group groups[] = {
        {cli_shape_options, cli_shape_count, &given.shape},
        {cli_feature_options, cli_feature_count, &given.features},
        {cli_common_options, cli_common_count, &given.common},
        CLI_GROUP(gpu_options, &given),
    };
    bool help;
    const char *operand = NULL;
    cli_report *report = NULL;
    cli_sweep sweep = {0};
    cli_exit code = cli_options_parse(argc, argv, groups, 4, &operand, &help, error);
    if (!code && help) {
        cli_verb_help("attn plan [options] [TEXT]", "What would run, why, what was passed over, and what it costs.",
                      groups, 4);
        return CLI_RIGHT;
    }
    code = code ? code : cli_shape_take_operand(&given.shape, operand, error);
    char device[64];
    code = code ? code : take_gpu(&given, device, sizeof device, error);
    code = code ? code : cli_common_check(&given.common, error);
    code = code ? code : cli_report_create(&report, (cli_format)given.common.format.value, "plan", error);
    code = code ? code : cli_sweep_make(&sweep, &given.shape, &given.features, &defaults, error);
    code = code ? code : plan_all(report, &given, &sweep, given.common.device, error);
    cli_sweep_release(&sweep);
    cli_report_destroy(report);
    return code;
}
