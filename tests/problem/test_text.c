/* SPDX-License-Identifier: Apache-2.0
 * The text form: nothing of a sound problem is lost, and nothing unsound or sloppy is read. */
#include "problem/unit.h"

#include <locale.h>
#include <math.h>

#include "base/number.h"
#include "problem/problem.h"
#include "problem/random_problem.h"

enum { ROUNDS = 20000 };

static void test_round_trip(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        attn_problem p = random_problem(), canonical, again, parsed;
        attn_error error;
        char text[4096], second[4096];
        expect_success(attn__problem_canonical(&p, &canonical, &error), &error);
        expect_success(attn__problem_canonical(&canonical, &again, &error), &error);
        assert_true(same_problems(&canonical, &again));
        size_t length = attn_problem_format(&p, text, sizeof text);
        assert_int_equal(length, strlen(text));
        memset(&parsed, 0x5a, sizeof parsed);
        if (attn_problem_parse(&parsed, text, &error) || !same_problems(&canonical, &parsed)) {
            printf("%s\n%s: %s\n", text, error.field, error.message);
        }
        expect_success(attn_problem_parse(&parsed, text, &error), &error);
        assert_true(same_problems(&canonical, &parsed));
        attn_problem_format(&parsed, second, sizeof second);
        assert_string_equal(text, second);
    }
}

static void test_known_texts(void **state) {
    (void)state;
    static const char *const texts[] = {
        "fwd:bf16:b2:hq32:hk8:sq4096:skv4096:d128:causal",
        "bwd:f32:b1:hq1:hk1:sq0:skv7:dqk192:dv128:window=-1,0:globals=4:topleft:accumulate",
        "fwd:f16:b3:hq4:hk2:sq5:skv9:d8:packed_q=11:packed_kv=20:used_q:used_kv:causal:window=127,-1",
        "fwd:f64:b3:hq4:hk2:sq50:skv90:d8:segments_q=12,2:segments_kv=30,4:scale=-0.5:softcap=30:dropout=0.1",
        "bwd:f32:b3:hq4:hk2:sq50:skv90:d8:packed_q=99:dropout=0.5:accumulate:deterministic:tf32:device_lengths:device_"
        "seed",
        "fwd:f16:b3:hq4:hk2:sq5:skv9:d8:packed_q=11:packed_kv=20:device_lengths:clear_rest",
        "bwd:bf16:b2:hq4:hk4:sq16:skv16:d64:q=[bhsd]:k=[bhsd]:o=f32:lse=[128,1,8,0]:bias=bf16[0,0,16,1]:mask=u8:"
        "alibi=f32[4,1,0,0]:sink=f32:dq=f32:dbias=[1025,256,16,1]",
    };
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        attn_problem p;
        attn_error error;
        char text[1024];
        expect_success(attn_problem_parse(&p, texts[n], &error), &error);
        attn_problem_format(&p, text, sizeof text);
        assert_string_equal(text, texts[n]);
    }
}

static void test_plain_problem(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F16, 2, 8, 2, 5, 7, 16, 24), canonical, parsed;
    char text[256];
    attn_problem_format(&p, text, sizeof text);
    assert_string_equal(text, "fwd:f16:b2:hq8:hk2:sq5:skv7:dqk16:dv24");
    assert_int_equal(attn__problem_canonical(&p, &canonical, NULL), ATTN_OK);
    /* Any order and the short words mean the same. */
    assert_int_equal(attn_problem_parse(&parsed, "fwd:f16:dv24:skv7:dqk16:hk2:b2:hq8:sq5", NULL), ATTN_OK);
    assert_true(same_problems(&canonical, &parsed));
    attn_problem_parse(&parsed, "bwd:f32:b1:h3:s9:d4", NULL);
    attn_problem_format(&parsed, text, sizeof text);
    assert_string_equal(text, "bwd:f32:b1:hq3:hk3:sq9:skv9:d4");
}

