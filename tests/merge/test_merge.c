/* SPDX-License-Identifier: Apache-2.0
 * attn_merge: published values, exactness where it is promised, order, layouts, in place, and every refusal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "attn/attn.h"
#include "base/dtype.h"

enum { ROWS = 3, HEADS = 2, DIM = 70, ROW_COUNT = ROWS * HEADS, SIZE = ROW_COUNT * DIM, MAX_PARTS = 5 };

typedef struct merge_case {
    attn_merge_args args;
    float o[MAX_PARTS][SIZE], lse[MAX_PARTS][ROW_COUNT], result[SIZE], lse_result[ROW_COUNT];
    const void *o_parts[MAX_PARTS], *lse_parts[MAX_PARTS];
} merge_case;

static void start(merge_case *c, int64_t parts) {
    memset(c, 0, sizeof *c);
    c->args.struct_size = sizeof c->args;
    c->args.batch = 1;
    c->args.heads = HEADS;
    c->args.tokens = ROWS;
    c->args.dim = DIM;
    c->args.o = attn_layout_bshd(ATTN_F32, HEADS, ROWS, DIM);
    c->args.parts = parts;
    c->args.o_parts = c->o_parts;
    c->args.lse_parts = c->lse_parts;
    c->args.o_result = c->result;
    c->args.lse_result = c->lse_result;
    for (int p = 0; p < MAX_PARTS; p++) {
        c->o_parts[p] = c->o[p];
        c->lse_parts[p] = c->lse[p];
    }
    for (int n = 0; n < SIZE; n++) {
        c->result[n] = NAN;
    }
    for (int n = 0; n < ROW_COUNT; n++) {
        c->lse_result[n] = NAN;
    }
}

static void fill(merge_case *c, int part, float o, float lse) {
    for (int n = 0; n < SIZE; n++) {
        c->o[part][n] = o;
    }
    for (int n = 0; n < ROW_COUNT; n++) {
        c->lse[part][n] = lse;
    }
}

static void run(merge_case *c) {
    attn_error error;
    assert_int_equal(attn_merge(&c->args, &error), ATTN_OK);
    assert_int_equal(error.status, ATTN_OK);
}

static void expect_close(double got, double want) {
    if (!(got == want || fabs(got - want) <= 2e-7 * fmax(1, fabs(want)))) {
        fail_msg("got %.9g, want %.9g", got, want);
    }
}

static void test_published(void **state) {
    (void)state;
    static const struct {
        float o[2], lse[2];
        double want_o, want_lse;
    } rows[] = {
        {{0, 0}, {-INFINITY, -INFINITY}, 0, -INFINITY},
        {{7, 0}, {3, -INFINITY}, 7, 3},
        {{0, 7}, {-INFINITY, 3}, 7, 3},
        {{1, 4}, {0, 0.693147181f}, 3, 1.09861229},
        {{1, 4}, {200, -200}, 1, 200},
        {{1, 4}, {-1e4f, 1e4f}, 4, 1e4},
        {{1, 4}, {-1e4f, -1e4f}, 2.5, -9999.30685},
        {{1, 4}, {-61440, -61439}, 3.19317574, -61438.6867},
        {{NAN, 7}, {-INFINITY, 3}, 7, 3},
        {{NAN, INFINITY}, {-INFINITY, -INFINITY}, 0, -INFINITY},
    };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        merge_case c;
        start(&c, 2);
        fill(&c, 0, rows[n].o[0], rows[n].lse[0]);
        fill(&c, 1, rows[n].o[1], rows[n].lse[1]);
        run(&c);
        for (int i = 0; i < SIZE; i++) {
            expect_close(c.result[i], rows[n].want_o);
        }
        for (int i = 0; i < ROW_COUNT; i++) {
            expect_close(c.lse_result[i], rows[n].want_lse);
        }
    }
}

static double uniform(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 24) * 4 - 2;
}

static void fill_random(merge_case *c, uint32_t seed) {
    for (int p = 0; p < MAX_PARTS; p++) {
        for (int n = 0; n < SIZE; n++) {
            c->o[p][n] = (float)uniform(&seed);
        }
        for (int n = 0; n < ROW_COUNT; n++) {
            c->lse[p][n] = (float)(5 * uniform(&seed));
        }
    }
}

static void test_single_part_is_copied(void **state) {
    (void)state;
    merge_case c;
    start(&c, 3);
    fill_random(&c, 1);
    uint32_t payload = 0xffc12345u;
    memcpy(&c.o[1][DIM + 1], &payload, 4);
    for (int n = 0; n < ROW_COUNT; n++) {
        c.lse[0][n] = c.lse[2][n] = -INFINITY;
    }
    run(&c);
    assert_memory_equal(c.result, c.o[1], sizeof c.result);
    assert_memory_equal(c.lse_result, c.lse[1], sizeof c.lse_result);
}

/* The definition, spelled out for one element. */
static void test_against_definition(void **state) {
    (void)state;
    merge_case c;
    start(&c, MAX_PARTS);
    fill_random(&c, 2);
    run(&c);
    for (int h = 0; h < HEADS; h++) {
        for (int t = 0; t < ROWS; t++) {
            double sum = 0;
            for (int p = 0; p < MAX_PARTS; p++) {
                sum += exp(c.lse[p][h * ROWS + t]);
            }
            expect_close(c.lse_result[h * ROWS + t], log(sum));
            for (int d = 0; d < DIM; d++) {
                double want = 0;
                for (int p = 0; p < MAX_PARTS; p++) {
                    want += exp(c.lse[p][h * ROWS + t]) / sum * c.o[p][(t * HEADS + h) * DIM + d];
                }
                expect_close(c.result[(t * HEADS + h) * DIM + d], want);
            }
        }
    }
}

