/* SPDX-License-Identifier: Apache-2.0
 * The part of cmocka's interface that the tests use, for cross builds, where the distribution has no cmocka for the
 * target: run the tests in order, stop a test at its first failed assertion. Everywhere else the real one is used. */
#ifndef ATTN_TESTS_SUPPORT_CROSS_CMOCKA_H
#define ATTN_TESTS_SUPPORT_CROSS_CMOCKA_H

#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
    int (*setup)(void **state);
    int (*teardown)(void **state);
    void *state;
};

static jmp_buf cross_failed;
static int cross_skipped;

static inline void cross_assert(int holds, const char *text, const char *file, int line) {
    if (!holds) {
        printf("%s:%d: %s\n", file, line, text);
        longjmp(cross_failed, 1);
    }
}

static inline void cross_assert_equal(intmax_t a, intmax_t b, int equal, const char *text, const char *file, int line) {
    if ((a == b) != equal) {
        printf("%s:%d: %s: %" PRIdMAX " and %" PRIdMAX "\n", file, line, text, a, b);
        longjmp(cross_failed, 1);
    }
}

static inline int cross_run(const char *group, const struct CMUnitTest *tests, size_t count, int (*setup)(void **),
                            int (*teardown)(void **)) {
    void *group_state = NULL;
    volatile int failed = setup && setup(&group_state) != 0;
    for (volatile size_t i = 0; i < count && !failed; i++) {
        void *state = tests[i].state ? tests[i].state : group_state;
        cross_skipped = 0;
        if (setjmp(cross_failed) == 0) {
            if (!tests[i].setup || tests[i].setup(&state) == 0) {
                tests[i].run(&state);
            }
            printf("%s %s: %s\n", group, tests[i].name, "ok");
        } else if (!cross_skipped) {
            printf("%s %s: failed\n", group, tests[i].name);
            failed = 1;
        }
        if (tests[i].teardown) {
            tests[i].teardown(&state);
        }
    }
    if (teardown) {
        teardown(&group_state);
    }
    return failed;
}

#define cmocka_unit_test(f)                                                                                            \
    { #f, f, NULL, NULL, NULL }
#define cmocka_unit_test_setup(f, s)                                                                                   \
    { #f, f, s, NULL, NULL }
#define cmocka_unit_test_setup_teardown(f, s, t)                                                                       \
    { #f, f, s, t, NULL }
#define cmocka_unit_test_prestate(f, p)                                                                                \
    { #f, f, NULL, NULL, p }
#define cmocka_run_group_tests(tests, s, t)            cross_run(#tests, tests, sizeof(tests) / sizeof *(tests), s, t)
#define cmocka_run_group_tests_name(name, tests, s, t) cross_run(name, tests, sizeof(tests) / sizeof *(tests), s, t)

#define assert_true(c)         cross_assert(!!(c), #c, __FILE__, __LINE__)
#define assert_false(c)        cross_assert(!(c), "not " #c, __FILE__, __LINE__)
#define assert_null(p)         cross_assert((p) == NULL, #p " is NULL", __FILE__, __LINE__)
#define assert_non_null(p)     cross_assert((p) != NULL, #p " is not NULL", __FILE__, __LINE__)
#define assert_ptr_equal(a, b) cross_assert((const void *)(a) == (const void *)(b), #a " is " #b, __FILE__, __LINE__)
#define assert_ptr_not_equal(a, b)                                                                                     \
    cross_assert((const void *)(a) != (const void *)(b), #a " is not " #b, __FILE__, __LINE__)
#define assert_int_equal(a, b)           cross_assert_equal((intmax_t)(a), (intmax_t)(b), 1, #a " = " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)       cross_assert_equal((intmax_t)(a), (intmax_t)(b), 0, #a " != " #b, __FILE__, __LINE__)
#define assert_string_equal(a, b)        cross_assert(strcmp(a, b) == 0, #a " = " #b, __FILE__, __LINE__)
#define assert_string_not_equal(a, b)    cross_assert(strcmp(a, b) != 0, #a " != " #b, __FILE__, __LINE__)
#define assert_memory_equal(a, b, n)     cross_assert(memcmp(a, b, n) == 0, #a " = " #b, __FILE__, __LINE__)
#define assert_memory_not_equal(a, b, n) cross_assert(memcmp(a, b, n) != 0, #a " != " #b, __FILE__, __LINE__)
#define assert_in_range(v, lo, hi)       cross_assert((v) >= (lo) && (v) <= (hi), #v " in " #lo ", " #hi, __FILE__, __LINE__)
#define assert_float_equal(a, b, e)      cross_assert((a) - (b) <= (e) && (b) - (a) <= (e), #a " = " #b, __FILE__, __LINE__)
#define assert_double_equal(a, b, e)     assert_float_equal(a, b, e)
#define assert_return_code(r, e)         cross_assert((r) >= 0, #r " >= 0", __FILE__, __LINE__)

#define print_message(...) printf(__VA_ARGS__)
#define print_error(...)   printf(__VA_ARGS__)
#define fail()             cross_assert(0, "fail", __FILE__, __LINE__)
#define fail_msg(...)                                                                                                  \
    do {                                                                                                               \
        printf(__VA_ARGS__);                                                                                           \
        fail();                                                                                                        \
    } while (0)
#define skip()                                                                                                         \
    do {                                                                                                               \
        cross_skipped = 1;                                                                                             \
        longjmp(cross_failed, 1);                                                                                      \
    } while (0)

#endif
