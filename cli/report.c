/* SPDX-License-Identifier: Apache-2.0
 * Reports as text, CSV and JSON. All cells are kept as a number or a string until the end, because column widths and
 * the JSON object need the whole. A failed allocation marks the report and is told when it is printed. */
#include "report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef CLI_HAVE_JANSSON
#include <jansson.h>
#endif

typedef enum cell_kind { CELL_TEXT, CELL_INTEGER, CELL_REAL, CELL_FLAG, CELL_MISSING } cell_kind;
typedef struct cell {
    cell_kind kind;
    const char *key; /* a literal of the caller */
    char *text;      /* owned; what text and CSV show */
    double real;
    int64_t integer;
} cell;
typedef struct cells {
    cell *cell;
    int count, room;
} cells;
struct cli_report {
    cli_format format;
    const char *verb;
    cells head, body, remarks;
    int columns; /* of the first row; 0 while it is open */
    int rows;
    bool failed;
};

bool cli_json_available(void) {
#ifdef CLI_HAVE_JANSSON
    return true;
#else
    return false;
#endif
}

cli_exit cli_report_create(cli_report **report, cli_format format, const char *verb, cli_error *error) {
    *report = NULL;
    if (format == CLI_JSON && !cli_json_available()) {
        return cli_fail(error, CLI_USAGE, "--format=json: %s", CLI_JSON_MISSING);
    }
    *report = calloc(1, sizeof **report);
    if (!*report) {
        return cli_fail(error, CLI_UNRUN, "out of memory for the report");
    }
    (*report)->format = format;
    (*report)->verb = verb;
    return CLI_RIGHT;
}

static void release(cells *list) {
    for (int i = 0; i < list->count; i++) {
        free(list->cell[i].text);
    }
    free(list->cell);
}

void cli_report_destroy(cli_report *report) {
    if (report) {
        release(&report->head);
        release(&report->body);
        release(&report->remarks);
        free(report);
    }
}

static void add(cli_report *report, cells *list, cell_kind kind, const char *key, const char *text, double real,
                int64_t integer) {
    if (list->count == list->room) {
        int room = list->room ? 2 * list->room : 32;
        cell *grown = realloc(list->cell, (size_t)room * sizeof *grown);
        if (!grown) {
            report->failed = true;
            return;
        }
        list->cell = grown;
        list->room = room;
    }
    cell *item = &list->cell[list->count];
    *item = (cell){kind, key, strdup(text), real, integer};
    if (item->text) {
        list->count++;
    } else {
        report->failed = true;
    }
}

void cli_report_head_text(cli_report *report, const char *key, const char *value) {
    add(report, &report->head, CELL_TEXT, key, value, 0, 0);
}

void cli_report_head_integer(cli_report *report, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add(report, &report->head, CELL_INTEGER, key, text, 0, value);
}

void cli_report_row(cli_report *report) {
    if (report->rows == 1) {
        report->columns = report->body.count;
    }
    report->rows++;
}

void cli_report_text(cli_report *report, const char *column, const char *value) {
    add(report, &report->body, CELL_TEXT, column, value, 0, 0);
}

void cli_report_integer(cli_report *report, const char *column, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add(report, &report->body, CELL_INTEGER, column, text, 0, value);
}

void cli_report_real(cli_report *report, const char *column, double value, int digits) {
    char text[64];
    snprintf(text, sizeof text, "%.*g", digits, isnan(value) ? (double)NAN : value); /* without a sign */
    add(report, &report->body, CELL_REAL, column, text, value, 0);
}

void cli_report_flag(cli_report *report, const char *column, bool value) {
    const char *text = report->format == CLI_TEXT ? (value ? "✓" : "✗") : value ? "true" : "false";
    add(report, &report->body, CELL_FLAG, column, text, 0, value);
}

void cli_report_missing(cli_report *report, const char *column) {
    add(report, &report->body, CELL_MISSING, column, "-", 0, 0);
}

void cli_report_remark(cli_report *report, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    add(report, &report->remarks, CELL_TEXT, "", text, 0, 0);
}

