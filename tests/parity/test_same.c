/* SPDX-License-Identifier: Apache-2.0
 * Same input, same bits: for any number of threads, any memory form, any place in the storage, whatever the other
 * sequences of the batch hold, and whichever outputs are asked for. On a device with ATTN_DETERMINISTIC. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "support/campaign.h"
#include "support/machine.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Large enough for several blocks, tasks and splits. */
static const recipe cases[] = {
    {.name = "blocks", .batch = 2, .heads_kv = 2, .group = 2, .tokens_q = 150, .tokens_kv = 210, .dim_qk = 64},
    {.name = "causal",
     .batch = 1,
     .heads_kv = 3,
     .group = 1,
     .tokens_q = 300,
     .tokens_kv = 300,
     .dim_qk = 40,
     .band = {.kind = ATTN_CAUSAL},
     .dlse = true},
    {.name = "decode",
     .batch = 3,
     .heads_kv = 2,
     .group = 4,
     .tokens_q = 1,
     .tokens_kv = 900,
     .dim_qk = 128,
     .sink = true},
    {.name = "decode, kv heads together",
     .batch = 16,
     .heads_kv = 4,
     .group = 2,
     .tokens_q = 1,
     .tokens_kv = 900,
     .dim_qk = 64},
    {.name = "decode splits",
     .batch = 1,
     .heads_kv = 1,
     .group = 8,
     .tokens_q = 2,
     .tokens_kv = 1500,
     .dim_qk = 64,
     .splits = 7,
     .rows_kv = ROWS_USED},
    {.name = "one head",
     .batch = 1,
     .heads_kv = 1,
     .group = 1,
     .tokens_q = 260,
     .tokens_kv = 390,
     .dim_qk = 72,
     .dim_v = 33,
     .splits = 3},
    {.name = "packed",
     .batch = 5,
     .heads_kv = 1,
     .group = 2,
     .tokens_q = 120,
     .tokens_kv = 140,
     .dim_qk = 64,
     .rows_q = ROWS_PACKED,
     .rows_kv = ROWS_PACKED,
     .band = {.kind = ATTN_CAUSAL},
     .alibi = PRESENT},
    {.name = "segments",
     .batch = 2,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 130,
     .tokens_kv = 170,
     .dim_qk = 48,
     .rows_q = ROWS_SEGMENTS,
     .rows_kv = ROWS_SEGMENTS,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW, .left = 60, .right = -1}},
    {.name = "tiles in turn",
     .batch = 2,
     .heads_kv = 2,
     .group = 1,
     .tokens_q = 700,
     .tokens_kv = 900,
     .dim_qk = 128,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "wide tiles in turn",
     .batch = 1,
     .heads_kv = 1,
     .group = 2,
     .tokens_q = 500,
     .tokens_kv = 600,
     .dim_qk = 200,
     .dim_v = 136,
     .band = {.kind = ATTN_WINDOW, .left = 250, .right = 90}},
    {.name = "bias",
     .batch = 3,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 70,
     .tokens_kv = 100,
     .dim_qk = 32,
     .bias = PRESENT | OVER_BATCH,
     .sink = true,
     .softcap = 3},
    {.name = "bias over rows",
     .batch = 2,
     .heads_kv = 1,
     .group = 4,
     .tokens_q = 100,
     .tokens_kv = 130,
     .dim_qk = 32,
     .bias = PRESENT | OVER_HEADS | OVER_ROWS,
     .mask = PRESENT | OVER_HEADS,
     .accumulate = true},
    {.name = "dropout",
     .batch = 2,
     .heads_kv = 2,
     .group = 1,
     .tokens_q = 140,
     .tokens_kv = 90,
     .dim_qk = 96,
     .dropout = 0.3f,
     .f32_out = true},
};

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* Half of a list at the usual intensity, without a rhythm that the lists share. */
static bool chosen(size_t n, size_t every) {
    int intensity = machine_intensity();
    bool wanted = intensity > 1 || (intensity > 0 ? (n + n / 2 + n / 7) % 2 == 0 : n % every == 0);
    return wanted && machine_shard(n);
}

