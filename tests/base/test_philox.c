/* SPDX-License-Identifier: Apache-2.0
 * Philox4x32-10 against the known answers that its authors publish (Random123, kat_vectors), and the dropout rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/philox.h"

static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        attn__u32x4 counter;
        uint32_t key[2];
        attn__u32x4 answer;
    } rows[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attn__u32x4 got = attn__philox(rows[i].counter, rows[i].key[0], rows[i].key[1]);
        assert_memory_equal(&got, &rows[i].answer, sizeof got);
    }
}

static void test_threshold(void **state) {
    (void)state;
    assert_int_equal(attn__dropout_key_make(1, 2, 0.0f).threshold, 0);
    assert_int_equal(attn__dropout_key_make(1, 2, 0.25f).threshold, 0x40000000u);
    assert_int_equal(attn__dropout_key_make(1, 2, 0.5f).threshold, 0x80000000u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_threshold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