/* Columns a terminal needs for UTF-8 text: bytes that do not continue a character. */
static int width_of(const char *text) {
    int width = 0;
    for (; *text; text++) {
        width += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return width;
}

static void pad(int n) {
    printf("%*s", n > 0 ? n : 0, "");
}

static void print_text(const cli_report *report) {
    int widest = 0;
    for (int i = 0; i < report->head.count; i++) {
        int width = width_of(report->head.cell[i].key);
        widest = width > widest ? width : widest;
    }
    for (int i = 0; i < report->head.count; i++) {
        const char *line = report->head.cell[i].text;
        printf("%s:", report->head.cell[i].key);
        pad(widest - width_of(report->head.cell[i].key) + 1);
        for (size_t n; *line; line += n + (line[n] == '\n')) { /* lines after the first stand below it */
            n = strcspn(line, "\n");
            if (line != report->head.cell[i].text) {
                pad(widest + 2);
            }
            printf("%.*s\n", (int)n, line);
        }
        if (!*report->head.cell[i].text) {
            putchar('\n');
        }
    }
    if (report->rows && report->head.count) {
        putchar('\n');
    }
    for (int row = -1; report->columns && row < report->rows; row++) {
        for (int c = 0; c < report->columns; c++) {
            const cell *of_column = &report->body.cell[c];
            int wide = width_of(of_column->key);
            for (int r = 0; r < report->rows; r++) {
                int width = width_of(report->body.cell[r * report->columns + c].text);
                wide = width > wide ? width : wide;
            }
            const char *text = row < 0 ? of_column->key : report->body.cell[row * report->columns + c].text;
            int gap = wide - width_of(text);
            bool last = c + 1 == report->columns;
            if (of_column->kind == CELL_TEXT || of_column->kind == CELL_FLAG) {
                fputs(text, stdout);
                pad(last ? 0 : gap + 2);
            } else {
                pad(gap);
                printf("%s%s", text, last ? "" : "  ");
            }
        }
        putchar('\n');
    }
    for (int i = 0; i < report->remarks.count; i++) {
        printf("%s\n", report->remarks.cell[i].text);
    }
}

static void print_csv_field(const char *text) {
    if (!strpbrk(text, ",\"\n\r")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++) {
        if (*text == '"') {
            putchar('"');
        }
        putchar(*text);
    }
    putchar('"');
}

/* CSV is for machines: numbers in full. */
static void print_csv_cell(const cell *item) {
    if (item->kind == CELL_REAL) {
        printf("%.9g", isnan(item->real) ? (double)NAN : item->real);
    } else if (item->kind != CELL_MISSING) {
        print_csv_field(item->text);
    }
}

static void print_csv(const cli_report *report) {
    if (!report->rows) {
        printf("key,value\n");
        for (int i = 0; i < report->head.count; i++) {
            print_csv_field(report->head.cell[i].key);
            putchar(',');
            print_csv_cell(&report->head.cell[i]);
            putchar('\n');
        }
        return;
    }
    for (int row = -1; row < report->rows; row++) {
        for (int c = 0; c < report->columns; c++) {
            if (c) {
                putchar(',');
            }
            if (row < 0) {
                print_csv_field(report->body.cell[c].key);
            } else {
                print_csv_cell(&report->body.cell[row * report->columns + c]);
            }
        }
        putchar('\n');
    }
}

#ifdef CLI_HAVE_JANSSON
static json_t *json_cell(const cell *item) {
    if (item->kind == CELL_MISSING) {
        return json_null();
    }
    if (item->kind == CELL_FLAG) {
        return json_boolean(item->integer);
    }
    if (item->kind == CELL_INTEGER) {
        return json_integer((json_int_t)item->integer);
    }
    if (item->kind == CELL_REAL && isfinite(item->real)) {
        return json_real(item->real);
    }
    if (item->kind == CELL_REAL) {
        return json_string(isnan(item->real) ? "nan" : item->real > 0 ? "inf" : "-inf");
    }
    json_t *text = json_string(item->text);
    return text ? text : json_string("?"); /* not UTF-8 */
}

static bool print_json(const cli_report *report) {
    json_t *root = json_object(), *rows = json_array(), *remarks = json_array();
    bool good = root && rows && remarks;
    good = good && json_object_set_new(root, "verb", json_string(report->verb)) == 0;
    for (int i = 0; good && i < report->head.count; i++) {
        good = json_object_set_new(root, report->head.cell[i].key, json_cell(&report->head.cell[i])) == 0;
    }
    for (int row = 0; good && row < report->rows; row++) {
        json_t *object = json_object();
        good = object && json_array_append_new(rows, object) == 0;
        for (int c = 0; good && c < report->columns; c++) {
            const cell *item = &report->body.cell[row * report->columns + c];
            good = json_object_set_new(object, item->key, json_cell(item)) == 0;
        }
    }
    for (int i = 0; good && i < report->remarks.count; i++) {
        good = json_array_append_new(remarks, json_cell(&report->remarks.cell[i])) == 0;
    }
    good = good && json_object_set(root, "rows", rows) == 0 && json_object_set(root, "remarks", remarks) == 0;
    good = good && json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(root);
    json_decref(rows);
    json_decref(remarks);
    putchar('\n');
    return good;
}
#endif

cli_exit cli_report_print(cli_report *report, cli_error *error) {
    if (report->rows == 1) {
        report->columns = report->body.count;
    }
    if (report->failed || (report->columns && report->body.count != report->columns * report->rows)) {
        return cli_fail(error, CLI_UNRUN, "out of memory for the report");
    }
    bool good = true;
    switch (report->format) {
    case CLI_TEXT: print_text(report); break;
    case CLI_CSV: print_csv(report); break;
    case CLI_JSON:
#ifdef CLI_HAVE_JANSSON
        good = print_json(report);
#endif
        break;
    }
    if (!good || fflush(stdout) != 0 || ferror(stdout)) {
        return cli_fail(error, CLI_UNRUN, "the results could not be written to standard output");
    }
    return CLI_RIGHT;
}
