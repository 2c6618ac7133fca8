/* SPDX-License-Identifier: Apache-2.0
 * `hopper` launches a block of threads a processor, and each takes tile after tile. Here the device counts as one of
 * one or two processors, so that each block takes many tiles of unlike work: windows, global tokens, segments, packed
 * and used rows, tiles without a key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "cuda/device.h"
#include "support/campaign.h"
#include "support/machine.h"

static const recipe cases[] = {
    {.name = "causal", .band = {.kind = ATTN_CAUSAL}},
    {.name = "window", .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW, .left = 150, .right = -1}},
    {.name = "window and globals", .band = {.kind = ATTN_WINDOW, .left = 70, .right = 40, .globals = 5}},
    {.name = "used", .rows_q = ROWS_USED, .rows_kv = ROWS_USED, .band = {.kind = ATTN_CAUSAL}, .sink = true},
    {.name = "packed",
     .rows_q = ROWS_PACKED,
     .rows_kv = ROWS_PACKED,
     .band = {.kind = ATTN_WINDOW, .left = 90, .right = 0}},
    {.name = "segments",
     .rows_q = ROWS_SEGMENTS,
     .rows_kv = ROWS_SEGMENTS,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW, .left = 200, .right = -1}},
    {.name = "keys alone used", .rows_kv = ROWS_USED, .softcap = 20},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static bool there_is_hopper(void) {
    for (const char *const *name = machine_device() ? machine_implementations(true) : NULL; name && *name; name++) {
        if (strcmp(*name, "hopper") == 0) {
            return true;
        }
    }
    return false;
}

static void test_several_tiles_a_block(void **state) {
    (void)state;
    static const int dims[] = {64, 128, 256};
    const char *wish = getenv("ATTN_TEST_IMPL");
    if (!there_is_hopper()) {
        print_message("skipped: no sm_90, or another implementation is asked for\n");
        return;
    }
    char before[64];
    snprintf(before, sizeof before, "%s", wish ? wish : "");
    setenv("ATTN_TEST_IMPL", "hopper", 1);
    attn__gpu *facts = &machine_device()->cuda->gpu;
    const int processors = facts->processors;
    uint64_t at = 0;
    campaign c = campaign_begin("several tiles a block");
    c.must_run = !machine_sharded();
    for (int n = 0; n < CASES; n++) {
        for (int d = 0; d < 3; d++) {
            if ((machine_intensity() <= 1 && (n + d) % 3 != 0) || !machine_shard(at++)) {
                continue;
            }
            recipe p = cases[n];
            p.dtype = (n + d) % 2 ? ATTN_F16 : ATTN_BF16;
            p.batch = 3;
            p.heads_kv = 2;
            p.group = 2;
            p.tokens_q = 600;
            p.tokens_kv = 700;
            p.dim_qk = dims[d];
            p.seed = (uint64_t)(100 * n + d + 1);
            /* Two blocks of threads share a tile of wide heads backward. */
            for (facts->processors = dims[d] > 128 ? 2 : 1; facts->processors <= 2; facts->processors++) {
                campaign_try(&c, &p);
            }
        }
    }
    facts->processors = processors;
    setenv("ATTN_TEST_IMPL", before, 1);
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_several_tiles_a_block)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
