/* SPDX-License-Identifier: Apache-2.0
 * Field cases 11 to 13: merging partial results, head groups, head dimensions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "support/published.h"

/* ---------------------------------------------------------------------------------------- case 11 */

enum { ROWS = 3, HEADS = 2, DIM = 5, O_SIZE = ROWS * HEADS * DIM, LSE_SIZE = ROWS * HEADS };

typedef struct partial {
    double o, lse;
} partial;

/* Merges parts whose elements are all equal, in [rows, heads, dim]; every element of the result must be `want`. */
static void merged(attn_dtype dtype, const partial *parts, int count, partial want, double o_tolerance,
                   double lse_tolerance) {
    double o[4][O_SIZE], lse[4][LSE_SIZE], o_result[O_SIZE], lse_result[LSE_SIZE];
    const void *o_parts[4], *lse_parts[4];
    attn_dtype lse_dtype = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    for (int n = 0; n < count; n++) {
        for (int i = 0; i < O_SIZE; i++) {
            attn__store(dtype, o[n], i, parts[n].o);
        }
        for (int i = 0; i < LSE_SIZE; i++) {
            attn__store(lse_dtype, lse[n], i, parts[n].lse);
        }
        o_parts[n] = o[n];
        lse_parts[n] = lse[n];
    }
    memset(o_result, 0x7f, sizeof o_result);
    memset(lse_result, 0x7f, sizeof lse_result);
    attn_merge_args args = {.struct_size = sizeof args, .batch = 1, .heads = HEADS, .tokens = ROWS, .dim = DIM};
    args.o = attn_layout_bshd(dtype, HEADS, ROWS, DIM);
    args.lse.dtype = lse_dtype == ATTN_F64 ? ATTN_F64 : ATTN_NONE;
    if (lse_dtype == ATTN_F64) {
        args.lse.stride[0] = ROWS * HEADS;
        args.lse.stride[1] = ROWS;
        args.lse.stride[2] = 1;
    }
    args.parts = count;
    args.o_parts = o_parts;
    args.lse_parts = lse_parts;
    args.o_result = o_result;
    args.lse_result = lse_result;
    attn_error error;
    if (attn_merge(&args, &error) != ATTN_OK) {
        fail_msg("%s %s", error.field, error.message);
    }
    for (int i = 0; i < O_SIZE; i++) {
        double got = attn__load(dtype, o_result, i);
        assert_true(fabs(got - want.o) <= o_tolerance);
    }
    for (int i = 0; i < LSE_SIZE; i++) {
        double got = attn__load(lse_dtype, lse_result, i);
        assert_true(isinf(want.lse) ? got == want.lse : fabs(got - want.lse) <= lse_tolerance);
    }
}

static void test_c11_merge(void **state) {
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    static const double none = -INFINITY;
    static const struct {
        partial a, b, want;
        bool bitwise;
    } table[] = {
        {{0, -INFINITY}, {0, -INFINITY}, {0, -INFINITY}, true},
        {{7, 3}, {0, -INFINITY}, {7, 3}, true},
        {{7, 3}, {NAN, -INFINITY}, {7, 3}, true},
        {{NAN, -INFINITY}, {NAN, -INFINITY}, {0, -INFINITY}, true},
        {{1, 0}, {4, 0.69314718055994531}, {3, 1.09861229}, false},
        {{1, 200}, {4, -200}, {1, 200}, false},
        {{1, -1e4}, {4, 1e4}, {4, 1e4}, false},
        {{1, -1e4}, {4, -1e4}, {2.5, -9999.30685}, false},
        {{1, -61440}, {4, -61439}, {3.19317574, -61438.6867}, false},
    };
    for (int d = 0; d < 4; d++) {
        for (size_t n = 0; n < sizeof table / sizeof *table; n++) {
            partial parts[2] = {table[n].a, table[n].b}, turned[2] = {table[n].b, table[n].a};
            double o = published_tolerance("", dtypes[d], T_O, table[n].want.o);
            double lse = published_tolerance("", dtypes[d] == ATTN_F64 ? ATTN_F64 : ATTN_F32, T_LSE, table[n].want.lse);
            merged(dtypes[d], parts, 2, table[n].want, table[n].bitwise ? 0 : o, table[n].bitwise ? 0 : lse);
            merged(dtypes[d], turned, 2, table[n].want, table[n].bitwise ? 0 : o, table[n].bitwise ? 0 : lse);
        }
        partial with_empty[4] = {{NAN, none}, {1, 0}, {NAN, none}, {4, 0.69314718055994531}}, want = {3, 1.09861229};
        merged(dtypes[d], with_empty, 4, want, published_tolerance("", dtypes[d], T_O, 3), 2e-5);
    }
}

