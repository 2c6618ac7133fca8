/* SPDX-License-Identifier: Apache-2.0
 * Conversions of 16-bit types, over every bit pattern, against plain arithmetic. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/dtype.h"

/* The value of a float with `exponent_bits` and `mantissa_bits`, from its definition. */
static double decode(uint16_t bits, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa ? NAN : sign * INFINITY;
    }
    if (exponent == 0) {
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    }
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

static void test_widening(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000u; bits++) {
        double half = decode((uint16_t)bits, 5, 10), brain = decode((uint16_t)bits, 8, 7);
        double got_half = attn__f16_to_f32((uint16_t)bits), got_brain = attn__bf16_to_f32((uint16_t)bits);
        assert_true(isnan(half) ? isnan(got_half) : half == got_half && signbit(half) == signbit(got_half));
        assert_true(isnan(brain) ? isnan(got_brain) : brain == got_brain && signbit(brain) == signbit(got_brain));
    }
}

/* Nearest, ties to even: a value narrows to itself; a quarter step above or below comes back; halfway goes to the
 * even neighbour. */
static void check_narrowing(int exponent_bits, int mantissa_bits, uint16_t (*narrow)(float)) {
    uint16_t infinity = (uint16_t)(((1u << exponent_bits) - 1u) << mantissa_bits);
    for (uint32_t bits = 0; bits + 1 < infinity; bits++) {
        double low = decode((uint16_t)bits, exponent_bits, mantissa_bits);
        double high = decode((uint16_t)(bits + 1), exponent_bits, mantissa_bits);
        assert_int_equal(narrow((float)low), bits);
        assert_int_equal(narrow((float)(low + (high - low) / 4)), bits);
        assert_int_equal(narrow((float)(low + (high - low) * 3 / 4)), bits + 1);
        assert_int_equal(narrow((float)((low + high) / 2)), bits & 1 ? bits + 1 : bits);
        assert_int_equal(narrow((float)-low), bits | 0x8000u);
    }
    assert_int_equal(narrow(INFINITY), infinity);
    assert_int_equal(narrow(-INFINITY), infinity | 0x8000u);
    assert_true(isnan(decode(narrow(NAN), exponent_bits, mantissa_bits)));
}

static void test_narrow_f16(void **state) {
    (void)state;
    check_narrowing(5, 10, attn__f32_to_f16);
    assert_int_equal(attn__f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(attn__f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(attn__f32_to_f16(1e30f), 0x7c00);
}

static void test_narrow_bf16(void **state) {
    (void)state;
    check_narrowing(8, 7, attn__f32_to_bf16);
    assert_int_equal(attn__f32_to_bf16(attn__bits_f32(0x7f7fffffu)), 0x7f80);
    /* A NaN whose payload lies in the bits that are cut off stays a NaN. */
    assert_int_equal(attn__f32_to_bf16(attn__bits_f32(0x7f800001u)) & 0x7fff, 0x7fc0);
}

static void test_load_store(void **state) {
    (void)state;
    const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        unsigned char room[3 * 8];
        attn__store(types[i], room, 1, -1.5);
        assert_true(attn__load(types[i], room, 1) == -1.5);
    }
    uint8_t flags[2] = {7, 7};
    attn__store(ATTN_U8, flags, 1, 3.0);
    assert_int_equal(flags[0], 7);
    assert_int_equal(flags[1], 1);
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(attn_dtype_name(ATTN_BF16), "bf16");
    assert_string_equal(attn_dtype_name((attn_dtype)99), "?");
    assert_int_equal(attn_dtype_size(ATTN_F64), 8);
    assert_int_equal(attn_dtype_size((attn_dtype)99), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widening),   cmocka_unit_test(test_narrow_f16), cmocka_unit_test(test_narrow_bf16),
        cmocka_unit_test(test_load_store), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
