/* SPDX-License-Identifier: Apache-2.0
 * The tile forward against the oracle with emulated tiles. The program brings a list of implementations of its own, in
 * which `amx` is that kernel and needs nothing of the machine; everything around it is the library's. Slow, so sizes
 * are small. */
#include <stdarg.h>
#include <stddef.h>
#include <float.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "cpu/emulated_amx.h"
#include "cpu/kernels/forward_amx.h"
#include "backend.h"
#include "support/campaign.h"
#include "support/machine.h"

static _Atomic int64_t tile_tasks;

static void forward_watched(const attn__forward_task *task, void *scratch) {
    amx_forward(task, scratch);
    if (amx_tiles_configured) {
        abort();
    }
    tile_tasks++;
}

extern const attn__forward_body attn__forward_generic, attn__few_generic;
extern const attn__backward_body attn__backward_generic;
extern const attn__sums_body attn__sums_generic;

static const attn__forward_body forward_tiles = {amx_scratch_bytes, forward_watched, amx_finish};
static const attn__kernels kernels = {.forward = &attn__forward_generic,
                                      .few = &attn__few_generic,
                                      .backward = &attn__backward_generic,
                                      .sums = &attn__sums_generic,
                                      .forward_pairs = &forward_tiles,
                                      .pairs_first = true};
static const attn__impl emulated = {.name = "amx",
                                    .backend = "cpu",
                                    .automatic = ATTN__AUTOMATIC,
                                    .prepare = attn__cpu_prepare,
                                    .forward = attn__cpu_forward,
                                    .backward = attn__cpu_backward,
                                    .kernels = &kernels};
extern const attn__impl attn__impl_native, attn__impl_reference;
/* Takes the place of the library's list. */
const attn__impl *const attn__implementations[] = {&emulated, &attn__impl_native, &attn__impl_reference, NULL};

/* Sizes around tiles (16, 32), row blocks (64, up to four a task), key blocks (96); every feature once; hidden NaN and
 * inf; every memory form. */