static double c10_row(void *tag, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)sequence;
    (void)head;
    return case_x(*(const uint32_t *)tag, position * 16 + dim);
}

/* Case 10's attention over keys [first, first + keys) alone; o in float32. */
static published piece(const char *implementation, attn_dtype dtype, int first, int keys) {
    uint32_t k = 2, v = 3;
    attn_segment segment = {.first = 0, .rows = keys, .position = first, .sequence = 0};
    attn_segment both[2] = {segment, segment};
    static const int32_t lengths[2] = {33, 33};
    both[1].sequence = 1;
    trial *t = trial_create(dtype, 2, 4, 1, 33, 33, 16, 16);
    trial_segment(t, SIDE_KV, lengths, both, 2, keys);
    published_fill(t);
    trial_set(t, T_K, c10_row, &k);
    trial_set(t, T_V, c10_row, &v);
    t->problem.flags |= ATTN_HAS_SCALE;
    t->problem.scale = 0.25f;
    t->problem.o.dtype = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    return published_run(implementation, dtype, t);
}

static void c11_pieces(const char *implementation, attn_dtype dtype) {
    static const int pieces[4][2] = {{0, 1}, {1, 16}, {17, 16}, {33, 0}};
    static const published_row rows[] = {
        {T_O, 0, 0, 32, 0, 4, {0.547344471, 0.195318607, 0.477404594, -1.05654447}},
        {T_O, 1, 3, 32, 0, 4, {0.455821739, 0.138465508, 0.295204978, -0.70516523}},
        {T_LSE, 0, 0, 32, 0, 1, {4.79590248}},
        {T_LSE, 1, 3, 32, 0, 1, {4.12896498}},
    };
    published part[4];
    for (int n = 0; n < 4; n++) {
        part[n] = piece(implementation, dtype, pieces[n][0], pieces[n][1]);
    }
    int64_t size = trial_size(part[0].trial, T_LSE);
    for (int64_t i = 0; i < size; i++) {
        double sum = 0, o[16] = {0};
        for (int n = 0; n < 4; n++) {
            sum += exp(part[n].result.value[T_LSE][i]);
        }
        for (int n = 0; n < 4; n++) {
            for (int d = 0; d < 16; d++) {
                o[d] += exp(part[n].result.value[T_LSE][i]) / sum * part[n].result.value[T_O][i * 16 + d];
            }
        }
        part[0].result.value[T_LSE][i] = log(sum);
        memcpy(&part[0].result.value[T_O][i * 16], o, sizeof o);
    }
    PUBLISHED_ROWS(&part[0], rows);
    for (int n = 0; n < 4; n++) {
        published_end(&part[n]);
    }
}

static void test_c11_pieces_of_keys(void **state) {
    (void)state;
    published_everywhere(c11_pieces);
}

/* ---------------------------------------------------------------------------------------- case 12 */

static void c12a(const char *implementation, attn_dtype dtype) {
    static const published_row rows[] = {
        {T_O, 0, 1, 3, 0, 4, {0.439050698, 0.150189524, 0.523528886, 0.28300184}},
        {T_O, 0, 3, 3, 0, 4, {0.51623665, -0.335161483, -0.298188742, 1.36250441}},
        {T_DK, 0, 1, 0, 0, 4, {0.865483655, -0.0926430826, -0.884113377, 1.0149417}},
    };
    static const published_sum sums[] = {{T_O, -1, 136.518678}, {T_DQ, -1, 54.728654}, {T_DK, 0, 25.59981},
                                         {T_DK, 1, 21.4174396}, {T_DV, 0, 35.3962553}, {T_DV, 1, 51.4514422}};
    trial *t = published_trial(dtype, 1, 6, 2, 4, 4, 8, 8);
    t->problem.band.kind = ATTN_CAUSAL;
    published p = published_run(implementation, dtype, t);
    PUBLISHED_ROWS(&p, rows);
    PUBLISHED_SUMS(&p, sums);
    published_end(&p);
}

