/* SPDX-License-Identifier: Apache-2.0
 * Parsing of options by table: strict numbers, exact names, one sentence for each fault. */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 96

int cli_choice_index(const char *choices, const char *word) {
    size_t length = strlen(word);
    int index = 0;
    for (const char *at = choices; *at; index++) {
        size_t width = strcspn(at, "|");
        if (width == length && memcmp(at, word, width) == 0) {
            return index;
        }
        at += width + (at[width] == '|');
    }
    return -1;
}

static cli_exit not_a_choice(const cli_option *option, const char *word, cli_error *error) {
    char list[256];
    size_t n = 0;
    for (const char *at = option->choices; *at && n + 3 < sizeof list; at++) {
        list[n++] = *at == '|' ? ',' : *at;
        if (*at == '|') {
            list[n++] = ' ';
        }
    }
    list[n] = 0;
    return cli_fail(error, CLI_USAGE, "%s: '%s' is not one of %s", option->name, word, list);
}

static cli_exit parse_integer(const cli_option *option, const char *text, size_t length, int64_t *out,
                              cli_error *error) {
    char copy[32];
    if (length > 0 && length < sizeof copy) {
        memcpy(copy, text, length);
        copy[length] = 0;
        char *end;
        errno = 0;
        long long value = strtoll(copy, &end, 10);
        bool signed_digit = isdigit((unsigned char)copy[0]) || (copy[0] == '-' && isdigit((unsigned char)copy[1]));
        if (signed_digit && *end == 0 && errno == 0) {
            if ((double)value < option->low || (double)value > option->high) {
                return cli_fail(error, CLI_USAGE, "%s: %lld is outside the limits %.0f to %.0f", option->name, value,
                                option->low, option->high);
            }
            *out = value;
            return CLI_RIGHT;
        }
        if (signed_digit && *end == 0) {
            return cli_fail(error, CLI_USAGE, "%s: %s does not fit in 64 bits, the limits are %.0f to %.0f",
                            option->name, copy, option->low, option->high);
        }
    }
    return cli_fail(error, CLI_USAGE, "%s: '%.*s' is not a whole number from %.0f to %.0f", option->name, (int)length,
                    text, option->low, option->high);
}

static cli_exit parse_seed(const cli_option *option, const char *text, int64_t *out, cli_error *error) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (!isdigit((unsigned char)text[0]) || *end != 0 || errno != 0) {
        return cli_fail(error, CLI_USAGE, "%s: '%s' is not a whole number from 0 to 2^64 - 1", option->name, text);
    }
    *out = (int64_t)value;
    return CLI_RIGHT;
}

static cli_exit parse_real(const cli_option *option, const char *text, double *out, cli_error *error) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (text[0] == 0 || isspace((unsigned char)text[0]) || *end != 0 || !isfinite(value)) {
        return cli_fail(error, CLI_USAGE, "%s: '%s' is not a finite number from %g to %g", option->name, text,
                        option->low, option->high);
    }
    if (value < option->low || value > option->high) {
        return cli_fail(error, CLI_USAGE, "%s: %s is outside the limits %g to %g", option->name, text, option->low,
                        option->high);
    }
    *out = value;
    return CLI_RIGHT;
}

static cli_exit parse_integers(const cli_option *option, const char *text, cli_integers *out, cli_error *error) {
    int most = option->kind == CLI_PAIR ? 2 : CLI_LIST_MAX;
    out->count = 0;
    for (const char *at = text;; at++) {
        size_t width = strcspn(at, ",");
        if (out->count == most) {
            return cli_fail(error, CLI_USAGE, "%s: '%s' has more than %d numbers", option->name, text, most);
        }
        cli_exit code = parse_integer(option, at, width, &out->value[out->count], error);
        if (code) {
            return code;
        }
        out->count++;
        at += width;
        if (*at == 0) {
            break;
        }
    }
    if (option->kind == CLI_PAIR && out->count != 2) {
        return cli_fail(error, CLI_USAGE, "%s: '%s' is one number, two are needed: LEFT,RIGHT", option->name, text);
    }
    return CLI_RIGHT;
}

static cli_exit parse_words(const cli_option *option, char *text, cli_words *out, cli_error *error) {
    out->count = 0;
    for (char *at = text;;) {
        size_t width = strcspn(at, ",");
        bool last = at[width] == 0;
        at[width] = 0;
        if (width == 0) {
            return cli_fail(error, CLI_USAGE, "%s: an item of the list is empty", option->name);
        }
        if (out->count == CLI_LIST_MAX) {
            return cli_fail(error, CLI_USAGE, "%s: the list has more than %d items", option->name, CLI_LIST_MAX);
        }
        if (option->choices && cli_choice_index(option->choices, at) < 0) {
            return not_a_choice(option, at, error);
        }
        out->value[out->count++] = at;
        if (last) {
            return CLI_RIGHT;
        }
        at += width + 1;
    }
}

