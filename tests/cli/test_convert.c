/* SPDX-License-Identifier: Apache-2.0
 * The command's element types against the library's, over every 16-bit pattern and around every rounding edge. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

#include "base/dtype.h"
#include "convert.h"

static void every_16_bit_pattern(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        uint16_t half = (uint16_t)bits, back;
        double f16 = cli_load(CLI_F16, &half, 0), bf16 = cli_load(CLI_BF16, &half, 0);
        double expected16 = (double)attn__f16_to_f32(half), expected_brain = (double)attn__bf16_to_f32(half);
        assert_true(f16 == expected16 || (isnan(f16) && isnan(expected16)));
        assert_true(bf16 == expected_brain || (isnan(bf16) && isnan(expected_brain)));
        cli_store(CLI_F16, &back, 0, f16);
        assert_true(back == half || (isnan(f16) && isnan(cli_load(CLI_F16, &back, 0))));
        cli_store(CLI_BF16, &back, 0, bf16);
        assert_true(back == half || (isnan(bf16) && isnan(cli_load(CLI_BF16, &back, 0))));
    }
}

/* Between two neighbours: the middle goes to the even one, what is a hair off it goes to its own side. */
static void rounds_once_to_nearest_even(void **state) {
    (void)state;
    const cli_type types[] = {CLI_F16, CLI_BF16};
    for (int t = 0; t < 2; t++) {
        uint16_t infinity = t ? 0x7f80 : 0x7c00;
        for (uint16_t low = 0; low + 1 < infinity; low++) {
            uint16_t high = (uint16_t)(low + 1), got;
            double a = cli_load(types[t], &low, 0), b = cli_load(types[t], &high, 0), middle = (a + b) / 2;
            cli_store(types[t], &got, 0, middle);
            assert_int_equal(got, low & 1 ? high : low);
            cli_store(types[t], &got, 0, nextafter(middle, 0));
            assert_int_equal(got, low);
            cli_store(types[t], &got, 0, -nextafter(middle, INFINITY));
            assert_int_equal(got, high | 0x8000);
        }
        uint16_t got;
        cli_store(types[t], &got, 0, cli_largest(types[t]));
        assert_int_equal(got, infinity - 1);
        cli_store(types[t], &got, 0, 1e300);
        assert_int_equal(got, infinity);
        cli_store(types[t], &got, 0, 1e-300);
        assert_int_equal(got, 0);
        cli_store(types[t], &got, 0, -0.0);
        assert_int_equal(got, 0x8000);
    }
    uint16_t once; /* a float in between would round this twice: down to the middle, then to even */
    cli_store(CLI_F16, &once, 0, 1 + 0x1p-11 + 0x1p-40);
    assert_int_equal(once, 0x3c01);
}

static void overflow_is_counted(void **state) {
    (void)state;
    double from[6] = {1, 70000, -70000, INFINITY, NAN, 65504};
    uint16_t to[6];
    cli_view source = {CLI_F64, {1, 1, 1, 6}, {0, 0, 0, 1}, from}, target = {CLI_F16, {1, 1, 1, 6}, {0, 0, 0, 1}, to};
    cli_overflow overflow = {0};
    cli_convert(&target, &source, &overflow);
    assert_int_equal(overflow.count, 2);
    assert_int_equal(overflow.first[3], 1);
    assert_true(overflow.value == 70000);
}

static void units_in_the_last_place(void **state) {
    (void)state;
    assert_true(cli_ulp(CLI_F32, 1) == 0x1p-23 && cli_ulp(CLI_F32, 1.99) == 0x1p-23 && cli_ulp(CLI_F32, -2) == 0x1p-22);
    assert_true(cli_ulp(CLI_F16, 1) == 0x1p-10 && cli_ulp(CLI_BF16, 1) == 0x1p-7 && cli_ulp(CLI_F64, 1) == 0x1p-52);
    assert_true(cli_ulp(CLI_F16, 0) == 0x1p-24 && cli_ulp(CLI_F16, 0x1p-20) == 0x1p-24);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_pattern),
        cmocka_unit_test(rounds_once_to_nearest_even),
        cmocka_unit_test(overflow_is_counted),
        cmocka_unit_test(units_in_the_last_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