static const recipe list[] = {
    {.name = "one pair", .batch = 1, .heads_kv = 1, .tokens_q = 1, .tokens_kv = 1, .dim_qk = 1},
    {.name = "no keys", .batch = 2, .heads_kv = 1, .tokens_q = 3, .tokens_kv = 0, .dim_qk = 16},
    {.name = "one tile", .batch = 1, .heads_kv = 1, .tokens_q = 16, .tokens_kv = 32, .dim_qk = 32, .form = FORM_BHSD},
    {.name = "whole", .batch = 1, .heads_kv = 1, .tokens_q = 256, .tokens_kv = 192, .dim_qk = 64, .block_q = 256},
    {.name = "more rows", .batch = 1, .heads_kv = 1, .tokens_q = 257, .tokens_kv = 193, .dim_qk = 33, .block_q = 256},
    {.name = "few lanes", .batch = 1, .heads_kv = 2, .tokens_q = 27, .tokens_kv = 201, .dim_qk = 96, .dim_v = 40},
    {.name = "odd dims",
     .batch = 2,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 65,
     .tokens_kv = 97,
     .dim_qk = 7,
     .dim_v = 129},
    {.name = "wide", .batch = 1, .heads_kv = 1, .tokens_q = 40, .tokens_kv = 130, .dim_qk = 576, .dim_v = 512},
    {.name = "causal",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 300,
     .tokens_kv = 300,
     .dim_qk = 64,
     .block_q = 256,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "causal, hidden poison",
     .batch = 1,
     .heads_kv = 2,
     .tokens_q = 150,
     .tokens_kv = 210,
     .dim_qk = 48,
     .block_q = 192,
     .band = {.kind = ATTN_CAUSAL},
     .mask = PRESENT | OVER_HEADS,
     .poison = true},
    {.name = "window",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 200,
     .tokens_kv = 330,
     .dim_qk = 32,
     .block_q = 128,
     .band = {.kind = ATTN_WINDOW, .left = 37, .right = 11}},
    {.name = "window and globals",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 200,
     .tokens_kv = 330,
     .dim_qk = 32,
     .band = {.kind = ATTN_WINDOW | ATTN_GLOBALS | ATTN_CAUSAL, .left = 50, .right = -1, .globals = 5}},
    {.name = "window of one position",
     .batch = 1,
     .heads_kv = 1,
     .group = 20,
     .tokens_q = 1,
     .tokens_kv = 200,
     .dim_qk = 32,
     .band = {.kind = ATTN_WINDOW, .left = 37, .right = -1}},
    {.name = "key padding",
     .batch = 2,
     .heads_kv = 1,
     .tokens_q = 70,
     .tokens_kv = 150,
     .dim_qk = 64,
     .mask = PRESENT | OVER_HEADS | OVER_ROWS,
     .poison = true},
    {.name = "everything",
     .batch = 2,
     .heads_kv = 1,
     .group = 3,
     .tokens_q = 70,
     .tokens_kv = 150,
     .dim_qk = 64,
     .dim_v = 24,
     .bias = PRESENT | OVER_BATCH,
     .mask = PRESENT | OVER_HEADS,
     .alibi = PRESENT,
     .softcap = 3,
     .dropout = 0.3f,
     .sink = true,
     .poison = true,
     .band = {.kind = ATTN_CAUSAL, .corner = ATTN_TOP_LEFT}},
    {.name = "dropout alone",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 90,
     .tokens_kv = 170,
     .dim_qk = 64,
     .dropout = 0.4f},
    {.name = "sink", .batch = 1, .heads_kv = 3, .tokens_q = 90, .tokens_kv = 170, .dim_qk = 64, .sink = true},
    {.name = "parts",
     .batch = 1,
     .heads_kv = 1,
     .group = 4,
     .tokens_q = 20,
     .tokens_kv = 400,
     .dim_qk = 64,
     .dim_v = 33,
     .splits = 3,
     .sink = true},
    {.name = "negative scale",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 64,
     .tokens_kv = 100,
     .dim_qk = 32,
     .has_scale = true,
     .scale = -0.3f},
    {.name = "scale 0", .batch = 1, .heads_kv = 1, .tokens_q = 64, .tokens_kv = 100, .dim_qk = 32, .has_scale = true},
    {.name = "sharp",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 130,
     .tokens_kv = 300,
     .dim_qk = 64,
     .has_scale = true,
     .scale = 40.0f},
    {.name = "beyond the fast form",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 64,
     .tokens_kv = 200,
     .dim_qk = 64,
     .has_scale = true,
     .scale = 1e12f},
    {.name = "small key blocks",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 130,
     .tokens_kv = 150,
     .dim_qk = 64,
     .block_q = 128,
     .block_kv = 33,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "large key blocks",
     .batch = 1,
     .heads_kv = 1,
     .tokens_q = 130,
     .tokens_kv = 500,
     .dim_qk = 32,
     .block_q = 128,
     .block_kv = 256},
    {.name = "used",
     .batch = 3,
     .heads_kv = 1,
     .tokens_q = 80,
     .tokens_kv = 130,
     .dim_qk = 32,
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED,
     .band = {.kind = ATTN_CAUSAL},
     .form = FORM_BHSD},
    {.name = "packed",
     .batch = 3,
     .heads_kv = 2,
     .tokens_q = 80,
     .tokens_kv = 130,
     .dim_qk = 32,
     .rows_q = ROWS_PACKED,
     .rows_kv = ROWS_PACKED},
    {.name = "segments",
     .batch = 2,
     .heads_kv = 1,
     .tokens_q = 140,
     .tokens_kv = 230,
     .dim_qk = 32,
     .rows_q = ROWS_SEGMENTS,
     .rows_kv = ROWS_SEGMENTS,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "joint", .batch = 1, .heads_kv = 2, .tokens_q = 70, .tokens_kv = 70, .dim_qk = 64, .form = FORM_JOINT},
    {.name = "steps", .batch = 1, .heads_kv = 2, .tokens_q = 70, .tokens_kv = 110, .dim_qk = 64, .form = FORM_STEP},
    {.name = "backwards",
     .batch = 1,
     .heads_kv = 2,
     .tokens_q = 70,
     .tokens_kv = 110,
     .dim_qk = 64,
     .form = FORM_NEGATIVE},
    {.name = "odd starts", .batch = 1, .heads_kv = 1, .tokens_q = 70, .tokens_kv = 110, .dim_qk = 64, .form = FORM_ODD},
    {.name = "broadcast",
     .batch = 2,
     .heads_kv = 2,
     .tokens_q = 70,
     .tokens_kv = 110,
     .dim_qk = 64,
     .form = FORM_BROADCAST},
    {.name = "float out", .batch = 1, .heads_kv = 1, .tokens_q = 70, .tokens_kv = 110, .dim_qk = 64, .f32_out = true},
};

