/* SPDX-License-Identifier: Apache-2.0
 * A case from files. Shapes are checked against each other with messages that name the option; data is used where it
 * lies when type and strides allow, else converted into the layout asked for. */
#ifndef CLI_LOAD_H
#define CLI_LOAD_H

#include "settings.h"

typedef struct cli_inputs {
    const char *q, *k, *v, *dout, *dlse;
    const char *cu_q, *cu_k, *used_q, *used_k;
} cli_inputs;
extern const cli_option cli_input_options[];
extern const int cli_input_count;

/* What the outputs take over from the inputs' files. */
typedef struct cli_loaded {
    cli_type type;    /* of q's file */
    bool safetensors; /* q's file */
    int rank;         /* of q: 4, or less with axes left out in front */
    cli_layout layout;
    int bias_rank;
    int64_t bias_shape[CLI_RANK_MAX];
} cli_loaded;

/* Does any of the options name a file? */
bool cli_inputs_given(const cli_inputs *inputs);

/* dtype NULL: q's own. backward: `dout` must be given. `verb` stands in notes on stderr about values that do not fit
 * the type. */
cli_exit cli_case_load(cli_case *at, cli_loaded *loaded, const cli_inputs *inputs, const cli_features *features,
                       cli_layout layout, const char *dtype, bool backward, const char *verb, cli_error *error);

#endif
