/* SPDX-License-Identifier: Apache-2.0
 * Field cases 1 to 3: rows that see nothing, which corner causal is aligned to, where a window begins and ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/published.h"

static double key_index(void *first, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)sequence;
    (void)head;
    (void)dim;
    return (double)position + *(const double *)first;
}

/* q = 0 and v_j = j + first in every column, dout = 1. */
static trial *counting_trial(attn_dtype dtype, int tokens_q, int tokens_kv, int dim, double first) {
    trial *t = published_trial(dtype, 1, 1, 1, tokens_q, tokens_kv, dim, dim);
    published_constant(t, T_Q, 0);
    published_constant(t, T_DOUT, 1);
    trial_set(t, T_V, key_index, &first);
    return t;
}

/* o and lse of a row whose visible keys have this mean and number. */
static void row_sees(const published *p, int sequence, int row, double mean, double count, bool values) {
    published_is(p, T_LSE, sequence, 0, row, 0, log(count));
    for (int d = 0; values && d < p->trial->problem.dim_v; d++) {
        published_is(p, T_O, sequence, 0, row, d, count > 0 ? mean : 0);
    }
}

static void row_is_zero(const published *p, tensor_id id, int head, int row) {
    int64_t dims = id == T_DQ || id == T_DK ? p->trial->problem.dim_qk : p->trial->problem.dim_v;
    for (int d = 0; d < dims; d++) {
        published_near(p, id, 0, head, row, d, 0, 0);
    }
}

/* ---------------------------------------------------------------------------------------- case 1 */

static void c01a(const char *implementation, attn_dtype dtype) {
    static const published_row rows[] = {
        {T_LSE, 0, 0, 2, 0, 4, {-0.0326277299, 0.989915213, 1.37812237, 1.82877612}},
        {T_LSE, 0, 1, 2, 0, 4, {0.274573568, 2.022631, 0.558874267, 2.34251578}},
        {T_O, 0, 0, 2, 0, 8, {-1, 0.765625, 0.328125, -1.015625, 1.15625, -0.4375, -0.375, 1.109375}},
        {T_O, 0, 0, 5, 0, 4, {0.868809, -0.21019966, 1.10251087, 0.368319288}},
        {T_DK, 0, 0, 3, 0, 4, {0.0537515541, 0.0179171847, -0.0179171847, -0.0824190496}},
    };
    static const published_sum sums[] = {
        {T_O, 0, 20.3325969}, {T_DQ, 0, 7.06926379}, {T_DK, 0, 5.57595705}, {T_DV, 0, 19.8250072},
        {T_O, 1, 27.2271812}, {T_DQ, 1, 6.64090122}, {T_DK, 1, 8.27738295}, {T_DV, 1, 17.6146177},
    };
    trial *t = published_trial(dtype, 1, 2, 2, 6, 4, 8, 8);
    t->problem.band.kind = ATTN_CAUSAL;
    published p = published_run(implementation, dtype, t);
    for (int head = 0; head < 2; head++) {
        for (int row = 0; row < 2; row++) {
            published_near(&p, T_LSE, 0, head, row, 0, -INFINITY, 0);
            row_is_zero(&p, T_O, head, row);
            row_is_zero(&p, T_DQ, head, row);
        }
    }
    PUBLISHED_ROWS(&p, rows);
    PUBLISHED_SUMS(&p, sums);
    published_end(&p);
}

static void test_c01a_causal_rows_without_keys(void **state) {
    (void)state;
    published_everywhere(c01a);
}

static double corner_mask(void *hidden, int64_t sequence, int64_t head, int64_t i, int64_t j) {
    (void)sequence;
    (void)head;
    bool visible = i < 4 && j < 4;
    return hidden ? (visible ? 0 : -INFINITY) : visible;
}

static void c01b_check(const char *implementation, attn_dtype dtype, tensor_id mask, attn_dtype mask_dtype) {
    static const published_row rows[] = {
        {T_LSE,
         0,
         0,
         0,
         0,
         8,
         {1.58155541, 2.75546039, 1.33719563, 1.60205898, -INFINITY, -INFINITY, -INFINITY, -INFINITY}},
        {T_O, 0, 0, 0, 0, 4, {-0.27764218, 0.865755781, 0.588077775, -0.257861944}},
    };
    static const published_sum sums[] = {
        {T_O, -1, 15.3993212}, {T_DQ, -1, 10.6877856}, {T_DK, -1, 10.1331621}, {T_DV, -1, 15.6397824}};
    static int additive;
    trial *t = published_trial(dtype, 1, 1, 1, 8, 8, 8, 8);
    trial_add(t, mask, mask_dtype, 0);
    trial_set(t, mask, corner_mask, mask == T_BIAS ? &additive : NULL);
    published p = published_run(implementation, dtype, t);
    PUBLISHED_ROWS(&p, rows);
    PUBLISHED_SUMS(&p, sums);
    for (int row = 4; row < 8; row++) {
        row_is_zero(&p, T_O, 0, row);
        row_is_zero(&p, T_DQ, 0, row);
        row_is_zero(&p, T_DK, 0, row);
        row_is_zero(&p, T_DV, 0, row);
    }
    published_end(&p);
}

