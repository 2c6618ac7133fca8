/* SPDX-License-Identifier: Apache-2.0
 * Field cases 9 and 10: the same values in memory of any form give the same bits; odd addresses, broadcast keys and
 * values, bias with a row stride of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/published.h"

#define BIT(axis) (1u << (axis))

/* ---------------------------------------------------------------------------------------- case 9 */

/* Ways to lay out a [B, H, S, D] tensor of H heads of D. */
static const form ways[] = {
    {.order = ORDER_BHSD},            /* contiguous [B, H, S, D] */
    {.order = ORDER_BSHD},            /* transposed view of [B, S, H, D] */
    {.order = ORDER_BSHD, .pad = 24}, /* column slice of [B, S, H * D + 24] */
    {.order = ORDER_BHSD, .step = 2}, /* last-dimension stride 2 */
    {.order = ORDER_SBHD},            /* tokens outermost */
    {.order = ORDER_BHDS},            /* dims outside tokens */
    {.order = ORDER_BHSD, .negative = BIT(AXIS_TOKEN)},
    {.order = ORDER_BHSD, .negative = BIT(AXIS_HEAD)},
    {.order = ORDER_BHSD, .negative = BIT(AXIS_DIM)},
    {.order = ORDER_BSHD, .negative = BIT(AXIS_TOKEN) | BIT(AXIS_HEAD) | BIT(AXIS_DIM) | BIT(AXIS_BATCH), .step = 3},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Tensors that take a way together. */
static const struct {
    const char *name;
    tensor_id ids[4];
} parts[] = {
    {"dout", {T_DOUT, T_COUNT}}, {"q, k, v", {T_Q, T_K, T_V, T_COUNT}},
    {"o", {T_O, T_COUNT}},       {"gradients", {T_DQ, T_DK, T_DV, T_COUNT}},
    {"lse", {T_LSE, T_COUNT}},
};
enum { PARTS = sizeof parts / sizeof *parts };

static void all_bhsd(trial *t) {
    for (int id = 0; id < T_COUNT; id++) {
        t->form[id].order = ORDER_BHSD;
    }
}

/* Of one implementation: a form may be passed on. */
static void same_bits(const published *a, const published *b, const char *what) {
    char text[200];
    if (a->result.passed_on == b->result.passed_on &&
        !results_equal(a->trial, &a->result, &b->result, text, sizeof text)) {
        fail_msg("%s %s, %s: %s", a->implementation, attn_dtype_name(a->dtype), what, text);
    }
}

static trial *c09_trial(attn_dtype dtype, bool ones) {
    trial *t = published_trial(dtype, 1, 2, 2, 5, 5, 8, 8);
    t->problem.flags |= ATTN_DETERMINISTIC; /* bits are compared */
    t->problem.band.kind = ATTN_CAUSAL;
    all_bhsd(t);
    if (ones) {
        published_constant(t, T_DOUT, 1);
    }
    return t;
}

static void c09_values(const published *p, bool ones) {
    static const published_row ones_rows[] = {
        {T_DQ,
         0,
         0,
         4,
         0,
         8,
         {0.207179761, 0.0826407541, 0.0483702203, -0.554845187, -0.0356747314, -0.37860389, 0.101661191,
          -0.218876386}},
        {T_DK, 0, 0, 0, 0, 4, {0.157219915, 0.157470893, -0.13078669, -0.586355886}},
        {T_DV,
         0,
         0,
         0,
         0,
         8,
         {2.75689522, 2.75689522, 2.75689522, 2.75689522, 2.75689522, 2.75689522, 2.75689522, 2.75689522}},
        {T_DV, 0, 0, 4, 0, 1, {0.0630411725}},
    };
    static const published_sum ones_sums[] = {{T_DQ, 0, 12.0524729}, {T_DQ, 1, 8.49322587}, {T_DK, 0, 7.3440288},
                                              {T_DK, 1, 10.3543153}, {T_DV, 0, 40},         {T_DV, 1, 40}};
    static const published_row x_rows[] = {
        {T_DQ, 0, 0, 4, 0, 4, {-0.253166454, 1.07192784, -0.715220664, 1.56377594}},
        {T_DK, 0, 1, 0, 0, 4, {-0.195071939, -0.314225468, -0.467421689, -0.0118203721}},
    };
    static const published_sum x_sums[] = {{T_DQ, 0, 18.0508944}, {T_DQ, 1, 5.96131922}, {T_DK, 0, 17.4583228},
                                           {T_DK, 1, 7.91827729}, {T_DV, 0, 22.2847442}, {T_DV, 1, 11.8361173}};
    if (ones) {
        PUBLISHED_ROWS(p, ones_rows);
        PUBLISHED_SUMS(p, ones_sums);
    } else {
        PUBLISHED_ROWS(p, x_rows);
        PUBLISHED_SUMS(p, x_sums);
    }
}

static void c09(const char *implementation, attn_dtype dtype) {
    for (int ones = 0; ones < 2; ones++) {
        published base = published_run(implementation, dtype, c09_trial(dtype, ones));
        c09_values(&base, ones);
        for (int part = 0; part < PARTS; part++) {
            for (int way = 0; way < WAYS; way++) {
                trial *t = c09_trial(dtype, ones);
                for (int n = 0; n < 4 && parts[part].ids[n] != T_COUNT; n++) {
                    t->form[parts[part].ids[n]] = ways[way];
                }
                published p = published_run(implementation, dtype, t);
                same_bits(&base, &p, parts[part].name);
                published_end(&p);
            }
        }
        for (unsigned zero = 1; ones && zero < 16; zero++) { /* all strides 0, and one or more of them */
            trial *t = c09_trial(dtype, true);
            t->form[T_DOUT].zero = zero;
            published p = published_run(implementation, dtype, t);
            same_bits(&base, &p, "dout broadcast");
            published_end(&p);
        }
        published_end(&base);
    }
}

static void test_c09_any_layout(void **state) {
    (void)state;
    published_everywhere(c09);
}

/* An output with two elements at one address cannot hold a result: refused by name. */
static void test_c09_broadcast_output_is_refused(void **state) {
    (void)state;
    for (int axis = 0; axis < 4; axis++) {
        attn_problem p = attn_problem_dense(ATTN_F32, 2, 2, 2, 5, 5, 8, 8);
        attn_error error;
        char field[16];
        snprintf(field, sizeof field, "o.stride[%d]", axis);
        p.o.stride[axis] = 0;
        assert_int_equal(attn_problem_check(&p, &error), ATTN_ERR_INVALID);
        assert_string_equal(error.field, field);
        assert_int_equal(attn_supported(machine_context(1), &p, NULL, &error), ATTN_ERR_INVALID);
        assert_string_equal(error.field, field);
    }
}

static trial *square_trial(attn_dtype dtype) {
    trial *t = published_trial(dtype, 2, 4, 4, 4, 4, 8, 8);
    t->problem.flags |= ATTN_DETERMINISTIC;
    all_bhsd(t);
    return t;
}

/* As many heads as tokens: swapped axes pass every check of shapes. */
static void c09_square(const char *implementation, attn_dtype dtype) {
    static const published_row rows[] = {
        {T_O, 1, 2, 3, 0, 4, {0.130126271, -0.0983797515, 0.695291225, -1.25279461}},
        {T_DQ, 1, 2, 3, 0, 4, {0.146920928, -0.0189725731, 0.608222834, 0.462505842}},
        {T_DK, 1, 2, 0, 0, 4, {-0.345818416, 0.132886905, -0.222295385, -0.382992828}},
    };
    static const published_sum sums[] = {
        {T_O, -1, 168.306426}, {T_DQ, -1, 104.005886}, {T_DK, -1, 116.161033}, {T_DV, -1, 153.055279}};
    published base = published_run(implementation, dtype, square_trial(dtype));
    PUBLISHED_ROWS(&base, rows);
    PUBLISHED_SUMS(&base, sums);
    for (int part = 0; part < PARTS; part++) {
        for (int way = 0; way < WAYS; way++) {
            trial *t = square_trial(dtype);
            for (int n = 0; n < 4 && parts[part].ids[n] != T_COUNT; n++) {
                t->form[parts[part].ids[n]] = ways[way];
            }
            published p = published_run(implementation, dtype, t);
            same_bits(&base, &p, parts[part].name);
            published_end(&p);
        }
    }
    published_end(&base);
}

static void test_c09_as_many_heads_as_tokens(void **state) {
    (void)state;
    published_everywhere(c09_square);
}

/* ---------------------------------------------------------------------------------------- case 10 */

static double shared_row(void *tag, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)sequence;
    (void)head;
    return case_x(*(const uint32_t *)tag, position * 16 + dim);
}

