/* SPDX-License-Identifier: Apache-2.0
 * Soundness of problems: every error by field, value and limit, and what must be accepted beside it; defaults. */
#include "problem/unit.h"

#include <math.h>

#include "problem/problem.h"

static attn_problem dense(void) {
    return attn_problem_dense(ATTN_F32, 2, 4, 2, 5, 7, 16, 24);
}

static attn_problem segmented(void) {
    attn_problem p = dense();
    p.rows_q = p.rows_kv = ATTN_SEGMENTS;
    p.total_q = 10;
    p.total_kv = 12;
    p.segments_q = p.segments_kv = 3;
    p.q.stride[0] = p.k.stride[0] = p.v.stride[0] = p.o.stride[0] = 0;
    return p;
}

static attn_problem masked(attn_pass pass) {
    attn_problem p = dense();
    p.pass = pass;
    p.bias = (attn_layout){ATTN_F32, {0, 35, 7, 1}};
    p.mask = (attn_layout){ATTN_U8, {0, 0, 7, 1}};
    p.alibi = (attn_layout){ATTN_F32, {0, 1, 0, 0}};
    p.sink = (attn_layout){ATTN_F32, {0, 1, 0, 0}};
    return p;
}

#define REFUSED(base, field, part, ...)                                                                                \
    do {                                                                                                               \
        attn_problem p = base;                                                                                         \
        attn_error error;                                                                                              \
        __VA_ARGS__;                                                                                                   \
        expect_error(attn_problem_check(&p, &error), &error, ATTN_ERR_INVALID, field, part);                           \
        assert_int_equal(attn_problem_check(&p, NULL), ATTN_ERR_INVALID);                                              \
    } while (0)

#define ACCEPTED(base, ...)                                                                                            \
    do {                                                                                                               \
        attn_problem p = base;                                                                                         \
        attn_error error;                                                                                              \
        __VA_ARGS__;                                                                                                   \
        expect_success(attn_problem_check(&p, &error), &error);                                                        \
    } while (0)

static void test_null(void **state) {
    (void)state;
    attn_error error;
    expect_error(attn_problem_check(NULL, &error), &error, ATTN_ERR_INVALID, "problem", "is NULL");
}

static void test_enums_and_flags(void **state) {
    (void)state;
    REFUSED(dense(), "pass", "is 2, must be at most 1", p.pass = (attn_pass)2);
    REFUSED(dense(), "flags", "is 0x203, has unknown bits 0x200", p.flags = 0x203);
    REFUSED(dense(), "rows_q", "is 3, must be at most 2", p.rows_q = (attn_rows)3);
    REFUSED(dense(), "rows_kv", "is 9, must be at most 2", p.rows_kv = (attn_rows)9);
    REFUSED(dense(), "band.kind", "is 0x9, has unknown bits 0x8", p.band.kind = 9);
    REFUSED(dense(), "band.corner", "is 2, must be at most 1", p.band.corner = (attn_corner)2);
    REFUSED(segmented(), "flags", "ATTN_USED_Q is set, but rows_q is segments", p.flags = ATTN_USED_Q);
    REFUSED(segmented(), "flags", "ATTN_USED_KV is set, but rows_kv is segments", p.flags = ATTN_USED_KV);
    ACCEPTED(dense(), p.flags = ATTN_USED_Q | ATTN_USED_KV | ATTN_ACCUMULATE | ATTN_HAS_SCALE);
    ACCEPTED(dense(), p.flags = ATTN_DETERMINISTIC | ATTN_ALLOW_TF32 | ATTN_DEVICE_LENGTHS | ATTN_DEVICE_SEED);
}