static recipe prepared(recipe p, uint64_t seed) {
    p.seed = seed;
    p.dtype = ATTN_BF16;
    p.group = p.group ? p.group : 1;
    return p;
}

/* A visible key, value and query hold what is no number. */
static void no_numbers(trial *t) {
    t->value[T_K][trial_index(t, T_K, 0, 0, 40, 3)] = NAN;
    t->value[T_V][trial_index(t, T_V, 0, 0, 100, 5)] = NAN;
    t->value[T_V][trial_index(t, T_V, 0, 0, 33, 2)] = -INFINITY;
    t->value[T_Q][trial_index(t, T_Q, 0, 0, 20, 1)] = INFINITY;
}

/* Scores are the scale for key 7 and 0 for all others: o is that key's value. */
static void one_key_counts(trial *t) {
    for (int side = T_Q; side <= T_K; side++) {
        for (int64_t row = 0; row < (side == T_Q ? t->problem.tokens_q : t->problem.tokens_kv); row++) {
            for (int64_t d = 0; d < t->problem.dim_qk; d++) {
                t->value[side][trial_index(t, side, 0, 0, row, d)] = d == 0 && (side == T_Q || row == 7);
            }
        }
    }
}

/* Rows in turn: all keys at the lowest float; half of them; all at -3e38. Beside it every product is nothing. */
static void lowest_scores(trial *t) {
    for (int64_t row = 0; row < t->problem.tokens_q; row++) {
        for (int64_t key = 0; key < t->problem.tokens_kv; key++) {
            t->value[T_BIAS][trial_index(t, T_BIAS, 0, 0, row, key)] = row % 3 == 2              ? -3e38f
                                                                       : row % 3 == 1 && key % 2 ? 0
                                                                                                 : -FLT_MAX;
        }
    }
}

/* Forward on the tiles alone. change: NULL, or what to do to the data. */
static void try_data(campaign *c, const recipe *p, void (*change)(trial *)) {
    trial *t = recipe_trial(p);
    if (change) {
        change(t);
        trial_settle(t);
    }
    run_options how = {.implementation = "amx", .forward_only = true};
    result r;
    judge j;
    c->recipes++;
    c->runs++;
    if (!judge_open(&j, t, true)) {
        campaign_fail(c, p, "the judge", j.oracle.text, j.trouble);
    } else {
        j.redraw_seed = p->seed + 1;
        j.fixed = change != NULL;
        if (run_trial(t, &how, &r) != RUN_DONE || !judge_accepts(&j, &r)) {
            campaign_fail(c, p, "amx", r.text, r.trouble[0] ? r.trouble : j.trouble);
        }
        result_free(&r);
    }
    judge_close(&j);
    trial_destroy(t);
}

