/* SPDX-License-Identifier: Apache-2.0
 * What a plan says it needs beyond inputs and outputs is what a process comes to hold: at 8192 tokens the native path
 * stores the scores, 8192 x 8192 of them, and the fused path its blocks alone. Measured as the growth of the peak
 * resident size of a child that ran once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "shared.h"
#include "support/machine.h"

#define TOKENS    8192
#define DIM       16
#define MIB       1048576.0
#define SLACK_MIB 2.0 /* stacks of threads, what the C library keeps */

static double peak_mib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss / 1024;
}

typedef struct footprint {
    double said, grown; /* MiB */
} footprint;

/* In a child: memory of earlier runs must not hide what this one takes. */
static void run_once(const char *implementation, attn_dtype dtype, attn_pass pass, int writes) {
    attn_problem p = attn_problem_dense(dtype, 1, 1, 1, TOKENS, TOKENS, DIM, DIM);
    attn_error error;
    job j;
    footprint result = {-1, -1};
    if (job_create(&j, machine_context_of(implementation, 2), implementation, &p, 5, &error)) {
        attn_plan *plan = pass == ATTN_BACKWARD ? j.backward : j.forward;
        job_room room = job_room_create(&j);
        attn_args args = job_args(&j, &room);
        for (int n = JOB_O; n < JOB_TENSORS; n++) {
            memset(room.output[n], 0, j.bytes[n]);
        }
        result.said = (double)attn_plan_workspace(plan) / MIB;
        double before = peak_mib();
        attn_status status = pass == ATTN_BACKWARD
                                 ? attn_backward(plan, &args, room.workspace, attn_plan_workspace(plan), NULL, &error)
                                 : attn_forward(plan, &args, room.workspace, attn_plan_workspace(plan), NULL, &error);
        result.grown = status == ATTN_OK ? peak_mib() - before : -1;
    }
    _exit(write(writes, &result, sizeof result) == sizeof result ? 0 : 1);
}

static footprint measure(const char *implementation, attn_dtype dtype, attn_pass pass) {
    int ends[2], status;
    footprint result = {-1, -1};
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        run_once(implementation, dtype, pass, ends[1]);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &result, sizeof result), sizeof result);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0 && result.grown >= 0);
    printf("%-10s %-4s %s: said %.2f MiB, grew by %.2f MiB\n", implementation, attn_dtype_name(dtype),
           pass == ATTN_BACKWARD ? "backward" : "forward", result.said, result.grown);
    return result;
}

static void test_fused_holds_what_the_plan_says(void **state) {
    (void)state;
    for (const char *const *name = machine_implementations(false); *name; name++) {
        if (!strcmp(*name, "native") || !strcmp(*name, "reference")) {
            continue;
        }
        if (!strcmp(*name, "generic") && machine_intensity() <= 0) {
            continue;
        }
        for (int n = 0; n < 4; n++) {
            footprint f = measure(*name, n % 2 ? ATTN_BF16 : ATTN_F32, n / 2 ? ATTN_BACKWARD : ATTN_FORWARD);
            assert_true(f.grown <= f.said + SLACK_MIB);
            assert_true(f.said < TOKENS / MIB * TOKENS * 4 / 8); /* nowhere near the scores */
        }
    }
}

/* Scores in float32, stored once forward and with their gradients backward. */
static void test_native_stores_the_scores(void **state) {
    (void)state;
    const double scores = TOKENS / MIB * TOKENS * sizeof(float);
    footprint f = measure("native", ATTN_F32, ATTN_FORWARD);
    assert_true(f.said >= scores && f.said <= 1.05 * scores + SLACK_MIB);
    assert_true(f.grown >= 0.98 * f.said && f.grown <= f.said + SLACK_MIB);
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 1, 1, TOKENS, TOKENS, DIM, DIM);
    attn_plan *plan = NULL;
    attn_plan_info info = {.struct_size = sizeof info};
    assert_int_equal(attn_plan_create(&plan, machine_context(1), &p, NULL, NULL), ATTN_OK);
    assert_int_equal(attn_plan_query(plan, &info, NULL), ATTN_OK);
    assert_true(info.memory_native >= scores * MIB && info.memory_native <= 1.05 * scores * MIB);
    attn_plan_destroy(plan);
}

int main(void) {
    if (getenv("ATTN_TEST_EMULATED") || machine_device()) {
        printf("measures the memory of processes on the CPU\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_holds_what_the_plan_says),
        cmocka_unit_test(test_native_stores_the_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
