/* SPDX-License-Identifier: Apache-2.0
 * Attention and its gradients over parts of the keys, merged and added, and over parts of the rows: every way must pass
 * the judge of the whole, so a dropout mask or a position that depends on how the work was cut shows as a plain wrong
 * value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "support/wholes.h"

#define MOST_PARTS 4

/* ---------------------------------------------------------------------------------------- cutting */

/* Cuts every sequence of a side at `parts - 1` places, the same share of each sequence in each part. */
static void cut(trial *const part[], int parts, int side, rng *r) {
    const trial *t = part[0];
    int64_t batch = t->problem.batch;
    double at[MOST_PARTS + 1] = {0};
    int32_t lengths[8];
    for (int n = 1; n <= parts; n++) {
        at[n] = n == parts ? 1 : at[n - 1] + (1 - at[n - 1]) * rng_unit(r);
    }
    memcpy(lengths, t->side[side].length, (size_t)batch * sizeof *lengths);
    for (int n = 0; n < parts; n++) {
        attn_segment list[8];
        int64_t total = 1;
        for (int64_t s = 0; s < batch; s++) {
            int64_t from = (int64_t)(at[n] * lengths[s]),
                    to = n == parts - 1 ? lengths[s] : (int64_t)(at[n + 1] * lengths[s]);
            attn_segment one = {.first = total, .rows = to - from, .position = from, .sequence = s};
            list[s] = one;
            total += one.rows + 1;
        }
        trial_segment(part[n], side, lengths, list, batch, total);
    }
}

static void make_parts(const trial *whole, trial *part[], int parts) {
    for (int n = 0; n < parts; n++) {
        part[n] = trial_copy(whole);
    }
}

static void destroy_parts(trial *part[], int parts) {
    for (int n = 0; n < parts; n++) {
        trial_destroy(part[n]);
    }
}

static void set_values(trial *t, tensor_id id, const double *from) {
    size_t bytes = (size_t)trial_size(t, id) * sizeof *from;
    memcpy(trial_values(t, id), from, bytes);
}

