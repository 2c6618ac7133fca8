/* SPDX-License-Identifier: Apache-2.0
 * The CPU kernels with bf16 pairs, the pair product emulated over AVX2, against the oracle on machines that cannot
 * multiply pairs. The program brings a list of implementations of its own; everything around it is the library's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>

#include "backend.h"
#include "support/campaign.h"
#include "support/machine.h"

extern const attn__impl attn__impl_native, attn__impl_reference;

#if defined(__AVX2__)
#include "cpu/emulated_pairs.h"
#include "cpu/kernels/backward.h"
#include "cpu/kernels/forward.h"

extern const attn__forward_body attn__forward_avx2, attn__few_avx2;
extern const attn__backward_body attn__backward_avx2;
extern const attn__sums_body attn__sums_avx2;

static const attn__forward_body forward_pairs = {forward_scratch_bytes, forward, finish};
static const attn__backward_body backward_pairs = {backward_scratch_bytes, backward, backward_finish};
static const attn__kernels kernels = {.forward = &attn__forward_avx2,
                                      .few = &attn__few_avx2,
                                      .backward = &attn__backward_avx2,
                                      .sums = &attn__sums_avx2,
                                      .forward_pairs = &forward_pairs,
                                      .backward_pairs = &backward_pairs,
                                      .pairs_first = true};
static const attn__impl emulated = {.name = "pairs",
                                    .backend = "cpu",
                                    .needs = ATTN__ISA_AVX2,
                                    .automatic = ATTN__AUTOMATIC,
                                    .prepare = attn__cpu_prepare,
                                    .forward = attn__cpu_forward,
                                    .backward = attn__cpu_backward,
                                    .kernels = &kernels};
const attn__impl *const attn__implementations[] = {&emulated, &attn__impl_native, &attn__impl_reference, NULL};

static void test_random_recipes(void **state) {
    static const int cases[] = {60, 200, 1500, 8000};
    campaign c = campaign_begin("bf16 pairs");
    (void)state;
    for (int n = 0; n < cases[machine_intensity()]; n++) {
        recipe r = recipe_random(70000 + (uint64_t)n);
        r.dtype = ATTN_BF16;
        campaign_try(&c, &r);
    }
    assert_true(c.runs > cases[machine_intensity()]);
    assert_int_equal(campaign_end(&c), 0);
}

static void test_blocks_and_halves(void **state) {
    campaign c = campaign_begin("bf16 pairs, odd cuts");
    (void)state;
    for (int n = 0; n < 48; n++) { /* cuts at odd keys, odd dims, hidden NaN, dropout */
        recipe r = {
            .name = "cuts", .seed = 900 + (uint64_t)n, .batch = 1, .heads_kv = 1, .group = 1, .dtype = ATTN_BF16};
        r.tokens_q = 70 + n % 5;
        r.tokens_kv = 95 + n % 7;
        r.dim_qk = n % 2 ? 64 : 33;
        r.dim_v = n % 3 ? 64 : 17;
        r.band = (attn_band){.kind = ATTN_CAUSAL | (n % 4 ? ATTN_WINDOW : 0u), .left = 5 + n, .right = 3};
        r.dropout = n % 5 == 0 ? 0.3f : 0;
        r.mask = n % 6 == 0;
        r.poison = n % 2 == 0;
        campaign_try(&c, &r);
    }
    assert_int_equal(campaign_end(&c), 0);
}
#else
const attn__impl *const attn__implementations[] = {&attn__impl_native, &attn__impl_reference, NULL};

static void test_random_recipes(void **state) {
    (void)state;
    skip();
}
static void test_blocks_and_halves(void **state) {
    (void)state;
    skip();
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_recipes),
        cmocka_unit_test(test_blocks_and_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
