/* SPDX-License-Identifier: Apache-2.0
 * The same attention taken apart: over segments of keys and of rows, as packed rows, one sequence at a time, with kv
 * heads written out. Every way must pass the judge of the whole; so a dropout mask, a position or a group that depends
 * on how the work was cut shows as a plain wrong value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "support/campaign.h"
#include "support/machine.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define MOST_PARTS  4

/* Whole problems; o and gradients in float32, so that sums of parts are not rounded on the way. */
static const recipe wholes[] = {
    {.name = "plain", .batch = 2, .heads_kv = 2, .group = 2, .tokens_q = 37, .tokens_kv = 70, .dim_qk = 32},
    {.name = "causal",
     .batch = 2,
     .heads_kv = 1,
     .group = 2,
     .tokens_q = 65,
     .tokens_kv = 97,
     .dim_qk = 64,
     .band = {.kind = ATTN_CAUSAL},
     .dlse = true},
    {.name = "top-left",
     .batch = 1,
     .heads_kv = 2,
     .group = 1,
     .tokens_q = 50,
     .tokens_kv = 40,
     .dim_qk = 16,
     .dim_v = 24,
     .band = {.kind = ATTN_CAUSAL, .corner = ATTN_TOP_LEFT},
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED},
    {.name = "window globals",
     .batch = 2,
     .heads_kv = 1,
     .group = 1,
     .tokens_q = 90,
     .tokens_kv = 110,
     .dim_qk = 40,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, .left = 12, .right = -1, .globals = 4}},
    {.name = "sink",
     .batch = 2,
     .heads_kv = 2,
     .group = 3,
     .tokens_q = 20,
     .tokens_kv = 64,
     .dim_qk = 64,
     .sink = true,
     .dlse = true,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "dropout",
     .batch = 2,
     .heads_kv = 2,
     .group = 1,
     .tokens_q = 33,
     .tokens_kv = 67,
     .dim_qk = 24,
     .dropout = 0.4f},
    {.name = "dropout causal",
     .batch = 3,
     .heads_kv = 1,
     .group = 4,
     .tokens_q = 48,
     .tokens_kv = 48,
     .dim_qk = 64,
     .dropout = 0.25f,
     .band = {.kind = ATTN_CAUSAL},
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED},
    {.name = "bias mask",
     .batch = 2,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 31,
     .tokens_kv = 45,
     .dim_qk = 32,
     .bias = PRESENT | OVER_BATCH,
     .mask = PRESENT | OVER_HEADS},
    {.name = "alibi soft cap",
     .batch = 2,
     .heads_kv = 1,
     .group = 3,
     .tokens_q = 40,
     .tokens_kv = 81,
     .dim_qk = 48,
     .alibi = PRESENT,
     .softcap = 2},
    {.name = "one row", .batch = 2, .heads_kv = 2, .group = 4, .tokens_q = 1, .tokens_kv = 150, .dim_qk = 128},
    {.name = "everything",
     .batch = 2,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 44,
     .tokens_kv = 72,
     .dim_qk = 40,
     .dim_v = 56,
     .bias = PRESENT | OVER_HEADS,
     .mask = PRESENT | OVER_BATCH,
     .alibi = PRESENT,
     .softcap = 3,
     .dropout = 0.2f,
     .sink = true,
     .dlse = true,
     .has_scale = true,
     .scale = -0.2f,
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, .left = 30, .right = -1, .globals = 3}},
};
static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

typedef bool (*way)(const trial *whole, const char *implementation, rng *r, result *out);