static void test_order(void **state) {
    (void)state;
    merge_case a, b;
    start(&a, MAX_PARTS);
    start(&b, MAX_PARTS);
    fill_random(&a, 3);
    fill_random(&b, 3);
    for (int p = 0; p < MAX_PARTS; p++) {
        b.o_parts[p] = b.o[MAX_PARTS - 1 - p];
        b.lse_parts[p] = b.lse[MAX_PARTS - 1 - p];
    }
    run(&a);
    run(&b);
    for (int n = 0; n < SIZE; n++) {
        expect_close(a.result[n], b.result[n]);
    }
    for (int n = 0; n < ROW_COUNT; n++) {
        expect_close(a.lse_result[n], b.lse_result[n]);
    }
}

static void test_in_place(void **state) {
    (void)state;
    for (int part = 0; part < MAX_PARTS; part++) {
        merge_case a, b;
        start(&a, MAX_PARTS);
        start(&b, MAX_PARTS);
        fill_random(&a, 4);
        fill_random(&b, 4);
        b.args.o_result = b.o[part];
        b.args.lse_result = b.lse[part];
        run(&a);
        run(&b);
        assert_memory_equal(a.result, b.o[part], sizeof a.result);
        assert_memory_equal(a.lse_result, b.lse[part], sizeof a.lse_result);
    }
}

static void test_nan_shows(void **state) {
    (void)state;
    merge_case c;
    start(&c, 3);
    fill_random(&c, 5);
    c.lse[1][0] = NAN; /* head 0, row 0 */
    c.o[2][(1 * HEADS + 1) * DIM + 69] = NAN;
    run(&c);
    for (int n = 0; n < ROW_COUNT; n++) {
        assert_int_equal(isnan(c.lse_result[n]) != 0, n == 0);
    }
    for (int n = 0; n < SIZE; n++) {
        assert_int_equal(isnan(c.result[n]) != 0, n < DIM || n == (1 * HEADS + 1) * DIM + 69);
    }
}

static void test_nan_alone_shows(void **state) {
    (void)state;
    merge_case c;
    start(&c, 2);
    fill(&c, 0, 1, NAN);
    fill(&c, 1, 1, -INFINITY);
    run(&c);
    assert_true(isnan(c.lse_result[0]) && isnan(c.result[0]) && isnan(c.result[SIZE - 1]));
}

/* Other types and strides: parts in bf16, result in float64 [head, token, dim] backwards, lse in float64 [token, head];
 * gaps stay as they were. */
static void test_layouts(void **state) {
    (void)state;
    merge_case c;
    static uint16_t parts[2][SIZE];
    static double lse[2][ROW_COUNT], lse_result[ROW_COUNT], result[2 * SIZE];
    attn_error error;
    start(&c, 2);
    fill_random(&c, 6);
    for (int p = 0; p < 2; p++) {
        for (int n = 0; n < SIZE; n++) {
            parts[p][n] = attn__f32_to_bf16(c.o[p][n]);
            c.o[p][n] = attn__bf16_to_f32(parts[p][n]);
        }
        for (int h = 0; h < HEADS; h++) {
            for (int t = 0; t < ROWS; t++) {
                lse[p][t * HEADS + h] = c.lse[p][h * ROWS + t];
            }
        }
    }
    run(&c);
    attn_merge_args args = c.args;
    args.o.dtype = ATTN_BF16;
    args.lse = (attn_layout){ATTN_F64, {0, 1, HEADS, 0}};
    args.result = (attn_layout){ATTN_F64, {0, -2 * ROWS * DIM, -2 * DIM, -2}};
    const void *o_parts[2] = {parts[0], parts[1]}, *lse_parts[2] = {lse[0], lse[1]};
    args.o_parts = o_parts;
    args.lse_parts = lse_parts;
    args.o_result = &result[2 * SIZE - 2];
    args.lse_result = lse_result;
    for (int n = 0; n < 2 * SIZE; n++) {
        result[n] = 99;
    }
    assert_int_equal(attn_merge(&args, &error), ATTN_OK);
    for (int h = 0; h < HEADS; h++) {
        for (int t = 0; t < ROWS; t++) {
            expect_close(lse_result[t * HEADS + h], c.lse_result[h * ROWS + t]);
            for (int d = 0; d < DIM; d++) {
                int at = 2 * SIZE - 2 - 2 * ((h * ROWS + t) * DIM + d);
                expect_close(result[at], c.result[(t * HEADS + h) * DIM + d]);
                assert_true(result[at + 1] == 99);
            }
        }
    }
}

