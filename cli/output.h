/* SPDX-License-Identifier: Apache-2.0
 * Output files, all or none. Each is opened at the start under a temporary name beside its target (so that a missing
 * folder is noticed before the work), filled, and renamed only when every one is complete. On failure, and when a
 * signal ends the program, the temporary files are removed. Several outputs may be tensors of one .safetensors file. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "tensor.h"

#define CLI_OUTPUTS_MAX 16

typedef struct cli_output {
    const char *option; /* "-o" */
    cli_path path;
    int file;
    const cli_tensor *tensor; /* set before the commit */
} cli_output;

typedef struct cli_output_file {
    char target[1200]; /* symbolic links followed */
    char temporary[1248];
    FILE *stream;
    bool direct; /* a device or pipe: written in place */
    bool safetensors;
} cli_output_file;

typedef struct cli_outputs {
    cli_output output[CLI_OUTPUTS_MAX];
    cli_output_file file[CLI_OUTPUTS_MAX];
    int count, files;
} cli_outputs;

/* Declares output `option` to go to `text` (as the user gave it); does not touch the disk. A name that ends in neither
 * .npy nor .safetensors is of the kind `like_safetensors` says. *index is its number. */
cli_exit cli_outputs_add(cli_outputs *outputs, const char *option, const char *text, const char *default_name,
                         bool like_safetensors, int *index, cli_error *error);
/* Refuses an output into a .safetensors file that is also an input, whose other tensors would be lost. */
cli_exit cli_outputs_refuse_input(const cli_outputs *outputs, const char *option, const char *file, cli_error *error);
/* Creates the temporary files. */
cli_exit cli_outputs_open(cli_outputs *outputs, cli_error *error);
/* Writes every output's tensor, then renames all. */
cli_exit cli_outputs_commit(cli_outputs *outputs, cli_error *error);
/* Removes what was not committed. Safe to call at any time, also twice. */
void cli_outputs_discard(cli_outputs *outputs);

/* Removes temporary files when SIGINT, SIGTERM or SIGHUP end the program; makes a full file size limit an error. */
void cli_outputs_guard_signals(void);

#endif