static void test_c12a_groups(void **state) {
    (void)state;
    published_everywhere(c12a);
}

static double ten_by_head(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)context;
    (void)sequence;
    (void)position;
    (void)dim;
    return 10 * (double)(head + 1);
}

static void c12b(const char *implementation, attn_dtype dtype) {
    trial *t = published_trial(dtype, 1, 6, 2, 4, 4, 8, 8);
    published_constant(t, T_Q, 0);
    trial_set(t, T_V, ten_by_head, NULL);
    published p = published_run(implementation, dtype, t);
    for (int h = 0; h < 6; h++) {
        for (int row = 0; row < 4; row++) {
            published_is(&p, T_O, 0, h, row, 7, h < 3 ? 10 : 20);
        }
    }
    published_end(&p);
}

static void test_c12b_which_head_serves_which(void **state) {
    (void)state;
    published_everywhere(c12b);
}

static void test_c12c_uneven_groups_are_refused(void **state) {
    (void)state;
    static const int heads[][2] = {{3, 2}, {33, 2}, {2, 3}, {4, 0}};
    for (int n = 0; n < 4; n++) {
        attn_problem p = attn_problem_dense(ATTN_F32, 1, heads[n][0], heads[n][1], 4, 4, 8, 8);
        attn_error check, supported, create;
        attn_plan *plan = NULL;
        char numbers[2][16];
        assert_int_equal(attn_problem_check(&p, &check), ATTN_ERR_INVALID);
        assert_int_equal(attn_supported(machine_context(1), &p, NULL, &supported), ATTN_ERR_INVALID);
        assert_int_equal(attn_plan_create(&plan, machine_context(1), &p, NULL, &create), ATTN_ERR_INVALID);
        assert_null(plan);
        assert_string_equal(check.message, supported.message);
        assert_string_equal(check.message, create.message);
        snprintf(numbers[0], sizeof numbers[0], "%d", heads[n][0]);
        snprintf(numbers[1], sizeof numbers[1], "%d", heads[n][1]);
        assert_string_equal(check.field, "heads_q");
        assert_non_null(strstr(check.message, "heads_kv"));
        assert_non_null(strstr(check.message, numbers[0]));
        assert_non_null(strstr(check.message, numbers[1]));
    }
}

/* ---------------------------------------------------------------------------------------- case 13 */

