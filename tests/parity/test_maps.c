/* SPDX-License-Identifier: Apache-2.0
 * The same attention through other row maps and heads: packed, as shards in one call, one sequence at a time, with kv
 * heads written out. Every way must pass the judge of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/wholes.h"

#define MOST_PARTS 4

/* ---------------------------------------------------------------------------------------- other row maps */

static bool as_packed(const trial *whole, const char *implementation, rng *r, result *out) {
    trial *t = trial_copy(whole);
    for (int side = 0; side < 2; side++) {
        int32_t lengths[8];
        memcpy(lengths, t->side[side].length, (size_t)t->problem.batch * sizeof *lengths);
        t->side[side].used = false;
        t->problem.flags &= ~(uint32_t)(side == SIDE_Q ? ATTN_USED_Q : ATTN_USED_KV);
        trial_pack(t, side, lengths, rng_range(r, 0, 5));
    }
    bool done = wholes_run(t, implementation, false, out);
    trial_destroy(t);
    return done;
}

static void test_packed_rows(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("packed", as_packed, false), 0);
}

/* All rows and keys as one list of shards in one call. */
static bool as_shards(const trial *whole, const char *implementation, rng *r, result *out) {
    trial *t = trial_copy(whole);
    for (int side = 0; side < 2; side++) {
        attn_segment list[8 * MOST_PARTS];
        int32_t lengths[8];
        int count = 0;
        int64_t first = 0;
        memcpy(lengths, t->side[side].length, (size_t)t->problem.batch * sizeof *lengths);
        for (int64_t s = 0; s < t->problem.batch; s++) {
            int64_t end = lengths[s]; /* from the last shard to the first */
            for (int n = 0; n < MOST_PARTS; n++) {
                int64_t rows = n == MOST_PARTS - 1 ? end : rng_range(r, 0, end);
                attn_segment one = {.first = first, .rows = rows, .position = end - rows, .sequence = s};
                list[count++] = one;
                first += rows + 1;
                end -= rows;
            }
        }
        trial_segment(t, side, lengths, list, count, first);
    }
    bool done = wholes_run(t, implementation, false, out);
    trial_destroy(t);
    return done;
}

static void test_shards_in_one_call(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("shards", as_shards, false), 0);
}

/* Takes sequence s out of a whole as a problem of its own. */
static trial *alone(const trial *whole, int64_t s) {
    const attn_problem *w = &whole->problem;
    int64_t rows = whole->side[SIDE_Q].length[s], keys = whole->side[SIDE_KV].length[s];
    trial *t = trial_create(w->q.dtype, 1, w->heads_q, w->heads_kv, rows, keys, w->dim_qk, w->dim_v);
    attn_problem own = t->problem;
    t->problem = *w;
    t->problem.batch = 1;
    t->problem.tokens_q = own.tokens_q;
    t->problem.tokens_kv = own.tokens_kv;
    t->problem.flags &= ~(uint32_t)(ATTN_USED_Q | ATTN_USED_KV);
    t->seed = whole->seed;
    t->offset = whole->offset;
    t->head_first = whole->head_first;
    t->batch_first = whole->batch_first + s;
    memcpy(t->broadcast, whole->broadcast, sizeof t->broadcast);
    for (int id = 0; id < T_INPUTS; id++) {
        if (!whole->value[id]) {
            continue;
        }
        double *values = trial_values(t, id);
        if (tensor_is_row(id)) {
            memcpy(values, whole->value[id] + trial_index(whole, id, s, 0, 0, 0),
                   (size_t)trial_size(t, id) * sizeof *values);
            continue;
        }
        int64_t n[4];
        trial_extents(t, id, n);
        for (int64_t x = 0; x < n[1] * n[2] * n[3]; x++) {
            int64_t h = x / n[3] / n[2], i = x / n[3] % n[2], j = x % n[3];
            values[x] = whole->value[id][trial_index(whole, id, s, h, i, j)];
        }
    }
    trial_settle(t);
    return t;
}

static bool one_by_one(const trial *whole, const char *implementation, rng *r, result *out) {
    bool done = true;
    (void)r;
    for (int id = T_O; id <= T_DV; id++) {
        if (id != T_DELTA) {
            out->value[id] = calloc((size_t)trial_size(whole, id) + 1, sizeof(double));
        }
    }
    for (int64_t s = 0; s < whole->problem.batch && done; s++) {
        trial *t = alone(whole, s);
        result one;
        memset(&one, 0, sizeof one);
        done = wholes_run(t, implementation, false, &one);
        for (int id = T_O; id <= T_DV && done; id++) {
            if (id != T_DELTA) {
                memcpy(out->value[id] + trial_index(whole, id, s, 0, 0, 0), one.value[id],
                       (size_t)trial_size(t, id) * sizeof(double));
            }
        }
        wholes_blame(out, &one);
        result_free(&one);
        trial_destroy(t);
    }
    return done;
}

static void test_each_sequence_alone(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("each sequence alone", one_by_one, false), 0);
}

/* ---------------------------------------------------------------------------------------- heads written out */

static bool heads_written_out(const trial *whole, const char *implementation, rng *r, result *out) {
    const attn_problem *w = &whole->problem;
    int64_t group = w->heads_q / w->heads_kv;
    trial *t = trial_copy(whole);
    static const tensor_id ids[2] = {T_K, T_V}, gradients[2] = {T_DK, T_DV};
    (void)r;
    t->problem.heads_kv = w->heads_q;
    for (int n = 0; n < 2; n++) {
        int64_t dims = n ? w->dim_v : w->dim_qk, rows = trial_size(whole, ids[n]) / w->heads_kv / dims;
        free(t->value[ids[n]]);
        t->value[ids[n]] = NULL;
        double *values = trial_values(t, ids[n]);
        for (int64_t x = 0; x < rows * w->heads_q * dims; x++) {
            int64_t row = x / dims / w->heads_q, h = x / dims % w->heads_q, d = x % dims;
            values[x] = whole->value[ids[n]][(row * w->heads_kv + h / group) * dims + d];
        }
    }
    bool done = wholes_run(t, implementation, false, out);
    for (int n = 0; n < 2 && done; n++) { /* the group's gradients add up */
        int64_t dims = n ? w->dim_v : w->dim_qk, rows = trial_size(whole, ids[n]) / w->heads_kv / dims;
        double *sums = calloc((size_t)trial_size(whole, ids[n]) + 1, sizeof *sums);
        for (int64_t x = 0; sums && x < rows * w->heads_q * dims; x++) {
            int64_t row = x / dims / w->heads_q, h = x / dims % w->heads_q, d = x % dims;
            sums[(row * w->heads_kv + h / group) * dims + d] += out->value[gradients[n]][x];
        }
        free(out->value[gradients[n]]);
        out->value[gradients[n]] = sums;
    }
    trial_destroy(t);
    return done;
}

static void test_heads_written_out(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("kv heads written out", heads_written_out, false), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_rows),
        cmocka_unit_test(test_shards_in_one_call),
        cmocka_unit_test(test_each_sequence_alone),
        cmocka_unit_test(test_heads_written_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