/* One key and value head of one sequence for all: given to each of four heads, or as the only kv head. */
static trial *c10_trial(attn_dtype dtype, bool single) {
    uint32_t k = 2, v = 3;
    trial *t = published_trial(dtype, 2, 4, single ? 1 : 4, 33, 33, 16, 16);
    t->problem.flags |= ATTN_HAS_SCALE | ATTN_DETERMINISTIC;
    t->problem.scale = 0.25f;
    all_bhsd(t);
    trial_set(t, T_K, shared_row, &k);
    trial_set(t, T_V, shared_row, &v);
    t->form[T_K].zero = t->form[T_V].zero = BIT(AXIS_BATCH) | BIT(AXIS_HEAD);
    return t;
}

static double all_visible(void *context, int64_t sequence, int64_t head, int64_t i, int64_t j) {
    (void)context;
    (void)sequence;
    (void)head;
    (void)i;
    (void)j;
    return 1;
}

static void c10a(const char *implementation, attn_dtype dtype) {
    static const published_row rows[] = {
        {T_O, 0, 0, 32, 0, 4, {0.547344471, 0.195318607, 0.477404594, -1.05654447}},
        {T_O, 1, 3, 32, 0, 4, {0.455821739, 0.138465508, 0.295204978, -0.70516523}},
        {T_LSE, 0, 0, 32, 0, 1, {4.79590248}},
        {T_LSE, 1, 3, 32, 0, 1, {4.12896498}},
    };
    for (int n = 0; n < 4; n++) {
        trial *t = c10_trial(dtype, n % 2 != 0);
        if (n / 2) {
            trial_add(t, T_MASK, ATTN_U8, 0);
            trial_set(t, T_MASK, all_visible, NULL);
        }
        published p = published_run(implementation, dtype, t);
        PUBLISHED_ROWS(&p, rows);
        static const published_sum sum = {T_O, -1, 1314.12526};
        published_sums(&p, &sum, 1);
        double lse = 0;
        for (int64_t i = 0; i < trial_size(p.trial, T_LSE); i++) {
            lse += p.result.value[T_LSE][i];
        }
        assert_true(fabs(lse - 1117.42544) <= 1117 * published_tolerance(implementation, dtype, T_LSE, 1));
        published_end(&p);
    }
}