static void test_without_lse_result_and_empty(void **state) {
    (void)state;
    merge_case c;
    start(&c, 2);
    fill(&c, 0, 1, 0);
    fill(&c, 1, 4, 0.693147181f);
    c.args.lse_result = NULL;
    run(&c);
    expect_close(c.result[SIZE - 1], 3);
    assert_true(isnan(c.lse_result[0]));
    assert_int_equal(attn_merge(&c.args, NULL), ATTN_OK);
    c.args.tokens = 0;
    c.args.o_parts = NULL;
    c.args.o_result = NULL;
    run(&c);
}

static void refuse(merge_case *c, const char *field) {
    attn_error error;
    memset(&error, 0x5a, sizeof error);
    assert_int_equal(attn_merge(&c->args, &error), ATTN_ERR_INVALID);
    assert_int_equal(error.status, ATTN_ERR_INVALID);
    assert_string_equal(error.field, field);
    assert_true(error.message[0] != 0);
    for (int n = 0; n < SIZE; n++) {
        assert_true(isnan(c->result[n]));
    }
}

#define REFUSED(field, ...)                                                                                            \
    do {                                                                                                               \
        merge_case c;                                                                                                  \
        start(&c, 2);                                                                                                  \
        __VA_ARGS__;                                                                                                   \
        refuse(&c, field);                                                                                             \
    } while (0)

static void test_refusals(void **state) {
    (void)state;
    attn_error error;
    assert_int_equal(attn_merge(NULL, &error), ATTN_ERR_INVALID);
    assert_string_equal(error.field, "args");
    REFUSED("struct_size", c.args.struct_size = 8);
    REFUSED("struct_size", c.args.struct_size = 0);
    REFUSED("batch", c.args.batch = -1);
    REFUSED("heads", c.args.heads = -1);
    REFUSED("tokens", c.args.tokens = INT64_MAX);
    REFUSED("dim", c.args.dim = 0);
    REFUSED("parts", c.args.parts = 0);
    REFUSED("o.dtype", c.args.o.dtype = ATTN_NONE);
    REFUSED("o.dtype", c.args.o.dtype = (attn_dtype)77);
    REFUSED("result.dtype", c.args.result.dtype = ATTN_U8);
    REFUSED("lse.dtype", c.args.lse.dtype = ATTN_F16);
    REFUSED("o.stride[2]", c.args.o.stride[2] = INT64_MAX / 2);
    REFUSED("o.stride[2]", c.args.o.stride[2] = INT64_MIN);
    REFUSED("result.stride[1]", c.args.result = c.args.o; c.args.result.stride[1] = 0);
    REFUSED("result.stride[1]", c.args.result = c.args.o; c.args.result.stride[1] = DIM - 1);
    REFUSED("lse.stride[2]", c.args.lse = (attn_layout){ATTN_F32, {0, 1, 1, 0}});
    REFUSED("o_parts", c.args.o_parts = NULL);
    REFUSED("lse_parts", c.args.lse_parts = NULL);
    REFUSED("o_parts[1]", c.o_parts[1] = NULL);
    REFUSED("lse_parts[0]", c.lse_parts[0] = NULL);
    REFUSED("o_parts[0]", c.o_parts[0] = (const char *)c.o[0] + 1);
    REFUSED("o_result", c.args.o_result = NULL);
    REFUSED("o_result", c.args.o_result = c.o[1]; c.args.result = attn_layout_bhsd(ATTN_F32, HEADS, ROWS, DIM));
    REFUSED("lse_result", c.args.lse_result = (char *)c.lse_result + 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_single_part_is_copied),
        cmocka_unit_test(test_against_definition),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_nan_shows),
        cmocka_unit_test(test_nan_alone_shows),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_without_lse_result_and_empty),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
