/* SPDX-License-Identifier: Apache-2.0
 * The band: intervals and counts against the sentence of the definition, pair by pair. */
#include "problem/unit.h"

#include "problem/problem.h"
#include "problem/random_problem.h"

/* The words of the public header, on the fields as the caller gives them. */
static bool sees(const attn_band *band, int64_t shifted, int64_t j) {
    bool causal = !(band->kind & ATTN_CAUSAL) || j <= shifted, window = true;
    if (band->kind & ATTN_WINDOW) {
        window = (band->left == -1 || shifted - band->left <= j) && (band->right == -1 || j <= shifted + band->right);
    }
    bool global = band->kind & ATTN_GLOBALS && band->globals > 0 && (j < band->globals || shifted < band->globals);
    return causal && (window || global);
}

static void check_one(const attn_problem *given, const attn_problem *p) {
    int64_t shift = p->band.corner == ATTN_TOP_LEFT ? 0 : p->tokens_kv - p->tokens_q, pairs = 0;
    for (int64_t i = 0; i < p->tokens_q; i++) {
        int64_t x = i + shift;
        attn__range range = attn__band_range(&p->band, x);
        for (int64_t j = 0; j < p->tokens_kv; j++) {
            bool visible = sees(&given->band, x, j);
            bool global = j < p->band.globals && (!(p->band.kind & ATTN_CAUSAL) || j <= x);
            assert_int_equal(visible, attn__band_visible(&p->band, x, j));
            assert_int_equal(visible, (j >= range.first && j <= range.last) || global);
            pairs += visible;
        }
    }
    if (attn__visible_pairs(p) != (double)(pairs * p->batch)) {
        char text[512];
        attn_problem_format(p, text, sizeof text);
        printf("%s: %.1f pairs, %lld are there\n", text, attn__visible_pairs(p), (long long)(pairs * p->batch));
    }
    assert_true(attn__visible_pairs(p) == (double)(pairs * p->batch));
}

static void test_random_bands(void **state) {
    (void)state;
    for (int round = 0; round < 20000; round++) {
        attn_problem p = attn_problem_dense(ATTN_F32, lottery(1, 2), 1, 1, lottery(0, 14), lottery(0, 14), 1, 1), c;
        random_band(&p.band);
        assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
        check_one(&p, &c);
    }
}

static double pairs_of(const char *text) {
    attn_problem p;
    assert_int_equal(attn_problem_parse(&p, text, NULL), ATTN_OK);
    return attn__visible_pairs(&p);
}

static void test_counts(void **state) {
    (void)state;
    assert_true(pairs_of("fwd:f32:b2:h8:s4096:d1") == 2.0 * 4096 * 4096);
    assert_true(pairs_of("fwd:f32:b1:h1:s4096:d1:causal") == 4096.0 * 4097 / 2);
    assert_true(pairs_of("fwd:f32:b1:h1:sq5:skv2:d1:causal") == 3);
    assert_true(pairs_of("fwd:f32:b1:h1:sq5:skv2:d1:causal:topleft") == 9);
    assert_true(pairs_of("fwd:f32:b1:h1:s2147483647:d1:causal:window=9,0") == 10.0 * 2147483647 - 45);
    assert_true(pairs_of("fwd:f32:b0:h1:s4096:d1") == 0);
    assert_true(pairs_of("fwd:f32:b1:h1:sq0:skv9:d1") == 0);
    /* Packed: as many whole sequences as the rows make. A shard: its part of queries times its part of keys. */
    assert_true(pairs_of("fwd:f32:b8:h1:s100:d1:packed_q=200:packed_kv=800") == 2.0 * 100 * 100);
    assert_true(pairs_of("fwd:f32:b8:h1:s100:d1:packed_q=9999:packed_kv=9999") == 8.0 * 100 * 100);
    assert_true(pairs_of("fwd:f32:b2:h1:s100:d1:segments_q=50,2:segments_kv=100,2") == 2.0 * 100 * 100 / 8);
}

/* At the far ends of positions nothing overflows. */
static void test_far_positions(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 1, 1, 1, 1, 1, 1), c;
    p.band = (attn_band){7, ATTN_BOTTOM_RIGHT, ((int64_t)1 << 32) - 1, ((int64_t)1 << 32) - 1, 5};
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    attn__range range = attn__band_range(&c.band, ATTN__MAX_TOKENS);
    assert_true(range.first == 0 && range.last == ATTN__MAX_TOKENS);
    range = attn__band_range(&c.band, -ATTN__MAX_TOKENS);
    assert_true(range.first == 0 && range.last < 0);
    c.band.kind = 0;
    range = attn__band_range(&c.band, -5);
    assert_true(range.first == 0 && range.last == ATTN__MAX_TOKENS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_bands),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_far_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