static void test_c10a_broadcast_keys_and_values(void **state) {
    (void)state;
    published_everywhere(c10a);
}

static void c10b(const char *implementation, attn_dtype dtype) {
    for (int single = 0; single < 2; single++) {
        published base = published_run(implementation, dtype, c10_trial(dtype, single));
        for (int start = 1; start <= 3; start++) {
            for (int which = 0; which < 3; which++) { /* inputs, outputs, both */
                trial *t = c10_trial(dtype, single);
                for (int id = 0; id < T_COUNT; id++) {
                    bool output = id >= T_O;
                    t->form[id].offset = which == 2 || output == (which == 1) ? start : 0;
                    t->form[id].edge = start % 2 ? FENCE_START : FENCE_END;
                }
                published p = published_run(implementation, dtype, t);
                same_bits(&base, &p, "odd start");
                published_end(&p);
            }
        }
        published_end(&base);
    }
}

static void test_c10b_odd_addresses(void **state) {
    (void)state;
    published_everywhere(c10b);
}

static void c10c(const char *implementation, attn_dtype dtype) {
    published base = published_run(implementation, dtype, c10_trial(dtype, false));
    for (int n = 0; n < 8; n++) {
        trial *t = c10_trial(dtype, false);
        trial_add(t, T_BIAS, n / 4 && dtype != ATTN_F64 ? ATTN_F32 : dtype, BIT(AXIS_BATCH) | BIT(AXIS_HEAD));
        t->form[T_BIAS].pad = n % 2 ? 7 : 0;
        t->form[T_BIAS].offset = n / 2 % 2;
        published p = published_run(implementation, dtype, t);
        for (int id = T_O; id <= T_DV; id++) {
            for (int64_t i = 0; p.result.value[id] && i < trial_size(p.trial, id); i++) {
                double want = base.result.value[id][i];
                double tolerance = published_tolerance(implementation, dtype, id, want);
                assert_true(fabs(p.result.value[id][i] - want) <= tolerance);
            }
        }
        published_end(&p);
    }
    published_end(&base);
}

static void test_c10c_bias_rows(void **state) {
    (void)state;
    published_everywhere(c10c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c09_any_layout),
        cmocka_unit_test(test_c09_broadcast_output_is_refused),
        cmocka_unit_test(test_c09_as_many_heads_as_tokens),
        cmocka_unit_test(test_c10a_broadcast_keys_and_values),
        cmocka_unit_test(test_c10b_odd_addresses),
        cmocka_unit_test(test_c10c_bias_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
