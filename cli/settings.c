/* SPDX-License-Identifier: Apache-2.0
 * Shared options: their tables, contradictions among them, and the problems that lists of sizes stand for. */
#include "settings.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#define AT(group, field) offsetof(cli_##group, field)
#define TITLE(text)                                                                                                    \
    { text, CLI_TITLE, 0, NULL, NULL, 0, 0 }

const cli_option cli_common_options[] = {
    TITLE("Where and how"),
    {"--impl", CLI_WORDS, AT(common, implementation), "NAME  force an implementation (attn info lists them)", NULL, 0,
     0},
    {"--native", CLI_FLAG, AT(common, native), "the same as --impl native: store the scores", NULL, 0, 0},
    {"--threads", CLI_INTEGERS, AT(common, threads), "N  threads; default: all cores, or OMP_NUM_THREADS", NULL, 1,
     4096},
    {"--device", CLI_WORD, AT(common, device), "NAME  cpu, or an NVIDIA GPU: cuda, cuda:1 ...", NULL, 0, 0},
    {"--tile-q", CLI_INTEGER, AT(common, tile_q), "N  query rows of a block or tile; default: chosen", NULL, 1,
     CLI_TOKENS_MAX},
    {"--tile-kv", CLI_INTEGER, AT(common, tile_kv), "N  keys of a block or tile", NULL, 1, CLI_TOKENS_MAX},
    {"--splits", CLI_INTEGER, AT(common, splits), "N  parts of the keys", NULL, 1, CLI_TOKENS_MAX},
    {"--stages", CLI_INTEGER, AT(common, stages), "N  key tiles in flight on a GPU", NULL, 1, CLI_TOKENS_MAX},
    {"--tensor-cores", CLI_CHOICE, AT(common, tensor_cores), "on|off  of a GPU; default: chosen", "on|off", 0, 0},
    {"--format", CLI_CHOICE, AT(common, format), "text|csv|json  form of the results", CLI_FORMATS, 0, 0},
};
const int cli_common_count = sizeof cli_common_options / sizeof cli_common_options[0];

const cli_option cli_feature_options[] = {
    TITLE("Rules"),
    {"--causal", CLI_SWITCH, AT(features, causal),
     "key j is visible to query i if j <= i'; =both where lists are swept", "yes|no|both", 0, 0},
    {"--corner", CLI_CHOICE, AT(features, corner), "CORNER  bottom-right (default) or top-left: where i' starts",
     "bottom-right|top-left", 0, 0},
    {"--window", CLI_PAIR, AT(features, window), "L,R  i' - L <= j <= i' + R; -1 is open", NULL, -1, CLI_TOKENS_MAX},
    {"--global", CLI_INTEGER, AT(features, global), "N  the first N tokens are exempt from the window", NULL, 0,
     CLI_TOKENS_MAX},
    {"--scale", CLI_REAL, AT(features, scale), "X  of the scores; default 1/sqrt(dim)", NULL, -FLT_MAX, FLT_MAX},
    {"--softcap", CLI_REAL, AT(features, softcap), "X  scores become X tanh(score / X); 0: none", NULL, 0, FLT_MAX},
    {"--dropout", CLI_REAL, AT(features, dropout), "P  probability of dropping", NULL, 0, 1},
    {"--seed", CLI_SEED, AT(features, seed), "N  of dropout and random inputs; default 1", NULL, 0, 0},
    {"--alibi", CLI_WORD, AT(features, alibi), "FILE|auto  slopes [H] or [B,H], or the usual ones", NULL, 0, 0},
    {"--bias", CLI_WORD, AT(features, bias), "FILE|random  added to the scores, [B|1,H|1,Sq,Skv] or fewer axes", NULL,
     0, 0},
    {"--mask", CLI_WORD, AT(features, mask), "FILE|random  bool or u8, true is visible, shaped as a bias", NULL, 0, 0},
    {"--sink", CLI_WORD, AT(features, sink), "FILE|random  learned sinks [H]", NULL, 0, 0},
    {"--tf32", CLI_FLAG, AT(features, tf32), "f32 products may round their factors to tf32 (GPU)", NULL, 0, 0},
    {"--deterministic", CLI_FLAG, AT(features, deterministic), "backward gives the same bits on every run (GPU)", NULL,
     0, 0},
};
const int cli_feature_count = sizeof cli_feature_options / sizeof cli_feature_options[0];

