/* SPDX-License-Identifier: Apache-2.0
 * Field cases 7 and 8: very negative scores, soft cap, huge scores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/published.h"

static bool exact(const char *implementation, attn_dtype dtype) {
    dtype = published_precision(implementation, dtype);
    return dtype == ATTN_F32 || dtype == ATTN_F64;
}

static void all_finite(const published *p) {
    for (int id = T_O; id < T_COUNT; id++) {
        for (int64_t i = 0; p->result.value[id] && i < trial_size(p->trial, id); i++) {
            assert_true(isfinite(p->result.value[id][i]));
        }
    }
}

static double mask_value(void *lower, int64_t sequence, int64_t head, int64_t i, int64_t j) {
    (void)sequence;
    (void)head;
    return !lower || j <= i;
}

/* q[i][0] = 1, k[j][0] = -960, the rest of both divided by 8: every score is close to -120. */
static trial *negative_trial(attn_dtype dtype, int tokens_q, int tokens_kv, bool lower) {
    static int yes;
    trial *t = published_trial(dtype, 1, 1, 1, tokens_q, tokens_kv, 64, 64);
    for (int side = 0; side < 2; side++) {
        tensor_id id = side ? T_K : T_Q;
        for (int64_t i = 0; i < trial_size(t, id); i++) {
            t->value[id][i] = i % 64 ? t->value[id][i] / 8 : side ? -960 : 1;
        }
    }
    trial_add(t, T_MASK, ATTN_U8, 0);
    trial_set(t, T_MASK, mask_value, lower ? &yes : NULL);
    return t;
}

static void c07a_values(const published *p, bool lower) {
    static const published_row all[] = {
        {T_LSE, 0, 0, 0, 0, 1, {-114.740967}},
        {T_LSE, 0, 0, 95, 0, 1, {-114.743161}},
        {T_LSE, 0, 0, 191, 0, 1, {-114.744563}},
        {T_O, 0, 0, 191, 0, 4, {-0.0103671385, -0.0353800312, -0.00718074848, 0.0396316765}},
        {T_DQ, 0, 0, 191, 1, 3, {7.59022408e-05, -0.0115869078, -0.0267120884}},
        {T_DV, 0, 0, 0, 0, 3, {-0.0624632829, 0.0565113367, -0.142148448}},
    };
    static const published_sum all_sums[] = {{T_O, 0, 898.813933}, {T_DK, 0, 148.071021}, {T_DV, 0, 921.532053}};
    static const published_row triangle[] = {
        {T_LSE, 0, 0, 0, 0, 1, {-120.014751}},
        {T_LSE, 0, 0, 95, 0, 1, {-115.436669}},
        {T_DV, 0, 0, 0, 0, 3, {0.177635603, 1.24323243, 0.00895688537}},
    };
    static const published_sum triangle_sums[] = {{T_O, 0, 1695.111}, {T_DV, 0, 1317.79152}};
    if (lower) {
        PUBLISHED_ROWS(p, triangle);
        PUBLISHED_SUMS(p, triangle_sums);
        return;
    }
    PUBLISHED_ROWS(p, all);
    PUBLISHED_SUMS(p, all_sums);
    double most = 0;
    for (int row = 0; row < 192; row++) {
        for (int d = 1; d < 64; d++) {
            most = fmax(most, fabs(published_at(p, T_DQ, 0, 0, row, d)));
        }
    }
    assert_true(fabs(most - 0.0573128143) <= published_tolerance(p->implementation, p->dtype, T_DQ, most));
}

/* dq[.][0] is 0 in truth: a sum that cancels, times scale * k[.][0]. The case allows 0.02 in float32 and 0.5 in 16 bits
 * at a factor of 120. Backward takes the row's delta from the o that was stored; in bfloat16 the rounding of that o
 * alone, at most 2^-9 of each element, can move the sum by more, so it is allowed for there. With o in float32 it is
 * not. Where an implementation multiplies bfloat16 by bfloat16, as the plain computation does, each p is rounded too:
 * o moves by at most 2^-9 of the greatest <dout, v>. */
