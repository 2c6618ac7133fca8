/* SPDX-License-Identifier: Apache-2.0
 * Ten thousand calls of mixed problems, each with a plan of its own, leave memory where it was: nothing stays
 * allocated, and neither heap nor resident size grows after the first round. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "shared.h"
#include "support/machine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0 /* a sanitizer's own memory grows */
#endif

typedef struct counter {
    int64_t live, calls;
} counter;

static void *counted_allocate(void *user, size_t size) {
    counter *c = user;
    c->live++;
    c->calls++;
    return malloc(size);
}

static void counted_release(void *user, void *memory) {
    ((counter *)user)->live -= memory != NULL;
    free(memory);
}

static long resident_kib(void) {
    long pages = 0, ignored;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &ignored, &pages) != 2) {
        fail_msg("no /proc/self/statm");
    }
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* The n-th of a cycle of problems: sizes, types, threads and implementations change with each. */
static void one_call(const attn_context *const contexts[2], int64_t n) {
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    const char *const *names = machine_implementations(true);
    int64_t count = 0;
    while (names[count]) {
        count++;
    }
    int64_t kv = 1 + n % 2;
    attn_problem p = attn_problem_dense(dtypes[n % 3], 1 + n % 2, kv * (1 + n / 2 % 3), kv, 1 + n * 5 % 23, n * 7 % 37,
                                        8 + n * 3 % 41, 8 + n % 19);
    p.softcap = n % 5 == 0 ? 3 : 0;
    if (machine_device()) { /* sizes of which many share their compiled kernels */
        p = attn_problem_dense(ATTN_F16, 1 + n % 2, kv * (1 + n / 2 % 3), kv, 1 + n * 5 % 23, n * 7 % 37, 32, 32);
    }
    p.band.kind = n % 2 ? ATTN_CAUSAL : 0;
    attn_error error;
    job j;
    if (!job_create(&j, contexts[n % 2], n % 4 ? names[n % count] : NULL, &p, (uint64_t)n, &error)) {
        fail_msg("%s %s", error.field, error.message);
    }
    job_room room = job_room_create(&j);
    assert_true(job_run(&j, &room, &error));
    job_room_destroy(&j, &room);
    job_destroy(&j);
    p.heads_q++; /* and a call that fails */
    attn_plan *plan = NULL;
    if (kv > 1) {
        assert_int_equal(attn_plan_create(&plan, contexts[n % 2], &p, NULL, &error), ATTN_ERR_INVALID);
    }
}

static void test_memory_stays_flat(void **state) {
    (void)state;
    counter c = {0, 0};
    attn_context *contexts[2];
    attn_error error;
    machine_device(); /* skips without the device that is asked for */
    int64_t calls = machine_intensity() > 0 ? 10000 : 700, warm = calls / 10;
    for (int n = 0; n < 2; n++) {
        attn_config config = {.struct_size = sizeof config, .threads = 1 + n};
        config.allocate = counted_allocate;
        config.release = counted_release;
        config.allocator_user = &c;
        config.device = getenv("ATTN_TEST_DEVICE");
        assert_int_equal(attn_context_create(&contexts[n], &config, &error), ATTN_OK);
    }
    bool device = machine_device() != NULL; /* kernels stay with its context */
    int64_t live = c.live;
    size_t heap = 0;
    long resident = 0;
    for (int64_t n = 0; n < calls; n++) {
        if (n == warm) {
            heap = mallinfo2().uordblks;
            resident = resident_kib();
            live = device ? c.live : live;
        }
        one_call((const attn_context *const *)contexts, n);
        if (n >= warm || !device) {
            assert_int_equal(c.live, live);
        }
    }
    assert_true(c.calls > calls);
    if (!SANITIZED) {
        long grown = resident_kib() - resident, kept = (long)mallinfo2().uordblks - (long)heap;
        if (kept > 64 * 1024 || grown > 4096) { /* malloc counts what it caches for a thread as used */
            fail_msg("the heap grew by %ld bytes, resident memory by %ld KiB in %lld calls", kept, grown,
                     (long long)(calls - warm));
        }
        print_message("%lld calls: heap %+ld bytes, resident %+ld KiB\n", (long long)calls, kept, grown);
    }
    attn_context_destroy(contexts[0]);
    attn_context_destroy(contexts[1]);
    assert_int_equal(c.live, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory_stays_flat)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
