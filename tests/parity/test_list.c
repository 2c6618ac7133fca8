/* SPDX-License-Identifier: Apache-2.0
 * Every implementation against the oracle: one list of features, crossed with shapes, types and memory forms.
 * The list names a feature alone or two that meet in one piece of code; test_random.c mixes all of them.
 * ATTN_TEST_INTENSITY: 0 takes every thirteenth combination, 1 every third (each feature with each shape), 2 all, 3 all
 * in every memory form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support/campaign.h"
#include "support/machine.h"

#define KEY_PADDING (PRESENT | OVER_HEADS | OVER_ROWS)

static const recipe features[] = {
    {.name = "plain"},
    {.name = "causal", .band = {.kind = ATTN_CAUSAL}},
    {.name = "causal top-left", .band = {.kind = ATTN_CAUSAL, .corner = ATTN_TOP_LEFT}},
    {.name = "window", .band = {.kind = ATTN_WINDOW, .left = 9, .right = 4}},
    {.name = "window left", .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW, .left = 33, .right = -1}},
    {.name = "window right", .band = {.kind = ATTN_WINDOW, .left = -1, .right = 2, .corner = ATTN_TOP_LEFT}},
    {.name = "window of one", .band = {.kind = ATTN_WINDOW}},
    {.name = "globals", .band = {.kind = ATTN_WINDOW | ATTN_GLOBALS, .left = 5, .right = 5, .globals = 3}},
    {.name = "globals causal",
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, .left = 7, .right = 0, .globals = 20}},
    {.name = "globals top-left",
     .band = {.kind = ATTN_WINDOW | ATTN_GLOBALS, .corner = ATTN_TOP_LEFT, .left = 2, .right = 3, .globals = 4}},
    {.name = "scale", .has_scale = true, .scale = 0.31f},
    {.name = "scale negative", .has_scale = true, .scale = -0.2f, .band = {.kind = ATTN_CAUSAL}},
    {.name = "scale zero", .has_scale = true},
    {.name = "scale large", .has_scale = true, .scale = 3},
    {.name = "soft cap", .softcap = 2},
    {.name = "soft cap causal", .softcap = 0.7f, .band = {.kind = ATTN_CAUSAL}},
    {.name = "soft cap negative scale", .softcap = 1.5f, .has_scale = true, .scale = -0.4f},
    {.name = "alibi", .alibi = PRESENT},
    {.name = "alibi shared causal", .alibi = PRESENT | OVER_BATCH, .band = {.kind = ATTN_CAUSAL}},
    {.name = "bias", .bias = PRESENT},
    {.name = "bias over batch", .bias = PRESENT | OVER_BATCH, .bias_low = true},
    {.name = "bias over heads causal", .bias = PRESENT | OVER_HEADS, .band = {.kind = ATTN_CAUSAL}},
    {.name = "bias over rows", .bias = PRESENT | OVER_ROWS | OVER_BATCH},
    {.name = "bias over keys", .bias = PRESENT | OVER_KEYS | OVER_HEADS},
    {.name = "bias, gradient summed otherwise", .bias = PRESENT, .dbias = PRESENT | OVER_BATCH | OVER_ROWS},
    {.name = "bias soft cap", .bias = PRESENT | OVER_BATCH, .softcap = 3},
    {.name = "mask", .mask = PRESENT},
    {.name = "mask over heads causal", .mask = PRESENT | OVER_HEADS, .band = {.kind = ATTN_CAUSAL}},
    {.name = "key padding, poisoned", .mask = KEY_PADDING, .poison = true},
    {.name = "mask poisoned window",
     .mask = PRESENT,
     .poison = true,
     .band = {.kind = ATTN_WINDOW, .left = 20, .right = 20}},
    {.name = "sink", .sink = true},
    {.name = "sink causal", .sink = true, .band = {.kind = ATTN_CAUSAL}},
    {.name = "sink, gradient of lse", .sink = true, .dlse = true, .band = {.kind = ATTN_CAUSAL}},
    {.name = "gradient of lse", .dlse = true},
    {.name = "dropout", .dropout = 0.3f},
    {.name = "dropout causal sink", .dropout = 0.5f, .sink = true, .dlse = true, .band = {.kind = ATTN_CAUSAL}},
    {.name = "dropout bias mask", .dropout = 0.1f, .bias = PRESENT | OVER_HEADS, .mask = PRESENT | OVER_BATCH},
    {.name = "accumulate", .accumulate = true},
    {.name = "accumulate bias sink", .accumulate = true, .bias = PRESENT | OVER_BATCH, .sink = true},
    {.name = "delta given", .give_delta = true, .band = {.kind = ATTN_CAUSAL}},
    {.name = "layouts unset", .unset = true, .bias = PRESENT | OVER_BATCH, .dlse = true},
    {.name = "f32 outputs", .f32_out = true},
    {.name = "f32 outputs causal unset", .f32_out = true, .unset = true, .band = {.kind = ATTN_CAUSAL}},
    {.name = "used", .rows_q = ROWS_USED, .rows_kv = ROWS_USED, .band = {.kind = ATTN_CAUSAL}},
    {.name = "used keys", .rows_kv = ROWS_USED, .alibi = PRESENT},
    {.name = "packed", .rows_q = ROWS_PACKED, .rows_kv = ROWS_PACKED},
    {.name = "packed causal", .rows_q = ROWS_PACKED, .rows_kv = ROWS_PACKED, .band = {.kind = ATTN_CAUSAL}},
    {.name = "packed bias mask dropout",
     .rows_q = ROWS_PACKED,
     .rows_kv = ROWS_PACKED,
     .bias = PRESENT,
     .mask = PRESENT | OVER_HEADS,
     .dropout = 0.2f},
    {.name = "packed and used", .rows_q = ROWS_PACKED_USED, .rows_kv = ROWS_PACKED_USED, .band = {.kind = ATTN_CAUSAL}},
    {.name = "packed keys, dense rows", .rows_kv = ROWS_PACKED, .band = {.kind = ATTN_WINDOW, .left = 11, .right = 30}},
    {.name = "segments", .rows_q = ROWS_SEGMENTS, .rows_kv = ROWS_SEGMENTS},
    {.name = "segments causal dropout",
     .rows_q = ROWS_SEGMENTS,
     .rows_kv = ROWS_SEGMENTS,
     .dropout = 0.2f,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "segments globals alibi sink",
     .rows_q = ROWS_SEGMENTS,
     .rows_kv = ROWS_SEGMENTS,
     .alibi = PRESENT,
     .sink = true,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, .left = 14, .globals = 5}},
    {.name = "segments of keys", .rows_kv = ROWS_SEGMENTS, .band = {.kind = ATTN_CAUSAL}, .mask = PRESENT},
    {.name = "one split", .splits = 1},
    {.name = "splits", .splits = 5, .band = {.kind = ATTN_CAUSAL}, .sink = true},
    {.name = "small blocks", .block_q = 5, .block_kv = 9, .band = {.kind = ATTN_CAUSAL}},
};

/* batch, kv heads, group, rows, keys, dims */
static const recipe shapes[] = {
    {.batch = 1, .heads_kv = 1, .group = 1, .tokens_q = 1, .tokens_kv = 1, .dim_qk = 1},
    {.batch = 2, .heads_kv = 1, .group = 3, .tokens_q = 7, .tokens_kv = 5, .dim_qk = 8, .dim_v = 16},
    {.batch = 2, .heads_kv = 2, .group = 2, .tokens_q = 65, .tokens_kv = 97, .dim_qk = 64},
    {.batch = 1, .heads_kv = 2, .group = 1, .tokens_q = 129, .tokens_kv = 64, .dim_qk = 40},
    {.batch = 1, .heads_kv = 1, .group = 1, .tokens_q = 95, .tokens_kv = 127, .dim_qk = 128},
    {.batch = 3, .heads_kv = 2, .group = 4, .tokens_q = 1, .tokens_kv = 200, .dim_qk = 64, .dim_v = 33},
    {.batch = 2, .heads_kv = 1, .group = 8, .tokens_q = 3, .tokens_kv = 130, .dim_qk = 128},
    {.batch = 2, .heads_kv = 3, .group = 1, .tokens_q = 33, .tokens_kv = 96, .dim_qk = 7, .dim_v = 72},
    {.batch = 1, .heads_kv = 1, .group = 2, .tokens_q = 17, .tokens_kv = 63, .dim_qk = 192, .dim_v = 128},
    {.batch = 1, .heads_kv = 1, .group = 1, .tokens_q = 9, .tokens_kv = 31, .dim_qk = 576, .dim_v = 512},
    {.batch = 1, .heads_kv = 1, .group = 1, .tokens_q = 300, .tokens_kv = 260, .dim_qk = 16},
    {.batch = 2, .heads_kv = 2, .group = 2, .tokens_q = 64, .tokens_kv = 64, .dim_qk = 32},
    {.batch = 34, .heads_kv = 2, .group = 3, .tokens_q = 2, .tokens_kv = 70, .dim_qk = 40}, /* kv heads together */
};

