/* SPDX-License-Identifier: Apache-2.0
 * Field cases 4 to 6: empty sequences and sizes of 0, buffers longer than what is used, hidden values that are NaN or
 * inf. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "support/published.h"

/* Then the process is killed: a hang is a failure. Plans of a device compile first. */
static unsigned hang_seconds(void) {
    return machine_device() ? 300 : 10;
}

static void rows_are_zero(const published *p, tensor_id id, int sequence, int first, int last) {
    bool kv = id == T_DK || id == T_DV;
    int64_t heads = kv ? p->trial->problem.heads_kv : p->trial->problem.heads_q;
    int64_t dims = id == T_DQ || id == T_DK ? p->trial->problem.dim_qk : p->trial->problem.dim_v;
    for (int row = first; row <= last; row++) {
        for (int h = 0; h < heads; h++) {
            for (int d = 0; d < dims; d++) {
                published_near(p, id, sequence, h, row, d, 0, 0);
            }
        }
    }
}

/* ---------------------------------------------------------------------------------------- case 4 */

static trial *packed_trial(attn_dtype dtype, int batch, int heads_q, int heads_kv, const int32_t *lens_q,
                           const int32_t *lens_k, int most_q, int most_kv, int dim) {
    trial *t = trial_create(dtype, batch, heads_q, heads_kv, most_q, most_kv, dim, dim);
    trial_pack(t, SIDE_Q, lens_q, 0);
    trial_pack(t, SIDE_KV, lens_k, 0);
    published_fill(t);
    t->problem.flags |= ATTN_HAS_SCALE;
    t->problem.scale = 0.25f;
    return t;
}

static void c04(const char *implementation, attn_dtype dtype) {
    static const int32_t lens_q[5] = {0, 3, 0, 4, 1}, lens_k[5] = {5, 4, 2, 0, 1};
    static const published_row rows[2][4] = {
        {{T_LSE, 1, 0, 0, 0, 3, {1.2400567, 1.66519418, 0.90841029}},
         {T_LSE, 4, 0, 0, 0, 1, {-2.78442383}},
         {T_LSE, 1, 1, 0, 0, 3, {0.783703502, 3.35437747, 2.43631209}},
         {T_LSE, 4, 1, 0, 0, 1, {0.957580566}}},
        {{T_LSE, 1, 0, 0, 0, 3, {0.399639992, 1.36325327, 0.90841029}},
         {T_LSE, 4, 0, 0, 0, 1, {-2.78442383}},
         {T_LSE, 1, 1, 0, 0, 3, {0.388158133, 3.00219986, 2.43631209}},
         {T_LSE, 4, 1, 0, 0, 1, {0.957580566}}},
    };
    static const published_sum sums[2][4] = {
        {{T_O, -1, 92.8793406}, {T_DQ, -1, 47.4491185}, {T_DK, -1, 43.8574305}, {T_DV, -1, 68.1373631}},
        {{T_O, -1, 104.123434}, {T_DQ, -1, 33.233569}, {T_DK, -1, 31.8680836}, {T_DV, -1, 74.719313}},
    };
    for (int causal = 0; causal < 2; causal++) {
        trial *t = packed_trial(dtype, 5, 2, 1, lens_q, lens_k, 4, 5, 16);
        t->problem.band.kind = causal ? ATTN_CAUSAL : 0;
        published p = published_run(implementation, dtype, t);
        PUBLISHED_ROWS(&p, rows[causal]);
        PUBLISHED_SUMS(&p, sums[causal]);
        for (int head = 0; head < 2; head++) {
            for (int row = 0; row < 4; row++) {
                published_near(&p, T_LSE, 3, head, row, 0, -INFINITY, 0);
            }
        }
        rows_are_zero(&p, T_O, 3, 0, 3);
        rows_are_zero(&p, T_DQ, 3, 0, 3);
        for (int n = 0; n < 2; n++) {
            rows_are_zero(&p, n ? T_DK : T_DV, 0, 0, 4); /* rows 0-4 of the buffer */
            rows_are_zero(&p, n ? T_DK : T_DV, 2, 0, 1); /* rows 9-10 */
        }
        for (int d = 0; d < 16; d++) { /* row 11: one key that one row sees */
            bool rounds = published_rounds_scores(implementation, dtype);
            published_near(&p, T_DK, 4, 0, 0, d, 0, dtype == ATTN_F64 ? 1e-14 : rounds ? 0.05 : 5e-6);
        }
        published_end(&p);
    }
}

