/* SPDX-License-Identifier: Apache-2.0
 * The judge and the diagnosis on results that are wrong on purpose: a right library never shows these. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "diagnose.h"
#include "judge.h"
#include "spot.h"

static cli_error error;

typedef struct scene {
    attn_context *context;
    cli_case at, tested;
    cli_judge judge;
} scene;

static void change_nothing(cli_case *at) {
    (void)at;
}

/* A random causal problem, its inputs changed by `change`, computed by the reference. */
static void set_up(scene *s, void (*change)(cli_case *)) {
    attn_problem p = attn_problem_dense(ATTN_F16, 1, 2, 1, 6, 4, 8, 8);
    char text[512];
    cli_runner runner;
    const attn_hints reference = {.struct_size = sizeof reference, .implementation = "reference"};
    memset(s, 0, sizeof *s);
    p.band = (attn_band){.kind = ATTN_CAUSAL};
    p.pass = ATTN_BACKWARD;
    assert_int_equal(cli_context_create(&s->context, NULL, 1, &error), CLI_RIGHT);
    assert_int_equal(cli_problem_settle(&p, text, sizeof text, &error), CLI_RIGHT);
    cli_case_shape(&s->at, &p);
    assert_int_equal(cli_case_allocate(&s->at, &error), CLI_RIGHT);
    assert_int_equal(cli_case_random(&s->at, 7, &error), CLI_RIGHT);
    change(&s->at);
    assert_int_equal(cli_judge_create(&s->judge, s->context, &s->at, &error), CLI_RIGHT);
    assert_int_equal(cli_case_share(&s->tested, &s->at, &error), CLI_RIGHT);
    assert_int_equal(cli_runner_create(&runner, s->context, &p, &reference, &error), CLI_RIGHT);
    assert_int_equal(cli_runner_run_all(&runner, &s->tested, &error), CLI_RIGHT);
    cli_runner_release(&runner);
}

static void tear_down(scene *s) {
    cli_case_release(&s->tested);
    cli_judge_release(&s->judge);
    cli_case_release(&s->at);
    attn_context_destroy(s->context);
}

static double *wide_at(cli_case *at, int slot) {
    return at->view[slot].base;
}

static void put(cli_case *at, int slot, int64_t h, int64_t t, int64_t d, double value) {
    cli_store(at->view[slot].type, at->view[slot].base, cli_view_offset(&at->view[slot], 0, h, t, d), value);
}

/* What the report of this diagnosis prints. */
static void diagnosis(const scene *s, int slot, char *text, size_t size) {
    cli_report *report;
    cli_suspect suspect = {&s->tested, &s->judge.reference, "tested", 2, 2};
    cli_verdict verdict = cli_judge_slot(&s->judge, &s->tested, slot);
    assert_false(verdict.right);
    assert_int_equal(cli_report_create(&report, CLI_TEXT, "check", &error), CLI_RIGHT);
    cli_diagnose(&suspect, slot, &verdict.difference, verdict.bound, report);
    fflush(stdout);
    FILE *caught = tmpfile();
    int saved = dup(1);
    dup2(fileno(caught), 1);
    assert_int_equal(cli_report_print(report, &error), CLI_RIGHT);
    dup2(saved, 1);
    close(saved);
    rewind(caught);
    text[fread(text, 1, size - 1, caught)] = 0;
    fclose(caught);
    cli_report_destroy(report);
}

static void expect(const scene *s, int slot, const char *where, const char *why) {
    char text[2048];
    diagnosis(s, slot, text, sizeof text);
    if (!strstr(text, where) || !strstr(text, why)) {
        fail_msg("expected \"%s\" and \"%s\" in:\n%s", where, why, text);
    }
}

static void right_results_are_right(void **state) {
    (void)state;
    scene s;
    set_up(&s, change_nothing);
    for (int slot = CLI_SLOT_O; slot < CLI_SLOT_COUNT; slot++) {
        if (s.tested.present[slot]) {
            assert_true(cli_judge_slot(&s.judge, &s.tested, slot).right);
        }
    }
    tear_down(&s);
}

static void one_wrong_element_is_found(void **state) {
    (void)state;
    scene s;
    set_up(&s, change_nothing);
    put(&s.tested, CLI_SLOT_O, 1, 4, 3, 5.0);
    expect(&s, CLI_SLOT_O, "starts to differ at batch 0, head 1, row 4: 1 bad rows in 1 heads", "why: drift");
    expect(&s, CLI_SLOT_O, "rows 4 to 4 lie in blocks 2 to 2 of 2 rows", "token 4, dim 3: 5, the reference has");
    put(&s.tested, CLI_SLOT_DK, 0, 2, 1, NAN);
    expect(&s, CLI_SLOT_DK, "key 2", "why: never written, or NaN made inside");
    tear_down(&s);
}

static void a_masked_row_that_is_not_zero(void **state) {
    (void)state;
    scene s;
    set_up(&s, change_nothing);
    put(&s.tested, CLI_SLOT_O, 0, 0, 0, NAN);
    expect(&s, CLI_SLOT_O, "head 0, row 0", "why: masked row: no key is visible to it");
    put(&s.tested, CLI_SLOT_LSE, 0, 1, 0, -50000);
    expect(&s, CLI_SLOT_LSE, "row 1", "why: masked row");
    tear_down(&s);
}

