/* SPDX-License-Identifier: Apache-2.0
 * attn bench: every problem of a sweep is checked, warmed up and timed; its rate stands beside the ceiling that its
 * instructions have on this machine, measured in the same run. With one query a head (decode) what counts is how fast
 * K and V are read: each timed run is followed by a plain read of the same buffers. On a GPU both
 * are measured once, by kernels of their own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ceilings.h"
#include "gpu_times.h"
#include "settings.h"
#include "spot.h"
#include "verbs.h"

typedef struct bench_options {
    cli_common common;
    cli_features features;
    cli_shape shape;
    bool ceilings, decode;
    cli_integer runs;
    cli_real seconds;
    cli_integer pages;
} bench_options;

#define AT(field) offsetof(bench_options, field)
static const cli_option bench_options_table[] = {
    {"Measuring", CLI_TITLE, 0, NULL, NULL, 0, 0},
    {"--ceilings", CLI_FLAG, AT(ceilings), "measure the machine instead: multiply-adds, bf16 dots, exp, memory", NULL,
     0, 0},
    {"--decode", CLI_FLAG, AT(decode), "one query: by default 32 heads on 8, 32768 keys of 128", NULL, 0, 0},
    {"--runs", CLI_INTEGER, AT(runs), "N  timed runs of a problem, at least; default 7", NULL, 1, 1e6},
    {"--seconds", CLI_REAL, AT(seconds), "X  time for a problem, at least; default 0.3", NULL, 0, 3600},
    {"--pages", CLI_CHOICE, AT(pages), "system|4k|2m  pages of the tensors; default system, decode 4k", "system|4k|2m",
     0, 0},
};

#define CACHE_MAX 64
typedef struct known_ceiling {
    const cli_ceiling *ceiling;
    int threads;
    double rate;
} known_ceiling;

typedef struct bench {
    const bench_options *given;
    cli_report *report;
    known_ceiling known[CACHE_MAX];
    int n_known, wrong, row, rows;
    attn_device_rates rates; /* of a GPU; struct_size 0: not measured yet */
} bench;

static double ceiling_rate(bench *b, const cli_ceiling *ceiling, int threads) {
    for (int i = 0; i < b->n_known; i++) {
        if (b->known[i].ceiling == ceiling && b->known[i].threads == threads) {
            return b->known[i].rate;
        }
    }
    double rate = cli_ceiling_measure(ceiling, threads);
    if (b->n_known < CACHE_MAX) {
        b->known[b->n_known++] = (known_ceiling){ceiling, threads, rate};
    }
    return rate;
}

