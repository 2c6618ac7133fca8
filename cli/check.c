/* SPDX-License-Identifier: Apache-2.0
 * attn check: every problem of a sweep, or one from files, through one or more implementations against the float64
 * reference. One row for each output tensor; a wrong one is explained below the table. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "diagnose.h"
#include "judge.h"
#include "load.h"
#include "verbs.h"

typedef struct check_options {
    cli_common common;
    cli_features features;
    cli_shape shape;
    cli_inputs inputs;
} check_options;

#define IMPLEMENTATIONS_MAX 16
typedef struct checker {
    const check_options *given;
    cli_place place;
    cli_report *report;
    int64_t wrong, judged;
} checker;

static void row(cli_report *report, const char *problem, const char *implementation, const cli_verdict *verdict,
                const char *type) {
    const cli_difference *d = &verdict->difference;
    cli_report_row(report);
    cli_report_text(report, "problem", problem);
    cli_report_text(report, "implementation", implementation);
    cli_report_text(report, "tensor", cli_slot_names[verdict->slot]);
    cli_report_text(report, "type", type);
    cli_report_integer(report, "nan", d->nan);
    cli_report_integer(report, "inf", d->inf);
    cli_report_integer(report, "misplaced", d->misplaced);
    cli_report_real(report, "max_error", d->largest, 3);
    cli_report_real(report, "rms_error", d->rms, 3);
    if (isnan(verdict->plain_error)) {
        cli_report_missing(report, "plain_error");
    } else {
        cli_report_real(report, "plain_error", verdict->plain_error, 3);
    }
    cli_report_real(report, "bound", verdict->bound, 3);
    cli_report_text(report, "verdict", verdict->right ? "right" : "WRONG");
}

static cli_exit check_implementation(checker *c, const cli_judge *judge, const char *name, cli_error *error) {
    cli_case tested;
    cli_runner runner;
    attn_plan_info info;
    char text[2048];
    const attn_hints hints = cli_common_hints(&c->given->common, name);
    cli_exit code = cli_case_share(&tested, judge->at, error);
    if (code) {
        cli_case_release(&tested);
        return code;
    }
    code = cli_runner_create(&runner, c->place.context, &tested.problem, &hints, error);
    if (!code) {
        code = cli_runner_info(&runner, &info, error);
        if (!code) {
            cli_progress_plan("attn check", &info);
            cli_case_poison(&tested);
            code = cli_runner_run_all(&runner, &tested, error);
            cli_progress("%s", "");
        }
        attn_problem_format(&tested.problem, text, sizeof text);
        for (int s = CLI_SLOT_O; s < CLI_SLOT_COUNT && !code; s++) {
            if (tested.present[s]) {
                cli_verdict verdict = cli_judge_slot(judge, &tested, s);
                row(c->report, text, info.implementation, &verdict, cli_types[tested.view[s].type].name);
                c->judged++;
                if (!verdict.right) {
                    cli_suspect suspect = {&tested, &judge->reference, info.implementation, info.block_q,
                                           info.block_kv};
                    cli_diagnose(&suspect, s, &verdict.difference, verdict.bound, c->report);
                    c->wrong++;
                }
            }
        }
        cli_runner_release(&runner);
    }
    cli_case_release(&tested);
    return code;
}

/* The implementations asked for: none is the automatic one, `all` every available one. */
static cli_exit list_names(const checker *c, const char *names[IMPLEMENTATIONS_MAX], int *count, cli_error *error) {
    const cli_words *given = &c->given->common.implementation;
    *count = 0;
    if (given->count == 0) {
        names[(*count)++] = NULL;
    } else if (given->count == 1 && strcmp(given->value[0], "all") == 0) {
        for (int i = 0; i < attn_implementation_count() && *count < IMPLEMENTATIONS_MAX; i++) {
            attn_error cause;
            attn_implementation implementation;
            memset(&implementation, 0, sizeof implementation);
            implementation.struct_size = sizeof implementation;
            if (attn_implementation_get(c->place.context, i, &implementation, &cause)) {
                return cli_fail_library(error, NULL, &cause);
            }
            if (implementation.available) {
                names[(*count)++] = implementation.name;
            }
        }
    } else if (given->count > IMPLEMENTATIONS_MAX) {
        return cli_fail(error, CLI_USAGE, "--impl: %d names, the limit is %d", given->count, IMPLEMENTATIONS_MAX);
    } else {
        memcpy(names, given->value, (size_t)given->count * sizeof *names);
        *count = given->count;
    }
    return CLI_RIGHT;
}