const cli_option cli_shape_options[] = {
    TITLE("Problem (a comma makes a list: every combination is one problem)"),
    {"--problem", CLI_WORD, AT(shape, problem), "TEXT  the whole problem in its text form", NULL, 0, 0},
    {"--batch", CLI_INTEGERS, AT(shape, batch), "LIST  sequences", NULL, 0, CLI_TOKENS_MAX},
    {"--heads", CLI_INTEGERS, AT(shape, heads), "LIST  query heads", NULL, 0, 1e6},
    {"--heads-kv", CLI_INTEGERS, AT(shape, heads_kv), "LIST  key and value heads; default: as --heads", NULL, 0, 1e6},
    {"--seqlen", CLI_INTEGERS, AT(shape, seqlen), "LIST  queries and keys", NULL, 0, CLI_TOKENS_MAX},
    {"--seqlen-q", CLI_INTEGERS, AT(shape, seqlen_q), "LIST  queries", NULL, 0, CLI_TOKENS_MAX},
    {"--seqlen-k", CLI_INTEGERS, AT(shape, seqlen_k), "LIST  keys", NULL, 0, CLI_TOKENS_MAX},
    {"--dim", CLI_INTEGERS, AT(shape, dim), "LIST  head size", NULL, 1, 65536},
    {"--dim-v", CLI_INTEGERS, AT(shape, dim_v), "LIST  head size of the values; default: as --dim", NULL, 1, 65536},
    {"--dtype", CLI_WORDS, AT(shape, dtype), "LIST  f32, f16, bf16, f64", CLI_DTYPES, 0, 0},
    {"--pass", CLI_WORDS, AT(shape, pass), "LIST  fwd, bwd", "fwd|bwd", 0, 0},
    {"--backward", CLI_FLAG, AT(shape, backward), "the same as --pass bwd", NULL, 0, 0},
    {"--layout", CLI_CHOICE, AT(shape, layout), "bshd|bhsd|thd  thd: packed, of random lengths up to --seqlen",
     CLI_LAYOUTS, 0, 0},
};
const int cli_shape_count = sizeof cli_shape_options / sizeof cli_shape_options[0];

attn_dtype cli_dtype_of(const char *name) {
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    return types[cli_choice_index(CLI_DTYPES, name)];
}

bool cli_common_on_gpu(const cli_common *common) {
    return common->device && strcmp(common->device, "cpu") != 0;
}

attn_hints cli_common_hints(const cli_common *common, const char *implementation) {
    attn_hints hints;
    memset(&hints, 0, sizeof hints);
    hints.struct_size = sizeof hints;
    hints.implementation = implementation;
    hints.block_q = common->tile_q.value;
    hints.block_kv = common->tile_kv.value;
    hints.splits = common->splits.value;
    hints.stages = common->stages.value;
    if (common->tensor_cores.given) {
        hints.tensor_cores = common->tensor_cores.value ? ATTN_TENSOR_CORES_OFF : ATTN_TENSOR_CORES_ON;
    }
    return hints;
}

cli_exit cli_common_check(cli_common *common, cli_error *error) {
    if (cli_common_on_gpu(common) && common->threads.count) {
        return cli_fail(error, CLI_USAGE, "--threads: counts those of the CPU, the device is %s", common->device);
    }
    if (common->native) {
        const char *native = cli_common_on_gpu(common) ? "cuda_native" : "native";
        for (int i = 0; i < common->implementation.count; i++) {
            if (strcmp(common->implementation.value[i], native) != 0) {
                return cli_fail(error, CLI_USAGE, "--native: contradicts --impl %s", common->implementation.value[i]);
            }
        }
        common->implementation.count = 1;
        common->implementation.value[0] = native;
    }
    return CLI_RIGHT;
}