static void try(campaign *c, const recipe *p) {
    try_data(c, p, NULL);
}

static void test_list(void **state) {
    campaign c = campaign_begin("emulated tiles, list");
    (void)state;
    for (size_t n = 0; n < sizeof list / sizeof list[0]; n++) {
        recipe p = prepared(list[n], 100 + n);
        try(&c, &p);
    }
    assert_int_equal(campaign_end(&c), 0);
    assert_true(tile_tasks > 0);
}

static void test_random(void **state) {
    const int count = 25 << 2 * machine_intensity();
    campaign c = campaign_begin("emulated tiles, random");
    (void)state;
    for (int n = 0; n < count; n++) {
        uint64_t seed = 7000 + (uint64_t)n;
        if (machine_seed(&seed)) {
            n = count;
        }
        recipe p = prepared(recipe_random(seed), seed);
        p.block_q = seed % 3 ? 256 : p.block_q;
        if (p.group * p.tokens_q > ATTN__FEW) { /* fewer rows never reach the tiles */
            try(&c, &p);
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

/* The same bits for any number of threads, and other types by the vector kernels of the same table. */
static void test_threads_and_types(void **state) {
    campaign c = campaign_begin("emulated tiles, threads and types");
    (void)state;
    recipe p = prepared((recipe){.name = "threads",
                                 .batch = 2,
                                 .heads_kv = 1,
                                 .tokens_q = 150,
                                 .tokens_kv = 150,
                                 .dim_qk = 48,
                                 .band = {.kind = ATTN_CAUSAL}},
                        3);
    campaign_try_again(&c, &p);
    for (int n = 0; n < 2; n++) {
        p.dtype = n ? ATTN_F16 : ATTN_F32;
        try(&c, &p);
    }
    assert_int_equal(campaign_end(&c), 0);
}

static void test_visible_nan(void **state) {
    campaign c = campaign_begin("emulated tiles, visible NaN and inf");
    (void)state;
    recipe p = prepared((recipe){.name = "all see them",
                                 .batch = 1,
                                 .heads_kv = 1,
                                 .tokens_q = 130,
                                 .tokens_kv = 150,
                                 .dim_qk = 64,
                                 .block_q = 128},
                        4);
    try_data(&c, &p, no_numbers);
    p.band.kind = ATTN_CAUSAL;
    p.name = "some see them";
    try_data(&c, &p, no_numbers);
    assert_int_equal(campaign_end(&c), 0);
}

static void test_large_scores(void **state) {
    static const float scales[] = {1e2f, 3e5f, 1e6f, 1e12f, 1e30f};
    campaign c = campaign_begin("emulated tiles, large scores");
    (void)state;
    for (size_t n = 0; n < sizeof scales / sizeof scales[0]; n++) {
        recipe p = prepared((recipe){.name = "one key counts",
                                     .batch = 1,
                                     .heads_kv = 1,
                                     .tokens_q = 70,
                                     .tokens_kv = 130,
                                     .dim_qk = 32,
                                     .has_scale = true,
                                     .scale = scales[n]},
                            5);
        try_data(&c, &p, one_key_counts);
    }
    assert_int_equal(campaign_end(&c), 0);
}

static void test_lowest_scores(void **state) {
    campaign c = campaign_begin("emulated tiles, lowest scores");
    (void)state;
    for (int splits = 0; splits < 2; splits++) {
        recipe p = prepared((recipe){.name = "lowest",
                                     .batch = 1,
                                     .heads_kv = 1,
                                     .tokens_q = 70,
                                     .tokens_kv = 150,
                                     .dim_qk = 64,
                                     .splits = splits * 3,
                                     .bias = PRESENT},
                            6);
        try_data(&c, &p, lowest_scores);
    }
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),   cmocka_unit_test(test_visible_nan),   cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_random), cmocka_unit_test(test_lowest_scores), cmocka_unit_test(test_threads_and_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