static void c01b(const char *implementation, attn_dtype dtype) {
    c01b_check(implementation, dtype, T_MASK, ATTN_U8);
    c01b_check(implementation, dtype, T_BIAS, dtype);
    if (dtype == ATTN_F16 || dtype == ATTN_BF16) {
        c01b_check(implementation, dtype, T_BIAS, ATTN_F32);
    }
}

static void test_c01b_mask_hides_rows_and_keys(void **state) {
    (void)state;
    published_everywhere(c01b);
}

static double band_mask(void *context, int64_t sequence, int64_t head, int64_t i, int64_t j) {
    (void)context;
    (void)sequence;
    (void)head;
    return i - 9 <= j && j <= i ? 0 : -INFINITY;
}

static double first_column_index(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)context;
    (void)sequence;
    (void)head;
    return dim == 0 ? (double)position : 0;
}

static void c01c(const char *implementation, attn_dtype dtype) {
    for (int dim = 1; dim <= 8; dim += 7) {
        trial *t = counting_trial(dtype, 640, 640, dim, 0);
        trial_set(t, T_V, first_column_index, NULL);
        trial_add(t, T_BIAS, dtype, 0);
        trial_set(t, T_BIAS, band_mask, NULL);
        published p = published_run(implementation, dtype, t);
        for (int i = 0; i < 640; i++) {
            double count = i < 9 ? i + 1 : 10;
            published_is(&p, T_LSE, 0, 0, i, 0, log(count));
            if (dtype != ATTN_BF16) {
                published_is(&p, T_O, 0, 0, i, 0, i - (count - 1) / 2);
            }
            assert_false(isnan(published_at(&p, T_O, 0, 0, i, 0)));
        }
        published_near(&p, T_LSE, 0, 0, 5, 0, 1.79175947, 2e-2);
        published_near(&p, T_LSE, 0, 0, 639, 0, 2.30258509, 2e-2);
        published_end(&p);
    }
}

static void test_c01c_band_as_float_mask(void **state) {
    (void)state;
    published_everywhere(c01c);
}

/* ---------------------------------------------------------------------------------------- case 2 */

typedef struct corner {
    int tokens_q, tokens_kv, rows;
    attn_corner corner;
    double mean[5], count[5];
} corner;

static const corner corners[] = {
    {2, 5, 2, ATTN_BOTTOM_RIGHT, {2.5, 3}, {4, 5}},
    {5, 2, 5, ATTN_BOTTOM_RIGHT, {0, 0, 0, 1, 1.5}, {0, 0, 0, 1, 2}},
    {1, 7, 1, ATTN_BOTTOM_RIGHT, {4}, {7}},
    {3, 128, 3, ATTN_BOTTOM_RIGHT, {63.5, 64, 64.5}, {126, 127, 128}},
    {2, 5, 2, ATTN_TOP_LEFT, {1, 1.5}, {1, 2}},
    {5, 2, 5, ATTN_TOP_LEFT, {1, 1.5, 1.5, 1.5, 1.5}, {1, 2, 2, 2, 2}},
    {1, 7, 1, ATTN_TOP_LEFT, {1}, {1}},
    {3, 128, 3, ATTN_TOP_LEFT, {1, 1.5, 2}, {1, 2, 3}},
};
#define CORNERS (sizeof corners / sizeof *corners)

static void corner_rows(const published *p, int sequence, const corner *c) {
    for (int row = 0; row < c->rows; row++) {
        row_sees(p, sequence, row, c->mean[row], c->count[row], true);
    }
    /* dout is 1, so each visible key of a row gets 1 / (number visible). */
    for (int j = 0; j < c->tokens_kv; j++) {
        double want = 0;
        for (int row = 0; row < c->rows; row++) {
            want += j < c->count[row] ? 1 / c->count[row] : 0;
        }
        published_is(p, T_DV, sequence, 0, j, 0, want);
    }
}

static void c02(const char *implementation, attn_dtype dtype) {
    for (size_t n = 0; n < CORNERS; n++) {
        for (int dim = 8; dim <= 64; dim += 56) {
            trial *t = counting_trial(dtype, corners[n].tokens_q, corners[n].tokens_kv, dim, 1);
            t->problem.band.kind = ATTN_CAUSAL;
            t->problem.band.corner = corners[n].corner;
            published p = published_run(implementation, dtype, t);
            corner_rows(&p, 0, &corners[n]);
            published_end(&p);
        }
    }
}

static void test_c02_corner(void **state) {
    (void)state;
    published_everywhere(c02);
}

