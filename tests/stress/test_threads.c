/* SPDX-License-Identifier: Apache-2.0
 * Many callers and one library: eight threads share each plan, a process forks after use, loading starts no thread. */
#include <dlfcn.h>
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "shared.h"
#include "support/machine.h"

#define CALLERS      8
#define HANG_SECONDS 10

static attn_problem small_problem(attn_dtype dtype) {
    attn_problem p = attn_problem_dense(dtype, 2, 4, 2, 70, 90, 32, 40);
    p.band.kind = ATTN_CAUSAL;
    return p;
}

typedef struct caller {
    const job *job;
    const job_room *expected;
    int rounds;
    bool right;
    attn_error error;
} caller;

static void *call(void *memory) {
    caller *c = memory;
    job_room room = job_room_create(c->job);
    c->right = true;
    for (int n = 0; n < c->rounds && c->right; n++) {
        c->right = job_run(c->job, &room, &c->error) && job_same(c->job, &room, c->expected);
    }
    job_room_destroy(c->job, &room);
    return NULL;
}

/* Threads of the caller times threads of the plan. */
static void share_plan(const char *implementation, attn_dtype dtype, int plan_threads) {
    attn_problem p = small_problem(dtype);
    attn_error error;
    job j;
    if (machine_expected_refusal(implementation, &p)) {
        return;
    }
    if (!job_create(&j, machine_context_of(implementation, plan_threads), implementation, &p, 7, &error)) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    job_room expected = job_room_create(&j);
    assert_true(job_run(&j, &expected, &error));
    pthread_t threads[CALLERS];
    caller callers[CALLERS];
    for (int n = 0; n < CALLERS; n++) {
        callers[n] = (caller){.job = &j, .expected = &expected, .rounds = machine_intensity() > 0 ? 6 : 2};
        assert_int_equal(pthread_create(&threads[n], NULL, call, &callers[n]), 0);
    }
    for (int n = 0; n < CALLERS; n++) {
        assert_int_equal(pthread_join(threads[n], NULL), 0);
        if (!callers[n].right) {
            fail_msg("%s %s, caller %d: other bits, or: %s", implementation, attn_dtype_name(dtype), n,
                     callers[n].error.message);
        }
    }
    job_room_destroy(&j, &expected);
    job_destroy(&j);
}

static void test_eight_callers_share_a_plan(void **state) {
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    for (const char *const *name = machine_implementations(true); *name; name++) {
        for (int d = 0; d < 3; d++) {
            share_plan(*name, dtypes[d], 1);
            share_plan(*name, dtypes[d], 3);
        }
    }
}

/* The child of a process whose library has used threads runs the same plan with threads, and ends. */
static void test_fork_after_use(void **state) {
    (void)state;
    if (getenv("ATTN_TEST_EMULATED") || machine_device()) {
        print_message("a process of threads or with a device cannot fork\n");
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        attn_problem p = small_problem(ATTN_F32);
        attn_error error;
        job j;
        assert_true(job_create(&j, machine_context(4), *name, &p, 9, &error));
        job_room expected = job_room_create(&j), room = job_room_create(&j);
        assert_true(job_run(&j, &expected, &error));
        for (int n = 0; n < 2; n++) { /* the second child comes from a parent that forked before */
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                alarm(HANG_SECONDS);
                bool right = job_run(&j, &room, &error) && job_same(&j, &room, &expected) &&
                             job_run(&j, &room, &error) && job_same(&j, &room, &expected);
                _exit(right ? 0 : 1);
            }
            int status = 0;
            assert_int_equal(waitpid(child, &status, 0), child);
            if (!WIFEXITED(status) || WEXITSTATUS(status)) {
                fail_msg("%s: the child %s", *name, WIFSIGNALED(status) ? "hung or crashed" : "computed other bits");
            }
            assert_true(job_run(&j, &room, &error)); /* and the parent goes on */
            assert_true(job_same(&j, &room, &expected));
        }
        job_room_destroy(&j, &expected);
        job_room_destroy(&j, &room);
        job_destroy(&j);
    }
}

static int count_threads(void) {
    DIR *folder = opendir("/proc/self/task");
    int count = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

/* The shared library lies beside the folder of this program. */
static void *load_library(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    for (int up = 0; up < 2 && length > 0; up++) {
        while (length > 0 && path[--length] != '/') {
        }
    }
    if (length <= 0) {
        return NULL;
    }
    strcpy(path + length, "/libattn.so");
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Runs before every other test of this program, whose calls start threads. */
static void test_loading_starts_no_thread(void **state) {
    (void)state;
    int before = count_threads();
    void *library = load_library();
    if (!library) {
        print_message("no shared library beside this program: %s\n", dlerror());
        return;
    }
    assert_int_equal(count_threads(), before);
    attn_status (*context_create)(attn_context **, const attn_config *, attn_error *);
    void (*context_destroy)(attn_context *);
    attn_status (*plan_create)(attn_plan **, const attn_context *, const attn_problem *, const attn_hints *,
                               attn_error *);
    void (*plan_destroy)(attn_plan *);
    *(void **)&context_create = dlsym(library, "attn_context_create");
    *(void **)&context_destroy = dlsym(library, "attn_context_destroy");
    *(void **)&plan_create = dlsym(library, "attn_plan_create");
    *(void **)&plan_destroy = dlsym(library, "attn_plan_destroy");
    assert_true(context_create && context_destroy && plan_create && plan_destroy);
    attn_config config = {.struct_size = sizeof config, .threads = 8};
    attn_context *context;
    attn_plan *plan;
    attn_error error;
    attn_problem p = small_problem(ATTN_F32);
    assert_int_equal(context_create(&context, &config, &error), ATTN_OK);
    assert_int_equal(count_threads(), before);
    assert_int_equal(plan_create(&plan, context, &p, NULL, &error), ATTN_OK);
    assert_int_equal(count_threads(), before);
    plan_destroy(plan);
    context_destroy(context);
    dlclose(library);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading_starts_no_thread),
        cmocka_unit_test(test_eight_callers_share_a_plan),
        cmocka_unit_test(test_fork_after_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
