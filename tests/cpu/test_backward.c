/* SPDX-License-Identifier: Apache-2.0
 * Backward of the CPU implementations against the definition: lengths around the blocks, heads of all sizes, features
 * one by one and together, chunks of keys, row maps, memory forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/campaign.h"
#include "support/machine.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static recipe plain(uint64_t seed) {
    recipe r = {.name = "plain",
                .seed = seed,
                .dtype = ATTN_F32,
                .batch = 1,
                .heads_kv = 1,
                .group = 1,
                .tokens_q = 97,
                .tokens_kv = 130,
                .dim_qk = 16};
    return r;
}

/* Sanitizers and emulation are slow: a third of each list there. */
static bool chosen(size_t n) {
    return machine_intensity() > 0 || n % 3 == 0;
}

static void test_lengths(void **state) {
    static const int lengths[] = {0, 1, 63, 64, 65, 97, 130};
    campaign c = campaign_begin("lengths");
    (void)state;
    for (size_t q = 0; q < COUNT(lengths); q++) {
        for (size_t k = 0; k < COUNT(lengths); k++) {
            if (!chosen(q + k)) {
                continue;
            }
            recipe r = plain(100 + 10 * q + k);
            r.name = "lengths";
            r.tokens_q = lengths[q];
            r.tokens_kv = lengths[k];
            campaign_try(&c, &r);
            r.band.kind = ATTN_CAUSAL;
            r.splits = 1 + (int64_t)(q + k) % 3;
            r.block_kv = 32;
            campaign_try(&c, &r);
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

static void test_dims(void **state) {
    static const int dims[][2] = {{1, 1}, {3, 5}, {40, 40}, {64, 64}, {72, 80}, {128, 128}, {192, 128}, {576, 512}};
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    campaign c = campaign_begin("dims");
    (void)state;
    for (size_t d = 0; d < COUNT(dims); d++) {
        for (size_t type = 0; type < COUNT(types); type++) {
            if (!chosen(d + type)) {
                continue;
            }
            recipe r = plain(200 + 10 * d + type);
            r.name = "dims";
            r.dim_qk = dims[d][0];
            r.dim_v = dims[d][1];
            r.dtype = types[type];
            r.tokens_q = 70;
            r.tokens_kv = 103;
            r.f32_out = d % 2;
            r.splits = 2;
            campaign_try(&c, &r);
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

/* Feature n of those that may meet. */
static void add_feature(recipe *r, int n) {
    switch (n) {
    case 0: r->band = (attn_band){.kind = ATTN_CAUSAL}; break;
    case 1: r->band = (attn_band){.kind = ATTN_CAUSAL, .corner = ATTN_TOP_LEFT}; break;
    case 2: r->band = (attn_band){.kind = ATTN_WINDOW, .left = 20, .right = 9}; break;
    case 3: r->band = (attn_band){.kind = ATTN_WINDOW | ATTN_GLOBALS | ATTN_CAUSAL, .left = 7, .globals = 5}; break;
    case 4: r->softcap = 1.5f; break;
    case 5: r->bias = PRESENT; break;
    case 6: r->bias = PRESENT | OVER_BATCH | OVER_HEADS; break;
    case 7: r->bias = PRESENT | OVER_ROWS; break;
    case 8: r->bias = PRESENT | OVER_KEYS | OVER_BATCH; break;
    case 9: r->bias = PRESENT, r->dbias = PRESENT | OVER_ROWS | OVER_KEYS | OVER_HEADS; break;
    case 10: r->bias = PRESENT | OVER_ROWS, r->dbias = PRESENT; break;
    case 11: r->mask = PRESENT; break;
    case 12: r->mask = PRESENT | OVER_HEADS | OVER_ROWS, r->poison = true; break;
    case 13: r->alibi = PRESENT; break;
    case 14: r->sink = true; break;
    case 15: r->dropout = 0.3f; break;
    case 16: r->has_scale = true, r->scale = -0.7f; break;
    case 17: r->has_scale = true, r->scale = 0; break;
    case 18: r->dlse = true; break;
    case 19: r->accumulate = true; break;
    case 20: r->give_delta = true; break;
    case 21: r->rows_q = r->rows_kv = ROWS_USED; break;
    case 22: r->rows_q = r->rows_kv = ROWS_PACKED; break;
    case 23: r->rows_q = r->rows_kv = ROWS_PACKED_USED; break;
    case 24: r->rows_q = r->rows_kv = ROWS_SEGMENTS; break;
    case 25: r->form = FORM_NEGATIVE; break;
    case 26: r->form = FORM_STEP; break;
    case 27: r->form = FORM_JOINT; break;
    case 28: r->form = FORM_BROADCAST; break;
    case 29: r->form = FORM_RANDOM; break;
    case 30: r->skip = 1u << T_DQ | 1u << T_DV; break;
    case 31: r->skip = 1u << T_DK; break;
    default: break;
    }
}
#define FEATURES 32

static void test_features(void **state) {
    campaign c = campaign_begin("features");
    (void)state;
    for (int n = 0; n < FEATURES; n++) {
        for (int kind = 0; kind < 3; kind++) {
            if (!chosen((size_t)(n + kind))) {
                continue;
            }
            recipe r = plain(300 + (uint64_t)(10 * n + kind));
            r.name = "feature";
            r.batch = 2;
            r.heads_kv = 2;
            r.group = 1 + kind;
            r.dtype = kind == 0 ? ATTN_F32 : kind == 1 ? ATTN_BF16 : ATTN_F16;
            r.f32_out = kind == 2;
            r.tokens_q = kind == 2 ? 37 : 97;
            r.splits = kind;
            add_feature(&r, n);
            campaign_try_again(&c, &r);
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

/* Three features at a time, drawn. */
static void test_together(void **state) {
    static const int cases[] = {20, 200, 800, 4000};
    rng draw = rng_seed(5);
    campaign c = campaign_begin("together");
    (void)state;
    for (int n = 0; n < cases[machine_intensity()]; n++) {
        recipe r = plain(1000 + (uint64_t)n);
        r.name = "together";
        r.batch = (int)rng_range(&draw, 1, 3);
        r.heads_kv = (int)rng_range(&draw, 1, 2);
        r.group = (int)rng_range(&draw, 1, 3);
        r.tokens_q = (int)rng_range(&draw, 1, 140);
        r.tokens_kv = (int)rng_range(&draw, 1, 220);
        r.dim_qk = (int)rng_range(&draw, 1, 40);
        r.dim_v = (int)rng_range(&draw, 1, 40);
        r.dtype = (attn_dtype)rng_range(&draw, ATTN_F32, ATTN_BF16);
        r.splits = rng_range(&draw, 0, 3);
        r.block_kv = rng_chance(&draw, 0.5) ? rng_range(&draw, 1, 50) : 0;
        r.block_q = rng_chance(&draw, 0.3) ? rng_range(&draw, 1, 256) : 0;
        for (int m = 0; m < 3; m++) {
            add_feature(&r, (int)rng_range(&draw, 0, FEATURES - 1));
        }
        campaign_try(&c, &r);
    }
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_dims),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