static void test_c04_packed_with_empty_sequences(void **state) {
    (void)state;
    published_everywhere(c04);
}

static void c04_nothing(const char *implementation, attn_dtype dtype) {
    static const int32_t some[3] = {2, 0, 3}, none[3] = {0, 0, 0};
    alarm(hang_seconds());
    for (int causal = 0; causal < 2; causal++) {
        for (int n = 0; n < 3; n++) {
            trial *t = packed_trial(dtype, 3, 2, 1, n == 1 ? some : none, n == 0 ? some : none, 3, 3, 16);
            t->problem.band.kind = causal ? ATTN_CAUSAL : 0;
            published p = published_run(implementation, dtype, t);
            for (int sequence = 0; sequence < 3; sequence++) {
                rows_are_zero(&p, T_O, sequence, 0, p.trial->side[SIDE_Q].length[sequence] - 1);
                rows_are_zero(&p, T_DQ, sequence, 0, p.trial->side[SIDE_Q].length[sequence] - 1);
                rows_are_zero(&p, T_DK, sequence, 0, p.trial->side[SIDE_KV].length[sequence] - 1);
                rows_are_zero(&p, T_DV, sequence, 0, p.trial->side[SIDE_KV].length[sequence] - 1);
            }
            published_end(&p);
        }
        /* batch, heads, rows, keys; each may be 0 */
        static const int sizes[][4] = {{0, 2, 3, 4}, {1, 2, 0, 4}, {1, 2, 3, 0}, {1, 2, 0, 0},
                                       {2, 0, 3, 4}, {0, 0, 0, 0}, {3, 2, 0, 7}, {3, 2, 7, 0}};
        for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
            for (int order = ORDER_BSHD; order <= ORDER_BHSD; order++) {
                trial *t =
                    published_trial(dtype, sizes[n][0], sizes[n][1], sizes[n][1], sizes[n][2], sizes[n][3], 16, 16);
                t->problem.band.kind = causal ? ATTN_CAUSAL : 0;
                for (int id = 0; id < T_COUNT; id++) {
                    t->form[id].order = (form_order)order;
                }
                published p = published_run(implementation, dtype, t);
                for (int b = 0; b < sizes[n][0]; b++) {
                    rows_are_zero(&p, T_O, b, 0, sizes[n][2] - 1);
                    rows_are_zero(&p, T_DQ, b, 0, sizes[n][2] - 1);
                    rows_are_zero(&p, T_DK, b, 0, sizes[n][3] - 1);
                    rows_are_zero(&p, T_DV, b, 0, sizes[n][3] - 1);
                }
                published_end(&p);
            }
        }
    }
    alarm(0);
}

static void test_c04_sizes_of_zero(void **state) {
    (void)state;
    published_everywhere(c04_nothing);
}

static void test_c04_dim_zero_is_refused(void **state) {
    (void)state;
    attn_problem qk = attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 2, 0, 8);
    attn_problem v = attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 2, 8, 0);
    attn_error error;
    assert_int_equal(attn_problem_check(&qk, &error), ATTN_ERR_INVALID);
    assert_string_equal(error.field, "dim_qk");
    assert_int_equal(attn_problem_check(&v, &error), ATTN_ERR_INVALID);
    assert_string_equal(error.field, "dim_v");
    assert_non_null(strchr(error.message, '0'));
    attn_plan *plan = NULL;
    assert_int_equal(attn_plan_create(&plan, machine_context(1), &qk, NULL, &error), ATTN_ERR_INVALID);
    assert_string_equal(error.field, "dim_qk");
    assert_null(plan);
}