static void test_sizes(void **state) {
    (void)state;
    REFUSED(dense(), "batch", "is -1, must be at least 0", p.batch = -1);
    REFUSED(dense(), "batch", "is 2147483648, must be at most 2147483647", p.batch = 1ll << 31);
    REFUSED(dense(), "heads_q", "is -4, must be at least 0", p.heads_q = -4);
    REFUSED(dense(), "heads_kv", "is -2, must be at least 0", p.heads_kv = -2);
    REFUSED(dense(), "heads_q", "is 5, must be a multiple of heads_kv = 2", p.heads_q = 5);
    REFUSED(dense(), "heads_q", "is 4, must be a multiple of heads_kv = 0", p.heads_kv = 0);
    REFUSED(dense(), "heads_q", "is 0, must be a multiple of heads_kv = 2", p.heads_q = 0);
    REFUSED(dense(), "dim_qk", "is 0, must be at least 1", p.dim_qk = 0);
    REFUSED(dense(), "dim_v", "is 0, must be at least 1", p.dim_v = 0);
    REFUSED(dense(), "dim_v", "is -3, must be at least 1", p.dim_v = -3);
    REFUSED(dense(), "tokens_q", "is -1, must be at least 0", p.tokens_q = -1);
    REFUSED(dense(), "tokens_kv", "is 2147483648, must be at most 2147483647", p.tokens_kv = 1ll << 31);
    ACCEPTED(dense(), p.batch = 0);
    ACCEPTED(dense(), p.tokens_q = 0);
    ACCEPTED(dense(), p.tokens_kv = 0);
    ACCEPTED(dense(), p.heads_q = p.heads_kv = 0);
    ACCEPTED(attn_problem_dense(ATTN_BF16, 0, 0, 0, 0, 0, 1, 1), (void)p);
    ACCEPTED(attn_problem_dense(ATTN_BF16, 1, 32, 8, 0x7fffffff, 0x7fffffff, 128, 128), (void)p);
}

static void test_totals(void **state) {
    (void)state;
    REFUSED(dense(), "total_q", "is -1, must be at least 0", p.rows_q = ATTN_PACKED, p.total_q = -1);
    REFUSED(dense(), "total_kv", "is 2147483648, must be at most 2147483647", p.rows_kv = ATTN_PACKED,
            p.total_kv = 1ll << 31);
    REFUSED(segmented(), "segments_q", "is -1, must be at least 0", p.segments_q = -1);
    REFUSED(segmented(), "segments_kv", "is 2147483648, must be at most", p.segments_kv = 1ll << 31);
    REFUSED(segmented(), "total_kv", "is -5, must be at least 0", p.total_kv = -5);
    ACCEPTED(segmented(), p.total_q = 1ll << 33, p.lse = (attn_layout){ATTN_F32, {0, 1ll << 33, 1, 0}});
    ACCEPTED(dense(), p.total_q = -1, p.total_kv = -1, p.segments_q = -1, p.segments_kv = -1); /* not read */
}

static void test_products(void **state) {
    (void)state;
    REFUSED(dense(), "batch", "2147483647 * 4 * 2147483647 * 24", p.batch = 0x7fffffff, p.tokens_q = 0x7fffffff);
    REFUSED(dense(), "batch", "heads_kv", p.batch = 1 << 20, p.tokens_kv = 0x7fffffff, p.heads_q = p.heads_kv = 1 << 9);
    /* Also where a zero would make the product small: strides are made of the other factors. */
    REFUSED(dense(), "batch", "past 2^60", p.batch = 0, p.tokens_q = 0x7fffffff, p.heads_q = 0x7ffffffe,
            p.heads_kv = 1);
}

static void test_band(void **state) {
    (void)state;
    REFUSED(dense(), "band.left", "is -2, must be at least -1", p.band.kind = ATTN_WINDOW, p.band.left = -2);
    REFUSED(dense(), "band.right", "is -7, must be at least -1", p.band.kind = ATTN_WINDOW, p.band.right = -7);
    REFUSED(dense(), "band.globals", "is -1, must be at least 0", p.band.kind = ATTN_GLOBALS, p.band.globals = -1);
    ACCEPTED(dense(), p.band.left = -9, p.band.right = -9, p.band.globals = -9); /* do not count */
    ACCEPTED(dense(), p.band.kind = 7, p.band.left = INT64_MAX, p.band.right = INT64_MAX, p.band.globals = INT64_MAX);
}

static void test_scalars(void **state) {
    (void)state;
    REFUSED(dense(), "scale", "is nan, must be finite", p.flags = ATTN_HAS_SCALE, p.scale = NAN);
    REFUSED(dense(), "scale", "is inf, must be finite", p.flags = ATTN_HAS_SCALE, p.scale = INFINITY);
    REFUSED(dense(), "softcap", "is -1, must be 0 (none) or above", p.softcap = -1);
    REFUSED(dense(), "softcap", "nan", p.softcap = NAN);
    REFUSED(dense(), "softcap", "is inf", p.softcap = INFINITY);
    REFUSED(dense(), "dropout", "is 1, must be at least 0 and below 1", p.dropout = 1);
    REFUSED(dense(), "dropout", "is -0.25, must be", p.dropout = -0.25f);
    REFUSED(dense(), "dropout", "nan", p.dropout = NAN);
    ACCEPTED(dense(), p.scale = NAN); /* does not count */
    ACCEPTED(dense(), p.flags = ATTN_HAS_SCALE, p.scale = -2);
    ACCEPTED(dense(), p.flags = ATTN_HAS_SCALE, p.scale = 0);
    ACCEPTED(dense(), p.dropout = 0.99f, p.softcap = 1e-30f);
}

