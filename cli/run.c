/* SPDX-License-Identifier: Apache-2.0
 * attn run: q, k and v from files, outputs to files. Order of events: options, inputs, plan, output files opened, work,
 * files written and renamed, summary printed. Whatever fails before the end leaves every target as it was. */
#include <math.h>
#include <string.h>

#include "execute.h"
#include "load.h"
#include "output.h"
#include "verbs.h"

typedef struct targets {
    const char *file[CLI_SLOT_COUNT]; /* by slot; NULL: not wanted */
    cli_words dtype;
    cli_integer layout;
} targets;

#define FILE_OF(slot) offsetof(targets, file[CLI_SLOT_##slot])
static const cli_option target_options[] = {
    {"--layout", CLI_CHOICE, offsetof(targets, layout), "bshd|bhsd|thd  order of the axes; thd: packed", CLI_LAYOUTS, 0,
     0},
    {"--dtype", CLI_WORDS, offsetof(targets, dtype), "TYPE  compute in f32, f16, bf16 or f64; default: q's type",
     CLI_DTYPES, 0, 0},
    {"Outputs (in q's file type; lse, dbias and dsink float32)", CLI_TITLE, 0, NULL, NULL, 0, 0},
    {"-o", CLI_WORD, FILE_OF(O), "FILE  output, [B,S,H,Dv]", NULL, 0, 0},
    {"--lse", CLI_WORD, FILE_OF(LSE), "FILE  log of the sum of exp(scores), [B,H,S] or [H,T]", NULL, 0, 0},
    {"--dq", CLI_WORD, FILE_OF(DQ), "FILE  gradient of q; needs --do", NULL, 0, 0},
    {"--dk", CLI_WORD, FILE_OF(DK), "FILE  gradient of k", NULL, 0, 0},
    {"--dv", CLI_WORD, FILE_OF(DV), "FILE  gradient of v", NULL, 0, 0},
    {"--dbias", CLI_WORD, FILE_OF(DBIAS), "FILE  gradient of the bias, shaped as it", NULL, 0, 0},
    {"--dsink", CLI_WORD, FILE_OF(DSINK), "FILE  gradient of the sinks, [H]", NULL, 0, 0},
};

typedef struct job {
    cli_common common;
    cli_features features;
    cli_inputs inputs;
    targets targets;
    cli_case at;
    cli_loaded loaded;
    bool from_files;
    cli_outputs outputs;
    int output_slot[CLI_OUTPUTS_MAX];
    cli_tensor tensor[CLI_OUTPUTS_MAX];
    cli_memory memory;
    attn_context *context;
    cli_runner runner;
    cli_report *report;
} job;

static const char *const option_of[CLI_SLOT_COUNT] = {
    [CLI_SLOT_O] = "-o",    [CLI_SLOT_LSE] = "--lse",     [CLI_SLOT_DQ] = "--dq",       [CLI_SLOT_DK] = "--dk",
    [CLI_SLOT_DV] = "--dv", [CLI_SLOT_DBIAS] = "--dbias", [CLI_SLOT_DSINK] = "--dsink",
};

static cli_exit check_options(job *j, cli_error *error) {
    cli_exit code = cli_common_check(&j->common, error);
    if (code) {
        return code;
    }
    if (j->features.causal.value == 2) {
        return cli_fail(error, CLI_USAGE, "--causal: 'both' is two runs, one is the limit here");
    }
    if (j->common.implementation.count > 1 || j->common.threads.count > 1 || j->targets.dtype.count > 1) {
        return cli_fail(error, CLI_USAGE, "%s: a list, one value is the limit here",
                        j->common.implementation.count > 1 ? "--impl"
                        : j->common.threads.count > 1      ? "--threads"
                                                           : "--dtype");
    }
    for (int s = CLI_SLOT_DQ; s < CLI_SLOT_COUNT; s++) {
        if (j->targets.file[s] && !j->inputs.dout) {
            return cli_fail(error, CLI_USAGE, "%s: needs --do, the gradient of the output", option_of[s]);
        }
    }
    if (j->inputs.dlse && !j->inputs.dout) {
        return cli_fail(error, CLI_USAGE, "--dlse: needs --do, which makes a backward pass");
    }
    if (j->targets.file[CLI_SLOT_DBIAS] && !j->features.bias) {
        return cli_fail(error, CLI_USAGE, "--dbias: needs --bias, whose gradient it is");
    }
    if (j->targets.file[CLI_SLOT_DSINK] && !j->features.sink) {
        return cli_fail(error, CLI_USAGE, "--dsink: needs --sink, whose gradient it is");
    }
    j->from_files = cli_inputs_given(&j->inputs);
    bool other = j->features.bias || j->features.mask || j->features.sink;
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        other = other || j->targets.file[s];
    }
    other =
        other || (j->features.alibi && strcmp(j->features.alibi, "auto") != 0) || j->targets.layout.value == CLI_THD;
    j->from_files = j->from_files || other;
    return CLI_RIGHT;
}

