/* SPDX-License-Identifier: Apache-2.0
 * Command-line options from tables. A verb lists groups of options; each option names the field it fills. Names match
 * whole, never by prefix. A value follows as the next word or after '='; a word that starts with '-' is taken as a
 * value only if it goes on like a number, so that `--window -1,0` works and a forgotten value is noticed. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

#define CLI_LIST_MAX 64

typedef struct cli_integer {
    bool given;
    int64_t value;
} cli_integer;
typedef struct cli_real {
    bool given;
    double value;
} cli_real;
typedef struct cli_integers {
    int count; /* 0: not given */
    int64_t value[CLI_LIST_MAX];
} cli_integers;
typedef struct cli_words {
    int count; /* 0: not given */
    const char *value[CLI_LIST_MAX];
} cli_words;

/* What an option's field is. */
typedef enum cli_kind {
    CLI_FLAG,     /* bool */
    CLI_WORD,     /* const char *, NULL when not given */
    CLI_CHOICE,   /* cli_integer: index into `choices` */
    CLI_SWITCH,   /* the same, index 0 when no value follows after '=' */
    CLI_INTEGER,  /* cli_integer, low <= value <= high */
    CLI_REAL,     /* cli_real, low <= value <= high */
    CLI_SEED,     /* cli_integer: 64 bits, unsigned */
    CLI_INTEGERS, /* cli_integers, at most `most` */
    CLI_PAIR,     /* cli_integers of exactly two */
    CLI_WORDS,    /* cli_words; each must be one of `choices` if that is set */
    CLI_TITLE     /* no option: a heading of the help text */
} cli_kind;

typedef struct cli_option {
    const char *name; /* "--causal", "-q" */
    cli_kind kind;
    size_t offset;       /* of the field in the group's struct */
    const char *meaning; /* "FILE  what it is" */
    const char *choices; /* "text|csv|json" */
    double low, high;
} cli_option;

typedef struct cli_group {
    const cli_option *options;
    int count;
    void *base;
} cli_group;

#define CLI_GROUP(table, base)                                                                                         \
    { table, (int)(sizeof(table) / sizeof(table)[0]), base }
#define CLI_TOKENS_MAX 2147483647.0

/* Parses argv[1 ...] into the groups. Values stay in argv, whose commas are cut by CLI_WORDS. *help is set when --help
 * or -h was met, which ends parsing. Operands (words that are no option) go to `operand`, at most one, refused when it
 * is NULL. */
cli_exit cli_options_parse(int argc, char **argv, const cli_group *groups, int n_groups, const char **operand,
                           bool *help, cli_error *error);

/* Prints the help of the options to stdout. */
void cli_options_help(const cli_group *groups, int n_groups);

/* The index of `word` in "a|b|c", or -1. */
int cli_choice_index(const char *choices, const char *word);

#endif