static void test_types(void **state) {
    (void)state;
    REFUSED(dense(), "q.dtype", "is none (0), must be f32, f16, bf16 or f64", memset(&p.q, 0, sizeof p.q));
    REFUSED(dense(), "q.dtype", "is ? (7)", p.q.dtype = (attn_dtype)7);
    REFUSED(dense(), "q.dtype", "is u8 (16)", p.q.dtype = ATTN_U8);
    REFUSED(dense(), "k.dtype", "is bf16 (3), must be q's type", p.k.dtype = ATTN_BF16);
    REFUSED(dense(), "v.dtype", "is none (0), must be q's type", memset(&p.v, 0, sizeof p.v));
    REFUSED(dense(), "o.dtype", "is f16 (2), must be q's type or f32", p.o.dtype = ATTN_F16);
    REFUSED(dense(), "lse.dtype", "is f16 (2), must be f32", p.lse = (attn_layout){ATTN_F16, {20, 5, 1, 0}});
    REFUSED(dense(), "bias.dtype", "is u8 (16), must be q's type or f32", p.bias.dtype = ATTN_U8);
    REFUSED(dense(), "mask.dtype", "is f32 (1), must be u8", p.mask.dtype = ATTN_F32);
    REFUSED(dense(), "alibi.dtype", "is f16 (2), must be f32", p.alibi.dtype = ATTN_F16);
    REFUSED(dense(), "sink.dtype", "is bf16 (3), must be f32", p.sink.dtype = ATTN_BF16);
    REFUSED(dense(), "dq.dtype", "is f16 (2), must be q's type or f32", p.pass = ATTN_BACKWARD, p.dq.dtype = ATTN_F16);
    REFUSED(dense(), "dout.dtype", "is ? (99)", p.pass = ATTN_BACKWARD, p.dout.dtype = (attn_dtype)99);
    REFUSED(masked(ATTN_BACKWARD), "dbias.dtype", "is bf16 (3), must be f32", p.dbias.dtype = ATTN_BF16);
    REFUSED(dense(), "dbias.dtype", "is f32, must be none: the problem has no bias", p.pass = ATTN_BACKWARD,
            p.dbias.dtype = ATTN_F32);
    attn_problem wide = attn_problem_dense(ATTN_F64, 1, 1, 1, 2, 2, 2, 2);
    REFUSED(wide, "o.dtype", "is f32 (1), must be f64 as q is", p.o.dtype = ATTN_F32);
    REFUSED(wide, "sink.dtype", "is f32 (1), must be f64 as q is", p.sink.dtype = ATTN_F32);
    ACCEPTED(wide, p.bias.dtype = ATTN_F32);
    attn_problem half = attn_problem_dense(ATTN_F16, 1, 1, 1, 2, 2, 2, 2);
    ACCEPTED(half, p.pass = ATTN_BACKWARD, p.o.dtype = ATTN_F32, p.dq = p.q, p.dq.dtype = ATTN_F32);
    ACCEPTED(half, p.bias.dtype = ATTN_F16);
    /* Layouts of gradients are not read forward. */
    ACCEPTED(dense(), p.dq.dtype = (attn_dtype)99, p.dbias.dtype = ATTN_F32, p.dk.stride[1] = 5);
    /* A forgotten type is not taken for an absent tensor. */
    REFUSED(dense(), "bias.dtype", "is none, but strides are set", p.bias.stride[2] = 7);
    REFUSED(dense(), "dk.dtype", "is none, but strides are set", p.pass = ATTN_BACKWARD, p.dk.stride[3] = 1);
}

