/* SPDX-License-Identifier: Apache-2.0
 * Options: how values are found, and that numbers are strict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "options.h"

typedef struct all {
    bool flag;
    const char *word;
    cli_integer choice, on, integer, seed;
    cli_real real;
    cli_integers integers, pair;
    cli_words words;
} all;
#define AT(field) offsetof(all, field)
static const cli_option table[] = {
    {"Title", CLI_TITLE, 0, NULL, NULL, 0, 0},
    {"--flag", CLI_FLAG, AT(flag), "text", NULL, 0, 0},
    {"-w", CLI_WORD, AT(word), "FILE  text", NULL, 0, 0},
    {"--choice", CLI_CHOICE, AT(choice), "A|B  text", "a|bc|d", 0, 0},
    {"--on", CLI_SWITCH, AT(on), "text", "yes|no", 0, 0},
    {"--integer", CLI_INTEGER, AT(integer), "N  text", NULL, -1, 10},
    {"--seed", CLI_SEED, AT(seed), "N  text", NULL, 0, 0},
    {"--real", CLI_REAL, AT(real), "X  text", NULL, -2, 2},
    {"--integers", CLI_INTEGERS, AT(integers), "LIST  text", NULL, 0, 1e18},
    {"--pair", CLI_PAIR, AT(pair), "L,R  text", NULL, -1, 100},
    {"--words", CLI_WORDS, AT(words), "LIST  text", "x|y", 0, 0},
};

static all given;
static const char *operand;
static bool help;
static cli_error error;
static char storage[8][64];

static cli_exit parse(int n, const char *const *words) {
    char *argv[9] = {(char *)(uintptr_t) "verb"};
    const cli_group group = CLI_GROUP(table, &given);
    memset(&given, 0, sizeof given);
    memset(&error, 0, sizeof error);
    operand = NULL;
    for (int i = 0; i < n; i++) {
        strcpy(storage[i], words[i]);
        argv[i + 1] = storage[i];
    }
    return cli_options_parse(n + 1, argv, &group, 1, &operand, &help, &error);
}
#define PARSE(...)                                                                                                     \
    parse(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), (const char *const[]){__VA_ARGS__})

static void values_follow_or_stand_after_equals(void **state) {
    (void)state;
    assert_int_equal(PARSE("--pair", "-1,0", "--integer=-1", "-w", "file", "--flag", "more"), CLI_RIGHT);
    assert_int_equal(given.pair.count, 2);
    assert_int_equal(given.pair.value[0], -1);
    assert_int_equal(given.pair.value[1], 0);
    assert_int_equal(given.integer.value, -1);
    assert_string_equal(given.word, "file");
    assert_true(given.flag);
    assert_string_equal(operand, "more");
    assert_int_equal(PARSE("--pair=-1,0", "-w=a=b"), CLI_RIGHT);
    assert_int_equal(given.pair.value[0], -1);
    assert_string_equal(given.word, "a=b");
    assert_int_equal(PARSE("-w", "-.5"), CLI_RIGHT);
    assert_int_equal(PARSE("-w", "-x"), CLI_USAGE);
    assert_int_equal(PARSE("-w"), CLI_USAGE);
    assert_int_equal(PARSE("-w="), CLI_USAGE);
}

static void choices_and_switches(void **state) {
    (void)state;
    assert_int_equal(PARSE("--choice", "bc"), CLI_RIGHT);
    assert_int_equal(given.choice.value, 1);
    assert_int_equal(PARSE("--choice", "b"), CLI_USAGE);
    assert_string_equal(error.text, "--choice: 'b' is not one of a, bc, d");
    assert_int_equal(PARSE("--choice", "bc|d"), CLI_USAGE);
    assert_int_equal(PARSE("--on", "--flag"), CLI_RIGHT);
    assert_true(given.on.given);
    assert_int_equal(given.on.value, 0);
    assert_int_equal(PARSE("--on=no"), CLI_RIGHT);
    assert_int_equal(given.on.value, 1);
    assert_int_equal(PARSE("--on", "--on=no"), CLI_USAGE);
    assert_int_equal(PARSE("--words", "x,y,x"), CLI_RIGHT);
    assert_int_equal(given.words.count, 3);
    assert_string_equal(given.words.value[2], "x");
    assert_int_equal(PARSE("--words", "x,z"), CLI_USAGE);
    assert_int_equal(PARSE("--words", "x,"), CLI_USAGE);
}

static void numbers_are_strict(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      " 1",
                                      "1 ",
                                      "1x",
                                      "0x1",
                                      "1e1",
                                      "+1",
                                      "--1",
                                      "11",
                                      "-2",
                                      "nan",
                                      "9223372036854775808",
                                      "-9223372036854775809"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char option[64] = "--integer=";
        assert_int_equal(PARSE(strcat(option, bad[i])), CLI_USAGE);
        assert_non_null(strstr(error.text, "--integer"));
    }
    static const char *const bad_reals[] = {"", " 1", "1 ", "1,", "nan", "inf", "-inf", "1e999", "3", "-2.01", "1e"};
    for (size_t i = 0; i < sizeof bad_reals / sizeof bad_reals[0]; i++) {
        char option[64] = "--real=";
        assert_int_equal(PARSE(strcat(option, bad_reals[i])), CLI_USAGE);
    }
    assert_int_equal(PARSE("--real", "-1.5e0"), CLI_RIGHT);
    assert_true(given.real.value == -1.5);
    assert_int_equal(PARSE("--seed", "18446744073709551615"), CLI_RIGHT);
    assert_int_equal((uint64_t)given.seed.value, UINT64_MAX);
    assert_int_equal(PARSE("--seed=-1"), CLI_USAGE);
    assert_int_equal(PARSE("--seed=18446744073709551616"), CLI_USAGE);
    assert_int_equal(PARSE("--integers=1,2,3"), CLI_RIGHT);
    assert_int_equal(given.integers.count, 3);
    assert_int_equal(PARSE("--integers=1,,3"), CLI_USAGE);
    assert_int_equal(PARSE("--integers=1,2,"), CLI_USAGE);
    assert_int_equal(PARSE("--pair=1"), CLI_USAGE);
    assert_int_equal(PARSE("--pair=1,2,3"), CLI_USAGE);
}

static void a_list_has_a_limit(void **state) {
    (void)state;
    char long_list[512] = "--integers=1";
    for (int i = 1; i < CLI_LIST_MAX; i++) {
        strcat(long_list, ",1");
    }
    char *argv[2] = {long_list, long_list};
    const cli_group group = CLI_GROUP(table, &given);
    assert_int_equal(cli_options_parse(2, argv, &group, 1, NULL, &help, &error), CLI_RIGHT);
    assert_int_equal(given.integers.count, CLI_LIST_MAX);
    strcat(long_list, ",1");
    assert_int_equal(cli_options_parse(2, argv, &group, 1, NULL, &help, &error), CLI_USAGE);
}

static void one_sentence_without_control_characters(void **state) {
    (void)state;
    assert_int_equal(PARSE("--\nflag"), CLI_USAGE);
    assert_null(strchr(error.text, '\n'));
    assert_int_equal(PARSE("one", "two"), CLI_USAGE);
    assert_int_equal(PARSE("--flag=1"), CLI_USAGE);
    assert_int_equal(PARSE("Title"), CLI_RIGHT); /* a heading is no option */
    assert_int_equal(PARSE("--help", "--nothing"), CLI_RIGHT);
    assert_true(help);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_or_stand_after_equals),
        cmocka_unit_test(choices_and_switches),
        cmocka_unit_test(numbers_are_strict),
        cmocka_unit_test(a_list_has_a_limit),
        cmocka_unit_test(one_sentence_without_control_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
