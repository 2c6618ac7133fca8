/* SPDX-License-Identifier: Apache-2.0
 * A sequence in shards is the whole sequence: partial results of every (query shard, key shard) pair, merged, and
 * gradients of the pairs, added up from the final lse, equal one call over everything. Run through the public calls,
 * by the oracle in float64 and by the plain computation in float32. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "attn/attn.h"
#include "base/dtype.h"

enum { S = 10, HEADS = 4, HEADS_KV = 2, DIM = 8, ROWS = S * HEADS, SIZE = ROWS * DIM, MAX_SHARDS = 7 };

/* Tensors as [row, head, dim]; room for float64. */
typedef struct data {
    double q[SIZE], k[SIZE], v[SIZE], dout[SIZE], dlse[ROWS], sink[HEADS];
    double o[SIZE], lse[ROWS], dq[SIZE], dk[SIZE], dv[SIZE], dsink[HEADS];
} data;

typedef struct split {
    int count, rows[MAX_SHARDS];
} split;

static void fill(attn_dtype dtype, void *to, int64_t count, uint32_t seed) {
    for (int64_t n = 0; n < count; n++) {
        seed = seed * 1664525u + 1013904223u;
        attn__store(dtype, to, n, (double)(int32_t)seed / 1073741824.0);
    }
}

static void fill_inputs(attn_dtype dtype, data *x) {
    memset(x, 0, sizeof *x);
    fill(dtype, x->q, SIZE, 1);
    fill(dtype, x->k, SIZE, 2);
    fill(dtype, x->v, SIZE, 3);
    fill(dtype, x->dout, SIZE, 4);
    fill(dtype, x->dlse, ROWS, 5);
    fill(dtype, x->sink, HEADS, 6);
}

static attn_problem problem(attn_dtype dtype, attn_pass pass, bool segments, bool sink) {
    attn_problem p = attn_problem_dense(dtype, 1, HEADS, HEADS_KV, S, S, DIM, DIM);
    p.pass = pass;
    p.band = (attn_band){ATTN_CAUSAL | ATTN_WINDOW, ATTN_BOTTOM_RIGHT, 6, 0, 0};
    p.dropout = 0.25f;
    p.lse = (attn_layout){dtype, {0, 1, HEADS, 0}};
    p.sink = (attn_layout){sink ? dtype : ATTN_NONE, {0, sink, 0, 0}};
    if (segments) {
        p.rows_q = p.rows_kv = ATTN_SEGMENTS;
        p.total_q = p.total_kv = S;
        p.segments_q = p.segments_kv = 1;
        p.flags = pass == ATTN_BACKWARD ? ATTN_ACCUMULATE : 0;
    }
    return p;
}

static attn_args arguments(data *x, bool sink) {
    attn_args a = attn_args_init();
    a.q = x->q;
    a.k = x->k;
    a.v = x->v;
    a.o = x->o;
    a.lse = x->lse;
    a.sink = sink ? x->sink : NULL;
    a.seed = 42;
    a.dout = x->dout;
    a.dlse = x->dlse;
    a.dq = x->dq;
    a.dk = x->dk;
    a.dv = x->dv;
    a.dsink = sink ? x->dsink : NULL;
    return a;
}

static void run(const attn_problem *p, const attn_args *args, const char *implementation) {
    attn_hints hints = {.struct_size = sizeof hints, .implementation = implementation};
    attn_context *context;
    attn_plan *plan;
    attn_error error;
    assert_int_equal(attn_context_create(&context, NULL, &error), ATTN_OK);
    if (attn_plan_create(&plan, context, p, &hints, &error)) {
        fail_msg("%s %s", error.field, error.message);
    }
    size_t size = attn_plan_workspace(plan);
    void *workspace =
        aligned_alloc(ATTN_WORKSPACE_ALIGNMENT, (size / ATTN_WORKSPACE_ALIGNMENT + 1) * ATTN_WORKSPACE_ALIGNMENT);
    assert_non_null(workspace);
    attn_status status = p->pass == ATTN_FORWARD ? attn_forward(plan, args, workspace, size, NULL, &error)
                                                 : attn_backward(plan, args, workspace, size, NULL, &error);
    if (status) {
        fail_msg("%s %s", error.field, error.message);
    }
    free(workspace);
    attn_plan_destroy(plan);
    attn_context_destroy(context);
}