static void c04_decode(const char *implementation, attn_dtype dtype) {
    static const int32_t lens_q[4] = {0, 1, 0, 1}, lens_k[4] = {0, 3, 0, 5}, short_q[2] = {1, 1}, short_k[2] = {3, 5};
    alarm(hang_seconds());
    published all = published_run(implementation, dtype, packed_trial(dtype, 4, 9, 3, lens_q, lens_k, 1, 5, 64));
    published some = published_run(implementation, dtype, packed_trial(dtype, 2, 9, 3, short_q, short_k, 1, 5, 64));
    for (int id = T_O; id < T_COUNT; id++) {
        if (!all.result.value[id]) {
            continue;
        }
        for (int64_t i = 0; i < trial_size(all.trial, id); i++) {
            double want = some.result.value[id][i];
            double tolerance = published_tolerance(implementation, dtype, id, want);
            assert_true(fabs(all.result.value[id][i] - want) <= tolerance);
        }
    }
    published_end(&all);
    published_end(&some);
    alarm(0);
}

static void test_c04_decode_shortcut_with_empty_sequences(void **state) {
    (void)state;
    published_everywhere(c04_decode);
}

/* ---------------------------------------------------------------------------------------- case 5 */

static void c05(const char *implementation, attn_dtype dtype) {
    static const int32_t lens[2] = {3, 5};
    static const published_sum sums[] = {
        {T_O, -1, 81.2348581}, {T_DQ, -1, 49.3937322}, {T_DK, -1, 58.9389979}, {T_DV, -1, 76.8184193}};
    trial *t = trial_create(dtype, 2, 1, 1, 5, 5, 16, 16);
    /* Rows 8-11 of inputs hold NaN; the run fails if those of outputs are touched. */
    trial_pack(t, SIDE_Q, lens, 4);
    trial_pack(t, SIDE_KV, lens, 4);
    published_fill(t);
    t->problem.flags |= ATTN_HAS_SCALE;
    t->problem.scale = 0.25f;
    published p = published_run(implementation, dtype, t);
    PUBLISHED_SUMS(&p, sums);
    published_end(&p);
}

static void test_c05_buffer_longer_than_sequences(void **state) {
    (void)state;
    published_everywhere(c05);
}

