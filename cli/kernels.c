/* SPDX-License-Identifier: Apache-2.0
 * attn kernels: compiled GPU kernels as files. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "attn/attn_device.h"
#include "attn/attn_kernels.h"
#include "settings.h"
#include "verbs.h"

typedef struct kernels_options {
    cli_common common;
    cli_features features;
    cli_shape shape;
    cli_words gpu;
    const char *cache, *arch;
    bool all;
    cli_integer format;
} kernels_options;

static const cli_option folder_options[] = {
    {"--cache", CLI_WORD, offsetof(kernels_options, cache), "FOLDER  of kernels; default: where contexts keep theirs",
     NULL, 0, 0},
    {"--format", CLI_CHOICE, offsetof(kernels_options, format), "text|csv|json  form of the results", CLI_FORMATS, 0,
     0},
};
static const cli_option clean_options[] = {
    {"--all", CLI_FLAG, offsetof(kernels_options, all), "also kernels that this version would take", NULL, 0, 0},
};
static const cli_option build_options[] = {
    {"--gpu", CLI_WORDS, offsetof(kernels_options, gpu),
     "LIST  known GPUs: t4, a100, l4, h100 ...; default: the one of this machine", NULL, 0, 0},
    {"--cache", CLI_WORD, offsetof(kernels_options, cache), "FOLDER  of kernels; default: where contexts keep theirs",
     NULL, 0, 0},
    {"--arch", CLI_WORD, offsetof(kernels_options, arch), "sm_NN  code for an older architecture than the GPU's", NULL,
     0, 0},
};

/* gpu NULL: a context that only knows where the kernels lie. */
static cli_exit open_context(attn_context **context, const kernels_options *given, const char *gpu, cli_error *error) {
    char device[80];
    attn_error cause;
    attn_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.cache = given->cache;
    if (gpu) {
        snprintf(device, sizeof device, "%s%s", strcmp(gpu, "cuda") == 0 ? "" : "gpu:", gpu);
        config.device = device;
        config.options = ATTN_COMPILE;
        config.max_isa = given->arch;
    }
    return attn_context_create(context, &config, &cause) ? cli_fail_library(error, gpu, &cause) : CLI_RIGHT;
}

/* --- list --- */

static void count_or_missing(cli_report *report, const char *column, int value) {
    if (value < 0) {
        cli_report_missing(report, column);
    } else {
        cli_report_integer(report, column, value);
    }
}

static void list_one(void *user, const attn_kernel_info *info) {
    cli_report *report = user;
    cli_report_row(report);
    cli_report_text(report, "kernel", info->name);
    cli_report_text(report, "target", info->target);
    cli_report_text(report, "nvrtc", info->nvrtc);
    cli_report_integer(report, "bytes", (int64_t)info->code_bytes);
    count_or_missing(report, "registers", info->registers);
    count_or_missing(report, "stack", info->stack_bytes);
    count_or_missing(report, "spills", info->spill_bytes);
    cli_report_flag(report, "current", info->current);
}

static cli_exit list(const kernels_options *given, const char *path, cli_report *report, cli_error *error) {
    attn_context *context;
    attn_error cause;
    cli_exit code = open_context(&context, given, NULL, error);
    if (code) {
        return code;
    }
    if (attn_kernels_list(context, path, list_one, report, &cause)) {
        code = cli_fail_library(error, NULL, &cause);
    }
    attn_device_info info = {.struct_size = sizeof info};
    if (!code && !path && attn_device_query(context, &info, &cause) == ATTN_OK) {
        cli_report_head_text(report, "folder", info.cache);
    }
    code = code ? code : cli_report_print(report, error);
    attn_context_destroy(context);
    return code;
}

/* --- build --- */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Tells what was chosen. */
static cli_exit build_one(cli_report *report, const attn_context *context, const char *gpu, const attn_problem *problem,
                          const attn_hints *hints, const char **chosen, cli_error *error) {
    char text[2048];
    attn_plan *plan;
    attn_error cause;
    attn_plan_info info = {.struct_size = sizeof info};
    double start = now();
    attn_problem_format(problem, text, sizeof text);
    if (attn_plan_create(&plan, context, problem, hints, &cause)) {
        return cli_fail_library(error, gpu, &cause);
    }
    double seconds = now() - start;
    attn_plan_query(plan, &info, &cause);
    *chosen = info.implementation;
    cli_report_row(report);
    cli_report_text(report, "gpu", gpu);
    cli_report_text(report, "problem", text);
    cli_report_text(report, "implementation", info.implementation);
    cli_report_real(report, "seconds", seconds, 3);
    attn_plan_destroy(plan);
    return CLI_RIGHT;
}

static cli_exit build_for(const kernels_options *given, const char *gpu, const cli_sweep *sweep, cli_report *report,
                          cli_error *error) {
    attn_context *context;
    const cli_words *names = &given->common.implementation;
    cli_exit code = open_context(&context, given, gpu, error);
    if (code) {
        return code;
    }
    for (int p = 0; p < sweep->count && !code; p++) {
        const char *chosen = "";
        for (int n = 0; n < (names->count ? names->count : 1) && !code; n++) {
            const attn_hints hints = cli_common_hints(&given->common, names->count ? names->value[n] : NULL);
            code = build_one(report, context, gpu, &sweep->problems[p], &hints, &chosen, error);
        }
        /* Of problems of the same code but other strides, or few rows, hopper leaves some to mma. */
        if (!names->count && !code && strcmp(chosen, "hopper") == 0) {
            const attn_hints hints = cli_common_hints(&given->common, "mma");
            code = build_one(report, context, gpu, &sweep->problems[p], &hints, &chosen, error);
        }
    }
    attn_context_destroy(context);
    return code;
}