static void test_threads(void **state) {
    (void)state;
    campaign c = campaign_begin("threads");
    for (size_t n = 0; n < COUNT(cases); n++) {
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            recipe p = cases[n];
            p.dtype = dtypes[d];
            p.seed = n + 1;
            p.form = FORM_SLICE;
            if (chosen(n + 2 * d, 13)) {
                campaign_try_again(&c, &p);
            }
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

static run_outcome base_of(campaign *c, const recipe *p, const trial *t, run_options *how, result *base) {
    run_outcome outcome = campaign_run(c, t, how, base);
    if (outcome == RUN_FAILED) {
        campaign_fail(c, p, how->implementation, base->text, base->trouble);
    }
    return outcome;
}

/* Runs `t` like the base result; any difference is a failure of the recipe. A form may be refused. */
static void same(campaign *c, const recipe *p, run_options how, const trial *t, const result *base, const char *what) {
    const char *name = how.implementation;
    result r;
    char where[200], text[300];
    run_outcome outcome = campaign_run(c, t, &how, &r);
    if (outcome == RUN_FAILED) {
        campaign_fail(c, p, name, r.text, r.trouble);
    } else if (outcome == RUN_DONE && !results_equal(t, base, &r, where, sizeof where)) {
        snprintf(text, sizeof text, "%s: %s", what, where);
        campaign_fail(c, p, name, r.text, text);
    }
    result_free(&r);
}

/* The values of `from` in the memory forms of another recipe. */
static trial *reshaped(const trial *from, const recipe *p, recipe_form kind) {
    recipe q = *p;
    q.form = kind;
    trial *t = trial_copy(from), *other = recipe_trial(&q);
    for (int id = 0; id < T_COUNT; id++) {
        unsigned shared = from->form[id].zero;
        t->form[id] = other->form[id];
        t->form[id].zero = shared;
    }
    t->joint = other->joint;
    t->joint_gradients = other->joint_gradients;
    trial_destroy(other);
    return t;
}

static void test_memory_forms(void **state) {
    (void)state;
    campaign c = campaign_begin("forms");
    static const recipe_form kinds[] = {FORM_BHSD, FORM_JOINT,     FORM_STEP,  FORM_NEGATIVE,
                                        FORM_ODD,  FORM_DIM_OUTER, FORM_RANDOM};
    for (size_t n = 0; n < COUNT(cases); n++) {
        recipe p = cases[n];
        p.dtype = dtypes[n % 3];
        p.seed = n + 100;
        if (n % 4 == 0) {
            p.tokens_kv = p.tokens_q; /* lets q, k and v share a buffer */
        }
        if (!chosen(n, 10)) {
            continue;
        }
        c.recipes++;
        trial *t = recipe_trial(&p);
        for (const char *const *name = machine_implementations(machine_intensity() > 0); *name; name++) {
            run_options how = {.implementation = *name, .deterministic = machine_is_device(*name)};
            result base;
            if (base_of(&c, &p, t, &how, &base) == RUN_DONE) {
                for (size_t k = 0; k < COUNT(kinds); k++) {
                    trial *u = reshaped(t, &p, kinds[k]);
                    same(&c, &p, how, u, &base, "another memory form");
                    trial_destroy(u);
                }
            }
            result_free(&base);
        }
        trial_destroy(t);
    }
    assert_int_equal(campaign_end(&c), 0);
}

/* Only the first sequence of the results must agree. */
static void cut_to_first_sequence(const trial *t, result *r) {
    for (int id = T_O; id < T_COUNT; id++) {
        if (!r->value[id]) {
            continue;
        }
        int64_t first = tensor_is_row(id) ? (t->problem.batch > 1 && trial_size(t, id) ? trial_index(t, id, 1, 0, 0, 0)
                                                                                       : trial_size(t, id))
                                          : 0;
        for (int64_t i = first; i < trial_size(t, id); i++) {
            r->value[id][i] = 0;
        }
    }
}

static void test_other_sequences_do_not_matter(void **state) {
    (void)state;
    campaign c = campaign_begin("other sequences");
    for (size_t n = 0; n < COUNT(cases); n++) {
        recipe p = cases[n];
        p.dtype = dtypes[(n + 1) % 3];
        p.seed = n + 200;
        if (p.batch < 2 || !chosen(n, 8)) {
            continue;
        }
        c.recipes++;
        trial *t = recipe_trial(&p), *u = trial_copy(t);
        static const tensor_id ids[] = {T_Q, T_K, T_V, T_DOUT};
        for (size_t k = 0; k < COUNT(ids); k++) {
            for (int64_t i = trial_index(t, ids[k], 1, 0, 0, 0); i < trial_size(t, ids[k]); i++) {
                u->value[ids[k]][i] = i % 7 ? 3 : NAN;
            }
        }
        for (const char *const *name = machine_implementations(machine_intensity() > 0); *name; name++) {
            run_options how = {.implementation = *name, .deterministic = machine_is_device(*name)};
            result a, b;
            char where[200];
            bool both = base_of(&c, &p, t, &how, &a) == RUN_DONE;
            both = base_of(&c, &p, u, &how, &b) == RUN_DONE && both;
            if (both) {
                cut_to_first_sequence(t, &a);
                cut_to_first_sequence(t, &b);
                if (!results_equal(t, &a, &b, where, sizeof where)) {
                    campaign_fail(&c, &p, *name, a.text, where);
                }
            }
            result_free(&a);
            result_free(&b);
        }
        trial_destroy(t);
        trial_destroy(u);
    }
    assert_int_equal(campaign_end(&c), 0);
}

static void test_outputs_left_out(void **state) {
    (void)state;
    campaign c = campaign_begin("outputs left out");
    for (size_t n = 0; n < COUNT(cases); n++) {
        recipe p = cases[n];
        p.dtype = dtypes[n % 3];
        p.seed = n + 300;
        if (!chosen(n, 10)) {
            continue;
        }
        c.recipes++;
        trial *t = recipe_trial(&p);
        for (const char *const *name = machine_implementations(machine_intensity() > 0); *name; name++) {
            run_options how = {.implementation = *name, .deterministic = machine_is_device(*name)};
            result base;
            bool done = base_of(&c, &p, t, &how, &base) == RUN_DONE && !how.forward_only;
            for (int id = T_DQ; id < T_COUNT && done; id++) {
                unsigned all = 1u << T_DQ | 1u << T_DK | 1u << T_DV | 1u << T_DBIAS | 1u << T_DSINK;
                trial *u = trial_copy(t);
                u->skip = 1u << id; /* all but this one; then this one alone */
                same(&c, &p, how, u, &base, "without an output");
                if (trial_has(t, id)) {
                    u->skip = all & ~(1u << id);
                    same(&c, &p, how, u, &base, "one output alone");
                }
                trial_destroy(u);
            }
            result_free(&base);
        }
        trial_destroy(t);
    }
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_memory_forms),
        cmocka_unit_test(test_other_sequences_do_not_matter),
        cmocka_unit_test(test_outputs_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