static void test_length_and_cut(void **state) {
    (void)state;
    attn_problem p = attn_problem_dense(ATTN_F32, 1, 2, 1, 3, 4, 5, 5);
    char whole[128], cut[128];
    size_t length = attn_problem_format(&p, whole, sizeof whole);
    assert_int_equal(attn_problem_format(&p, NULL, 0), length);
    for (size_t size = 1; size <= length + 2; size++) {
        memset(cut, 'z', sizeof cut);
        assert_int_equal(attn_problem_format(&p, cut, size), length);
        size_t kept = size - 1 < length ? size - 1 : length;
        assert_int_equal(strlen(cut), kept);
        assert_int_equal(memcmp(cut, whole, kept), 0);
        assert_int_equal(cut[size], 'z');
    }
    p.heads_q = 3;
    p.heads_kv = 2;
    memset(cut, 'z', sizeof cut);
    assert_int_equal(attn_problem_format(&p, cut, sizeof cut), 0);
    assert_string_equal(cut, "");
    assert_int_equal(attn_problem_format(NULL, NULL, 0), 0);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text, *field, *part;
    } rows[] = {
        {"", "text", "\"\" at character 1 must be fwd or bwd"},
        {"fwd", "text", "ends before the type"},
        {"forward:f32", "text", "\"forward\" at character 1"},
        {"fwd:f8", "text", "\"f8\" at character 5 must be f32, f16, bf16 or f64"},
        {"fwd:u8", "text", "\"u8\" at character 5"},
        {"fwd:f32:", "text", "\"\" at character 9 is not known"},
        {"fwd:f32:b1:hq1:hk1:sq1:skv1", "text", "lacks d (or dqk)"},
        {"fwd:f32:hq1:hk1:sq1:skv1:d1", "text", "lacks b"},
        {"fwd:f32:b1:h1:s1:dqk1", "text", "lacks d (or dv)"},
        {"fwd:f32:b1:h1:s1:d1:", "text", "at character 21 is not known"},
        {"fwd:f32:b1::h1:s1:d1", "text", "\"\" at character 12"},
        {"fwd:f32:b1:h1:s1:d1:Causal", "text", "\"Causal\" at character 21 is not known"},
        {"fwd:f32:b1:h1:s1:d1:causal:causal", "text", "\"causal\" at character 28 gives what stands before"},
        {"fwd:f32:b1:h1:hq1:s1:d1", "text", "\"hq1\" at character 15 gives what stands before"},
        {"fwd:f32:b1:hk1:h1:s1:d1", "text", "\"h1\" at character 16 gives what stands before"},
        {"fwd:f32:b1:h1:s1:d1:packed_q=4:segments_q=4,1", "text", "gives what stands before"},
        {"fwd:f32:b1:h1:s1:d1:q=[1,1,1,1]:q=[1,1,1,1]", "text", "gives what stands before"},
        {"fwd:f32:b01:h1:s1:d1", "text", "\"b01\" at character 9"},
        {"fwd:f32:b1x:h1:s1:d1", "text", "\"b1x\" at character 9"},
        {"fwd:f32:b-1:h1:s1:d1", "text", "\"b-1\" at character 9 is not known"},
        {"fwd:f32:b9223372036854775808:h1:s1:d1", "text", "up to 63 bits"},
        {"fwd:f32: b1:h1:s1:d1", "text", "\"?b1\" at character 9 is not known"},
        {"fwd:f32:b1:h1:s1:d1:causal=1", "text", "takes no value"},
        {"fwd:f32:b1:h1:s1:d1:causal=", "text", "takes no value"},
        {"fwd:f32:b1:h1:s1:d1:window", "text", "needs a value"},
        {"fwd:f32:b1:h1:s1:d1:window=3", "text", "needs two whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:window=3,4,5", "text", "needs two whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:window=3,", "text", "needs two whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:window=-0,1", "text", "needs two whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:globals=1.5", "text", "needs one whole number"},
        {"fwd:f32:b1:h1:s1:d1:scale=nan", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:scale=inf", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:scale=1e39", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:scale=0x1p3", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:scale=+1", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:scale=.5", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:scale=1,5", "text", "needs a finite decimal number"},
        {"fwd:f32:b1:h1:s1:d1:q=", "text", "unknown type"},
        {"fwd:f32:b1:h1:s1:d1:q", "text", "is not known"},
        {"fwd:f32:b1:h1:s1:d1:bias=none", "text", "unknown type"},
        {"fwd:f32:b1:h1:s1:d1:bias=f32[1,2,3]", "text", "[bhsd] or four whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:bias=f32[1,2,3,4,5]", "text", "[bhsd] or four whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:bias=f32[1,2,3,4", "text", "[bhsd] or four whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:bias=f32[", "text", "[bhsd] or four whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:bias=f32[bshd]", "text", "[bhsd] or four whole numbers"},
        {"fwd:f32:b1:h1:s1:d1:dq=f32", "text", "belongs to bwd only"},
        {"fwd:f32:b1:h1:s1:d1:accumulate", "text", "belongs to bwd only"},
        {"fwd:f32:b1:h1:s1:d1:deterministic", "text", "has deterministic, which belongs to bwd only"},
        {"bwd:f32:b1:h1:s1:d1:deterministic=1", "text", "takes no value"},
        {"fwd:bf16:b1:h1:s1:d1:tf32", "text", "has tf32, which belongs to f32 only, not to bf16"},
        {"fwd:f32:b1:h1:s1:d1:device_lengths:device_lengths", "text", "gives what stands before"},
        {"fwd:f32:b1:h1:s1:d1:device", "text", "\"device\" at character 21 is not known"},
        {"fwd:f32:b9:h2147483647:s2147483647:d1", "batch", "past 2^60"},
        {"fwd:f32:b9:h9999:s2147483647:d1:mask=u8", "mask", "give strides"},
        {"fwd:f32:b1:hq3:hk2:s1:d1", "heads_q", "is 3, must be a multiple of heads_kv = 2"},
        {"fwd:f32:b1:h1:s1:d0", "dim_qk", "is 0, must be at least 1"},
        {"fwd:f32:b1:h1:s1:d1:k=f16", "k.dtype", "is f16 (2), must be q's type"},
        {"fwd:f32:b1:h1:s1:d1:dropout=1", "dropout", "is 1, must be at least 0 and below 1"},
        {"bwd:f32:b1:h1:s1:d1:dbias=f32", "dbias.dtype", "the problem has no bias"},
    };
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        attn_problem p, before;
        attn_error error;
        memset(&p, 0x5a, sizeof p);
        before = p;
        attn_status status = attn_problem_parse(&p, rows[n].text, &error);
        if (status != ATTN_ERR_INVALID || strcmp(error.field, rows[n].field) != 0) {
            printf("%s\n", rows[n].text);
        }
        expect_error(status, &error, ATTN_ERR_INVALID, rows[n].field, rows[n].part);
        assert_int_equal(memcmp(&p, &before, sizeof p), 0);
    }
    attn_error error;
    attn_problem p;
    expect_error(attn_problem_parse(NULL, "fwd", &error), &error, ATTN_ERR_INVALID, "problem", "is NULL");
    expect_error(attn_problem_parse(&p, NULL, &error), &error, ATTN_ERR_INVALID, "text", "is NULL");
    assert_int_equal(attn_problem_parse(&p, "fwd", NULL), ATTN_ERR_INVALID);
}

