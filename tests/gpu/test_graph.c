/* SPDX-License-Identifier: Apache-2.0
 * Both passes in a CUDA graph: captured before the plan ran for the first time, replayed again and again, with the bits
 * of a plain run. Dropout's seed in device memory lets replays differ; lengths of the host are part of the graph. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "stress/shared.h"
#include "support/driver.h"

/* cuStreamBeginCapture: any call that a capture forbids fails, also from other threads. */
#define CAPTURE_GLOBAL 0

typedef struct graph {
    void *graph, *executable;
} graph;

static graph capture(const job *j, job_room *room, const attn_args *args) {
    const driver *d = driver_open();
    graph g;
    attn_error error;
    device_wait();
    assert_int_equal(d->capture_begin(room->stream, CAPTURE_GLOBAL), 0);
    bool launched = job_launch(j, room, args, &error);
    int ended = d->capture_end(room->stream, &g.graph);
    if (!launched) {
        fail_msg("under capture: %s %s", error.field, error.message);
    }
    assert_int_equal(ended, 0);
    assert_int_equal(d->graph_instantiate(&g.executable, g.graph, 0), 0);
    return g;
}

static void replay(const graph *g, const job *j, job_room *room) {
    job_poison_all(j, room);
    assert_int_equal(driver_open()->graph_launch(g->executable, room->stream), 0);
    device_wait();
}

static void destroy(graph *g) {
    driver_open()->graph_executable_destroy(g->executable);
    driver_open()->graph_destroy(g->graph);
}

/* Calls the check for each implementation, with its plans made anew, and float16 tensors. */
static void each(const attn_problem *problem, void (*check)(const job *j)) {
    if (machine_lacks_gpu()) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        attn_error error;
        job j;
        device_note(*name);
        if (!job_allowed(*name, problem)) {
            continue;
        }
        if (!job_create(&j, machine_device(), *name, problem, 11, &error)) {
            fail_msg("%s: %s %s", *name, error.field, error.message);
        }
        check(&j);
        job_destroy(&j);
    }
}

static void replays_like_runs(const job *j) {
    job_room room = job_room_create(j), plain = job_room_create(j);
    attn_args args = job_args(j, &room);
    attn_error error;
    graph g = capture(j, &room, &args);
    assert_true(job_run(j, &plain, &error));
    for (int n = 0; n < 3; n++) {
        replay(&g, j, &room);
        assert_true(job_same(j, &room, &plain));
    }
    destroy(&g);
    job_room_destroy(j, &room);
    job_room_destroy(j, &plain);
}

static void test_captured_before_the_first_run(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F16, 2, 4, 2, 200, 170, 64, 64);
    p.band.kind = ATTN_CAUSAL;
    each(&p, replays_like_runs);
}

static void keep(const job *j, const job_room *to, const job_room *from) {
    for (int n = JOB_O; n < JOB_TENSORS; n++) {
        void *values = malloc(j->bytes[n] + 1);
        device_download(values, from->output[n], j->bytes[n]);
        device_upload(to->output[n], values, j->bytes[n]);
        free(values);
    }
}

static void replays_draw_anew(const job *j) {
    static const uint64_t words[2][2] = {{5, 1}, {5, 2}};
    job_room room = job_room_create(j), plain = job_room_create(j), first = job_room_create(j);
    uint64_t *seed = device_allocate(sizeof words[0]);
    attn_args args = job_args(j, &room), other = job_args(j, &plain);
    attn_error error;
    args.device_seed = other.device_seed = seed;
    args.seed = args.offset = 99; /* not read */
    graph g = capture(j, &room, &args);
    for (int n = 0; n < 2; n++) {
        device_upload(seed, words[n], sizeof words[n]);
        replay(&g, j, &room);
        job_poison_all(j, &plain);
        assert_true(job_launch(j, &plain, &other, &error));
        device_wait();
        assert_true(job_same(j, &room, &plain));
        if (n == 0) {
            keep(j, &first, &room);
        }
    }
    assert_false(job_same(j, &room, &first));
    destroy(&g);
    device_release(seed);
    job_room_destroy(j, &room);
    job_room_destroy(j, &plain);
    job_room_destroy(j, &first);
}

static void test_dropout_differs_between_replays(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F16, 1, 2, 2, 130, 130, 64, 64);
    p.dropout = 0.3f;
    p.flags |= ATTN_DEVICE_SEED;
    each(&p, replays_draw_anew);
}

static void lengths_are_kept(const job *j) {
    int32_t cu[4] = {0, 90, 90, 200};
    job_room room = job_room_create(j), plain = job_room_create(j);
    attn_args args = job_args(j, &room);
    attn_error error;
    args.cu_seqlens_q = args.cu_seqlens_kv = cu;
    graph g = capture(j, &room, &args);
    attn_args other = job_args(j, &plain);
    other.cu_seqlens_q = other.cu_seqlens_kv = cu;
    job_poison_all(j, &plain);
    assert_true(job_launch(j, &plain, &other, &error));
    device_wait();
    memset(cu, 0x5a, sizeof cu);
    replay(&g, j, &room);
    assert_true(job_same(j, &room, &plain));
    destroy(&g);
    job_room_destroy(j, &room);
    job_room_destroy(j, &plain);
}

static void test_lengths_are_part_of_the_graph(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F16, 3, 2, 1, 200, 200, 64, 64);
    p.rows_q = p.rows_kv = ATTN_PACKED;
    p.total_q = p.total_kv = 200;
    p.lse.dtype = ATTN_NONE;
    each(&p, lengths_are_kept);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captured_before_the_first_run),
        cmocka_unit_test(test_dropout_differs_between_replays),
        cmocka_unit_test(test_lengths_are_part_of_the_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
