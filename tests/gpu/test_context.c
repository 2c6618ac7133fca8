/* SPDX-License-Identifier: Apache-2.0
 * The caller's CUDA context: whichever is current stays so, whatever is done, and if it is of the device it is the one
 * that works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "stress/shared.h"
#include "support/driver.h"

static void *current(void) {
    void *context;
    assert_int_equal(driver_open()->context_current(&context), 0);
    return context;
}

/* A further context of the device; `under` stays current, alone on the thread's stack of contexts. */
static void *create_context(void *under) {
    const driver *d = driver_open();
    const char *number = strchr(getenv("ATTN_TEST_DEVICE"), ':');
    void *context, *popped;
    int device;
    assert_int_equal(d->device_get(&device, number ? atoi(number + 1) : 0), 0);
    assert_int_equal(d->context_create(&context, 0, device), 0);
    assert_int_equal(d->context_pop(&popped), 0);
    assert_ptr_equal(popped, context);
    assert_ptr_equal(current(), under);
    return context;
}

/* Makes a plan of an attn_context and runs it, with `expected` current all the while. */
static void one_round(const char *implementation, const attn_context *own, const void *expected, job *j,
                      job_room *room) {
    attn_error error;
    attn_problem p = attn_problem_dense(ATTN_F16, 1, 2, 1, 70, 90, 32, 32);
    device_note(implementation);
    if (!job_create(j, own, implementation, &p, 5, &error)) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    assert_ptr_equal(current(), expected);
    *room = job_room_create(j);
    if (!job_run(j, room, &error)) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    assert_ptr_equal(current(), expected);
}

static attn_context *another(void) {
    attn_config config = {.struct_size = sizeof config, .device = getenv("ATTN_TEST_DEVICE")};
    attn_context *own;
    attn_error error;
    config.max_isa = getenv("ATTN_TEST_MAX_ISA");
    if (attn_context_create(&own, &config, &error) != ATTN_OK) {
        fail_msg("%s %s", error.field, error.message);
    }
    return own;
}

static bool no_device(void) {
    if (machine_lacks_gpu()) {
        return true;
    }
    return false;
}

/* One made while a context of the device is current works in that one. */
static void test_a_context_of_the_caller(void **state) {
    (void)state;
    if (no_device()) {
        return;
    }
    const driver *d = driver_open();
    device_wait(); /* makes the primary context current */
    void *primary = current();
    assert_non_null(primary);
    for (const char *const *name = machine_implementations(true); *name; name++) {
        job first, second;
        job_room a, b;
        one_round(*name, machine_device(), primary, &first, &a);
        void *mine = create_context(primary);
        assert_int_equal(d->context_set(mine), 0);
        attn_context *own = another();
        assert_ptr_equal(current(), mine);
        one_round(*name, own, mine, &second, &b);
        for (int n = JOB_O; n < JOB_TENSORS; n++) { /* addresses of one context mean nothing in the other */
            void *values[2] = {malloc(first.bytes[n] + 1), malloc(first.bytes[n] + 1)};
            device_download(values[0], b.output[n], first.bytes[n]);
            assert_int_equal(d->context_set(primary), 0);
            device_download(values[1], a.output[n], first.bytes[n]);
            assert_int_equal(d->context_set(mine), 0);
            assert_memory_equal(values[0], values[1], first.bytes[n]);
            free(values[0]);
            free(values[1]);
        }
        job_room_destroy(&second, &b);
        job_destroy(&second);
        assert_ptr_equal(current(), mine);
        attn_context_destroy(own);
        assert_ptr_equal(current(), mine);
        assert_int_equal(d->context_set(primary), 0);
        assert_int_equal(d->context_destroy(mine), 0);
        job_room_destroy(&first, &a);
        job_destroy(&first);
    }
}

/* Whatever is current while plans are made and run, another context or none, stays so. */
static void test_current_context_is_kept(void **state) {
    (void)state;
    if (no_device()) {
        return;
    }
    const driver *d = driver_open();
    device_wait();
    void *primary = current(), *others[2] = {NULL, create_context(primary)};
    for (int n = 0; n < 2; n++) {
        for (const char *const *name = machine_implementations(true); *name; name++) {
            attn_problem p = attn_problem_dense(ATTN_F16, 1, 2, 1, 70, 90, 32, 32);
            attn_error error;
            job j;
            device_note(*name);
            assert_int_equal(d->context_set(primary), 0);
            assert_true(job_create(&j, machine_device(), *name, &p, 5, &error));
            job_room room = job_room_create(&j), plain = job_room_create(&j);
            assert_true(job_run(&j, &plain, &error));
            job_poison_all(&j, &room);
            attn_args args = job_args(&j, &room);
            assert_int_equal(d->context_set(others[n]), 0);
            attn_hints hints = {.struct_size = sizeof hints, .implementation = *name};
            attn_plan *plan;
            p = attn_problem_dense(ATTN_F16, 1, 2, 1, 70, 90, 32, 40); /* whose kernels are not there yet */
            bool planned = attn_plan_create(&plan, machine_device(), &p, &hints, &error) == ATTN_OK;
            assert_ptr_equal(current(), others[n]);
            bool done = planned && job_launch(&j, &room, &args, &error);
            assert_ptr_equal(current(), others[n]);
            assert_int_equal(d->context_set(primary), 0);
            if (!done) {
                fail_msg("%s: %s %s", *name, error.field, error.message);
            }
            device_wait();
            assert_true(job_same(&j, &room, &plain));
            job_room_destroy(&j, &room);
            job_room_destroy(&j, &plain);
            job_destroy(&j);
            assert_int_equal(d->context_set(others[n]), 0);
            attn_plan_destroy(plan);
            assert_ptr_equal(current(), others[n]);
            assert_int_equal(d->context_set(primary), 0);
        }
    }
    assert_int_equal(d->context_destroy(others[1]), 0);
    assert_int_equal(d->context_set(primary), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_context_of_the_caller),
        cmocka_unit_test(test_current_context_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