/* The ceiling of the instructions that an implementation multiplies with; NULL for float64, which none is for. */
static const cli_ceiling *ceiling_for(const char *implementation, attn_dtype type) {
    if (type == ATTN_F64) {
        return NULL;
    }
    if (type == ATTN_BF16 && strcmp(implementation, "amx") == 0) {
        return cli_ceiling_find(CLI_CEILING_BF16, "bf16.amx");
    }
    if (type == ATTN_BF16 && strcmp(implementation, "avx512bf16") == 0) {
        return cli_ceiling_find(CLI_CEILING_BF16, "bf16.avx512");
    }
    if (strcmp(implementation, "avx2") == 0) {
        return cli_ceiling_find(CLI_CEILING_FMA, "fma.avx2");
    }
    return cli_ceiling_find(CLI_CEILING_FMA, NULL);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define RUNS_MAX 100000
typedef struct times {
    double *of_run, *beside; /* sorted once taken; beside: plain reads of K and V, on a GPU the host's calls */
    int count;
    double kv_bytes; /* 0: no reads */
    bool on_gpu;
} times;

static double bytes_of(const cli_view *view) {
    int64_t elements = 0, base;
    cli_view_extent(view, &elements, &base);
    return (double)elements * (double)cli_types[view->type].bytes;
}

static void read_kv(const cli_case *at, int threads, double *seconds) {
    *seconds = 0;
    for (int s = CLI_SLOT_K; s <= CLI_SLOT_V; s++) {
        *seconds += cli_read_seconds(at->view[s].base, (size_t)bytes_of(&at->view[s]), threads);
    }
}

/* How long a problem is measured. Long runs are few: three times the budget (at least 6 s) is enough unless --runs
 * insists. */
typedef struct effort {
    int least;
    double budget, patience;
} effort;

static effort effort_of(const bench_options *g) {
    effort e = {g->runs.given ? (int)g->runs.value : 7, g->seconds.given ? g->seconds.value : 0.3, INFINITY};
    if (!g->runs.given) {
        e.patience = 3 * e.budget > 6 ? 3 * e.budget : 6;
    }
    return e;
}

static cli_exit measure_on_gpu(const bench *b, const cli_runner *runner, const cli_case *at, times *t,
                               cli_error *error) {
    const effort e = effort_of(b->given);
    cli_gpu_times of_gpu = {t->of_run, t->beside, 0, RUNS_MAX};
    cli_exit code = cli_gpu_measure(runner, at, e.least, e.budget, e.patience, &of_gpu, error);
    t->count = of_gpu.count;
    qsort(t->of_run, (size_t)t->count, sizeof *t->of_run, by_size);
    qsort(t->beside, (size_t)t->count, sizeof *t->beside, by_size);
    return code;
}

static cli_exit measure(const bench *b, const cli_runner *runner, const cli_case *at, int threads, times *t,
                        cli_error *error) {
    const effort e = effort_of(b->given);
    const double budget = e.budget, patience = e.patience, begin = cli_now();
    const int least = e.least;
    bool decode = at->problem.tokens_q == 1 && at->problem.pass == ATTN_FORWARD;
    t->kv_bytes = decode ? bytes_of(&at->view[CLI_SLOT_K]) + bytes_of(&at->view[CLI_SLOT_V]) : 0;
    t->on_gpu = runner->device;
    if (t->on_gpu) {
        return measure_on_gpu(b, runner, at, t, error);
    }
    for (t->count = 0; t->count < RUNS_MAX; t->count++) {
        double now = cli_now() - begin;
        if ((t->count >= least && now >= budget) || (t->count > 0 && now >= patience)) {
            break;
        }
        if (decode) {
            read_kv(at, threads, &t->beside[t->count]);
        }
        double start = cli_now();
        cli_exit code = cli_runner_run(runner, at, at->problem.pass, error);
        t->of_run[t->count] = cli_now() - start;
        if (code) {
            return code;
        }
    }
    qsort(t->of_run, (size_t)t->count, sizeof *t->of_run, by_size);
    qsort(t->beside, decode ? (size_t)t->count : 0, sizeof *t->beside, by_size);
    return CLI_RIGHT;
}

static void report_ceiling(cli_report *r, const char *name, double rate, double flops) {
    if (name) {
        cli_report_text(r, "ceiling", name);
        cli_report_real(r, "ceiling_gflops", rate / 1e9, 4);
        cli_report_real(r, "share_%", flops / rate * 100, 3);
    } else {
        cli_report_missing(r, "ceiling");
        cli_report_missing(r, "ceiling_gflops");
        cli_report_missing(r, "share_%");
    }
}

static void report_reads(cli_report *r, double kv_bytes, double median, double read_rate) {
    if (kv_bytes > 0) {
        cli_report_real(r, "kv_gbytes_s", kv_bytes / median / 1e9, 4);
        cli_report_real(r, "read_gbytes_s", read_rate / 1e9, 4);
        cli_report_real(r, "read_share_%", kv_bytes / median / read_rate * 100, 3);
    } else {
        cli_report_missing(r, "kv_gbytes_s");
        cli_report_missing(r, "read_gbytes_s");
        cli_report_missing(r, "read_share_%");
    }
}

static void report_row(bench *b, const cli_case *at, const attn_plan_info *info, const times *t, const char *checked,
                       bool right) {
    cli_report *r = b->report;
    char text[2048];
    double median = t->of_run[t->count / 2], least = t->of_run[0], most = t->of_run[t->count - 1];
    double flops = info->flop / median, rate = 0;
    attn_problem_format(&at->problem, text, sizeof text);
    cli_report_row(r);
    cli_report_text(r, "problem", text);
    cli_report_text(r, "implementation", info->implementation);
    cli_report_integer(r, "threads", info->threads);
    cli_report_text(r, "checked", checked);
    cli_report_text(r, "verdict", right ? "right" : "WRONG");
    cli_report_integer(r, "runs", t->count);
    cli_report_real(r, "median_ms", median * 1e3, 4);
    cli_report_real(r, "min_ms", least * 1e3, 4);
    cli_report_real(r, "spread_%", (most - least) / median * 100, 3);
    cli_report_real(r, "gflops", flops / 1e9, 4);
    cli_report_real(r, "gbytes_s", info->bytes / median / 1e9, 4);
    if (t->on_gpu) {
        const char *name = cli_gpu_ceiling(&b->rates, info->implementation, at->problem.q.dtype, &rate);
        report_ceiling(r, name, rate, flops);
        report_reads(r, t->kv_bytes, median, b->rates.read);
        cli_report_real(r, "host_us", t->beside[t->count / 2] * 1e6, 3);
        return;
    }
    const cli_ceiling *ceiling = ceiling_for(info->implementation, at->problem.q.dtype);
    rate = ceiling ? ceiling_rate(b, ceiling, info->threads) : 0;
    report_ceiling(r, ceiling ? ceiling->name : NULL, rate, flops);
    report_reads(r, t->kv_bytes, median, t->kv_bytes > 0 ? t->kv_bytes / t->beside[t->count / 2] : 0);
}

static cli_exit bench_run(bench *b, const cli_place *place, cli_case *at, const char *name, times *t,
                          cli_error *error) {
    cli_runner runner;
    attn_plan_info info;
    const char *checked = "";
    int wrong = 0;
    attn_hints hints = cli_common_hints(&b->given->common, name);
    cli_exit code = cli_runner_create(&runner, place->context, &at->problem, &hints, error);
    if (code) {
        return code;
    }
    code = cli_runner_info(&runner, &info, error);
    if (!code) {
        char text[2048];
        attn_problem_format(&at->problem, text, sizeof text);
        cli_progress("attn bench: %d of %d: %.120s %s", ++b->row, b->rows, text, info.implementation);
        cli_case_poison(at);
        code = cli_runner_run_all(&runner, at, error); /* the check's run is the warm-up too */
        hints.implementation = info.implementation;
        code = code ? code : cli_spot_check(place, at, &hints, &checked, &wrong, error);
        b->wrong += wrong;
    }
    if (!code && runner.device && !b->rates.struct_size) {
        code = cli_gpu_rates(place->context, &b->rates, error);
    }
    code = code ? code : measure(b, &runner, at, info.threads, t, error);
    if (!code) {
        report_row(b, at, &info, t, checked, wrong == 0);
    }
    cli_runner_release(&runner);
    return code;
}

static cli_exit bench_problem(bench *b, const attn_problem *problem, cli_error *error) {
    const cli_words *names = &b->given->common.implementation;
    const cli_integers *threads = &b->given->common.threads;
    cli_case at = {0};
    times t = {0};
    void *block[2] = {NULL, NULL};
    bool decode = problem->tokens_q == 1;
    at.memory.pages = b->given->pages.given ? (cli_pages)b->given->pages.value
                      : decode              ? CLI_PAGES_SMALL
                                            : CLI_PAGES_SYSTEM;
    cli_case_shape(&at, problem);
    cli_exit code = cli_case_allocate(&at, error);
    code = code ? code : cli_case_random(&at, cli_features_seed(&b->given->features), error);
    for (int i = 0; i < 2; i++) {
        code = code ? code : cli_memory_take(&at.memory, &block[i], RUNS_MAX * sizeof(double), "the times", error);
    }
    t.of_run = block[0];
    t.beside = block[1];
    for (int n = 0; n < (names->count ? names->count : 1) && !code; n++) {
        for (int c = 0; c < (threads->count ? threads->count : 1) && !code; c++) {
            cli_place place;
            code = cli_place_open(&place, b->given->common.device, threads->count ? (int)threads->value[c] : 0, error);
            if (!code) {
                code = bench_run(b, &place, &at, names->count ? names->value[n] : NULL, &t, error);
            }
            cli_place_close(&place);
        }
    }
    cli_case_release(&at);
    return code;
}

static cli_exit bench_sweep(bench *b, cli_error *error) {
    static const cli_defaults prefill = {1, 8, 8, 512, 512, 64, {"f32", "bf16"}, {"fwd"}};
    static const cli_defaults decode = {1, 32, 8, 1, 32768, 128, {"f32", "bf16"}, {"fwd"}};
    const bench_options *g = b->given;
    cli_sweep sweep;
    if (g->decode && (g->shape.seqlen_q.count || g->shape.backward || g->shape.pass.count)) {
        return cli_fail(error, CLI_USAGE,
                        "--decode: is one query forward, and contradicts --seqlen-q, --pass, --backward");
    }
    cli_shape shape = g->shape;
    if (g->decode && shape.seqlen.count) { /* --seqlen counts the keys then */
        shape.seqlen_k = shape.seqlen_k.count ? shape.seqlen_k : shape.seqlen;
        shape.seqlen.count = 0;
    }
    cli_exit code = cli_sweep_make(&sweep, &shape, &g->features, g->decode ? &decode : &prefill, error);
    int names = g->common.implementation.count, threads = g->common.threads.count;
    b->rows = sweep.count * (names ? names : 1) * (threads ? threads : 1);
    for (int p = 0; p < sweep.count && !code; p++) {
        code = bench_problem(b, &sweep.problems[p], error);
    }
    cli_progress("%s", "");
    cli_sweep_release(&sweep);
    code = code ? code : cli_report_print(b->report, error);
    if (!code && b->wrong) {
        return cli_fail(error, CLI_WRONG, "%d tensors are wrong; attn check explains them", b->wrong);
    }
    return code;
}

static void ceiling_row(cli_report *r, const char *name, int threads, double rate, const char *unit) {
    cli_report_row(r);
    cli_report_text(r, "ceiling", name);
    cli_report_integer(r, "threads", threads);
    cli_report_real(r, "rate", rate, 4);
    cli_report_text(r, "unit", unit);
}

static cli_exit bench_gpu_ceilings(bench *b, cli_error *error) {
    attn_context *context;
    attn_device_info info;
    attn_device_rates r;
    cli_exit code = cli_context_create(&context, b->given->common.device, 0, error);
    code = code ? code : cli_device_query(context, &info, error);
    code = code ? code : cli_gpu_rates(context, &r, error);
    if (!code) {
        const struct {
            const char *name;
            double rate;
            const char *unit;
        } rows[] = {
            {"fma", r.fma, "GFLOP/s"},           {"mma.f16", r.mma_f16, "GFLOP/s"}, {"mma.bf16", r.mma_bf16, "GFLOP/s"},
            {"mma.tf32", r.mma_tf32, "GFLOP/s"}, {"exp", r.exp, "Gexp/s"},          {"read.memory", r.read, "GB/s"},
            {"copy.memory", r.copy, "GB/s"}};
        cli_report_head_text(b->report, "device", info.name);
        for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
            if (rows[n].rate > 0) {
                cli_report_row(b->report);
                cli_report_text(b->report, "ceiling", rows[n].name);
                cli_report_real(b->report, "rate", rows[n].rate / 1e9, 4);
                cli_report_text(b->report, "unit", rows[n].unit);
            }
        }
        code = cli_report_print(b->report, error);
    }
    attn_context_destroy(context);
    return code;
}