static void expect_close(attn_dtype dtype, const char *what, const void *got, const void *want, int64_t count) {
    for (int64_t n = 0; n < count; n++) {
        double a = attn__load(dtype, got, n), b = attn__load(dtype, want, n), bound = dtype == ATTN_F64 ? 1e-12 : 1e-5;
        if (!(a == b || fabs(a - b) <= bound * fmax(1, fabs(b)))) {
            fail_msg("%s[%lld] is %.12g, must be %.12g", what, (long long)n, a, b);
        }
    }
}

typedef struct shard_run {
    attn_dtype dtype;
    const char *implementation;
    data *x, *parts;
    attn_segment q, kv;
} shard_run;

/* One pair of shards. Each call sees only its rows; the sink belongs to the first key shard alone. */
static void run_pair(shard_run *r, data *to, attn_pass pass, bool sink) {
    static const int32_t length[1] = {S};
    attn_problem p = problem(r->dtype, pass, true, sink);
    attn_args a = arguments(r->x, sink);
    a.o = to->o;
    a.lse = to->lse;
    a.lengths_q = a.lengths_kv = length;
    a.segments_q = &r->q;
    a.segments_kv = &r->kv;
    a.n_segments_q = a.n_segments_kv = 1;
    run(&p, &a, r->implementation);
}

static void check_split(attn_dtype dtype, const char *implementation, const split *shards) {
    data *whole = malloc(sizeof *whole), *x = malloc(sizeof *x), *parts = malloc(MAX_SHARDS * sizeof *parts);
    assert_true(whole && x && parts);
    fill_inputs(dtype, whole);
    fill_inputs(dtype, x);
    for (attn_pass pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass++) {
        attn_problem p = problem(dtype, pass, false, true);
        attn_args a = arguments(whole, true);
        run(&p, &a, implementation);
    }
    shard_run r = {dtype, implementation, x, parts, {0, 0, 0, 0}, {0, 0, 0, 0}};
    const void *o[MAX_SHARDS], *lse[MAX_SHARDS];
    for (int pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass++) {
        int64_t key = 0;
        for (int m = 0; m < shards->count; key += shards->rows[m++]) {
            int64_t row = 0;
            for (int n = 0; n < shards->count; row += shards->rows[n++]) {
                r.q = (attn_segment){row, shards->rows[n], row, 0};
                r.kv = (attn_segment){key, shards->rows[m], key, 0};
                run_pair(&r, pass == ATTN_FORWARD ? &parts[m] : x, (attn_pass)pass, m == 0);
            }
            o[m] = parts[m].o;
            lse[m] = parts[m].lse;
        }
        if (pass == ATTN_FORWARD) {
            attn_merge_args merge = {.struct_size = sizeof merge, .batch = 1, .heads = HEADS, .tokens = S, .dim = DIM};
            merge.o = attn_layout_bshd(dtype, HEADS, S, DIM);
            merge.lse = (attn_layout){dtype, {0, 1, HEADS, 0}};
            merge.parts = shards->count;
            merge.o_parts = o;
            merge.lse_parts = lse;
            merge.o_result = x->o;
            merge.lse_result = x->lse;
            assert_int_equal(attn_merge(&merge, NULL), ATTN_OK);
            expect_close(dtype, "o", x->o, whole->o, SIZE);
            expect_close(dtype, "lse", x->lse, whole->lse, ROWS);
        }
    }
    expect_close(dtype, "dq", x->dq, whole->dq, SIZE);
    expect_close(dtype, "dk", x->dk, whole->dk, S * HEADS_KV * DIM);
    expect_close(dtype, "dv", x->dv, whole->dv, S * HEADS_KV * DIM);
    expect_close(dtype, "dsink", x->dsink, whole->dsink, HEADS);
    free(whole);
    free(x);
    free(parts);
}

static void test_shards(void **state) {
    (void)state;
    static const split splits[] = {
        {2, {6, 4}}, {2, {10, 0}}, {2, {0, 10}}, {4, {3, 3, 2, 2}}, {3, {3, 0, 7}}, {7, {1, 1, 1, 1, 1, 1, 4}},
    };
    for (size_t n = 0; n < sizeof splits / sizeof *splits; n++) {
        check_split(ATTN_F64, "reference", &splits[n]);
        check_split(ATTN_F32, "native", &splits[n]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