static double cancelled(const published *p, int row, double factor) {
    double tolerance = (exact(p->implementation, p->dtype) ? 0.02 : 0.5) * factor / 120;
    for (int d = 0; d < 64 && p->trial->problem.o.dtype == ATTN_BF16; d++) {
        tolerance += factor * 0x1p-9 * fabs(published_at(p, T_O, 0, 0, row, d) * p->trial->value[T_DOUT][row * 64 + d]);
    }
    static const char *const rounding[] = {"avx512bf16", "amx", "mma", "hopper"};
    bool rounds_p = false;
    for (int n = 0; n < 4; n++) {
        rounds_p = rounds_p || strcmp(p->implementation, rounding[n]) == 0;
    }
    double most = 0;
    for (int64_t j = 0; j < p->trial->problem.tokens_kv && rounds_p && p->dtype == ATTN_BF16; j++) {
        double product = 0;
        for (int d = 0; d < 64; d++) {
            product += p->trial->value[T_DOUT][row * 64 + d] * p->trial->value[T_V][j * 64 + d];
        }
        most = fmax(most, fabs(product));
    }
    return tolerance + factor * 0x1p-9 * most;
}

/* The plain computation in a 16-bit type rounds scores near -120 to it: its values there are its own. */
static void c07a(const char *implementation, attn_dtype dtype) {
    static const int sizes[][2] = {{192, 192}, {64, 64}, {97, 97}, {128, 128}, {704, 704}, {1, 128}};
    bool own = published_rounds_scores(implementation, dtype);
    for (int n = 0; n < 24; n++) {
        int tokens_q = sizes[n / 4][0];
        if (machine_intensity() <= 0 && tokens_q > 200) {
            continue;
        }
        trial *t = negative_trial(dtype, tokens_q, sizes[n / 4][1], n % 2 != 0);
        if (n / 2 % 2 && exact(implementation, dtype)) {
            trial_destroy(t);
            continue;
        }
        t->problem.o.dtype = n / 2 % 2 ? ATTN_F32 : dtype;
        published p = published_run(implementation, dtype, t);
        all_finite(&p);
        for (int row = 0; row < tokens_q && !own; row++) {
            published_near(&p, T_DQ, 0, 0, row, 0, 0, cancelled(&p, row, 120));
        }
        if (tokens_q == 192 && !own) {
            c07a_values(&p, n % 2 != 0);
        }
        published_end(&p);
    }
}

static void test_c07a_scores_near_minus_120(void **state) {
    (void)state;
    published_everywhere(c07a);
}

static double first_column(void *value, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)sequence;
    (void)head;
    (void)position;
    return dim == 0 ? *(const double *)value : 0;
}

static void c07b(const char *implementation, attn_dtype dtype) {
    bool own = published_rounds_scores(implementation, dtype);
    static const published_row rows[] = {{T_O, 0, 0, 0, 0, 4, {0.009765625, -0.189453125, -0.154296875, -0.568359375}}};
    static const double dv[4] = {-0.1484375, 0.138671875, -0.3125, 0.94140625};
    for (int single = 0; single < (exact(implementation, dtype) ? 1 : 2); single++) {
        double minus_60 = -60, large = 8192;
        trial *t = published_trial(dtype, 1, 1, 1, 8, 8, 64, 64);
        trial_set(t, T_Q, first_column, &minus_60);
        trial_set(t, T_K, first_column, &large);
        t->problem.o.dtype = single ? ATTN_F32 : dtype;
        published p = published_run(implementation, dtype, t);
        all_finite(&p);
        PUBLISHED_ROWS(&p, rows);
        for (int row = 0; row < 8; row++) {
            published_near(&p, T_LSE, 0, 0, row, 0, -61437.9206, 0.01);
            for (int d = 0; d < 64 && !own; d++) {
                published_near(&p, T_DQ, 0, 0, row, d, 0, d ? 0 : cancelled(&p, row, 1024));
            }
        }
        for (int d = 0; d < 4; d++) {
            published_near(&p, T_DV, 0, 0, 0, d, dv[d], 0.01 * fabs(dv[d]));
        }
        published_end(&p);
    }
}

static void test_c07b_scores_of_minus_61440(void **state) {
    (void)state;
    published_everywhere(c07b);
}

/* ---------------------------------------------------------------------------------------- case 8 */

static double capped_key(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    static const double r[9] = {1, 100, 1000, 3000, 5000, 10000, -1, -10000, 4400};
    (void)context;
    (void)sequence;
    (void)head;
    return dim == 0 ? r[position] : 0;
}

static double index_in_first_column(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)context;
    (void)sequence;
    (void)head;
    return dim == 0 ? (double)position : 0;
}

