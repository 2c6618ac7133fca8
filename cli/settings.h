/* SPDX-License-Identifier: Apache-2.0
 * Options that several verbs share, and what they mean for a problem. */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include "case.h"
#include "options.h"
#include "report.h"

/* Where and how to run. */
typedef struct cli_common {
    cli_integer format; /* cli_format */
    const char *device;
    cli_words implementation;
    bool native;
    cli_integers threads;
    cli_integer tile_q, tile_kv, splits, stages, tensor_cores; /* tensor_cores: index into "on|off" */
} cli_common;
extern const cli_option cli_common_options[];
extern const int cli_common_count;

/* What to compute, apart from sizes. */
typedef struct cli_features {
    cli_integer causal; /* index into "yes|no|both" */
    cli_integer corner; /* attn_corner */
    cli_integers window;
    cli_integer global;
    cli_real scale, softcap, dropout;
    cli_integer seed;
    const char *alibi, *bias, *mask, *sink; /* a file, `random` or, for slopes, `auto` */
    bool tf32, deterministic;
} cli_features;
extern const cli_option cli_feature_options[];
extern const int cli_feature_count;

/* Sizes, each a list: every combination is a problem. */
typedef struct cli_shape {
    const char *problem;
    cli_integers batch, heads, heads_kv, seqlen, seqlen_q, seqlen_k, dim, dim_v;
    cli_words dtype;
    cli_words pass;
    bool backward;
    cli_integer layout; /* cli_layout */
} cli_shape;
extern const cli_option cli_shape_options[];
extern const int cli_shape_count;

typedef enum cli_layout { CLI_BSHD, CLI_BHSD, CLI_THD } cli_layout;
#define CLI_LAYOUTS "bshd|bhsd|thd"
#define CLI_DTYPES  "f32|f16|bf16|f64"

/* Contradictions inside one group; --native becomes the implementation `native`, on a GPU `cuda_native`. */
cli_exit cli_common_check(cli_common *common, cli_error *error);
/* What plans are asked for; implementation NULL: the best that accepts. */
attn_hints cli_common_hints(const cli_common *common, const char *implementation);
/* Is the device no CPU? */
bool cli_common_on_gpu(const cli_common *common);
cli_exit cli_features_check(const cli_features *features, cli_error *error);
/* Band, scale, cap, dropout and flags. Bias, mask, slopes and sinks are the caller's. */
void cli_features_apply(const cli_features *features, bool causal, attn_problem *problem);
static inline uint64_t cli_features_seed(const cli_features *features) {
    return features->seed.given ? (uint64_t)features->seed.value : 1;
}

/* The operand of a verb, if there is one, is the problem's text. */
cli_exit cli_shape_take_operand(cli_shape *shape, const char *operand, cli_error *error);

/* What one problem of a sweep is called when none of its sizes is given. */
typedef struct cli_defaults {
    int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, dim;
    const char *dtypes[4]; /* NULL-terminated when fewer */
    const char *passes[2];
} cli_defaults;

typedef struct cli_sweep {
    attn_problem *problems; /* settled */
    int count;
} cli_sweep;
/* Makes all problems of the lists, settled and checked. Free with cli_sweep_release. */
cli_exit cli_sweep_make(cli_sweep *sweep, const cli_shape *shape, const cli_features *features,
                        const cli_defaults *defaults, cli_error *error);
void cli_sweep_release(cli_sweep *sweep);

attn_dtype cli_dtype_of(const char *name);

#endif