/* Without files: a small problem, so that the verb shows something. */
static cli_exit small_default(job *j, cli_error *error) {
    static const cli_defaults defaults = {1, 4, 2, 128, 128, 64, {"f32"}, {"fwd"}};
    cli_shape shape = {.layout = j->targets.layout, .dtype = j->targets.dtype};
    cli_sweep sweep;
    cli_exit code = cli_sweep_make(&sweep, &shape, &j->features, &defaults, error);
    if (!code) {
        cli_case_shape(&j->at, &sweep.problems[0]);
        code = cli_case_allocate(&j->at, error);
        code = code ? code : cli_case_random(&j->at, cli_features_seed(&j->features), error);
    }
    cli_sweep_release(&sweep);
    return code;
}

static cli_type type_of_output(const job *j, int slot) {
    return slot == CLI_SLOT_LSE || slot == CLI_SLOT_DBIAS || slot == CLI_SLOT_DSINK ? CLI_F32 : j->loaded.type;
}

static cli_exit declare_outputs(job *j, cli_error *error) {
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        if (!j->targets.file[s]) {
            continue;
        }
        int index;
        const char *option = option_of[s];
        cli_exit code = cli_outputs_add(&j->outputs, option, j->targets.file[s], option + strspn(option, "-"),
                                        j->loaded.safetensors, &index, error);
        if (code) {
            return code;
        }
        j->output_slot[index] = s;
        const cli_path *path = &j->outputs.output[index].path;
        if (!path->safetensors && !cli_types[type_of_output(j, s)].npy) {
            return cli_fail(error, CLI_USAGE, "%s: %s cannot hold %s, a .safetensors file can", option, path->file,
                            cli_types[type_of_output(j, s)].name);
        }
        if (path->safetensors && !cli_json_available()) {
            return cli_fail(error, CLI_USAGE, "%s: %s", option, CLI_JSON_MISSING);
        }
    }
    const struct {
        const char *option, *text;
    } read[] = {{"-q", j->inputs.q},
                {"-k", j->inputs.k},
                {"-v", j->inputs.v},
                {"--do", j->inputs.dout},
                {"--dlse", j->inputs.dlse},
                {"--bias", j->features.bias},
                {"--mask", j->features.mask},
                {"--alibi", j->features.alibi},
                {"--sink", j->features.sink},
                {"--cu-seqlens-q", j->inputs.cu_q},
                {"--used-q", j->inputs.used_q},
                {"--used-k", j->inputs.used_k},
                {"--cu-seqlens-k", j->inputs.cu_k}};
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++) {
        cli_path path;
        if (read[i].text) {
            cli_exit code = cli_path_parse(&path, read[i].text, read[i].option, "x", error);
            code = code ? code : cli_outputs_refuse_input(&j->outputs, read[i].option, path.file, error);
            if (code) {
                return code;
            }
        }
    }
    return CLI_RIGHT;
}