static cli_exit build(const kernels_options *given, cli_report *report, cli_error *error) {
    static const cli_defaults defaults = {1, 8, 8, 2048, 2048, 128, {"bf16"}, {"fwd"}};
    cli_sweep sweep = {0};
    cli_exit code = cli_sweep_make(&sweep, &given->shape, &given->features, &defaults, error);
    for (int n = 0; n < (given->gpu.count ? given->gpu.count : 1) && !code; n++) {
        code = build_for(given, given->gpu.count ? given->gpu.value[n] : "cuda", &sweep, report, error);
    }
    cli_sweep_release(&sweep);
    return code ? code : cli_report_print(report, error);
}

/* --- pack, clean --- */

static cli_exit counted(cli_report *report, const char *what, int64_t count, cli_error *error) {
    cli_report_head_integer(report, what, count);
    return cli_report_print(report, error);
}

static cli_exit pack(const kernels_options *given, const char *file, cli_report *report, cli_error *error) {
    attn_context *context;
    attn_error cause;
    int64_t packed = 0;
    if (!file) {
        return cli_fail(error, CLI_USAGE, "pack needs the name of the file to write");
    }
    cli_exit code = open_context(&context, given, NULL, error);
    if (code) {
        return code;
    }
    if (attn_kernels_pack(context, NULL, file, &packed, &cause)) {
        code = cli_fail_library(error, NULL, &cause);
    }
    attn_context_destroy(context);
    return code ? code : counted(report, "packed", packed, error);
}

static cli_exit clean(const kernels_options *given, cli_report *report, cli_error *error) {
    attn_context *context;
    attn_error cause;
    int64_t removed = 0;
    cli_exit code = open_context(&context, given, NULL, error);
    if (code) {
        return code;
    }
    if (attn_kernels_clean(context, NULL, given->all, &removed, &cause)) {
        code = cli_fail_library(error, NULL, &cause);
    }
    attn_context_destroy(context);
    return code ? code : counted(report, "removed", removed, error);
}

/* --- The verb --- */

enum { LIST, BUILD, PACK, CLEAN };

static const char *const usages[] = {"attn kernels list [options] [FOLDER|FILE]", "attn kernels build [options] [TEXT]",
                                     "attn kernels pack [options] FILE", "attn kernels clean [options]"};
static const char *const meanings[] = {
    "Compiled kernels that are kept: registers, stack and spilled bytes, and whether this version takes them.",
    "Compiles what the problems need into the folder, for GPUs that need not be there.",
    "Puts the folder's kernels into one file, for machines without a compiler (ATTN_KERNELS).",
    "Removes kernels of other versions, damaged files and what interrupted writers left."};

static cli_exit act(int action, kernels_options *given, const char *operand, cli_report *report, cli_error *error) {
    switch (action) {
    case LIST: return list(given, operand, report, error);
    case BUILD: return build(given, report, error);
    case PACK: return pack(given, operand, report, error);
    default:
        return operand ? cli_fail(error, CLI_USAGE, "clean takes no '%.60s'; --cache names the folder", operand)
                       : clean(given, report, error);
    }
}

cli_exit cli_kernels(int argc, char **argv, cli_error *error) {
    static kernels_options given;
    memset(&given, 0, sizeof given);
    const cli_group build_groups[] = {
        {cli_shape_options, cli_shape_count, &given.shape},
        {cli_feature_options, cli_feature_count, &given.features},
        {cli_common_options, cli_common_count, &given.common},
        CLI_GROUP(build_options, &given),
    };
    const cli_group folder_groups[] = {CLI_GROUP(folder_options, &given), CLI_GROUP(clean_options, &given)};
    bool help, named = argc > 1 && argv[1][0] != '-';
    int action = named ? cli_choice_index("list|build|pack|clean", argv[1]) : LIST;
    const char *operand = NULL;
    cli_report *report = NULL;
    if (action < 0) {
        return cli_fail(error, CLI_USAGE, "'%.60s': no such action; they are list, build, pack and clean", argv[1]);
    }
    const cli_group *groups = action == BUILD ? build_groups : folder_groups;
    int n_groups = action == BUILD ? 4 : action == CLEAN ? 2 : 1;
    cli_exit code = cli_options_parse(argc - named, argv + named, groups, n_groups, &operand, &help, error);
    if (!code && help) {
        cli_verb_help(usages[action], meanings[action], groups, n_groups);
        return CLI_RIGHT;
    }
    if (action == BUILD) {
        code = code ? code : cli_shape_take_operand(&given.shape, operand, error);
        if (!code && given.common.device) {
            code = cli_fail(error, CLI_USAGE, "--device: build takes --gpu");
        }
        given.format = given.common.format;
    }
    code = code ? code : cli_report_create(&report, (cli_format)given.format.value, "kernels", error);
    code = code ? code : act(action, &given, operand, report, error);
    cli_report_destroy(report);
    return code;
}
