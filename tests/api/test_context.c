/* SPDX-License-Identifier: Apache-2.0
 * Contexts: configuration, environment, limits, log, allocator. */
#define _POSIX_C_SOURCE 200809L
#include "problem/unit.h"

#include <stdlib.h>

#include "context.h"

static attn_config config(void) {
    attn_config c = {.struct_size = sizeof c};
    return c;
}

#define REFUSED(wanted, field, part, ...)                                                                              \
    do {                                                                                                               \
        attn_config c = config();                                                                                      \
        attn_context *made = (attn_context *)(void *)&c;                                                               \
        attn_error refusal;                                                                                            \
        __VA_ARGS__;                                                                                                   \
        expect_error(attn_context_create(&made, &c, &refusal), &refusal, wanted, field, part);                         \
        assert_null(made);                                                                                             \
    } while (0)

static attn_context *created(const attn_config *c) {
    attn_context *made = NULL;
    attn_error error;
    expect_success(attn_context_create(&made, c, &error), &error);
    assert_non_null(made);
    return made;
}

/* --- A counting allocator that can fail --- */

typedef struct counter {
    int calls, held, fail_at; /* fail_at: number of the call that fails, from 1; 0: none */
} counter;

static void *count_allocate(void *user, size_t size) {
    counter *c = user;
    if (++c->calls == c->fail_at) {
        return NULL;
    }
    void *memory = malloc(size);
    c->held += memory != NULL;
    return memory;
}
static void count_release(void *user, void *memory) {
    counter *c = user;
    assert_non_null(memory);
    c->held--;
    free(memory);
}
static attn_config counted(counter *c) {
    attn_config made = config();
    made.allocate = count_allocate;
    made.release = count_release;
    made.allocator_user = c;
    return made;
}

static void test_config_errors(void **state) {
    (void)state;
    attn_error error;
    counter c0 = {0, 0, 0};
    expect_error(attn_context_create(NULL, NULL, &error), &error, ATTN_ERR_INVALID, "context", "is NULL");
    REFUSED(ATTN_ERR_INVALID, "device", "is \"tpu\", must be \"cpu\", \"cuda\"", c.device = "tpu");
    REFUSED(ATTN_ERR_INVALID, "device", "is \"gpu:h2\", known GPUs are t4", c.device = "gpu:h2");
    REFUSED(ATTN_ERR_INVALID, "options", "is 0x2", c.options = 2);
    REFUSED(ATTN_ERR_INVALID, "threads", "is -1, must be at least 0 and at most 4096", c.threads = -1);
    REFUSED(ATTN_ERR_INVALID, "threads", "is 5000", c.threads = 5000);
    REFUSED(ATTN_ERR_INVALID, "max_isa", "is \"sse2\", must be one of", c.max_isa = "sse2");
#ifdef __x86_64__
    REFUSED(ATTN_ERR_DEVICE, "max_isa", "is neon, which is not in this build; it has", c.max_isa = "neon");
#else
    REFUSED(ATTN_ERR_DEVICE, "max_isa", "is avx2, which is not in this build; it has", c.max_isa = "avx2");
#endif
    REFUSED(ATTN_ERR_INVALID, "release", "must be set together with allocate", c = counted(&c0), c.release = NULL);
    REFUSED(ATTN_ERR_INVALID, "allocate", "must be set together with release", c = counted(&c0), c.allocate = NULL);
    assert_int_equal(c0.calls, 0);
    attn_context_destroy(NULL);
    assert_int_equal(attn_context_threads(NULL), 0);
}