static cli_exit store(const cli_option *option, void *field, char *value, cli_error *error) {
    switch (option->kind) {
    case CLI_FLAG: *(bool *)field = true; return CLI_RIGHT;
    case CLI_WORD:
        if (value[0] == 0) {
            return cli_fail(error, CLI_USAGE, "%s: the value is empty", option->name);
        }
        *(const char **)field = value;
        return CLI_RIGHT;
    case CLI_SWITCH:
    case CLI_CHOICE: {
        cli_integer *choice = field;
        choice->given = true;
        choice->value = cli_choice_index(option->choices, value);
        return choice->value < 0 ? not_a_choice(option, value, error) : CLI_RIGHT;
    }
    case CLI_INTEGER: {
        cli_integer *number = field;
        number->given = true;
        return parse_integer(option, value, strlen(value), &number->value, error);
    }
    case CLI_SEED: {
        cli_integer *number = field;
        number->given = true;
        return parse_seed(option, value, &number->value, error);
    }
    case CLI_REAL: {
        cli_real *number = field;
        number->given = true;
        return parse_real(option, value, &number->value, error);
    }
    case CLI_INTEGERS:
    case CLI_PAIR: return parse_integers(option, value, field, error);
    case CLI_WORDS: return parse_words(option, value, field, error);
    case CLI_TITLE: break;
    }
    return CLI_RIGHT;
}

/* Letters that must change to make one name of the other; names are short. */
static int distance(const char *a, const char *b) {
    int row[64], n = (int)strlen(b);
    if (n >= 63 || strlen(a) >= 63) {
        return 99;
    }
    for (int j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = corner + (a[i - 1] != b[j - 1]), add = row[j - 1] + 1, drop = row[j] + 1;
            corner = row[j];
            row[j] = change < add ? change : add;
            row[j] = row[j] < drop ? row[j] : drop;
        }
    }
    return row[n];
}

static cli_exit unknown(const char *name, const cli_group *groups, int n_groups, cli_error *error) {
    const char *nearest = NULL;
    int best = 3;
    for (int g = 0; g < n_groups; g++) {
        for (int o = 0; o < groups[g].count; o++) {
            const cli_option *option = &groups[g].options[o];
            int d = option->kind == CLI_TITLE || option->name[1] != '-' ? 99 : distance(name, option->name);
            if (d < best) {
                best = d;
                nearest = option->name;
            }
        }
    }
    if (nearest) {
        return cli_fail(error, CLI_USAGE, "%s: no such option; did you mean %s?", name, nearest);
    }
    return cli_fail(error, CLI_USAGE, "%s: no such option; --help lists them", name);
}

static bool looks_like_value(const char *word) {
    return word[0] != '-' || isdigit((unsigned char)word[1]) || (word[1] == '.' && isdigit((unsigned char)word[2]));
}

cli_exit cli_options_parse(int argc, char **argv, const cli_group *groups, int n_groups, const char **operand,
                           bool *help, cli_error *error) {
    const cli_option *seen[OPTIONS_MAX];
    int n_seen = 0;
    *help = false;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (word[0] != '-') {
            if (!operand) {
                return cli_fail(error, CLI_USAGE, "'%s': no operand is expected here", word);
            }
            if (*operand) {
                return cli_fail(error, CLI_USAGE, "'%s': a second operand, only one is taken", word);
            }
            *operand = word;
            continue;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            *help = true;
            return CLI_RIGHT;
        }
        char *value = strchr(word, '=');
        char name[64];
        snprintf(name, sizeof name, "%.*s", value ? (int)(value - word) : (int)strlen(word), word);
        const cli_option *option = NULL;
        void *base = NULL;
        for (int g = 0; g < n_groups && !option; g++) {
            for (int o = 0; o < groups[g].count && !option; o++) {
                if (groups[g].options[o].kind != CLI_TITLE && strcmp(groups[g].options[o].name, name) == 0) {
                    option = &groups[g].options[o];
                    base = groups[g].base;
                }
            }
        }
        if (!option) {
            return unknown(name, groups, n_groups, error);
        }
        char first_choice[32];
        if (option->kind == CLI_FLAG && value) {
            return cli_fail(error, CLI_USAGE, "%s: takes no value, '%s' was given", option->name, value + 1);
        }
        if (option->kind != CLI_FLAG) {
            for (int s = 0; s < n_seen; s++) {
                if (seen[s] == option) {
                    return cli_fail(error, CLI_USAGE, "%s: given twice, once is the limit", option->name);
                }
            }
            if (n_seen < OPTIONS_MAX) {
                seen[n_seen++] = option;
            }
        }
        if (option->kind == CLI_SWITCH && !value) {
            snprintf(first_choice, sizeof first_choice, "%.*s", (int)strcspn(option->choices, "|"), option->choices);
            value = first_choice;
        } else if (option->kind != CLI_FLAG) {
            if (value) {
                value++;
            } else if (i + 1 < argc && looks_like_value(argv[i + 1])) {
                value = argv[++i];
            } else {
                return cli_fail(error, CLI_USAGE, "%s: needs a value (%.*s)", option->name,
                                (int)strcspn(option->meaning, " "), option->meaning);
            }
        }
        cli_exit code = store(option, (char *)base + option->offset, value, error);
        if (code) {
            return code;
        }
    }
    return CLI_RIGHT;
}

void cli_options_help(const cli_group *groups, int n_groups) {
    for (int g = 0; g < n_groups; g++) {
        for (int o = 0; o < groups[g].count; o++) {
            const cli_option *option = &groups[g].options[o];
            if (option->kind == CLI_TITLE) {
                printf("\n%s\n", option->name);
                continue;
            }
            bool bare = option->kind == CLI_FLAG || option->kind == CLI_SWITCH;
            const char *gap = bare ? option->meaning : strstr(option->meaning, "  ");
            char left[64];
            snprintf(left, sizeof left, "%s%s%.*s", option->name, bare ? "" : " ",
                     bare || !gap ? 0 : (int)(gap - option->meaning), option->meaning);
            const char *text = gap ? gap + strspn(gap, " ") : "";
            printf("  %-28s %s\n", left, text);
        }
    }
}