static cli_exit check_case(checker *c, const cli_case *at, cli_error *error) {
    const char *names[IMPLEMENTATIONS_MAX];
    int count;
    cli_judge judge;
    cli_exit code = list_names(c, names, &count, error);
    if (code) {
        return code;
    }
    code = cli_judge_create(&judge, c->place.host, at, error);
    for (int s = 0; s < CLI_SLOT_COUNT && !code; s++) {
        if (judge.plain_misplaced[s]) {
            cli_report_remark(c->report,
                              "note: the plain computation in %s makes %" PRId64
                              " NaN or inf of its own in %s; its bound is the wider of the rest's and a fixed one",
                              cli_types[at->view[CLI_SLOT_Q].type].name, judge.plain_misplaced[s], cli_slot_names[s]);
        }
    }
    if (!code) {
        cli_diagnose_inputs(at, c->report);
    }
    bool all = c->given->common.implementation.count == 1 && count > 1;
    for (int n = 0; n < count && !code; n++) {
        code = check_implementation(c, &judge, names[n], error);
        if (code == CLI_USAGE && all) { /* with `all`, a refusal is told and not a failure */
            cli_report_remark(c->report, "%s refuses: %s", names[n], error->text);
            error->text[0] = 0;
            code = CLI_RIGHT;
        }
    }
    cli_judge_release(&judge);
    return code;
}

static cli_exit check_files(checker *c, cli_error *error) {
    const check_options *g = c->given;
    const cli_shape *s = &g->shape;
    if (s->problem || s->batch.count || s->heads.count || s->heads_kv.count || s->seqlen.count || s->seqlen_q.count ||
        s->seqlen_k.count || s->dim.count || s->dim_v.count) {
        return cli_fail(error, CLI_USAGE, "-q: sizes come from the files, no option may state them too");
    }
    bool backward = s->backward || g->inputs.dout;
    if (s->pass.count) {
        backward = backward || strcmp(s->pass.value[0], "bwd") == 0;
    }
    if (s->pass.count > 1 || s->dtype.count > 1 || g->features.causal.value == 2) {
        return cli_fail(error, CLI_USAGE, "%s: a list, one value is the limit where inputs come from files",
                        s->pass.count > 1    ? "--pass"
                        : s->dtype.count > 1 ? "--dtype"
                                             : "--causal");
    }
    if (backward && !g->inputs.dout) {
        return cli_fail(error, CLI_USAGE, "--do: is missing, a backward pass needs it");
    }
    cli_case at;
    cli_loaded loaded;
    cli_exit code = cli_case_load(&at, &loaded, &g->inputs, &g->features, (cli_layout)s->layout.value,
                                  s->dtype.count ? s->dtype.value[0] : NULL, backward, "check", error);
    code = code ? code : check_case(c, &at, error);
    cli_case_release(&at);
    return code;
}

static cli_exit check_random(checker *c, cli_error *error) {
    static const cli_defaults defaults = {2, 4, 2, 67, 83, 64, {"f32", "f16", "bf16"}, {"fwd", "bwd"}};
    cli_sweep sweep;
    cli_exit code = cli_sweep_make(&sweep, &c->given->shape, &c->given->features, &defaults, error);
    for (int p = 0; p < sweep.count && !code; p++) {
        cli_case at = {0};
        cli_case_shape(&at, &sweep.problems[p]);
        code = cli_case_allocate(&at, error);
        code = code ? code : cli_case_random(&at, cli_features_seed(&c->given->features), error);
        code = code ? code : check_case(c, &at, error);
        cli_case_release(&at);
    }
    cli_sweep_release(&sweep);
    return code;
}

static cli_exit check_all(const check_options *given, cli_report *report, cli_error *error) {
    const cli_integers *threads = &given->common.threads;
    checker c = {.given = given, .report = report};
    cli_exit code = CLI_RIGHT;
    for (int t = 0; t < (threads->count ? threads->count : 1) && !code; t++) {
        code = cli_place_open(&c.place, given->common.device, threads->count ? (int)threads->value[t] : 0, error);
        if (!code) {
            code = cli_inputs_given(&given->inputs) ? check_files(&c, error) : check_random(&c, error);
        }
        cli_place_close(&c.place);
    }
    if (code) {
        return code;
    }
    cli_report_head_integer(report, "tensors judged", c.judged);
    cli_report_head_integer(report, "wrong", c.wrong);
    code = cli_report_print(report, error);
    if (!code && c.wrong) {
        error->text[0] = 0;
        code = CLI_WRONG;
    }
    return code;
}

cli_exit cli_check(int argc, char **argv, cli_error *error) {
    static check_options given;
    memset(&given, 0, sizeof given);
    const cli_group groups[] = {
        {cli_shape_options, cli_shape_count, &given.shape},
        {cli_feature_options, cli_feature_count, &given.features},
        {cli_input_options, cli_input_count, &given.inputs},
        {cli_common_options, cli_common_count, &given.common},
    };
    bool help;
    const char *operand = NULL;
    cli_report *report = NULL;
    cli_exit code = cli_options_parse(argc, argv, groups, 4, &operand, &help, error);
    if (!code && help) {
        cli_verb_help("attn check [options] [TEXT]",
                      "Runs problems (random, or from files) against the float64 reference: positions of NaN and inf, "
                      "errors,\nand for a wrong result where it starts and why. --impl all takes every implementation.",
                      groups, 4);
        return CLI_RIGHT;
    }
    code = code ? code : cli_shape_take_operand(&given.shape, operand, error);
    code = code ? code : cli_common_check(&given.common, error);
    code = code ? code : cli_report_create(&report, (cli_format)given.common.format.value, "check", error);
    code = code ? code : check_all(&given, report, error);
    cli_report_destroy(report);
    return code;
}
