/* SPDX-License-Identifier: Apache-2.0
 * Failure inside the command: an exit code and one sentence, carried up to main, which prints it. Nothing below
 * main writes an error or exits. */
#ifndef CLI_ERROR_H
#define CLI_ERROR_H

#include "attn/attn.h"

/* The exit codes are a contract that scripts rely on. */
typedef enum cli_exit {
    CLI_RIGHT = 0,
    CLI_WRONG = 1, /* ran, and a result is wrong */
    CLI_USAGE = 2, /* bad option, file or problem */
    CLI_UNRUN = 3  /* valid, but could not run: no device, out of memory, disk full */
} cli_exit;

typedef struct cli_error {
    cli_exit code;
    char text[768];
} cli_error;

/* Fills *error with one line (control characters become '?') and returns code. */
cli_exit cli_fail(cli_error *error, cli_exit code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same from a failed library call. `where` names what was tried, or is NULL. */
cli_exit cli_fail_library(cli_error *error, const char *where, const attn_error *cause);

/* Static analysis sees one file at a time: tell it that a failure is one. */
#if defined(__clang_analyzer__)
#define cli_fail(error, code, ...) (cli_fail(error, code, __VA_ARGS__), (code))
#endif

#endif