static void c02_packed(const char *implementation, attn_dtype dtype) {
    static const int32_t lens_q[3] = {2, 5, 1}, lens_k[3] = {5, 2, 7};
    for (int top_left = 0; top_left < 2; top_left++) {
        double first = 1;
        trial *t = trial_create(dtype, 3, 1, 1, 5, 7, 8, 8);
        trial_pack(t, SIDE_Q, lens_q, 0);
        trial_pack(t, SIDE_KV, lens_k, 0);
        published_fill(t);
        published_constant(t, T_Q, 0);
        published_constant(t, T_DOUT, 1);
        trial_set(t, T_V, key_index, &first);
        t->problem.band.kind = ATTN_CAUSAL;
        t->problem.band.corner = top_left ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
        published p = published_run(implementation, dtype, t);
        for (int sequence = 0; sequence < 3; sequence++) {
            corner_rows(&p, sequence, &corners[top_left * 4 + sequence]);
        }
        published_end(&p);
    }
}

static void test_c02_corner_packed(void **state) {
    (void)state;
    published_everywhere(c02_packed);
}

/* ---------------------------------------------------------------------------------------- case 3 */

static trial *window_trial(attn_dtype dtype, int tokens_q, int tokens_kv, int left, int right) {
    trial *t = counting_trial(dtype, tokens_q, tokens_kv, 8, 0);
    t->problem.band.kind = ATTN_WINDOW;
    t->problem.band.left = left;
    t->problem.band.right = right;
    return t;
}

static void c03a(const char *implementation, attn_dtype dtype) {
    static const struct {
        int left, right;
        double o[4], lse, sum; /* o[0], o[64], o[128], o[299]; lse[299]; sum over o */
    } table[] = {
        {0, 0, {0, 64, 128, 299}, 0, 44850},
        {1, 0, {0, 63.5, 127.5, 298.5}, 0.693147181, 44700.5},
        {63, 0, {0, 32.5, 96.5, 267.5}, 4.15888308, 36408},
        {64, 0, {0, 32, 96, 267}, 4.17438727, 36290},
        {127, 0, {0, 32, 64.5, 235.5}, 4.85203026, 29864},
        {128, 0, {0, 32, 64, 235}, 4.8598124, 29778},
        {298, 0, {0, 32, 64, 150}, 5.70044357, 22425.5},
        {299, 0, {0, 32, 64, 149.5}, 5.70378247, 22425},
        {300, 0, {0, 32, 64, 149.5}, 5.70378247, 22425},
        {-1, 0, {0, 32, 64, 149.5}, 5.70378247, 22425},
        {3, 2, {1, 63.5, 127.5, 297.5}, 1.38629436, 44701.5},
        {0, 5, {2.5, 66.5, 130.5, 299}, 0, 45592.5},
        {-1, -1, {149.5, 149.5, 149.5, 149.5}, 5.70378247, 44850},
    };
    static const int rows[4] = {0, 64, 128, 299};
    for (size_t n = 0; n < sizeof table / sizeof *table; n++) {
        published p =
            published_run(implementation, dtype, window_trial(dtype, 300, 300, table[n].left, table[n].right));
        published_is(&p, T_LSE, 0, 0, 299, 0, table[n].lse);
        for (int x = 0; x < 4 && dtype != ATTN_BF16; x++) {
            published_is(&p, T_O, 0, 0, rows[x], 0, table[n].o[x]);
        }
        if (dtype != ATTN_BF16) {
            const published_sum sum = {T_O, 0, 8 * table[n].sum};
            published_sums(&p, &sum, 1);
        }
        published_end(&p);
    }
}

static void test_c03a_window_edges(void **state) {
    (void)state;
    published_everywhere(c03a);
}

static void c03b(const char *implementation, attn_dtype dtype) {
    static const struct {
        int row;
        double mean, count;
    } rows[] = {{0, 0, 0},   {1, 0, 0},    {2, 0, 0},     {3, 0, 0},       {4, 0, 1},
                {5, 0.5, 2}, {64, 30, 61}, {100, 30, 61}, {101, 30.5, 60}, {128, 44, 33}};
    published p = published_run(implementation, dtype, window_trial(dtype, 129, 61, 32, 64));
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        row_sees(&p, 0, rows[n].row, rows[n].mean, rows[n].count, dtype != ATTN_BF16);
    }
    published_end(&p);
}

static void test_c03b_window_not_square(void **state) {
    (void)state;
    published_everywhere(c03b);
}

static void c03c(const char *implementation, attn_dtype dtype) {
    published p = published_run(implementation, dtype, window_trial(dtype, 1, 256, 128, 0));
    row_sees(&p, 0, 0, 191, 129, dtype != ATTN_BF16);
    published_end(&p);
}

static void test_c03c_window_one_row(void **state) {
    (void)state;
    published_everywhere(c03c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c01a_causal_rows_without_keys),
        cmocka_unit_test(test_c01b_mask_hides_rows_and_keys),
        cmocka_unit_test(test_c01c_band_as_float_mask),
        cmocka_unit_test(test_c02_corner),
        cmocka_unit_test(test_c02_corner_packed),
        cmocka_unit_test(test_c03a_window_edges),
        cmocka_unit_test(test_c03b_window_not_square),
        cmocka_unit_test(test_c03c_window_one_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