/* The shape of an output in its file: as q's, with as many axes; scores as the bias file. */
static void output_shape(const job *j, int slot, cli_tensor *tensor) {
    const int64_t *n = j->at.view[slot].shape;
    bool per_row = slot == CLI_SLOT_LSE;
    tensor->rank = 4;
    if (slot == CLI_SLOT_DBIAS) {
        tensor->rank = j->loaded.bias_rank;
        memcpy(tensor->shape, j->loaded.bias_shape, sizeof tensor->shape);
        return;
    }
    if (slot == CLI_SLOT_DSINK) {
        tensor->rank = 1;
        tensor->shape[0] = n[1];
        return;
    }
    const int64_t heads_first[4] = {n[0], n[1], n[2], n[3]}, tokens_first[4] = {n[0], n[2], n[1], n[3]};
    memcpy(tensor->shape, per_row || j->loaded.layout == CLI_BHSD ? heads_first : tokens_first, sizeof heads_first);
    int skipped = j->loaded.layout == CLI_THD ? 1 : 4 - j->loaded.rank;
    int64_t last = tensor->shape[3];
    tensor->rank = 4 - skipped - per_row;
    if (skipped == 2) { /* [S,D]: neither batch nor head */
        tensor->shape[0] = n[2];
        tensor->shape[1] = last;
    } else {
        memmove(tensor->shape, tensor->shape + skipped, (size_t)(4 - skipped) * sizeof tensor->shape[0]);
    }
}

/* A contiguous copy in the file's type, unless the computed array is that already. All outputs lie contiguous in the
 * order of their file, so element i stays element i. */
static cli_exit fill_output(job *j, int index, cli_error *error) {
    int slot = j->output_slot[index];
    const cli_view *view = &j->at.view[slot];
    cli_tensor *tensor = &j->tensor[index];
    tensor->type = type_of_output(j, slot);
    output_shape(j, slot, tensor);
    cli_tensor_row_major(tensor);
    tensor->data = view->base;
    if (tensor->type != view->type) {
        void *block;
        int64_t count = cli_tensor_count(tensor), lost = 0;
        cli_exit code = cli_memory_take(&j->memory, &block, (double)count * (double)cli_types[tensor->type].bytes,
                                        option_of[slot], error);
        if (code) {
            return code;
        }
        for (int64_t i = 0; i < count; i++) {
            double value = cli_load(view->type, view->base, i);
            cli_store(tensor->type, block, i, value);
            lost += isfinite(value) && isinf(cli_load(tensor->type, block, i));
        }
        if (lost) {
            fprintf(stderr, "attn run: note: %s: %lld values are too large for %s and become infinite\n",
                    option_of[slot], (long long)lost, cli_types[tensor->type].name);
        }
        tensor->data = block;
    }
    j->outputs.output[index].tensor = tensor;
    return CLI_RIGHT;
}

static void summarize(job *j, int slot) {
    const cli_view *view = &j->at.view[slot];
    double sum = 0, low = INFINITY, high = -INFINITY;
    int64_t nan = 0, inf = 0;
    for (int64_t b = 0; b < view->shape[0]; b++) {
        for (int64_t h = 0; h < view->shape[1]; h++) {
            for (int64_t t = 0; t < view->shape[2]; t++) {
                for (int64_t d = 0; d < view->shape[3]; d++) {
                    double value = cli_view_at(view, b, h, t, d);
                    nan += isnan(value) != 0;
                    inf += isinf(value) != 0;
                    if (isfinite(value)) {
                        sum += fabs(value);
                        low = value < low ? value : low;
                        high = value > high ? value : high;
                    }
                }
            }
        }
    }
    char shape[160];
    cli_tensor tensor = {.rank = 4};
    if (j->from_files) {
        output_shape(j, slot, &tensor);
    } else {
        memcpy(tensor.shape, view->shape, sizeof view->shape);
        tensor.rank = slot == CLI_SLOT_LSE ? 3 : 4;
    }
    cli_report_row(j->report);
    cli_report_text(j->report, "tensor", cli_slot_names[slot]);
    cli_report_text(j->report, "shape", cli_shape_text(shape, sizeof shape, tensor.shape, tensor.rank));
    cli_report_real(j->report, "sum_abs", sum, 9);
    if (low > high) { /* nothing finite */
        cli_report_missing(j->report, "min");
        cli_report_missing(j->report, "max");
    } else {
        cli_report_real(j->report, "min", low, 6);
        cli_report_real(j->report, "max", high, 6);
    }
    cli_report_integer(j->report, "nan", nan);
    cli_report_integer(j->report, "inf", inf);
    cli_report_text(j->report, "file", j->targets.file[slot] ? j->targets.file[slot] : "");
}

