/* SPDX-License-Identifier: Apache-2.0
 * What the machine can do at most, measured: multiply-adds, bf16 dot products, exponentials, bytes read. A share of a
 * ceiling is worth something only when both were measured in one run. */
#ifndef CLI_CEILINGS_H
#define CLI_CEILINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "error.h"

typedef enum cli_ceiling_kind { CLI_CEILING_FMA, CLI_CEILING_BF16, CLI_CEILING_EXP } cli_ceiling_kind;

/* A kernel without memory traffic beyond L1. The list ends with a NULL name; within a kind, best first. */
typedef struct cli_ceiling {
    const char *name; /* "fma.avx2" */
    cli_ceiling_kind kind;
    double per_round; /* operations: flop, or exponentials */
    bool (*available)(void);
    void (*run)(long rounds);
} cli_ceiling;
extern const cli_ceiling cli_ceilings_portable[]; /* ceilings_portable.c: every CPU */
extern const cli_ceiling cli_ceilings_x86[];      /* ceilings_x86.c: empty elsewhere */

/* The best available kernel of a kind, or the one of that name; NULL if there is none. */
const cli_ceiling *cli_ceiling_find(cli_ceiling_kind kind, const char *name);

/* Operations a second on `threads` threads: the best of several short runs. */
double cli_ceiling_measure(const cli_ceiling *ceiling, int threads);

/* Seconds to read all of `bytes` once with `threads` threads, each its own part. */
double cli_read_seconds(const void *buffer, size_t bytes, int threads);
/* Bytes a second from memory: the best of several reads of a buffer far larger than the last cache, in 4 KiB pages. */
cli_exit cli_read_measure(double *rate, int threads, cli_error *error);

double cli_now(void); /* seconds, monotonic */
int cli_threads_default(void);

#endif