static void c08a(const char *implementation, attn_dtype dtype) {
    for (double sign = 1; sign >= -1; sign -= 2) {
        double one = 1;
        trial *t = trial_create(dtype, 1, 1, 1, 1, 9, 8, 8);
        t->problem.softcap = 50;
        t->problem.flags |= ATTN_HAS_SCALE;
        t->problem.scale = 1;
        trial_set(t, T_Q, first_column, &sign);
        trial_set(t, T_K, capped_key, NULL);
        trial_set(t, T_V, index_in_first_column, NULL);
        trial_set(t, T_DOUT, first_column, &one);
        published p = published_run(implementation, dtype, t);
        published_is(&p, T_O, 0, 0, 0, 0, sign > 0 ? 4.29104853 : 7);
        published_is(&p, T_LSE, 0, 0, 0, 0, sign > 0 ? 51.6420071 : 50);
        for (int j = 0; j < 9 && sign > 0; j++) {
            if (j == 1) {
                published_is(&p, T_DK, 0, 0, 1, 0, -0.00745084817);
            } else {
                published_near(&p, T_DK, 0, 0, j, 0, 0, 1e-21);
            }
        }
        if (sign > 0) {
            published_is(&p, T_DQ, 0, 0, 0, 0, -0.745084817);
            published_is(&p, T_DV, 0, 0, 1, 0, 0.032044551);
            published_is(&p, T_DV, 0, 0, 2, 0, 0.19359109);
        }
        published_end(&p);
    }
}

static void test_c08a_soft_cap_saturates(void **state) {
    (void)state;
    published_everywhere(c08a);
}

static void c08b(const char *implementation, attn_dtype dtype) {
    static const int32_t alone[1] = {33}, behind[2] = {0, 33};
    for (int packed = 0; packed < 3; packed++) {
        int last = packed == 2;
        const published_row rows[] = {
            {T_LSE, last, 0, 32, 0, 1, {11.6907954}},
            {T_O, last, 0, 32, 0, 4, {1.06598898, 0.195234411, 1.17476268, -1.80142513}},
            {T_DQ, last, 0, 32, 0, 4, {0.513317693, -0.276399162, -0.269074709, -0.702211703}},
            {T_DK, last, 0, 0, 0, 4, {1.36909452, -0.464469568, -3.08271627, -1.74290082}},
        };
        static const published_sum sums[] = {
            {T_O, -1, 396.898558}, {T_DQ, -1, 377.911852}, {T_DK, -1, 426.94964}, {T_DV, -1, 324.369904}};
        trial *t = trial_create(dtype, 1 + last, 1, 1, 33, 33, 16, 16);
        if (packed) {
            trial_pack(t, SIDE_Q, packed == 1 ? alone : behind, 0);
            trial_pack(t, SIDE_KV, packed == 1 ? alone : behind, 0);
        }
        published_fill(t);
        t->problem.softcap = 15;
        t->problem.flags |= ATTN_HAS_SCALE;
        t->problem.scale = 1;
        t->problem.band.kind = ATTN_CAUSAL;
        published p = published_run(implementation, dtype, t);
        if (!published_rounds_scores(implementation, dtype)) {
            PUBLISHED_ROWS(&p, rows);
            PUBLISHED_SUMS(&p, sums);
        }
        published_end(&p);
    }
}

static void test_c08b_soft_cap_causal(void **state) {
    (void)state;
    published_everywhere(c08b);
}

static void c08c(const char *implementation, attn_dtype dtype) {
    if (dtype == ATTN_F16) {
        return; /* 133120 is past its range */
    }
    trial *t = trial_create(dtype, 1, 1, 1, 1, 1, 64, 64);
    published_constant(t, T_Q, 133120);
    published_constant(t, T_K, 133120);
    published_constant(t, T_V, 133120);
    published_constant(t, T_DOUT, 1);
    published p = published_run(implementation, dtype, t);
    published_is(&p, T_LSE, 0, 0, 0, 0, 1.417674752e11);
    for (int d = 0; d < 64; d++) {
        published_near(&p, T_O, 0, 0, 0, d, 133120, 0);
    }
    published_end(&p);
}

static void test_c08c_huge_values(void **state) {
    (void)state;
    published_everywhere(c08c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c07a_scores_near_minus_120), cmocka_unit_test(test_c07b_scores_of_minus_61440),
        cmocka_unit_test(test_c08a_soft_cap_saturates),    cmocka_unit_test(test_c08b_soft_cap_causal),
        cmocka_unit_test(test_c08c_huge_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
