/* SPDX-License-Identifier: Apache-2.0
 * docs/support.md shows exactly the rows of the table of refusals, and every implementation is on the page. */
#include "problem/unit.h"

#include <stdlib.h>

#include "backend.h"
#include "plan/support.h"

static char *read_page(void) {
    FILE *file = fopen(ATTN_SOURCE_DIR "/docs/support.md", "rb");
    assert_non_null(file);
    char *page = calloc(1, 1 << 16);
    assert_non_null(page);
    assert_true(fread(page, 1, (1 << 16) - 1, file) > 0);
    fclose(file);
    return page;
}

static void test_page_has_the_rows(void **state) {
    (void)state;
    char expected[4096] = "<!-- rules: begin -->\n| room | field | must be | because |\n|---|---|---|---|\n", row[512];
    for (const attn__rule *rule = attn__rules; rule->backend; rule++) {
        snprintf(row, sizeof row, "| %s | `%s` | %s | %s |\n", rule->backend, rule->field, rule->limit, rule->why);
        strcat(expected, row);
    }
    strcat(expected, "<!-- rules: end -->\n");
    char *page = read_page();
    if (!strstr(page, expected)) {
        printf("docs/support.md should hold:\n%s", expected);
    }
    assert_non_null(strstr(page, expected));
    free(page);
}

static void test_page_has_the_implementations(void **state) {
    (void)state;
    char *page = read_page(), name[64];
    for (int n = 0; attn__implementations[n]; n++) {
        snprintf(name, sizeof name, "`%s`", attn__implementations[n]->name);
        assert_non_null(strstr(page, name));
    }
    free(page);
}

static void test_rules_refuse(void **state) {
    (void)state;
    const attn__impl cpu = {.name = "some", .backend = "cpu"}, native = {.name = "native", .backend = "native"},
                     reference = {.name = "reference", .backend = "reference"};
    char field[28], reason[128];
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 1, 1, 4, 4, 576, 576);
    assert_true(attn__support_accepts(&cpu, &p, field, sizeof field, reason, sizeof reason));
    assert_string_equal(reason, "");
    p = attn_problem_dense(ATTN_F32, 1, 1, 1, 4, 4, 577, 8);
    assert_false(attn__support_accepts(&cpu, &p, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "dim_qk");
    assert_string_equal(reason, "is 577, must be at most 576");
    assert_true(attn__support_accepts(&native, &p, field, sizeof field, reason, sizeof reason));
    p = attn_problem_dense(ATTN_F16, 1, 1, 1, 4, 4, 8, 600);
    assert_false(attn__support_accepts(&cpu, &p, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "dim_v");
    p = attn_problem_dense(ATTN_F16, 1, 1, 1, 4, 4, 8, 8);
    p.flags = ATTN_DEVICE_LENGTHS;
    assert_false(attn__support_accepts(&reference, &p, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "flags");
    assert_string_equal(reason, "is 0x40 with ATTN_DEVICE_LENGTHS, must be without ATTN_DEVICE_LENGTHS");
    p.flags = ATTN_DEVICE_SEED | ATTN_USED_Q;
    assert_false(attn__support_accepts(&cpu, &p, field, sizeof field, reason, sizeof reason));
    assert_string_equal(reason, "is 0x82 with ATTN_DEVICE_SEED, must be without ATTN_DEVICE_SEED");
    p = attn_problem_dense(ATTN_F64, 1, 1, 1, 4, 4, 8, 8);
    assert_false(attn__support_accepts(&cpu, &p, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "q.dtype");
    assert_false(attn__support_accepts(&native, &p, field, sizeof field, reason, sizeof reason));
    assert_true(attn__support_accepts(&reference, &p, field, sizeof field, reason, sizeof reason));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_has_the_rows),
        cmocka_unit_test(test_page_has_the_implementations),
        cmocka_unit_test(test_rules_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