static cli_exit bench_ceilings(bench *b, cli_error *error) {
    static const char *const units[] = {"GFLOP/s", "GFLOP/s", "Gexp/s"};
    const cli_ceiling *const lists[] = {cli_ceilings_x86, cli_ceilings_portable};
    cli_integers counts = b->given->common.threads;
    if (cli_common_on_gpu(&b->given->common)) {
        return bench_gpu_ceilings(b, error);
    }
    if (!counts.count) {
        counts.value[counts.count++] = 1;
        if (cli_threads_default() > 1) {
            counts.value[counts.count++] = cli_threads_default();
        }
    }
    cli_exit code = CLI_RIGHT;
    for (int n = 0; n < counts.count; n++) {
        for (int l = 0; l < 2; l++) {
            for (const cli_ceiling *c = lists[l]; c->name; c++) {
                if (c->available()) {
                    cli_progress("attn bench: %s, %d threads", c->name, (int)counts.value[n]);
                    ceiling_row(b->report, c->name, (int)counts.value[n],
                                ceiling_rate(b, c, (int)counts.value[n]) / 1e9, units[c->kind]);
                }
            }
        }
        double rate = 0;
        cli_progress("attn bench: memory, %d threads", (int)counts.value[n]);
        code = code ? code : cli_read_measure(&rate, (int)counts.value[n], error);
        ceiling_row(b->report, "read.memory.4k", (int)counts.value[n], rate / 1e9, "GB/s");
    }
    cli_progress("%s", "");
    if (!cli_ceiling_find(CLI_CEILING_BF16, NULL)) {
        cli_report_remark(b->report, "bf16 dot products: this CPU has no instruction for them");
    }
    return code ? code : cli_report_print(b->report, error);
}

cli_exit cli_bench(int argc, char **argv, cli_error *error) {
    static bench_options given;
    static bench b;
    memset(&given, 0, sizeof given);
    memset(&b, 0, sizeof b);
    const cli_group groups[] = {
        {cli_shape_options, cli_shape_count, &given.shape},
        {cli_feature_options, cli_feature_count, &given.features},
        CLI_GROUP(bench_options_table, &given),
        {cli_common_options, cli_common_count, &given.common},
    };
    bool help;
    const char *operand = NULL;
    cli_exit code = cli_options_parse(argc, argv, groups, 4, &operand, &help, error);
    if (!code && help) {
        cli_verb_help("attn bench [options] [TEXT]",
                      "Checks, warms up and times; --ceilings measures what the machine can do at most.", groups, 4);
        return CLI_RIGHT;
    }
    code = code ? code : cli_shape_take_operand(&given.shape, operand, error);
    b.given = &given;
    code = code ? code : cli_common_check(&given.common, error);
    code = code ? code : cli_report_create(&b.report, (cli_format)given.common.format.value, "bench", error);
    code = code ? code : given.ceilings ? bench_ceilings(&b, error) : bench_sweep(&b, error);
    cli_report_destroy(b.report);
    return code;
}
