/* SPDX-License-Identifier: Apache-2.0
 * Counts past what a grid's or a word's dimension holds: batch, heads and rows past 65 535. Offsets past 2^31 have
 * stress/test_far.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/campaign.h"
#include "support/machine.h"

static void test_counts_past_65535(void **state) {
    (void)state;
    static const struct {
        int batch, heads_kv, group, tokens_q, tokens_kv;
    } sizes[] = {
        {66000, 1, 1, 2, 3}, {1, 66000, 1, 2, 3}, {1, 1, 66000, 2, 3}, {300, 110, 2, 3, 2},
        {1, 1, 1, 70000, 5}, {1, 1, 2, 5, 70000}, {1, 1, 1, 66000, 7},
    };
    campaign c = campaign_begin("large counts");
    if (!machine_device()) {
        print_message("skipped: ATTN_TEST_DEVICE names no device\n");
        return;
    }
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        recipe p = {.name = "large", .seed = n + 1, .dtype = n % 2 ? ATTN_F32 : ATTN_F16, .dim_qk = 8};
        p.batch = sizes[n].batch;
        p.heads_kv = sizes[n].heads_kv;
        p.group = sizes[n].group;
        p.tokens_q = sizes[n].tokens_q;
        p.tokens_kv = sizes[n].tokens_kv;
        p.band.kind = n > 3 ? ATTN_CAUSAL : 0;
        campaign_try(&c, &p);
    }
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts_past_65535)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