static void test_threads(void **state) {
    (void)state;
    attn_config own = config();
    unsetenv("ATTN_THREADS");
    attn_context *context = created(NULL);
    assert_true(attn_context_threads(context) >= 1);
    attn_context_destroy(context);
    setenv("ATTN_THREADS", "3", 1);
    context = created(&own);
    setenv("ATTN_THREADS", "7", 1); /* too late */
    assert_int_equal(attn_context_threads(context), 3);
    attn_context_destroy(context);
    own.threads = 5; /* a field that is set wins, also over rubbish */
    setenv("ATTN_THREADS", "many", 1);
    context = created(&own);
    assert_int_equal(attn_context_threads(context), 5);
    attn_context_destroy(context);
    REFUSED(ATTN_ERR_INVALID, "ATTN_THREADS", "is \"many\", must be a number", (void)c);
    setenv("ATTN_THREADS", "0", 1);
    REFUSED(ATTN_ERR_INVALID, "ATTN_THREADS", "is \"0\", must be a number of at least 1", (void)c);
    setenv("ATTN_THREADS", "99999999999999999999", 1);
    REFUSED(ATTN_ERR_INVALID, "ATTN_THREADS", "must be at least 0 and at most 4096", (void)c);
    unsetenv("ATTN_THREADS");
}

/* Every name as a limit: the better ones are shut with that reason, the others as before. */
static void test_max_isa(void **state) {
    (void)state;
    int count = attn_implementation_count();
    assert_true(count >= 3);
    attn_context *open = created(NULL);
    for (int limit = 0; limit < count; limit++) {
        attn_implementation one = {.struct_size = sizeof one}, other = one;
        attn_error error;
        expect_success(attn_implementation_get(open, limit, &one, &error), &error);
        char name[32];
        snprintf(name, sizeof name, "%s", one.name);
        attn_config c = config();
        c.max_isa = name;
        attn_context *context = created(&c);
        memset(name, 'x', sizeof name - 1); /* the string is the caller's and may change */
        for (int n = 0; n < count; n++) {
            expect_success(attn_implementation_get(open, n, &one, &error), &error);
            expect_success(attn_implementation_get(context, n, &other, &error), &error);
            assert_string_equal(one.name, other.name);
            assert_int_equal(one.available, one.reason[0] == 0);
            if (n < limit) {
                assert_int_equal(other.available, 0);
                assert_string_equal(other.reason, "better than max_isa allows");
            } else {
                assert_int_equal(other.available, one.available);
                assert_string_equal(other.reason, one.reason);
            }
        }
        attn_context_destroy(context);
    }
    attn_context_destroy(open);
    setenv("ATTN_MAX_ISA", "generic", 1);
    attn_context *context = created(NULL);
    attn_implementation first = {.struct_size = sizeof first};
    assert_int_equal(attn_implementation_get(context, 0, &first, NULL), ATTN_OK);
    assert_int_equal(first.available, strcmp(first.name, "generic") == 0);
    assert_int_equal(context->machine.isa, 0); /* nor does a plan hear of what it may not use */
    attn_context_destroy(context);
    setenv("ATTN_MAX_ISA", "pentium", 1);
    REFUSED(ATTN_ERR_INVALID, "ATTN_MAX_ISA", "is \"pentium\", must be one of", (void)c);
    unsetenv("ATTN_MAX_ISA");
}

static void test_listing_errors(void **state) {
    (void)state;
    attn_context *context = created(NULL);
    attn_implementation one = {.struct_size = sizeof one};
    attn_error error;
    expect_error(attn_implementation_get(NULL, 0, &one, &error), &error, ATTN_ERR_INVALID, "context", "is NULL");
    expect_error(attn_implementation_get(context, 0, NULL, &error), &error, ATTN_ERR_INVALID, "out", "is NULL");
    expect_error(attn_implementation_get(context, -1, &one, &error), &error, ATTN_ERR_INVALID, "index", "is -1");
    expect_error(attn_implementation_get(context, 999, &one, &error), &error, ATTN_ERR_INVALID, "index",
                 "is 999, must be at least 0 and below");
    attn_context_destroy(context);
}

/* --- Log --- */

typedef struct journal {
    int lines;
    char text[16384];
} journal;

static void write_down(void *user, const char *line) {
    journal *j = user;
    j->lines++;
    strncat(j->text, line, sizeof j->text - strlen(j->text) - 2);
    strcat(j->text, "\n");
}

