/* SPDX-License-Identifier: Apache-2.0
 * One view of rows for dense, packed and segments, with and without used lengths. */
#include "problem/unit.h"

#include "problem/problem.h"

static attn_problem problem_of(const char *text) {
    attn_problem p;
    assert_int_equal(attn_problem_parse(&p, text, NULL), ATTN_OK);
    return p;
}

static void expect_segment(attn_segment got, int64_t first, int64_t rows, int64_t position, int64_t sequence) {
    assert_int_equal(got.first, first);
    assert_int_equal(got.rows, rows);
    assert_int_equal(got.position, position);
    assert_int_equal(got.sequence, sequence);
}

static void expect_own_range(const attn__side *side, int64_t s) {
    int64_t begin = -1, end = -1;
    attn__side_range(side, s, &begin, &end);
    assert_int_equal(begin, s);
    assert_int_equal(end, s + 1);
}

static void test_dense(void **state) {
    (void)state;
    attn_problem p = problem_of("fwd:f32:b3:h1:sq5:skv7:d1:used_kv");
    const int32_t used[] = {7, 0, 4}, stale[] = {1, 1, 1};
    attn_args args = attn_args_init();
    args.used_kv = used;
    args.used_q = stale; /* without its flag not looked at */
    attn__side q = attn__side_q(&p, &args), kv = attn__side_kv(&p, &args);
    assert_int_equal(attn__side_count(&q), 3);
    for (int64_t s = 0; s < 3; s++) {
        assert_int_equal(attn__side_length(&q, s), 5);
        assert_int_equal(attn__side_length(&kv, s), used[s]);
        expect_segment(attn__side_segment(&q, s), 0, 5, 0, s);
        expect_segment(attn__side_segment(&kv, s), 0, used[s], 0, s);
        expect_segment(attn__side_padding(&q, s), 5, 0, 5, s);
        expect_segment(attn__side_padding(&kv, s), used[s], 7 - used[s], used[s], s);
        expect_own_range(&kv, s);
        assert_int_equal(attn__row_shift(&p, &q, &kv, s), used[s] - 5);
    }
    p.band.corner = ATTN_TOP_LEFT;
    assert_int_equal(attn__row_shift(&p, &q, &kv, 1), 0);
}

static void test_packed(void **state) {
    (void)state;
    attn_problem p = problem_of("fwd:f32:b4:h1:sq6:skv6:d1:packed_q=20:packed_kv=9:used_q");
    const int32_t cu_q[] = {0, 0, 6, 9, 15}, used_q[] = {0, 2, 3, 0}, cu_kv[] = {0, 1, 1, 5, 9};
    attn_args args = attn_args_init();
    args.cu_seqlens_q = cu_q;
    args.cu_seqlens_kv = cu_kv;
    args.used_q = used_q;
    attn__side q = attn__side_q(&p, &args), kv = attn__side_kv(&p, &args);
    for (int64_t s = 0; s < 4; s++) {
        int64_t slot = cu_q[s + 1] - cu_q[s];
        expect_segment(attn__side_segment(&q, s), cu_q[s], used_q[s], 0, s);
        expect_segment(attn__side_padding(&q, s), cu_q[s] + used_q[s], slot - used_q[s], used_q[s], s);
        expect_segment(attn__side_segment(&kv, s), cu_kv[s], cu_kv[s + 1] - cu_kv[s], 0, s);
        assert_int_equal(attn__side_padding(&kv, s).rows, 0);
        assert_int_equal(attn__row_shift(&p, &q, &kv, s), cu_kv[s + 1] - cu_kv[s] - used_q[s]);
        expect_own_range(&q, s);
    }
}

static void test_segments(void **state) {
    (void)state;
    attn_problem p = problem_of("fwd:f32:b5:h1:s100:d1:segments_q=30,6:segments_kv=30,6");
    const attn_segment list[] = {{0, 4, 0, 1}, {10, 4, 60, 1}, {4, 2, 7, 3}, {6, 0, 9, 3}, {20, 1, 99, 4}};
    const int32_t lengths_q[] = {3, 64, 0, 9, 100}, lengths_kv[] = {5, 70, 0, 9, 90};
    const int64_t begin[] = {0, 0, 2, 2, 4}, end[] = {0, 2, 2, 4, 5};
    attn_args args = attn_args_init();
    args.segments_q = list;
    args.n_segments_q = 5;
    args.lengths_q = lengths_q;
    args.lengths_kv = lengths_kv;
    attn__side q = attn__side_q(&p, &args), kv = attn__side_kv(&p, &args);
    assert_int_equal(attn__side_count(&q), 5);
    assert_int_equal(attn__side_count(&kv), 0);
    for (int64_t s = 0; s < 5; s++) {
        int64_t from, to;
        attn__side_range(&q, s, &from, &to);
        assert_int_equal(from, begin[s]);
        assert_int_equal(to, end[s]);
        attn__side_range(&kv, s, &from, &to);
        assert_true(from == 0 && to == 0);
        assert_int_equal(attn__side_length(&q, s), lengths_q[s]);
        assert_int_equal(attn__row_shift(&p, &q, &kv, s), lengths_kv[s] - lengths_q[s]);
        assert_int_equal(attn__side_padding(&q, s).rows, 0);
        expect_segment(attn__side_segment(&q, s), list[s].first, list[s].rows, list[s].position, list[s].sequence);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
