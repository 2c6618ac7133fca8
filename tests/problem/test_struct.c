/* SPDX-License-Identifier: Apache-2.0
 * Stamped structs, each cut and extended: a shorter one is read as if zeros followed, a longer one only if zeros do;
 * outputs are written up to their stamp and never past it. */
#include "problem/unit.h"

#include <stdlib.h>

#include "problem/problem.h"

enum { EXTRA = 24 };

typedef attn_status (*read_fn)(const void *given, attn_error *error);

static const float rows_of_floats[64] = {0};
static attn_context *context;

static attn_problem small(void) {
    return attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 2, 4, 4);
}

static attn_status read_problem(const void *given, attn_error *error) {
    return attn_problem_check(given, error);
}
static attn_status read_args(const void *given, attn_error *error) {
    attn_problem p = small(), canonical;
    attn_args args;
    assert_int_equal(attn__problem_canonical(&p, &canonical, NULL), ATTN_OK);
    attn_status status = attn__args_check(&canonical, given, &args, error);
    assert_true(status || args.struct_size == sizeof args);
    return status;
}
static attn_status read_config(const void *given, attn_error *error) {
    attn_context *made;
    attn_status status = attn_context_create(&made, given, error);
    attn_context_destroy(made);
    return status;
}
static attn_status read_hints(const void *given, attn_error *error) {
    attn_problem p = small();
    return attn_supported(context, &p, given, error);
}

/* `least` is the smallest stamp that is taken. */
static void cut_and_extend(const void *value, size_t size, size_t least, read_fn read) {
    unsigned char *given = malloc(size + EXTRA);
    attn_error error;
    assert_non_null(given);
    for (size_t stamp = 0; stamp <= size + EXTRA; stamp++) {
        memset(given, 0, size + EXTRA);
        memcpy(given, value, size);
        memcpy(given, &stamp, sizeof stamp);
        if (stamp < size && stamp >= least) {
            memset(given + stamp, 0xff, size + EXTRA - stamp); /* not to be read */
        }
        attn_status status = read(given, &error);
        if (stamp < least) {
            char part[32];
            snprintf(part, sizeof part, "is %zu, must be", stamp);
            expect_error(status, &error, ATTN_ERR_INVALID, "struct_size", part);
        } else {
            assert_int_equal(status, ATTN_OK);
        }
    }
    /* A byte that only a later version could know. */
    for (size_t tail = size; tail < size + EXTRA; tail++) {
        size_t stamp = size + EXTRA;
        memset(given, 0, size + EXTRA);
        memcpy(given, value, size);
        memcpy(given, &stamp, sizeof stamp);
        given[tail] = 1;
        char part[64];
        snprintf(part, sizeof part, "knows %zu bytes and byte %zu", size, tail);
        expect_error(read(given, &error), &error, ATTN_ERR_INVALID, "struct_size", part);
        stamp = tail;
        memcpy(given, &stamp, sizeof stamp);
        assert_int_equal(read(given, &error), ATTN_OK); /* it lies outside */
    }
    free(given);
}

static void test_inputs(void **state) {
    (void)state;
    attn_problem p = small();
    static float out[64];
    attn_args args = attn_args_init();
    args.q = args.k = args.v = rows_of_floats;
    args.o = out;
    attn_config config = {.struct_size = sizeof config};
    attn_hints hints = {.struct_size = sizeof hints};
    cut_and_extend(&p, sizeof p, offsetof(attn_problem, lse), read_problem);
    cut_and_extend(&args, sizeof args, offsetof(attn_args, bias), read_args);
    cut_and_extend(&config, sizeof config, sizeof(size_t), read_config);
    cut_and_extend(&hints, sizeof hints, sizeof(size_t), read_hints);
}

static void expect_written(const unsigned char *got, const unsigned char *whole, size_t size, size_t stamp) {
    size_t known = stamp < size ? stamp : size;
    assert_int_equal(memcmp(got, &stamp, sizeof stamp), 0);
    assert_int_equal(memcmp(got + sizeof stamp, whole + sizeof stamp, known - sizeof stamp), 0);
    for (size_t n = known; n < size + EXTRA; n++) {
        assert_int_equal(got[n], n < stamp ? 0 : 0x5a);
    }
}

static void test_outputs(void **state) {
    (void)state;
    attn_problem p = small();
    attn_plan *plan;
    attn_error error;
    attn_plan_info info = {.struct_size = sizeof info};
    attn_implementation impl = {.struct_size = sizeof impl};
    unsigned char got[sizeof info + EXTRA];
    expect_success(attn_plan_create(&plan, context, &p, NULL, &error), &error);
    expect_success(attn_plan_query(plan, &info, &error), &error);
    expect_success(attn_implementation_get(context, 0, &impl, &error), &error);
    for (size_t stamp = 0; stamp <= sizeof info + EXTRA; stamp++) {
        memset(got, 0x5a, sizeof got);
        memcpy(got, &stamp, sizeof stamp);
        attn_status status = attn_plan_query(plan, (attn_plan_info *)(void *)got, &error);
        if (stamp < sizeof stamp) {
            expect_error(status, &error, ATTN_ERR_INVALID, "struct_size", "must be at least 8");
        } else {
            assert_int_equal(status, ATTN_OK);
            expect_written(got, (unsigned char *)&info, sizeof info, stamp);
        }
    }
    for (size_t stamp = sizeof stamp; stamp <= sizeof impl + EXTRA; stamp++) {
        memset(got, 0x5a, sizeof got);
        memcpy(got, &stamp, sizeof stamp);
        assert_int_equal(attn_implementation_get(context, 0, (attn_implementation *)(void *)got, &error), ATTN_OK);
        expect_written(got, (unsigned char *)&impl, sizeof impl, stamp);
    }
    impl.struct_size = 3;
    expect_error(attn_implementation_get(context, 0, &impl, &error), &error, ATTN_ERR_INVALID, "struct_size", "is 3");
    attn_plan_destroy(plan);
}

static int make_context(void **state) {
    (void)state;
    return attn_context_create(&context, NULL, NULL);
}
static int drop_context(void **state) {
    (void)state;
    attn_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_outputs),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