static void c05_malformed(const char *implementation, attn_dtype dtype) {
    static const struct {
        int32_t cu[3];
        const char *field;
    } bad[] = {
        {{1, 3, 8}, "[0]"}, {{0, 5, 4}, "[2]"},  {{0, 6, 13}, "[2]"},
        {{0, 8, 9}, "[1]"}, {{0, -1, 4}, "[1]"}, {{-1, 3, 8}, "[0]"},
    };
    enum { ROWS = 12, DIM = 16 };
    static double memory[7][ROWS * DIM]; /* large enough for every type */
    static const int32_t good[3] = {0, 3, 8};
    for (int pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass++) {
        for (size_t n = 0; n < 2 * (sizeof bad / sizeof *bad); n++) {
            attn_problem problem = attn_problem_dense(dtype, 2, 1, 1, 6, 6, DIM, DIM);
            problem.pass = (attn_pass)pass;
            problem.rows_q = problem.rows_kv = ATTN_PACKED;
            problem.total_q = problem.total_kv = ROWS;
            problem.flags |= machine_allowed(implementation, &problem);
            attn_hints hints = {.struct_size = sizeof hints, .implementation = implementation};
            attn_plan *plan;
            attn_error error;
            if (attn_plan_create(&plan, machine_context_of(implementation, 1), &problem, &hints, &error) != ATTN_OK) {
                fail_msg("%s %s", error.field, error.message);
            }
            memset(memory, 0x7e, sizeof memory);
            attn_args args = attn_args_init();
            args.q = memory[0];
            args.k = memory[1];
            args.v = memory[2];
            args.o = memory[3];
            args.lse = memory[4];
            if (pass == ATTN_BACKWARD) {
                args.dout = memory[0];
                args.dq = memory[5];
                args.dk = memory[6];
            }
            const int32_t *cu = bad[n / 2].cu;
            args.cu_seqlens_q = n % 2 ? good : cu;
            args.cu_seqlens_kv = n % 2 ? cu : good;
            size_t size = attn_plan_workspace(plan);
            void *workspace = size ? aligned_alloc(ATTN_WORKSPACE_ALIGNMENT, (size + 63) / 64 * 64) : NULL;
            attn_status status =
                (pass == ATTN_FORWARD ? attn_forward : attn_backward)(plan, &args, workspace, size, NULL, &error);
            assert_int_equal(status, ATTN_ERR_INVALID);
            assert_int_equal(error.status, ATTN_ERR_INVALID);
            assert_non_null(strstr(error.field, n % 2 ? "cu_seqlens_kv" : "cu_seqlens_q"));
            assert_non_null(strstr(error.field, bad[n / 2].field));
            assert_true(error.message[0] != 0);
            for (size_t i = 0; i < sizeof memory; i++) {
                assert_int_equal(((unsigned char *)memory)[i], 0x7e);
            }
            free(workspace);
            attn_plan_destroy(plan);
        }
    }
}

static void test_c05_malformed_lengths_are_refused(void **state) {
    (void)state;
    published_everywhere(c05_malformed);
}

/* ---------------------------------------------------------------------------------------- case 6 */

static double hides_key_one(void *additive, int64_t sequence, int64_t head, int64_t i, int64_t j) {
    (void)sequence;
    (void)head;
    (void)i;
    return additive ? (j == 1 ? -INFINITY : 0) : j != 1;
}

static void c06a(const char *implementation, attn_dtype dtype) {
    static const double bad[4] = {NAN, INFINITY, -INFINITY, 1e30};
    static int yes;
    for (int n = 0; n < 16; n++) {
        bool additive = n / 8, of_v = n / 4 % 2;
        trial *t = published_trial(dtype, 1, 1, 1, 2, 2, 4, 4);
        tensor_id mask = additive ? T_BIAS : T_MASK;
        trial_add(t, mask, additive ? dtype : ATTN_U8, 0);
        trial_set(t, mask, hides_key_one, additive ? &yes : NULL);
        for (int d = 0; d < 4; d++) {
            t->value[of_v ? T_V : T_K][4 + d] = bad[n % 4];
        }
        published p = published_run(implementation, dtype, t);
        for (int row = 0; row < 2; row++) {
            double score = 0;
            for (int d = 0; d < 4; d++) {
                score += 0.5 * p.trial->value[T_Q][row * 4 + d] * p.trial->value[T_K][d];
                published_near(&p, T_O, 0, 0, row, d, p.trial->value[T_V][d], 0);
                assert_true(isfinite(published_at(&p, T_DQ, 0, 0, row, d)));
                assert_true(isfinite(published_at(&p, T_DK, 0, 0, row, d)));
                assert_true(isfinite(published_at(&p, T_DV, 0, 0, row, d)));
            }
            published_is(&p, T_LSE, 0, 0, row, 0, score);
        }
        rows_are_zero(&p, T_DK, 0, 1, 1);
        rows_are_zero(&p, T_DV, 0, 1, 1);
        published_end(&p);
    }
}

static void test_c06a_hidden_key_has_no_influence(void **state) {
    (void)state;
    published_everywhere(c06a);
}

static double key_mod_64(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)context;
    (void)sequence;
    (void)head;
    (void)dim;
    return (double)(position % 64);
}

