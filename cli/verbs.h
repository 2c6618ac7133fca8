/* SPDX-License-Identifier: Apache-2.0
 * The verbs. argv[0] is the verb's name. Each prints its results to stdout and returns the exit code; when that is not
 * 0, *error holds the sentence (CLI_WRONG may leave it empty: the results say it). */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include "error.h"
#include "options.h"

cli_exit cli_run(int argc, char **argv, cli_error *error);
cli_exit cli_check(int argc, char **argv, cli_error *error);
cli_exit cli_plan(int argc, char **argv, cli_error *error);
cli_exit cli_bench(int argc, char **argv, cli_error *error);
cli_exit cli_kernels(int argc, char **argv, cli_error *error);
cli_exit cli_info(int argc, char **argv, cli_error *error);

/* Prints a verb's help: usage line, what it does, options. */
void cli_verb_help(const char *usage, const char *what, const cli_group *groups, int n_groups);

#endif