static cli_exit report(job *j, cli_error *error) {
    char text[2048];
    attn_plan_info info;
    cli_exit code = cli_runner_info(&j->runner, &info, error);
    if (code) {
        return code;
    }
    attn_problem_format(&j->at.problem, text, sizeof text);
    cli_report_head_text(j->report, "problem", text);
    cli_report_head_text(j->report, "implementation", info.implementation);
    cli_report_head_integer(j->report, "threads", info.threads);
    for (int s = CLI_SLOT_O; s < CLI_SLOT_COUNT; s++) {
        if (j->at.present[s]) {
            summarize(j, s);
        }
    }
    return cli_report_print(j->report, error);
}

static cli_exit work(job *j, cli_error *error) {
    attn_plan_info info;
    cli_exit code = check_options(j, error);
    const cli_words *implementation = &j->common.implementation;
    const attn_hints hints = cli_common_hints(&j->common, implementation->count ? implementation->value[0] : NULL);
    code = code ? code : cli_report_create(&j->report, (cli_format)j->common.format.value, "run", error);
    if (!code) {
        code = j->from_files
                   ? cli_case_load(&j->at, &j->loaded, &j->inputs, &j->features, (cli_layout)j->targets.layout.value,
                                   j->targets.dtype.count ? j->targets.dtype.value[0] : NULL, j->inputs.dout != NULL,
                                   "run", error)
                   : small_default(j, error);
    }
    code = code ? code : declare_outputs(j, error);
    for (int s = CLI_SLOT_DQ; s < CLI_SLOT_COUNT && !code && j->from_files; s++) {
        bool any = false; /* with no gradient asked for, all are made, for the summary */
        for (int g = CLI_SLOT_DQ; g < CLI_SLOT_COUNT; g++) {
            any = any || j->targets.file[g];
        }
        j->at.present[s] = j->at.present[s] && (!any || j->targets.file[s]);
    }
    code = code ? code
                : cli_context_create(&j->context, j->common.device,
                                     j->common.threads.count ? (int)j->common.threads.value[0] : 0, error);
    code = code ? code : cli_runner_create(&j->runner, j->context, &j->at.problem, &hints, error);
    code = code ? code : cli_outputs_open(&j->outputs, error);
    code = code ? code : cli_runner_info(&j->runner, &info, error);
    if (!code) {
        cli_progress_plan("attn run", &info);
        code = cli_runner_run_all(&j->runner, &j->at, error);
        cli_progress("%s", "");
    }
    for (int i = 0; i < j->outputs.count && !code; i++) {
        code = fill_output(j, i, error);
    }
    code = code ? code : cli_outputs_commit(&j->outputs, error);
    return code ? code : report(j, error);
}

cli_exit cli_run(int argc, char **argv, cli_error *error) {
    static job j; /* large, and one per process */
    memset(&j, 0, sizeof j);
    const cli_group groups[] = {
        {cli_input_options, cli_input_count, &j.inputs},
        CLI_GROUP(target_options, &j.targets),
        {cli_feature_options, cli_feature_count, &j.features},
        {cli_common_options, cli_common_count, &j.common},
    };
    bool help;
    cli_exit code = cli_options_parse(argc, argv, groups, 4, NULL, &help, error);
    if (code) {
        return code;
    }
    if (help) {
        cli_verb_help("attn run -q FILE -k FILE -v FILE [-o FILE] [options]",
                      "Attention of arrays in files. Without files: a small random problem.", groups, 4);
        return CLI_RIGHT;
    }
    code = work(&j, error);
    cli_outputs_discard(&j.outputs);
    cli_runner_release(&j.runner);
    attn_context_destroy(j.context);
    cli_case_release(&j.at);
    cli_memory_release(&j.memory);
    cli_report_destroy(j.report);
    return code;
}