static void test_offsets(void **state) {
    (void)state;
    REFUSED(dense(), "k.stride[2]", "is 9223372036854775807, over 7 elements of 4 bytes", p.k.stride[2] = INT64_MAX);
    REFUSED(dense(), "q.stride[0]", "over 2 elements", p.q.stride[0] = INT64_MIN);
    REFUSED(dense(), "q.stride[0]", "over 1 elements", p.batch = 1, p.q.stride[0] = INT64_MIN);
    REFUSED(dense(), "v.stride[1]", "within 2^63 - 1 bytes", p.v.stride[0] = 1ll << 60, p.v.stride[1] = 1ll << 60);
    REFUSED(masked(ATTN_FORWARD), "bias.stride[3]", "over 7 elements", p.bias.stride[3] = -(1ll << 60));
    ACCEPTED(dense(), p.k.stride[2] = (1ll << 58));
    ACCEPTED(dense(), p.k.stride[2] = -(1ll << 58));
    ACCEPTED(dense(), p.rows_kv = ATTN_PACKED, p.total_kv = 9, p.k.stride[0] = INT64_MIN); /* not read */
    ACCEPTED(dense(), p.lse = (attn_layout){ATTN_F32, {20, 5, 1, INT64_MIN}});
    ACCEPTED(masked(ATTN_FORWARD), p.sink.stride[0] = p.sink.stride[2] = p.alibi.stride[3] = INT64_MIN);
}

static void test_overlap(void **state) {
    (void)state;
    REFUSED(dense(), "o.stride[1]", "is 0 over 4 elements: an output cannot be broadcast", p.o.stride[1] = 0);
    REFUSED(dense(), "o.stride[2]", "is 95, must be at least 96 in size", p.o.stride[2] = 95);
    REFUSED(dense(), "o.stride[2]", "is -95, must be at least 96 in size", p.o.stride[2] = -95);
    REFUSED(dense(), "o.stride[0]", "is 479, must be at least 480", p.o.stride[0] = 479);
    REFUSED(dense(), "lse.stride[1]", "is 4, must be at least 5", p.lse = (attn_layout){ATTN_F32, {20, 4, 1, 0}});
    ACCEPTED(dense(), p.o.stride[2] = -96);
    ACCEPTED(dense(), p.o.stride[0] = 0, p.batch = 1);
    ACCEPTED(dense(), p.o.stride[1] = 0, p.tokens_q = 0);
    ACCEPTED(dense(), p.q.stride[1] = p.k.stride[0] = p.v.stride[2] = 0); /* inputs may be broadcast */
    /* Backward: the gradients are outputs, o and lse are not. */
    ACCEPTED(dense(), p.pass = ATTN_BACKWARD, p.o.stride[1] = 0, p.dout = p.v, p.dout.stride[1] = 0);
    REFUSED(dense(), "dk.stride[1]", "is 0 over 2 elements", p.pass = ATTN_BACKWARD, p.k.stride[1] = 0);
    REFUSED(dense(), "dq.stride[3]", "is 0 over 16", p.pass = ATTN_BACKWARD, p.dq = p.q, p.dq.stride[3] = 0);
    REFUSED(dense(), "dv.stride[2]", "is 47, must be at least 48", p.pass = ATTN_BACKWARD, p.dv = p.v,
            p.dv.stride[2] = 47);
    ACCEPTED(dense(), p.k.stride[1] = 0); /* forward has no dk */
    /* dbias is summed over its broadcast axes, but its others may not overlap. */
    ACCEPTED(masked(ATTN_BACKWARD), (void)p);
    REFUSED(masked(ATTN_BACKWARD), "dbias.stride[2]", "is 6, must be at least 7", p.dbias = p.bias,
            p.dbias.stride[2] = 6);
    /* Segments of all sequences may share one run of rows. */
    ACCEPTED(segmented(), (void)p);
    ACCEPTED(segmented(), p.pass = ATTN_BACKWARD);
    ACCEPTED(segmented(), p.q.stride[0] = 640, p.o.stride[0] = 960);
    REFUSED(segmented(), "o.stride[0]", "is 5, must be", p.o.stride[0] = 5, p.o.stride[1] = 24);
}

/* Flags count only where they say something. */
static void test_idle_flags(void **state) {
    (void)state;
    const uint32_t all = ATTN_ACCUMULATE | ATTN_DETERMINISTIC | ATTN_ALLOW_TF32 | ATTN_DEVICE_LENGTHS |
                         ATTN_DEVICE_SEED | ATTN_CLEAR_REST;
    attn_problem p = dense(), c;
    p.flags = all;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE | ATTN_ALLOW_TF32 | ATTN_DEVICE_LENGTHS);
    p.pass = ATTN_BACKWARD;
    p.dropout = 0.5f;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE | (all & ~(uint32_t)ATTN_CLEAR_REST));
    p = attn_problem_dense(ATTN_BF16, 1, 1, 1, 2, 2, 4, 4);
    p.flags = all;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE | ATTN_DEVICE_LENGTHS);
    /* Rows past the last sequence: of packed outputs, which lengths on the device alone tell. */
    p.rows_kv = ATTN_PACKED;
    p.total_kv = 2;
    p.k.stride[0] = p.v.stride[0] = 0;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE | ATTN_DEVICE_LENGTHS);
    p.pass = ATTN_BACKWARD;
    p.flags = ATTN_DEVICE_LENGTHS | ATTN_CLEAR_REST;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE | ATTN_DEVICE_LENGTHS | ATTN_CLEAR_REST);
    p.flags |= ATTN_ACCUMULATE;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE | ATTN_DEVICE_LENGTHS | ATTN_ACCUMULATE);
    p.flags = ATTN_CLEAR_REST;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.flags, ATTN_HAS_SCALE);
}