cli_exit cli_features_check(const cli_features *features, cli_error *error) {
    if (features->dropout.value >= 1) {
        return cli_fail(error, CLI_USAGE, "--dropout: 1 is outside the limits, it must be below 1");
    }
    if (features->dropout.value > 0 && (float)features->dropout.value >= 1) {
        return cli_fail(error, CLI_USAGE, "--dropout: %.17g rounds to 1 in float32, it must be below 1",
                        features->dropout.value);
    }
    const struct {
        const char *option;
        double value;
    } reals[] = {{"--scale", features->scale.value},
                 {"--softcap", features->softcap.value},
                 {"--dropout", features->dropout.value}};
    for (int i = 0; i < 3; i++) {
        if (reals[i].value != 0 && (float)reals[i].value == 0) {
            return cli_fail(error, CLI_USAGE, "%s: %g rounds to 0 in float32, the smallest magnitude is 1.4e-45",
                            reals[i].option, reals[i].value);
        }
    }
    if (features->global.given && !features->window.count) {
        return cli_fail(error, CLI_USAGE, "--global: %lld tokens are exempt from a window, but there is no --window",
                        (long long)features->global.value);
    }
    return CLI_RIGHT;
}

void cli_features_apply(const cli_features *features, bool causal, attn_problem *problem) {
    attn_band *band = &problem->band;
    band->corner = (attn_corner)features->corner.value;
    band->kind |= causal ? ATTN_CAUSAL : 0;
    if (features->window.count) {
        band->kind |= ATTN_WINDOW;
        band->left = features->window.value[0];
        band->right = features->window.value[1];
    }
    if (features->global.given) {
        band->kind |= ATTN_GLOBALS;
        band->globals = features->global.value;
    }
    if (features->scale.given) {
        problem->flags |= ATTN_HAS_SCALE;
        problem->scale = (float)features->scale.value;
    }
    problem->softcap = (float)features->softcap.value;
    problem->dropout = (float)features->dropout.value;
    problem->flags |= features->tf32 ? ATTN_ALLOW_TF32 : 0;
    problem->flags |= features->deterministic ? ATTN_DETERMINISTIC : 0;
}

/* Bias, mask, slopes and sinks of a problem whose data is made up. */
static cli_exit apply_random(const cli_features *features, attn_problem *problem, cli_error *error) {
    const struct {
        const char *option, *value, *word;
    } given[] = {{"--alibi", features->alibi, "auto"},
                 {"--bias", features->bias, "random"},
                 {"--mask", features->mask, "random"},
                 {"--sink", features->sink, "random"}};
    for (int i = 0; i < 4; i++) {
        if (given[i].value && strcmp(given[i].value, given[i].word) != 0) {
            return cli_fail(error, CLI_USAGE,
                            "%s: '%s' is not %s, the only choice where inputs are not read from files", given[i].option,
                            given[i].value, given[i].word);
        }
    }
    attn_dtype wide = problem->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    int64_t rows = problem->tokens_q, keys = problem->tokens_kv;
    const attn_layout scores = {wide, {0, rows * keys, keys, 1}}; /* one for each head, shared by the batch */
    const attn_layout padding = {ATTN_U8, {rows * keys, 0, keys, 1}};
    const attn_layout heads = {wide, {0, 1, 0, 0}};
    if (features->bias) {
        problem->bias = scores;
    }
    if (features->mask) {
        problem->mask = padding;
    }
    if (features->alibi) {
        problem->alibi = heads;
    }
    if (features->sink) {
        problem->sink = heads;
    }
    return CLI_RIGHT;
}

