/* SPDX-License-Identifier: Apache-2.0
 * What the files that load a case share. */
#ifndef CLI_LOAD_PARTS_H
#define CLI_LOAD_PARTS_H

#include "load.h"

typedef struct cli_loader {
    cli_case *at;
    cli_loaded *loaded;
    cli_layout layout;
    cli_type compute;
    const char *verb;
    cli_error *error;
} cli_loader;

/* load_array.c */
/* Reads what `text` names; a .safetensors file without a tensor name means `name`. safetensors may be NULL. */
cli_exit cli_load_read(cli_loader *l, cli_tensor *tensor, const char *option, const char *text, const char *name,
                       bool *safetensors);
bool cli_load_is_float(cli_type type);
cli_exit cli_load_want_float(cli_loader *l, const cli_tensor *tensor, const char *option, const char *text);
/* Strides of an array in the order that the user's layout names. */
void cli_load_in_layout(cli_view *view, cli_layout layout);
/* Gives the slot the data of `source` in type `type`: in place, or converted into the strides of `plain`. */
cli_exit cli_load_place(cli_loader *l, int slot, const cli_view *source, cli_type type, const cli_view *plain,
                        const char *option);
/* A q-, k-, v- or o-shaped array; q's sets what the others must be like. */
cli_exit cli_load_rows(cli_loader *l, int slot, const char *option, const char *text, const char *name,
                       cli_view *source);
cli_exit cli_load_place_rows(cli_loader *l, int slot, const cli_view *source, const char *option);
/* One axis of `option` must be what another tensor has. */
cli_exit cli_load_agree(cli_loader *l, const char *option, const char *axis, int64_t got, int64_t wanted,
                        const char *other);

/* load_small.c */
cli_exit cli_load_offsets(cli_loader *l, int32_t **cu, int64_t *batch, int64_t *longest, int64_t rows,
                          const char *option, const char *text);
cli_exit cli_load_used(cli_loader *l, int32_t **used, const int32_t *cu, int64_t tokens, const char *option,
                       const char *text);
cli_exit cli_load_scores(cli_loader *l, int slot, const char *option, const char *text);
cli_exit cli_load_heads(cli_loader *l, int slot, const char *option, const char *text);
cli_exit cli_load_dlse(cli_loader *l, const char *text);

#endif