/* Gradients of the parts by adding to what the parts before gave; out holds the sum at the end. */
static bool add_gradients(trial *part[], int parts, const char *implementation, const result *forward, result *out) {
    for (int n = 0; n < parts; n++) {
        trial *t = part[n];
        t->problem.flags |= ATTN_ACCUMULATE;
        set_values(t, T_O, forward->value[T_O]);
        set_values(t, T_LSE, forward->value[T_LSE]);
        for (int id = T_DQ; id < T_COUNT; id++) {
            if (trial_has(t, id) && !(t->skip >> id & 1)) {
                trial_values(t, id);
                if (n) {
                    set_values(t, id, out->value[id] ? out->value[id] : t->value[id]);
                }
            }
        }
        trial_settle(t);
        result r;
        memset(&r, 0, sizeof r);
        bool done = wholes_run(t, implementation, false, &r);
        for (int id = T_DQ; id < T_COUNT && done; id++) {
            if (!r.value[id]) {
                continue;
            }
            /* Rows that this part does not cover keep what they had. */
            for (int64_t i = 0; out->value[id] && i < trial_size(t, id); i++) {
                r.value[id][i] = r.value[id][i] == 0 ? out->value[id][i] : r.value[id][i];
            }
            free(out->value[id]);
            out->value[id] = r.value[id];
            r.value[id] = NULL;
        }
        wholes_blame(out, &r);
        result_free(&r);
        if (!done) {
            return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------------------------------- keys in parts */

static void *as_type(attn_dtype dtype, const double *values, int64_t count) {
    void *memory = calloc((size_t)count + 1, attn_dtype_size(dtype));
    for (int64_t i = 0; memory && i < count; i++) {
        attn__store(dtype, memory, i, values[i]);
    }
    return memory;
}

/* Merges o and lse of the parts, which are [row, head, dim] and [row, head] in float32. */
static bool merge(const trial *t, const result *r, int parts, result *out) {
    void *o[MOST_PARTS], *lse[MOST_PARTS];
    int64_t heads = t->problem.heads_q, dims = t->problem.dim_v, rows = trial_size(t, T_LSE) / heads;
    for (int n = 0; n < parts; n++) {
        o[n] = as_type(ATTN_F32, r[n].value[T_O], rows * heads * dims);
        lse[n] = as_type(ATTN_F32, r[n].value[T_LSE], rows * heads);
    }
    attn_merge_args args = {.struct_size = sizeof args, .batch = 1, .heads = heads, .tokens = rows, .dim = dims};
    args.o = attn_layout_bshd(ATTN_F32, heads, rows, dims);
    args.lse = attn_layout_bshd(ATTN_F32, heads, rows, 1);
    args.parts = parts;
    args.o_parts = (const void *const *)o;
    args.lse_parts = (const void *const *)lse;
    args.o_result = o[0];
    args.lse_result = lse[0];
    bool done = attn_merge(&args, &out->error) == ATTN_OK;
    out->value[T_O] = calloc((size_t)(rows * heads * dims) + 1, sizeof(double));
    out->value[T_LSE] = calloc((size_t)(rows * heads) + 1, sizeof(double));
    for (int64_t i = 0; i < rows * heads * dims; i++) {
        out->value[T_O][i] = ((float *)o[0])[i];
    }
    for (int64_t i = 0; i < rows * heads; i++) {
        out->value[T_LSE][i] = ((float *)lse[0])[i];
    }
    for (int n = 0; n < parts; n++) {
        free(o[n]);
        free(lse[n]);
    }
    return done;
}

static void without_sink(trial *t) {
    t->problem.sink.dtype = ATTN_NONE;
    free(t->value[T_SINK]);
    t->value[T_SINK] = NULL;
}

static bool keys_merged(const trial *whole, const char *implementation, rng *r, result *out) {
    trial *part[MOST_PARTS] = {0};
    result results[MOST_PARTS];
    int parts = (int)rng_range(r, 2, MOST_PARTS);
    bool done = true;
    memset(results, 0, sizeof results);
    make_parts(whole, part, parts);
    cut(part, parts, SIDE_KV, r);
    for (int n = 0; n < parts && done; n++) {
        if (n) {
            without_sink(part[n]);
        }
        done = wholes_run(part[n], implementation, true, &results[n]);
        if (!done) {
            memcpy(out, &results[n], sizeof *out);
            memset(&results[n], 0, sizeof results[n]);
        }
    }
    done = done && merge(whole, results, parts, out);
    for (int n = 0; n < parts; n++) {
        result_free(&results[n]);
    }
    destroy_parts(part, parts);
    return done;
}

static void test_segments_of_keys_merge_to_the_whole(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("keys in segments, merged", keys_merged, true), 0);
}

static bool keys_added(const trial *whole, const char *implementation, rng *r, result *out) {
    trial *part[MOST_PARTS] = {0};
    int parts = (int)rng_range(r, 2, MOST_PARTS);
    result forward;
    memset(&forward, 0, sizeof forward);
    bool done = wholes_run(whole, implementation, true, &forward);
    wholes_blame(out, &forward);
    make_parts(whole, part, parts);
    cut(part, parts, SIDE_KV, r);
    for (int n = 1; n < parts; n++) {
        part[n]->skip |= 1u << T_DSINK; /* the sink's share comes from lse, whatever the keys: once */
    }
    done = done && add_gradients(part, parts, implementation, &forward, out);
    result_free(&forward);
    destroy_parts(part, parts);
    return done;
}

static void test_gradients_over_segments_of_keys_add_up(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("gradients over keys in segments", keys_added, false), 0);
}

/* ---------------------------------------------------------------------------------------- rows in parts */

static bool rows_apart(const trial *whole, const char *implementation, rng *r, result *out) {
    trial *part[MOST_PARTS] = {0};
    int parts = (int)rng_range(r, 2, MOST_PARTS);
    bool done = true;
    result forward;
    memset(&forward, 0, sizeof forward);
    make_parts(whole, part, parts);
    cut(part, parts, SIDE_Q, r);
    for (int n = 0; n < parts && done; n++) {
        result one;
        memset(&one, 0, sizeof one);
        done = wholes_run(part[n], implementation, true, &one);
        for (int id = T_O; id <= T_LSE && done; id++) {
            for (int64_t i = 0; forward.value[id] && i < trial_size(whole, id); i++) {
                one.value[id][i] = one.value[id][i] == 0 ? forward.value[id][i] : one.value[id][i];
            }
            free(forward.value[id]);
            forward.value[id] = one.value[id];
            one.value[id] = NULL;
        }
        wholes_blame(out, &one);
        result_free(&one);
    }
    done = done && add_gradients(part, parts, implementation, &forward, out);
    out->value[T_O] = forward.value[T_O];
    out->value[T_LSE] = forward.value[T_LSE];
    destroy_parts(part, parts);
    return done;
}

static void test_segments_of_rows(void **state) {
    (void)state;
    assert_int_equal(wholes_judged("rows in segments", rows_apart, false), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_of_keys_merge_to_the_whole),
        cmocka_unit_test(test_gradients_over_segments_of_keys_add_up),
        cmocka_unit_test(test_segments_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