static void make_key_nan(cli_case *at) {
    put(at, CLI_SLOT_K, 0, 3, 2, NAN);
}
static void hidden_data_that_leaks(void **state) {
    (void)state;
    scene s;
    set_up(&s, make_key_nan); /* causal, 6 queries on 4 keys: only row 5 sees key 3 */
    assert_true(isnan(wide_at(&s.judge.reference, CLI_SLOT_O)[5 * 8]));
    assert_true(cli_judge_slot(&s.judge, &s.tested, CLI_SLOT_O).right);
    put(&s.tested, CLI_SLOT_O, 0, 4, 0, NAN);
    expect(&s, CLI_SLOT_O, "row 4",
           "why: input already bad: k is nan at batch 0, head 0, token 3, dim 2; it is hidden");
    put(&s.tested, CLI_SLOT_O, 0, 4, 0, 0);
    put(&s.tested, CLI_SLOT_O, 0, 5, 0, 0);
    expect(&s, CLI_SLOT_O, "row", "why: input already bad: k is nan at batch 0, head 0, token 3, dim 2");
    tear_down(&s);
}

static void make_query_hot(cli_case *at) {
    for (int64_t d = 0; d < 8; d++) {
        put(at, CLI_SLOT_Q, 1, 5, d, 30000);
        put(at, CLI_SLOT_K, 0, 1, d, 4);
    }
}
static void overflow_in_scores(void **state) {
    (void)state;
    scene s;
    set_up(&s, make_query_hot);
    put(&s.tested, CLI_SLOT_O, 1, 5, 0, NAN);
    expect(&s, CLI_SLOT_O, "row 5", "why: overflow in scores: |<q, k>| reaches 9.6e+05");
    tear_down(&s);
}

static void make_dout_hot(cli_case *at) {
    for (int64_t d = 0; d < 8; d++) {
        for (int64_t t = 2; t < 6; t++) {
            put(at, CLI_SLOT_DOUT, 0, t, d, 60000);
            put(at, CLI_SLOT_DOUT, 1, t, d, 60000);
        }
    }
}
static void an_exact_value_that_does_not_fit(void **state) {
    (void)state;
    scene s;
    set_up(&s, make_dout_hot);
    expect(&s, CLI_SLOT_DV, "key 0", "does not fit in f16");
    tear_down(&s);
}

static void what_is_never_written_is_seen(void **state) {
    (void)state;
    scene s;
    set_up(&s, change_nothing);
    cli_case_poison(&s.tested);
    for (int slot = CLI_SLOT_O; slot < CLI_SLOT_COUNT; slot++) {
        if (s.tested.present[slot]) {
            assert_false(cli_judge_slot(&s.judge, &s.tested, slot).right);
        }
    }
    tear_down(&s);
}

/* A problem too large for the reference: its last rows are judged, and for a backward pass short sequences too. */
static void large_problems_are_judged_in_part(void **state) {
    (void)state;
    cli_place place;
    assert_int_equal(cli_place_open(&place, NULL, 1, &error), CLI_RIGHT);
    for (int pass = ATTN_FORWARD; pass <= ATTN_BACKWARD; pass++) {
        attn_problem p = attn_problem_dense(ATTN_F32, 1, 2, 2, 700, 1100, 64, 64);
        char text[512];
        cli_case at = {0};
        cli_runner runner;
        const char *how;
        int wrong;
        p.band = (attn_band){.kind = ATTN_CAUSAL};
        p.pass = (attn_pass)pass;
        assert_int_equal(cli_problem_settle(&p, text, sizeof text, &error), CLI_RIGHT);
        cli_case_shape(&at, &p);
        assert_int_equal(cli_case_allocate(&at, &error), CLI_RIGHT);
        assert_int_equal(cli_case_random(&at, 3, &error), CLI_RIGHT);
        assert_int_equal(cli_runner_create(&runner, place.context, &p, NULL, &error), CLI_RIGHT);
        assert_int_equal(cli_runner_run_all(&runner, &at, &error), CLI_RIGHT);
        cli_runner_release(&runner);
        assert_int_equal(cli_spot_check(&place, &at, NULL, &how, &wrong, &error), CLI_RIGHT);
        assert_int_equal(wrong, 0);
        assert_string_equal(how, pass == ATTN_BACKWARD ? "both" : "last rows");
        put(&at, pass == ATTN_BACKWARD ? CLI_SLOT_DQ : CLI_SLOT_O, 1, 699, 63, 3);
        put(&at, CLI_SLOT_LSE, 0, 692, 0, 3);
        assert_int_equal(cli_spot_check(&place, &at, NULL, &how, &wrong, &error), CLI_RIGHT);
        assert_int_equal(wrong, 2);
        cli_case_release(&at);
    }
    cli_place_close(&place);
}

static void usual_slopes(void **state) {
    (void)state;
    assert_true(cli_alibi_slope(0, 8) == 0.5 && cli_alibi_slope(7, 8) == 0x1p-8);
    assert_true(cli_alibi_slope(0, 1) == 0x1p-8 && cli_alibi_slope(15, 16) == 0x1p-8);
    /* 12 heads: those of 8, then the odd ones of 16. */
    assert_true(fabs(cli_alibi_slope(8, 12) - exp2(-0.5)) < 1e-15 &&
                fabs(cli_alibi_slope(11, 12) - exp2(-3.5)) < 1e-15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_results_are_right),
        cmocka_unit_test(one_wrong_element_is_found),
        cmocka_unit_test(a_masked_row_that_is_not_zero),
        cmocka_unit_test(hidden_data_that_leaks),
        cmocka_unit_test(overflow_in_scores),
        cmocka_unit_test(an_exact_value_that_does_not_fit),
        cmocka_unit_test(what_is_never_written_is_seen),
        cmocka_unit_test(large_problems_are_judged_in_part),
        cmocka_unit_test(usual_slopes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