static void test_defaults(void **state) {
    (void)state;
    attn_problem p = masked(ATTN_BACKWARD), c;
    p.flags = ATTN_ACCUMULATE;
    p.band = (attn_band){ATTN_WINDOW | ATTN_GLOBALS, ATTN_TOP_LEFT, 3, (int64_t)1 << 32, (int64_t)1 << 40};
    p.softcap = -0.0f;
    p.total_q = p.segments_kv = 77;
    p.sink.stride[0] = p.sink.stride[2] = 5;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_int_equal(c.struct_size, sizeof c);
    assert_int_equal(c.flags, ATTN_ACCUMULATE | ATTN_HAS_SCALE);
    assert_true(c.scale == 0.25f);
    assert_false(signbit(c.softcap));
    assert_true(c.band.left == 3 && c.band.right == -1 && c.band.globals == ATTN__MAX_TOKENS);
    assert_true(c.total_q == 0 && c.segments_kv == 0);
    assert_true(c.sink.stride[0] == 0 && c.sink.stride[1] == 1 && c.sink.stride[2] == 0);
    const attn_layout lse = {ATTN_F32, {20, 5, 1, 0}}, bias = {ATTN_F32, {0, 35, 7, 1}};
    assert_true(same_layouts(&c.lse, &lse) && same_layouts(&c.dlse, &lse));
    assert_true(same_layouts(&c.dq, &p.q) && same_layouts(&c.dk, &p.k) && same_layouts(&c.dv, &p.v));
    assert_true(same_layouts(&c.dout, &p.o) && same_layouts(&c.dbias, &bias));

    p.band.left = (int64_t)1 << 32;
    p.band.right = ((int64_t)1 << 32) - 1;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_true(c.band.left == -1 && c.band.right == p.band.right);

    p = attn_problem_dense(ATTN_BF16, 3, 4, 2, 50, 70, 16, 16);
    p.rows_q = ATTN_PACKED;
    p.total_q = 33;
    p.o.dtype = ATTN_F32;
    p.band.kind = ATTN_WINDOW | ATTN_GLOBALS;
    p.band.left = p.band.right = -1;
    p.band.globals = 4;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    const attn_layout packed = {ATTN_F32, {0, 33, 1, 0}};
    assert_true(same_layouts(&c.lse, &packed));
    assert_true(c.q.stride[0] == 0 && c.o.stride[0] == 0 && c.k.stride[0] == p.k.stride[0]);
    assert_true(c.dout.dtype == ATTN_F32 && c.dq.dtype == ATTN_BF16 && c.dbias.dtype == ATTN_NONE);
    assert_true(c.band.kind == 0 && c.band.globals == ATTN__NO_GLOBALS && c.band.left == -1);

    p = segmented();
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_true(c.lse.stride[0] == 0 && c.lse.stride[1] == 10 && c.lse.stride[2] == 1);
    p.q.stride[0] = 640;
    p.o.stride[0] = 960;
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_true(c.lse.stride[0] == 40 && c.lse.stride[1] == 10 && c.lse.stride[2] == 1);

    p = attn_problem_dense(ATTN_F64, 1, 1, 1, 2, 3, 4, 4);
    p.pass = ATTN_BACKWARD;
    p.bias = (attn_layout){ATTN_F32, {0, 0, 3, 1}};
    assert_int_equal(attn__problem_canonical(&p, &c, NULL), ATTN_OK);
    assert_true(c.lse.dtype == ATTN_F64 && c.dlse.dtype == ATTN_F64 && c.dbias.dtype == ATTN_F64);
    assert_true(c.scale == 0.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null),    cmocka_unit_test(test_enums_and_flags), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_totals),  cmocka_unit_test(test_products),        cmocka_unit_test(test_band),
        cmocka_unit_test(test_scalars), cmocka_unit_test(test_types),           cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_overlap), cmocka_unit_test(test_idle_flags),      cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
