/* SPDX-License-Identifier: Apache-2.0
 * Filling attn_error: texts are cut to fit, never written past, and a missing struct is fine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/error.h"

static void test_fail_fills(void **state) {
    (void)state;
    attn_error error;
    memset(&error, 0xee, sizeof error);
    assert_int_equal(attn__fail(&error, ATTN_ERR_INVALID, "k.stride[2]", "is %d, must be at least %d", 96, 128),
                     ATTN_ERR_INVALID);
    assert_int_equal(error.status, ATTN_ERR_INVALID);
    assert_string_equal(error.field, "k.stride[2]");
    assert_string_equal(error.message, "is 96, must be at least 128");
    assert_int_equal(attn__fail(NULL, ATTN_ERR_MEMORY, "x", "y"), ATTN_ERR_MEMORY);
}

static void test_long_text_is_cut(void **state) {
    (void)state;
    struct {
        attn_error error;
        char guard[16];
    } room;
    char longer[600];
    memset(&room, 0x5a, sizeof room);
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    attn__fail(&room.error, ATTN_ERR_INTERNAL, longer, "%s", longer);
    assert_int_equal(strlen(room.error.field), sizeof room.error.field - 1);
    assert_int_equal(strlen(room.error.message), sizeof room.error.message - 1);
    for (size_t i = 0; i < sizeof room.guard; i++) {
        assert_int_equal(room.guard[i], 0x5a);
    }
}

static void test_succeed_clears(void **state) {
    (void)state;
    attn_error error;
    memset(&error, 0xee, sizeof error);
    assert_int_equal(attn__succeed(&error), ATTN_OK);
    assert_int_equal(error.status, ATTN_OK);
    assert_string_equal(error.field, "");
    assert_string_equal(error.message, "");
}

static void test_names(void **state) {
    (void)state;
    assert_string_equal(attn_status_name(ATTN_OK), "OK");
    assert_string_equal(attn_status_name(ATTN_ERR_UNSUPPORTED), "ERR_UNSUPPORTED");
    assert_string_equal(attn_status_text(ATTN_ERR_MEMORY), "an allocation failed");
    assert_string_equal(attn_status_name((attn_status)77), "?");
    assert_string_equal(attn_status_text((attn_status)-1), "?");
}

static void test_abi(void **state) {
    (void)state;
    assert_int_equal(sizeof(attn_error), 256);
    assert_int_equal(ATTN_ERR_INTERNAL, 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_fills),
        cmocka_unit_test(test_long_text_is_cut),
        cmocka_unit_test(test_succeed_clears),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_abi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