static void test_floats(void **state) {
    (void)state;
    static const float values[] = {0.1f,     1.0f / 3,        16777216.0f, 3.40282347e38f,
                                   1.4e-45f, 1.17549435e-38f, 5e-5f,       1e10f};
    char text[32];
    float back;
    for (size_t n = 0; n < sizeof values / sizeof values[0]; n++) {
        attn__float_write(values[n], text);
        assert_true(attn__float_read(text, strlen(text), &back));
        assert_true(same_floats(back, values[n]));
        attn__float_write(-values[n], text);
        assert_true(attn__float_read(text, strlen(text), &back));
        assert_true(same_floats(back, -values[n]));
    }
    attn__float_write(0.1f, text);
    assert_string_equal(text, "0.1");
    for (int round = 0; round < 100000; round++) {
        uint32_t bits = (uint32_t)lottery_word();
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) {
            attn__float_write(value, text);
            assert_true(attn__float_read(text, strlen(text), &back));
            assert_true(same_floats(back, value));
        }
    }
}

/* Commas as decimal points elsewhere in the program change nothing here. */
static void test_locale(void **state) {
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "ps_AF.UTF-8", "de_DE"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        if (setlocale(LC_NUMERIC, names[n])) {
            const char *text = "fwd:f32:b1:hq1:hk1:sq1:skv1:d1:scale=0.3333333:softcap=1e-10";
            attn_problem p;
            char back[256];
            assert_int_equal(attn_problem_parse(&p, text, NULL), ATTN_OK);
            attn_problem_format(&p, back, sizeof back);
            setlocale(LC_NUMERIC, "C");
            assert_string_equal(back, text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_known_texts), cmocka_unit_test(test_plain_problem),
        cmocka_unit_test(test_length_and_cut), cmocka_unit_test(test_refusals),    cmocka_unit_test(test_floats),
        cmocka_unit_test(test_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
