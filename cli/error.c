/* SPDX-License-Identifier: Apache-2.0
 * Sentences for failures. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

cli_exit(cli_fail)(cli_error *error, cli_exit code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    for (char *c = error->text; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    error->code = code;
    return code;
}

cli_exit cli_fail_library(cli_error *error, const char *where, const attn_error *cause) {
    cli_exit code = cause->status == ATTN_ERR_INVALID || cause->status == ATTN_ERR_UNSUPPORTED ? CLI_USAGE : CLI_UNRUN;
    /* Fields that an option of its own fills go by that option's name. */
    static const char *const options[][2] = {
        {"hints.implementation", "--impl"}, {"hints.block_q", "--tile-q"}, {"hints.block_kv", "--tile-kv"},
        {"hints.splits", "--splits"},       {"hints.stages", "--stages"},  {"hints.tensor_cores", "--tensor-cores"}};
    const char *field = cause->field;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        field = strcmp(cause->field, options[i][0]) == 0 ? options[i][1] : field;
    }
    const char *what = cause->message[0] ? cause->message : attn_status_text(cause->status);
    return cli_fail(error, code, "%s%s%s%s%s", where ? where : "", where ? ": " : "", field, field[0] ? " " : "", what);
}
