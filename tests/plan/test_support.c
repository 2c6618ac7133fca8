/* SPDX-License-Identifier: Apache-2.0
 * docs/support.md shows exactly the rows of the table of refusals, and every implementation is on the page. */
#include "problem/unit.h"

#include <stdlib.h>

#include "backend.h"
#include "plan/support.h"
#include "problem/problem.h"

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
    char expected[8192] = "<!-- rules: begin -->\n| room | field | must be | because |\n|---|---|---|---|\n", row[512];
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
    assert_true(attn__support_accepts(&cpu, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_string_equal(reason, "");
    p = attn_problem_dense(ATTN_F32, 1, 1, 1, 4, 4, 577, 8);
    assert_false(attn__support_accepts(&cpu, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "dim_qk");
    assert_string_equal(reason, "is 577, must be at most 576");
    assert_true(attn__support_accepts(&native, &p, NULL, field, sizeof field, reason, sizeof reason));
    p = attn_problem_dense(ATTN_F16, 1, 1, 1, 4, 4, 8, 600);
    assert_false(attn__support_accepts(&cpu, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "dim_v");
    p = attn_problem_dense(ATTN_F16, 1, 1, 1, 4, 4, 8, 8);
    p.flags = ATTN_DEVICE_LENGTHS;
    assert_false(attn__support_accepts(&reference, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "flags");
    assert_string_equal(reason, "is 0x40 with ATTN_DEVICE_LENGTHS, must be without ATTN_DEVICE_LENGTHS");
    p.flags = ATTN_DEVICE_SEED | ATTN_USED_Q;
    assert_false(attn__support_accepts(&cpu, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_string_equal(reason, "is 0x82 with ATTN_DEVICE_SEED, must be without ATTN_DEVICE_SEED");
    p = attn_problem_dense(ATTN_F64, 1, 1, 1, 4, 4, 8, 8);
    assert_false(attn__support_accepts(&cpu, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_string_equal(field, "q.dtype");
    assert_false(attn__support_accepts(&native, &p, NULL, field, sizeof field, reason, sizeof reason));
    assert_true(attn__support_accepts(&reference, &p, NULL, field, sizeof field, reason, sizeof reason));
}

/* What the implementations of a GPU refuse, of which two rules ask for the architecture and for a flag. */
static void test_rules_of_gpus(void **state) {
    (void)state;
    static const struct {
        const char *backend, *text;
        int arch;
        const char *field, *reason;
    } rows[] = {
        {"mma", "fwd:f16:b1:h1:s4:d256", 75, "", ""},
        {"mma", "fwd:bf16:b1:h1:s4:d256:dropout=0.5:device_seed:used_q:device_lengths", 80, "", ""},
        {"mma", "fwd:f32:b1:h1:s4:d64:tf32", 80, "", ""},
        {"mma", "fwd:f32:b1:h1:s4:d64", 80, "q.dtype",
         "is f32 without ATTN_ALLOW_TF32, must be f16, bf16, or f32 with ATTN_ALLOW_TF32"},
        {"mma", "fwd:f64:b1:h1:s4:d64", 80, "q.dtype", "is f64, must be f16, bf16, or f32 with ATTN_ALLOW_TF32"},
        {"mma", "fwd:bf16:b1:h1:s4:d64", 75, "q.dtype", "is bf16 on sm_75, must be f16 before sm_80"},
        {"mma", "bwd:f32:b1:h1:s4:d64:tf32", 75, "q.dtype", "is f32 on sm_75, must be f16 before sm_80"},
        {"mma", "fwd:f16:b1:h1:s4:dqk576:dv512", 90, "", ""},
        {"mma", "fwd:f16:b1:h1:s4:dqk577:dv8", 90, "dim_qk", "is 577, must be at most 576"},
        {"mma", "fwd:f16:b1:h1:s4:dqk8:dv513", 90, "dim_v", "is 513, must be at most 512"},
        {"mma", "bwd:f16:b1:h1:s4:dqk257:dv8", 90, "dim_qk", "is 257, must be at most 256 backward"},
        {"mma", "bwd:f16:b1:h1:s4:dqk8:dv257", 90, "dim_v", "is 257, must be at most 256 backward"},
        {"ffma", "fwd:bf16:b1:h1:s4:d576", 75, "", ""},
        {"ffma", "fwd:f32:b1:h1:s4:dqk577:dv512", 75, "dim_qk", "is 577, must be at most 576"},
        {"ffma", "fwd:f32:b1:h1:s4:dqk8:dv577", 75, "dim_v", "is 577, must be at most 576"},
        {"ffma", "fwd:f64:b1:h1:s4:d8", 90, "q.dtype", "is f64, must be f32, f16 or bf16"},
        {"cuda_native", "bwd:f32:b1:h1:s4:d1000", 75, "", ""},
        {"hopper", "fwd:bf16:b1:h1:s4:d256", 90, "", ""},
        {"hopper", "fwd:f16:b1:h1:s4:dqk8:dv16:softcap=30:sink=f32:packed_q=7:packed_kv=9:causal", 90, "", ""},
        {"hopper", "bwd:f16:b1:h1:s4:d128:segments_q=9,2:segments_kv=8,2:dq=f32:dk=f32:dv=f32", 90, "", ""},
        {"hopper", "fwd:f32:b1:h1:s4:d64:tf32", 90, "q.dtype", "is f32, must be f16 or bf16"},
        {"hopper", "fwd:f16:b1:h1:s4:d64:o=f32", 90, "o.dtype", "is f32, must be q's"},
        {"hopper", "fwd:f16:b1:h1:s4:dqk20:dv8", 90, "dim_qk", "is 20, must be a multiple of 8, at most 256"},
        {"hopper", "fwd:f16:b1:h1:s4:dqk8:dv264", 90, "dim_v", "is 264, must be a multiple of 8, at most 256"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:scale=0", 90, "scale", "is 0, must be above 0"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:bias=f32", 90, "bias", "is given, must be none"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:mask=u8", 90, "mask", "is given, must be none"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:alibi=f32", 90, "alibi", "is given, must be none"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:dropout=0.5", 90, "dropout", "is above 0, must be 0"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:q=[32,8,16,2]", 90, "q.stride",
         "is 32,8,16,2, must be dim close, other strides positive multiples of 8"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:k=[9,9,9,1]", 90, "k.stride",
         "is 9,9,9,1, must be dim close, other strides positive multiples of 8"},
        {"hopper", "fwd:f16:b1:h1:s1:d8:k=[9,9,9,1]", 90, "", ""}, /* axes of one place */
        {"hopper", "fwd:f16:b2:h1:s4:d8:v=[0,8,8,1]", 90, "v.stride",
         "is 0,8,8,1, must be dim close, other strides positive multiples of 8"},
        {"hopper", "fwd:f16:b1:h1:s4:d8:o=[-32,8,-8,1]", 90, "o.stride",
         "is -32,8,-8,1, must be dim close, other strides positive multiples of 8 forward"},
        {"hopper", "bwd:f16:b1:h1:s4:d8:o=[9,9,9,1]:dout=[bhsd]", 90, "", ""},
        {"hopper", "bwd:f16:b1:h1:s4:d8:dout=[9,9,9,1]", 90, "dout.stride",
         "is 9,9,9,1, must be dim close, other strides positive multiples of 8"},
        {"hopper", "bwd:f16:b1:h1:s4:dqk136:dv8", 90, "", ""},
        {"hopper", "bwd:f16:b1:h1:s4:d64:deterministic", 90, "", ""},
        {"hopper", "bwd:f16:b1:h1:s4:d8:softcap=2", 90, "", ""},
        {"hopper", "bwd:f16:b1:h1:s4:d8:dout=f32", 90, "dout.dtype", "is f32, must be q's"},
        {"hopper", "bwd:f16:b1:h1:sq4:skv0:d8", 90, "tokens_q",
         "is 4, tokens_kv 0, must be above 0 backward, as tokens_kv"},
        {"hopper", "fwd:f16:b1:h1:s4:d8", 80, "device",
         "is sm_80, or its driver older than CUDA 12, must be sm_90 with a driver of CUDA 12"},
        {"cuda_native", "bwd:f64:b1:h1:s4:d8", 75, "q.dtype", "is f64, must be f32, f16 or bf16"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        const attn__impl impl = {.name = "some", .backend = rows[n].backend};
        const attn__gpu gpu = {.arch = rows[n].arch, .wgmma_cycle = rows[n].arch == 90};
        char field[28], reason[128];
        attn_problem p, canonical;
        assert_int_equal(attn_problem_parse(&p, rows[n].text, NULL), ATTN_OK);
        assert_int_equal(attn__problem_canonical(&p, &canonical, NULL), ATTN_OK);
        bool accepts = attn__support_accepts(&impl, &canonical, &gpu, field, sizeof field, reason, sizeof reason);
        assert_string_equal(field, rows[n].field);
        assert_string_equal(reason, rows[n].reason);
        assert_int_equal(accepts, rows[n].field[0] == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_has_the_rows),
        cmocka_unit_test(test_page_has_the_implementations),
        cmocka_unit_test(test_rules_refuse),
        cmocka_unit_test(test_rules_of_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
