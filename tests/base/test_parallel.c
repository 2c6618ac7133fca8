/* SPDX-License-Identifier: Apache-2.0
 * The team of threads: every task once, thread numbers in range, usable from several callers and after fork. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/parallel.h"

#define TASKS 1000

typedef struct tally {
    int threads;
    int runs[TASKS];
    int out_of_range[TASKS];
} tally;

static void count(void *arg, int64_t task, int thread) {
    tally *all = arg;
    all->runs[task]++;
    all->out_of_range[task] = thread < 0 || thread >= all->threads;
}

static int wrong_tasks(int threads, int64_t tasks) {
    tally *all = calloc(1, sizeof *all);
    int wrong = 0;
    all->threads = threads;
    attn__parallel(threads, tasks, count, all);
    for (int64_t task = 0; task < TASKS; task++) {
        wrong += all->runs[task] != (task < tasks) || all->out_of_range[task];
    }
    free(all);
    return wrong;
}

static void test_every_task_once(void **state) {
    (void)state;
    const int threads[] = {1, 2, 3, 8};
    const int64_t tasks[] = {0, 1, 2, 7, TASKS};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        for (size_t j = 0; j < sizeof tasks / sizeof *tasks; j++) {
            assert_int_equal(wrong_tasks(threads[i], tasks[j]), 0);
        }
    }
}

static void *caller(void *arg) {
    (void)arg;
    return (void *)(intptr_t)wrong_tasks(2, TASKS);
}

static void test_several_callers(void **state) {
    (void)state;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, caller, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

static void test_after_fork(void **state) {
    (void)state;
    if (getenv("ATTN_TEST_EMULATED")) {
        skip();
    }
    assert_int_equal(wrong_tasks(2, TASKS), 0);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(wrong_tasks(2, TASKS) == 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_task_once),
        cmocka_unit_test(test_several_callers),
        cmocka_unit_test(test_after_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