/* Runs the way on every whole, implementation and type; what it gives must be right. */
static int judged(const char *title, way take, bool forward_only) {
    campaign c = campaign_begin(title);
    for (size_t n = 0; n < COUNT(wholes) * COUNT(dtypes); n++) {
        recipe p = wholes[n / 3];
        p.dtype = dtypes[n % 3];
        p.seed = n + 1;
        p.f32_out = true;
        if (machine_intensity() <= 0 && n % 4) {
            continue;
        }
        c.recipes++;
        trial *t = recipe_trial(&p);
        t->problem.dout.dtype = p.dtype;
        judge j;
        if (!judge_open(&j, t, forward_only)) {
            campaign_fail(&c, &p, "-", j.oracle.text, j.trouble);
        } else {
            for (const char *const *name = machine_implementations(true); *name; name++) {
                if (!forward_only && !machine_runs_backward(*name)) {
                    c.forward_only++;
                    continue;
                }
                rng r = rng_seed(n);
                result out;
                memset(&out, 0, sizeof out);
                c.runs++;
                if (!take(t, *name, &r, &out)) {
                    campaign_fail(&c, &p, *name, out.text, out.trouble[0] ? out.trouble : out.error.message);
                } else if (!judge_accepts(&j, &out)) {
                    campaign_fail(&c, &p, *name, out.text, j.trouble);
                }
                result_free(&out);
            }
        }
        judge_close(&j);
        trial_destroy(t);
    }
    return campaign_end(&c);
}

static bool run(const trial *t, const char *implementation, bool forward_only, result *out) {
    run_options how = {.implementation = implementation, .forward_only = forward_only};
    result_free(out);
    return run_trial(t, &how, out) == RUN_DONE;
}

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
        bool done = run(t, implementation, false, &r);
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
        memcpy(out->text, r.text, sizeof out->text);
        memcpy(out->trouble, r.trouble, sizeof out->trouble);
        out->error = r.error;
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
        done = run(part[n], implementation, true, &results[n]);
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
    assert_int_equal(judged("keys in segments, merged", keys_merged, true), 0);
}

static bool keys_added(const trial *whole, const char *implementation, rng *r, result *out) {
    trial *part[MOST_PARTS] = {0};
    int parts = (int)rng_range(r, 2, MOST_PARTS);
    result forward;
    memset(&forward, 0, sizeof forward);
    bool done = run(whole, implementation, true, &forward);
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
    assert_int_equal(judged("gradients over keys in segments", keys_added, false), 0);
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
        done = run(part[n], implementation, true, &one);
        for (int id = T_O; id <= T_LSE && done; id++) {
            for (int64_t i = 0; forward.value[id] && i < trial_size(whole, id); i++) {
                one.value[id][i] = one.value[id][i] == 0 ? forward.value[id][i] : one.value[id][i];
            }
            free(forward.value[id]);
            forward.value[id] = one.value[id];
            one.value[id] = NULL;
        }
        if (!done) {
            memcpy(out->trouble, one.trouble, sizeof out->trouble);
        }
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
    assert_int_equal(judged("rows in segments", rows_apart, false), 0);
}

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
    bool done = run(t, implementation, false, out);
    trial_destroy(t);
    return done;
}

static void test_packed_rows(void **state) {
    (void)state;
    assert_int_equal(judged("packed", as_packed, false), 0);
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
    bool done = run(t, implementation, false, out);
    trial_destroy(t);
    return done;
}

static void test_shards_in_one_call(void **state) {
    (void)state;
    assert_int_equal(judged("shards", as_shards, false), 0);
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
        done = run(t, implementation, false, &one);
        for (int id = T_O; id <= T_DV && done; id++) {
            if (id != T_DELTA) {
                memcpy(out->value[id] + trial_index(whole, id, s, 0, 0, 0), one.value[id],
                       (size_t)trial_size(t, id) * sizeof(double));
            }
        }
        memcpy(out->trouble, one.trouble, sizeof out->trouble);
        memcpy(out->text, one.text, sizeof out->text);
        result_free(&one);
        trial_destroy(t);
    }
    return done;
}

static void test_each_sequence_alone(void **state) {
    (void)state;
    assert_int_equal(judged("each sequence alone", one_by_one, false), 0);
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
    bool done = run(t, implementation, false, out);
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
    assert_int_equal(judged("kv heads written out", heads_written_out, false), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_of_keys_merge_to_the_whole),
        cmocka_unit_test(test_gradients_over_segments_of_keys_add_up),
        cmocka_unit_test(test_segments_of_rows),
        cmocka_unit_test(test_packed_rows),
        cmocka_unit_test(test_shards_in_one_call),
        cmocka_unit_test(test_each_sequence_alone),
        cmocka_unit_test(test_heads_written_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