/* k and v are views into buffers of 1024 rows whose other rows are NaN: `view` 0 as a longer buffer of each head, 1 as
 * used lengths, 2 as a packed sequence in a longer buffer. */
static trial *view_trial(attn_dtype dtype, int tokens_q, int tokens_kv, int view) {
    int32_t keys = tokens_kv, rows = tokens_q;
    trial *t = trial_create(dtype, 1, 1, 1, tokens_q, view == 1 ? 1024 : tokens_kv, 64, 64);
    if (view == 0) {
        t->form[T_K].order = t->form[T_V].order = ORDER_BHSD;
        t->form[T_K].gap = t->form[T_V].gap = (1024 - tokens_kv) * 64;
        t->form[T_K].edge = t->form[T_V].edge = FENCE_START;
    } else if (view == 1) {
        trial_use(t, SIDE_KV, &keys);
    } else {
        trial_pack(t, SIDE_Q, &rows, 0);
        trial_pack(t, SIDE_KV, &keys, 1024 - keys);
    }
    published_fill(t);
    published_constant(t, T_Q, 0);
    trial_set(t, T_V, key_mod_64, NULL);
    return t;
}

static void c06b(const char *implementation, attn_dtype dtype) {
    static const int keys[] = {1, 9, 63, 65, 127, 129, 503};
    for (int view = 0; view < 3; view++) {
        for (int n = 0; n < 7; n++) {
            int tokens_q = n < 6 ? 5 : machine_intensity() > 0 ? 1001 : 65;
            published p = published_run(implementation, dtype, view_trial(dtype, tokens_q, keys[n], view));
            for (int row = 0; row < tokens_q; row++) {
                published_is(&p, T_LSE, 0, 0, row, 0, log(keys[n]));
                for (int d = 0; d < 64; d++) {
                    assert_false(isnan(published_at(&p, T_O, 0, 0, row, d)));
                    if (keys[n] == 503) {
                        published_is(&p, T_O, 0, 0, row, d, 31.0079523);
                    }
                }
            }
            if (keys[n] == 503) {
                published_is(&p, T_LSE, 0, 0, tokens_q - 1, 0, 6.22059017);
            }
            published_end(&p);
        }
    }
}

static void test_c06b_views_into_longer_buffers(void **state) {
    (void)state;
    published_everywhere(c06b);
}

static void c06c(const char *implementation, attn_dtype dtype) {
    for (int tokens = 3; tokens <= 130; tokens += 127) {
        trial *clean = published_trial(dtype, 1, 1, 1, tokens, tokens, 64, 64);
        trial *dirty = published_trial(dtype, 1, 1, 1, tokens, tokens, 64, 64);
        dirty->value[T_Q][0] = NAN;
        published a = published_run(implementation, dtype, clean), b = published_run(implementation, dtype, dirty);
        for (int d = 0; d < 64; d++) {
            assert_true(isnan(published_at(&b, T_O, 0, 0, 0, d)));
            for (int row = 1; row < tokens; row++) {
                published_is(&b, T_O, 0, 0, row, d, published_at(&a, T_O, 0, 0, row, d));
            }
        }
        assert_true(isnan(published_at(&b, T_LSE, 0, 0, 0, 0)));
        published_end(&a);
        published_end(&b);
    }
}

static void test_c06c_visible_nan_shows(void **state) {
    (void)state;
    published_everywhere(c06c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c04_packed_with_empty_sequences),
        cmocka_unit_test(test_c04_sizes_of_zero),
        cmocka_unit_test(test_c04_dim_zero_is_refused),
        cmocka_unit_test(test_c04_decode_shortcut_with_empty_sequences),
        cmocka_unit_test(test_c05_buffer_longer_than_sequences),
        cmocka_unit_test(test_c05_malformed_lengths_are_refused),
        cmocka_unit_test(test_c06a_hidden_key_has_no_influence),
        cmocka_unit_test(test_c06b_views_into_longer_buffers),
        cmocka_unit_test(test_c06c_visible_nan_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