static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static recipe combine(const recipe *feature, const recipe *shape, attn_dtype dtype, recipe_form kind, uint64_t seed) {
    recipe p = *feature;
    p.batch = shape->batch;
    p.heads_kv = shape->heads_kv;
    p.group = shape->group;
    p.tokens_q = shape->tokens_q;
    p.tokens_kv = shape->tokens_kv;
    p.dim_qk = shape->dim_qk;
    p.dim_v = shape->dim_v;
    p.dtype = dtype;
    p.form = kind;
    p.seed = seed;
    return p;
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Of the n-th combination of feature, shape, type and form: the strides are prime to the lengths of the lists, so
 * every subset meets all pairs. */
static bool chosen(uint64_t n) {
    int intensity = machine_intensity();
    return intensity <= 0 ? n % 41 == 0 : intensity > 1 || n % 3 == 0;
}

static void test_features_shapes_types(void **state) {
    (void)state;
    campaign c = campaign_begin("list");
    c.must_run = true;
    const char *only = getenv("ATTN_TEST_CASE");
    uint64_t n = 0;
    for (size_t f = 0; f < COUNT(features); f++) {
        for (size_t s = 0; s < COUNT(shapes); s++) {
            for (size_t d = 0; d < COUNT(dtypes); d++, n++) {
                size_t first = machine_intensity() > 2 ? 0 : (n * 7 + f) % FORM_COUNT;
                size_t last = machine_intensity() > 2 ? FORM_COUNT - 1 : first;
                if (only ? strcmp(only, features[f].name) != 0 : !chosen(n + s + f) || !machine_shard(f)) {
                    continue;
                }
                for (size_t kind = first; kind <= last; kind++) {
                    recipe p = combine(&features[f], &shapes[s], dtypes[d], (recipe_form)kind, n);
                    campaign_try(&c, &p);
                }
            }
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

static void test_unsupported_is_refused(void **state) {
    (void)state;
    static const recipe refused[] = {
        {.name = "float64",
         .dtype = ATTN_F64,
         .batch = 1,
         .heads_kv = 1,
         .group = 1,
         .tokens_q = 3,
         .tokens_kv = 4,
         .dim_qk = 5},
        {.name = "dim 577",
         .dtype = ATTN_F32,
         .batch = 1,
         .heads_kv = 1,
         .group = 1,
         .tokens_q = 3,
         .tokens_kv = 4,
         .dim_qk = 577},
        {.name = "dim 577 of v",
         .dtype = ATTN_BF16,
         .batch = 1,
         .heads_kv = 1,
         .group = 1,
         .tokens_q = 3,
         .tokens_kv = 4,
         .dim_qk = 64,
         .dim_v = 577},
    };
    campaign c = campaign_begin("refusals");
    for (size_t n = 0; n < COUNT(refused); n++) {
        campaign_try(&c, &refused[n]);
    }
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_features_shapes_types),
        cmocka_unit_test(test_unsupported_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
