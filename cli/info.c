/* SPDX-License-Identifier: Apache-2.0
 * attn info: the head of a bug report. */
#include <stdio.h>
#include <string.h>

#include "execute.h"
#include "machine.h"
#include "settings.h"
#include "verbs.h"

typedef struct info_options {
    cli_integer format;
    const char *device;
} info_options;
static const cli_option options[] = {
    {"--device", CLI_WORD, offsetof(info_options, device), "NAME  cpu, or an NVIDIA GPU: cuda, cuda:1 ...", NULL, 0, 0},
    {"--format", CLI_CHOICE, offsetof(info_options, format), "text|csv|json  form of the results", CLI_FORMATS, 0, 0},
};

static void row(cli_report *report, const char *kind, const char *name, bool there, const char *detail) {
    cli_report_row(report);
    cli_report_text(report, "kind", kind);
    cli_report_text(report, "name", name);
    cli_report_flag(report, "available", there);
    cli_report_text(report, "detail", detail);
}

static cli_exit implementations(cli_report *report, const attn_context *context, cli_error *error) {
    attn_error cause;
    for (int i = 0; i < attn_implementation_count(); i++) {
        attn_implementation implementation;
        memset(&implementation, 0, sizeof implementation);
        implementation.struct_size = sizeof implementation;
        if (attn_implementation_get(context, i, &implementation, &cause)) {
            return cli_fail_library(error, NULL, &cause);
        }
        row(report, "implementation", implementation.name, implementation.available, implementation.reason);
    }
    return CLI_RIGHT;
}

static void machine_head(cli_report *report) {
    cli_machine machine;
    char text[160];
    cli_machine_read(&machine);
    cli_report_head_text(report, "cpu", machine.model[0] ? machine.model : "unknown");
    cli_report_head_text(report, "isa", machine.isa[0] ? machine.isa : "baseline");
    cli_report_head_integer(report, "cores", machine.cores);
    snprintf(text, sizeof text, "L1d %lld KiB, L2 %lld KiB, L3 %lld KiB", (long long)machine.l1 >> 10,
             (long long)machine.l2 >> 10, (long long)machine.l3 >> 10);
    cli_report_head_text(report, "caches", text);
    snprintf(text, sizeof text, "%.1f GiB", (double)machine.memory / 0x1p30);
    cli_report_head_text(report, "memory", text);
    cli_report_head_text(report, "system", machine.system);
#ifdef __VERSION__
    cli_report_head_text(report, "compiler", __VERSION__);
#endif
}

static void compiler_rows(cli_report *report, const attn_device_info *info) {
    char text[1200];
    snprintf(text, sizeof text, "%s, %s", info->nvrtc, info->nvrtc_path);
    row(report, "part", "nvrtc", info->nvrtc[0] != 0, info->nvrtc[0] ? text : info->nvrtc_missing);
    row(report, "part", "kernel cache", info->cache[0] != 0, info->cache[0] ? info->cache : "none on disk");
}

static void gpu_rows(cli_report *report, const attn_device_info *gpu) {
    char text[1200];
    snprintf(text, sizeof text, "%s, sm_%d, %d processors, %.1f of %.1f GiB free", gpu->name, gpu->device_arch,
             gpu->processors, (double)gpu->memory_free / 0x1p30, (double)gpu->memory_total / 0x1p30);
    row(report, "device", gpu->device, true, text);
    snprintf(text, sizeof text, "speaks CUDA %d.%d", gpu->driver_version / 1000, gpu->driver_version % 1000 / 10);
    row(report, "part", "driver", true, text);
}

/* A context that stands for a GPU and looks for the compiler and the cache all the same. */
static cli_exit stand_in(attn_context **context, cli_error *error) {
    attn_error cause;
    const attn_config config = {.struct_size = sizeof config, .device = "gpu:h100", .options = ATTN_COMPILE};
    return attn_context_create(context, &config, &cause) ? cli_fail_library(error, NULL, &cause) : CLI_RIGHT;
}

/* The CPU, and the GPU asked for. By default that is the first one, whose absence is no failure. */
static cli_exit devices(cli_report *report, const char *device, cli_error *error) {
    bool asked = device && strcmp(device, "cpu") != 0;
    attn_device_info gpu;
    attn_context *context = NULL;
    row(report, "device", "cpu", true, "");
    cli_exit code = cli_context_create(&context, asked ? device : "cuda", 0, error);
    if (code && !asked) {
        row(report, "device", "cuda", false, error->text);
        memset(error, 0, sizeof *error);
        code = stand_in(&context, error);
    }
    code = code ? code : cli_device_query(context, &gpu, error);
    if (!code && gpu.driver_version) {
        gpu_rows(report, &gpu);
    }
    if (!code) {
        compiler_rows(report, &gpu);
    }
    attn_context_destroy(context);
    return code;
}

static cli_exit describe(cli_report *report, const char *device, cli_error *error) {
    char text[64];
    int version = attn_version();
    attn_context *context;
    cli_exit code = cli_context_create(&context, device, 0, error);
    if (code) {
        return code;
    }
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    cli_report_head_text(report, "libattn", text);
    machine_head(report);
    cli_report_head_integer(report, "threads", attn_context_threads(context));
    code = implementations(report, context, error);
    attn_context_destroy(context);
    if (code) {
        return code;
    }
#ifdef _OPENMP
    row(report, "part", "threads", true, "OpenMP");
#else
    row(report, "part", "threads", false,
        "this build has no OpenMP; install the compiler's runtime (libgomp1) and build again");
#endif
    row(report, "part", "json", cli_json_available(),
        cli_json_available() ? "JSON output, .safetensors files" : CLI_JSON_MISSING);
    return code ? code : devices(report, device, error);
}

cli_exit cli_info(int argc, char **argv, cli_error *error) {
    info_options given = {0};
    const cli_group groups[] = {CLI_GROUP(options, &given)};
    bool help;
    cli_report *report;
    cli_exit code = cli_options_parse(argc, argv, groups, 1, NULL, &help, error);
    if (!code && help) {
        cli_verb_help("attn info [options]", "Version, machine and implementations.", groups, 1);
        return CLI_RIGHT;
    }
    cli_common common = {.device = given.device};
    code = code ? code : cli_common_check(&common, error);
    code = code ? code : cli_report_create(&report, (cli_format)given.format.value, "info", error);
    if (code) {
        return code;
    }
    code = describe(report, given.device, error);
    code = code ? code : cli_report_print(report, error);
    cli_report_destroy(report);
    return code;
}