static attn_layout lay_out(cli_layout layout, attn_dtype dtype, int64_t heads, int64_t tokens, int64_t dim) {
    return layout == CLI_BHSD ? attn_layout_bhsd(dtype, heads, tokens, dim)
                              : attn_layout_bshd(dtype, heads, tokens, dim);
}

cli_exit cli_shape_take_operand(cli_shape *shape, const char *operand, cli_error *error) {
    if (operand && shape->problem) {
        return cli_fail(error, CLI_USAGE, "--problem: given twice, once is the limit");
    }
    shape->problem = operand ? operand : shape->problem;
    return CLI_RIGHT;
}

typedef struct sizes {
    int64_t batch, heads, heads_kv, seqlen, seqlen_q, seqlen_k, dim, dim_v;
} sizes;

static attn_problem make(const sizes *n, attn_dtype dtype, cli_layout layout) {
    attn_problem p =
        attn_problem_dense(dtype, n->batch, n->heads, n->heads_kv, n->seqlen_q, n->seqlen_k, n->dim, n->dim_v);
    p.q = lay_out(layout, dtype, n->heads, n->seqlen_q, n->dim);
    p.k = lay_out(layout, dtype, n->heads_kv, n->seqlen_k, n->dim);
    p.v = lay_out(layout, dtype, n->heads_kv, n->seqlen_k, n->dim_v);
    p.o = lay_out(layout, dtype, n->heads, n->seqlen_q, n->dim_v);
    if (layout == CLI_THD) {
        /* A third of the slots stays empty, so that lengths differ. */
        p.rows_q = p.rows_kv = ATTN_PACKED;
        int64_t others = n->batch > 1 ? n->batch - 1 : 0;
        p.total_q = n->batch * n->seqlen_q - others * (n->seqlen_q / 3);
        p.total_kv = n->batch * n->seqlen_k - others * (n->seqlen_k / 3);
    }
    return p;
}

static cli_exit add(cli_sweep *sweep, attn_problem *problem, cli_error *error) {
    char text[2048];
    cli_exit code = cli_problem_settle(problem, text, sizeof text, error);
    if (code) {
        return code;
    }
    if (sweep->count % 64 == 0) {
        attn_problem *grown = realloc(sweep->problems, (size_t)(sweep->count + 64) * sizeof *grown);
        if (!grown) {
            return cli_fail(error, CLI_UNRUN, "out of memory for the list of problems");
        }
        sweep->problems = grown;
    }
    if (sweep->count == 10000) {
        return cli_fail(error, CLI_USAGE, "the lists make more than 10000 problems, which is the limit");
    }
    sweep->problems[sweep->count++] = *problem;
    return CLI_RIGHT;
}

static cli_exit parse_text(cli_sweep *sweep, const cli_shape *shape, const cli_features *features, cli_error *error) {
    attn_error cause;
    attn_problem problem = attn_problem_init();
    const bool sized = shape->batch.count || shape->heads.count || shape->heads_kv.count || shape->seqlen.count ||
                       shape->seqlen_q.count || shape->seqlen_k.count || shape->dim.count || shape->dim_v.count ||
                       shape->dtype.count || shape->pass.count || shape->backward || shape->layout.given;
    const bool ruled = features->causal.given || features->corner.given || features->window.count ||
                       features->global.given || features->scale.given || features->softcap.given ||
                       features->dropout.given || features->alibi || features->bias || features->mask ||
                       features->sink || features->tf32 || features->deterministic;
    if (sized || ruled) {
        return cli_fail(error, CLI_USAGE, "--problem: the text says everything, no other option may state %s",
                        sized ? "sizes or types" : "rules");
    }
    if (attn_problem_parse(&problem, shape->problem, &cause)) {
        return cli_fail_library(error, "--problem", &cause);
    }
    return add(sweep, &problem, error);
}

static int64_t pick(const cli_integers *list, int index, int64_t otherwise) {
    return list->count ? list->value[index] : otherwise;
}

static int at_least_one(int count) {
    return count ? count : 1;
}

