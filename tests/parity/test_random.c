/* SPDX-License-Identifier: Apache-2.0
 * Every implementation against the oracle on problems that mix all features, sizes, row maps, strides and hints at
 * random. A failing case prints its seed: ATTN_TEST_SEED=n runs that one alone, ATTN_TEST_IMPL=name on one
 * implementation, ATTN_TEST_INTENSITY sets how many. ATTN_TEST_FIRST shifts the first seed, for long hunts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "support/campaign.h"
#include "support/machine.h"

static const int64_t cases[] = {40, 900, 20000, 2000000};
static const int64_t device_cases[] = {16, 160, 2000, 200000}; /* each compiles kernels of its own */
static const int64_t half_cases[] = {8, 40, 1000, 20000};

static int level(void) {
    int intensity = machine_intensity();
    return intensity < 0 ? 0 : intensity > 3 ? 3 : intensity;
}

static void draw(const char *title, recipe (*recipe_of)(uint64_t seed), bool must_run, int64_t count) {
    campaign c = campaign_begin(title);
    c.must_run = must_run;
    const char *shift = getenv("ATTN_TEST_FIRST");
    uint64_t seed, first = shift ? strtoull(shift, NULL, 0) : 1;
    if (machine_seed(&seed)) {
        recipe p = recipe_of(seed);
        campaign_try_again(&c, &p);
    } else {
        for (int64_t n = 0; n < count; n++) {
            recipe p = recipe_of(first + (uint64_t)n);
            if (!machine_shard((uint64_t)n)) {
                continue;
            }
            if (n % 7 == 0) {
                campaign_try_again(&c, &p);
            } else {
                campaign_try(&c, &p);
            }
        }
    }
    assert_int_equal(campaign_end(&c), 0);
}

static void test_random(void **state) {
    (void)state;
    draw("random", recipe_random, false, (machine_device() ? device_cases : cases)[level()]);
}

static void test_random_half(void **state) {
    (void)state;
    draw("random half", recipe_random_half, true, half_cases[level()]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_random_half)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
