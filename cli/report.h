/* SPDX-License-Identifier: Apache-2.0
 * Results on stdout in one of three forms. A report is a head (key and value) and a table of rows with the same
 * columns. text  the head as lines, then an aligned table, then the remarks csv   the table alone, with a line of
 * column names (a report without table: the head as key,value) json  one object: the head's keys, "rows": a list of
 * objects, "remarks": a list of strings Numbers that JSON cannot hold (NaN, infinities) are the strings "nan", "inf",
 * "-inf" there. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"

typedef enum cli_format { CLI_TEXT, CLI_CSV, CLI_JSON } cli_format;
#define CLI_FORMATS "text|csv|json"

typedef struct cli_report cli_report;

/* Fails with CLI_USAGE if the format is JSON and this build has none, with CLI_UNRUN if memory is out. */
cli_exit cli_report_create(cli_report **report, cli_format format, const char *verb, cli_error *error);
void cli_report_destroy(cli_report *report);

/* The head. */
void cli_report_head_text(cli_report *report, const char *key, const char *value);
void cli_report_head_integer(cli_report *report, const char *key, int64_t value);

/* The table: begin a row, then add its cells in the same order for every row. */
void cli_report_row(cli_report *report);
void cli_report_text(cli_report *report, const char *column, const char *value);
void cli_report_integer(cli_report *report, const char *column, int64_t value);
void cli_report_real(cli_report *report, const char *column, double value, int digits);
void cli_report_flag(cli_report *report, const char *column,
                     bool value);                                /* a tick or a cross as text, else true or false */
void cli_report_missing(cli_report *report, const char *column); /* "-", empty in CSV, null in JSON */

/* A sentence below the table; text and JSON only. */
void cli_report_remark(cli_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints everything; CLI_UNRUN if stdout does not take it or memory ran out on the way. */
cli_exit cli_report_print(cli_report *report, cli_error *error);

/* Is there a JSON library in this build? */
bool cli_json_available(void);
#define CLI_JSON_MISSING "this build has no JSON library; install libjansson-dev (or jansson-devel) and build again"

#endif