/* The problem number `index` of all combinations; the last list changes fastest. False past the end. */
static bool combination(const cli_shape *s, const cli_words *dtypes, const cli_words *passes, int causal_count,
                        const cli_defaults *d, int index, sizes *n, int choice[3]) {
    const int counts[] = {at_least_one(s->batch.count),
                          at_least_one(s->heads.count),
                          at_least_one(s->heads_kv.count),
                          at_least_one(s->seqlen.count),
                          at_least_one(s->seqlen_q.count),
                          at_least_one(s->seqlen_k.count),
                          at_least_one(s->dim.count),
                          at_least_one(s->dim_v.count),
                          dtypes->count,
                          passes->count,
                          causal_count};
    int at[11];
    for (int i = 10; i >= 0; i--) {
        at[i] = index % counts[i];
        index /= counts[i];
    }
    n->batch = pick(&s->batch, at[0], d->batch);
    n->heads = pick(&s->heads, at[1], d->heads);
    n->heads_kv = pick(&s->heads_kv, at[2], s->heads.count ? n->heads : d->heads_kv);
    n->seqlen_q = pick(&s->seqlen_q, at[4], pick(&s->seqlen, at[3], d->seqlen_q));
    n->seqlen_k = pick(&s->seqlen_k, at[5], pick(&s->seqlen, at[3], s->seqlen_q.count ? n->seqlen_q : d->seqlen_k));
    n->dim = pick(&s->dim, at[6], d->dim);
    n->dim_v = pick(&s->dim_v, at[7], n->dim);
    memcpy(choice, at + 8, 3 * sizeof *choice);
    return index == 0;
}

cli_exit cli_sweep_make(cli_sweep *sweep, const cli_shape *shape, const cli_features *features,
                        const cli_defaults *defaults, cli_error *error) {
    memset(sweep, 0, sizeof *sweep);
    cli_exit code = cli_features_check(features, error);
    if (code) {
        return code;
    }
    if (shape->problem) {
        return parse_text(sweep, shape, features, error);
    }
    if (shape->seqlen.count && shape->seqlen_q.count && shape->seqlen_k.count) {
        return cli_fail(error, CLI_USAGE, "--seqlen: contradicts --seqlen-q and --seqlen-k, which say everything");
    }
    cli_words dtypes = shape->dtype, passes = shape->pass;
    for (int i = 0; i < 4 && !shape->dtype.count && defaults->dtypes[i]; i++) {
        dtypes.value[dtypes.count++] = defaults->dtypes[i];
    }
    if (shape->backward) {
        if (passes.count && (passes.count > 1 || strcmp(passes.value[0], "bwd") != 0)) {
            return cli_fail(error, CLI_USAGE, "--backward: contradicts --pass %s", passes.value[0]);
        }
        passes.count = 1;
        passes.value[0] = "bwd";
    }
    if (!passes.count) {
        memcpy(passes.value, defaults->passes, sizeof defaults->passes);
        passes.count = defaults->passes[1] ? 2 : 1;
    }
    int causal_count = features->causal.given && features->causal.value == 2 ? 2 : 1;
    sizes n;
    int choice[3];
    for (int index = 0; combination(shape, &dtypes, &passes, causal_count, defaults, index, &n, choice) && !code;
         index++) {
        attn_problem problem = make(&n, cli_dtype_of(dtypes.value[choice[0]]), (cli_layout)shape->layout.value);
        problem.pass = strcmp(passes.value[choice[1]], "bwd") == 0 ? ATTN_BACKWARD : ATTN_FORWARD;
        bool causal = features->causal.given && (causal_count == 2 ? choice[2] == 1 : features->causal.value == 0);
        cli_features_apply(features, causal, &problem);
        code = apply_random(features, &problem, error);
        code = code ? code : add(sweep, &problem, error);
    }
    return code;
}

void cli_sweep_release(cli_sweep *sweep) {
    free(sweep->problems);
    memset(sweep, 0, sizeof *sweep);
}