static void c13(const char *implementation, attn_dtype dtype) {
    static const struct {
        int dim, dim_v;
        double lse, first, last, o, dq, dk, dv; /* of row 4; sums of absolute values */
    } table[] = {
        {1, 1, 1.82929078, -0.0895439593, -0.0895439593, 1.65959448, 0.577935524, 2.38836767, 3.78125},
        {3, 3, 1.78922924, 0.333040337, 0.481914718, 9.72348811, 2.0529229, 3.46600254, 6.26165603},
        {7, 7, 0.856891854, 0.28037546, -0.137110168, 19.7299346, 7.05088794, 8.97875674, 18.1285302},
        {40, 40, 1.42339793, -0.659623363, -0.158356458, 148.335608, 58.7197691, 77.455089, 130.634208},
        {72, 72, 1.915012, -0.495574351, -0.0335788212, 235.142015, 117.936457, 131.217454, 215.629049},
        {80, 80, 3.21338973, 0.332125109, 0.548849018, 310.946159, 135.570318, 162.446337, 277.286546},
        {96, 96, 1.90759654, -0.727602858, -0.887986029, 353.957643, 257.547835, 307.107863, 327.097125},
        {112, 112, 3.17894075, 0.624090976, 0.567596918, 408.259938, 242.004915, 267.183387, 344.288048},
        {129, 129, 2.96071676, -0.213623283, 1.15719357, 516.266591, 101.27036, 122.253151, 432.289838},
        {256, 256, 1.72610104, -0.417434399, 0.091300478, 964.89121, 364.063884, 412.883701, 741.634307},
        {320, 320, 1.30697039, -0.781398125, 0.339099869, 1293.06398, 269.093646, 301.272793, 1103.50916},
        {512, 512, 1.62113429, 1.29293044, -1.07177613, 1869.28288, 590.843647, 755.699923, 1535.05731},
        {8, 16, 1.73377687, -0.235715623, 1.24221642, 48.6538264, 13.6361041, 8.76105515, 48.4418284},
        {16, 8, 2.04410856, -0.528060087, -0.0907221562, 23.1276177, 17.7911051, 20.6175788, 21.4281032},
        {192, 128, 2.07489406, -0.377592514, 0.60479533, 492.240454, 237.146345, 291.056094, 395.541236},
        {576, 512, 2.32916789, 0.971787017, -0.846415639, 1913.90797, 716.272599, 949.594823, 1608.52245},
    };
    for (size_t n = 0; n < sizeof table / sizeof *table; n++) {
        trial *t = published_trial(dtype, 1, 1, 1, 5, 5, table[n].dim, table[n].dim_v);
        t->problem.band.kind = ATTN_CAUSAL;
        if (machine_expected_refusal(implementation, &t->problem)) {
            trial_destroy(t);
            continue;
        }
        published p = published_run(implementation, dtype, t);
        const published_sum sums[] = {
            {T_O, 0, table[n].o}, {T_DQ, 0, table[n].dq}, {T_DK, 0, table[n].dk}, {T_DV, 0, table[n].dv}};
        published_is(&p, T_LSE, 0, 0, 4, 0, table[n].lse);
        published_is(&p, T_O, 0, 0, 4, 0, table[n].first);
        published_is(&p, T_O, 0, 0, 4, table[n].dim_v - 1, table[n].last);
        PUBLISHED_SUMS(&p, sums);
        published_end(&p);
    }
}

static void test_c13_head_dimensions(void **state) {
    (void)state;
    published_everywhere(c13);
}

/* What an implementation cannot run is refused by the query and by the call alike. */
static void c13_refused(const char *implementation, attn_dtype dtype) {
    static const int dims[][2] = {{577, 64}, {64, 577}, {1024, 1024}};
    for (int n = 0; n < 3; n++) {
        attn_problem p = attn_problem_dense(dtype, 1, 1, 1, 5, 5, dims[n][0], dims[n][1]);
        attn_hints hints = {.struct_size = sizeof hints, .implementation = implementation};
        attn_error query, create;
        attn_plan *plan = NULL;
        const attn_context *context = machine_context_of(implementation, 1);
        p.flags |= machine_allowed(implementation, &p);
        const char *field = machine_expected_refusal(implementation, &p);
        attn_status supported = attn_supported(context, &p, &hints, &query);
        attn_status created = attn_plan_create(&plan, context, &p, &hints, &create);
        attn_plan_destroy(plan);
        assert_int_equal(supported, field ? ATTN_ERR_UNSUPPORTED : ATTN_OK);
        assert_int_equal(created, supported);
        assert_string_equal(query.field, field ? field : "");
        assert_string_equal(create.field, query.field);
        assert_string_equal(create.message, query.message);
        if (field) {
            char limit[24];
            snprintf(limit, sizeof limit, "%lld",
                     (long long)machine_widest(implementation, p.pass, strcmp(field, "dim_v") == 0));
            assert_non_null(strstr(query.message, n == 2 ? "1024" : "577"));
            assert_non_null(strstr(query.message, limit));
        }
    }
}

static void test_c13_other_dimensions_are_refused(void **state) {
    (void)state;
    published_everywhere(c13_refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_c11_merge),
        cmocka_unit_test(test_c11_pieces_of_keys),
        cmocka_unit_test(test_c12a_groups),
        cmocka_unit_test(test_c12b_which_head_serves_which),
        cmocka_unit_test(test_c12c_uneven_groups_are_refused),
        cmocka_unit_test(test_c13_head_dimensions),
        cmocka_unit_test(test_c13_other_dimensions_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