static void test_log(void **state) {
    (void)state;
    static const float in[32];
    float out[32];
    journal j = {0, ""};
    attn_config c = config();
    attn_error error;
    c.log = write_down;
    c.log_user = &j;
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 2, 4, 4);
    attn_hints hints = {.struct_size = sizeof hints, .implementation = "reference"};
    attn_args args = attn_args_init();
    args.q = args.k = args.v = in;
    args.o = out;
    for (int round = 0; round < 2; round++) {
        attn_plan *plan;
        if (round) {
            setenv("ATTN_VERBOSE", "plan,unheard,dispatch,exec", 1);
        } else {
            unsetenv("ATTN_VERBOSE");
        }
        attn_context *context = created(&c);
        unsetenv("ATTN_VERBOSE");
        expect_success(attn_plan_create(&plan, context, &p, &hints, &error), &error);
        void *workspace = aligned_alloc(64, (attn_plan_workspace(plan) + 64) / 64 * 64);
        expect_success(attn_forward(plan, &args, workspace, attn_plan_workspace(plan), NULL, &error), &error);
        free(workspace);
        attn_plan_destroy(plan);
        attn_context_destroy(context);
        if (!round) {
            assert_int_equal(j.lines, 0); /* silent unless asked */
        }
    }
#define TEXT "fwd:f32:b1:hq1:hk1:sq2:skv2:d4"
    assert_non_null(strstr(j.text, "attn,1,dispatch," TEXT ",generic,refused,hints.implementation is reference\n"));
    assert_non_null(strstr(j.text, "attn,1,dispatch," TEXT ",reference,chosen,\n"));
    assert_non_null(strstr(j.text, "attn,1,plan," TEXT ",reference,threads 1,"));
    assert_non_null(strstr(j.text, "attn,1,exec," TEXT ",reference,OK,0."));
}

/* --- Allocation failure --- */

static void test_allocation_failure(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 2, 4, 4);
    attn_error error;
    int failures = 0;
    for (int fail_at = 1;; fail_at++) {
        counter c = {0, 0, fail_at};
        attn_config given = counted(&c);
        attn_context *context;
        attn_plan *plan = NULL;
        attn_status status = attn_context_create(&context, &given, &error);
        if (status == ATTN_OK) {
            status = attn_plan_create(&plan, context, &p, NULL, &error);
            assert_int_equal(status != ATTN_OK, plan == NULL);
            attn_plan_destroy(plan);
        } else {
            assert_null(context);
        }
        attn_context_destroy(context);
        assert_int_equal(c.held, 0);
        if (status == ATTN_OK) {
            assert_true(c.calls < fail_at);
            break;
        }
        failures++;
        expect_error(status, &error, ATTN_ERR_MEMORY, failures == 1 ? "context" : "plan", "could not be allocated");
    }
    assert_int_equal(failures, 2);
}

/* Asking what is supported, describing and running take no memory at all. */
static void test_no_allocation(void **state) {
    (void)state;
    static const float in[32];
    float out[32];
    counter c = {0, 0, 0};
    attn_config given = counted(&c);
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 2, 4, 4);
    attn_context *context = created(&given);
    attn_plan *plan;
    attn_error error;
    char text[4096];
    expect_success(attn_plan_create(&plan, context, &p, NULL, &error), &error);
    int before = c.calls;
    attn_plan_info info = {.struct_size = sizeof info};
    attn_args args = attn_args_init();
    args.q = args.k = args.v = in;
    args.o = out;
    void *workspace = aligned_alloc(64, (attn_plan_workspace(plan) + 64) / 64 * 64);
    expect_success(attn_supported(context, &p, NULL, &error), &error);
    expect_success(attn_plan_query(plan, &info, &error), &error);
    assert_true(attn_plan_describe(plan, text, sizeof text) > 0);
    expect_success(attn_forward(plan, &args, workspace, attn_plan_workspace(plan), NULL, &error), &error);
    assert_int_equal(c.calls, before);
    free(workspace);
    attn_plan_destroy(plan);
    attn_context_destroy(context);
    assert_int_equal(c.held, 0);
}

int main(void) {
    unsetenv("ATTN_MAX_ISA");
    unsetenv("ATTN_VERBOSE");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_errors), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_max_isa),       cmocka_unit_test(test_listing_errors),
        cmocka_unit_test(test_log),           cmocka_unit_test(test_allocation_failure),
        cmocka_unit_test(test_no_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
