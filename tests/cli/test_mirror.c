/* SPDX-License-Identifier: Apache-2.0
 * Twins of cases, held on the host as the device of a CPU context: the same bits as a run over the case itself, gaps
 * between strided rows untouched, and arguments that point to the twin alone. */
#include "problem/unit.h"

#include <stdlib.h>

#include "execute.h"

static cli_error error;

static void make(cli_case *at, const char *text) {
    attn_problem p;
    attn_error cause;
    expect_success(attn_problem_parse(&p, text, &cause), &cause);
    memset(at, 0, sizeof *at);
    cli_case_shape(at, &p);
    assert_int_equal(cli_case_allocate(at, &error), CLI_RIGHT);
    assert_int_equal(cli_case_random(at, 5, &error), CLI_RIGHT);
    cli_case_poison(at);
}

static void run(const attn_plan *plan, const attn_args *args) {
    attn_error cause;
    size_t size = attn_plan_workspace(plan);
    void *workspace = size ? aligned_alloc(64, (size + 63) / 64 * 64) : NULL;
    if (attn_forward(plan, args, workspace, size, NULL, &cause)) {
        fail_msg("%s %s", cause.field, cause.message);
    }
    free(workspace);
}

static void same_as_without(void **state) {
    (void)state;
    static const char *const texts[] = {
        "fwd:f32:b2:hq4:hk2:sq37:skv53:d16:causal",
        "fwd:bf16:b2:hq2:hk2:sq9:skv9:d8:q=[-288,16,32,1]:k=[144,-8,16,-1]:o=[400,200,20,2]",
        "fwd:f16:b3:h2:s40:d8:packed_q=81:packed_kv=81:used_kv:bias=f32[0,1600,40,1]:mask=u8:alibi=f32:sink=f32",
        "fwd:f32:b0:h2:s40:d8",
        "fwd:f32:b1:h2:sq3:skv0:d8",
    };
    cli_place place;
    assert_int_equal(cli_place_open(&place, NULL, 1, &error), CLI_RIGHT);
    assert_ptr_equal(place.context, place.host);
    for (size_t n = 0; n < sizeof texts / sizeof texts[0]; n++) {
        cli_case at, twin;
        cli_mirror mirror;
        attn_plan *plan;
        attn_error cause;
        make(&at, texts[n]);
        make(&twin, texts[n]);
        expect_success(attn_plan_create(&plan, place.context, &at.problem, NULL, &cause), &cause);
        attn_args args = cli_case_args(&at, ATTN_FORWARD);
        run(plan, &args);
        assert_int_equal(cli_mirror_create(&mirror, place.context, &twin, &error), CLI_RIGHT);
        attn_args there = cli_mirror_args(&mirror, &twin, ATTN_FORWARD);
        assert_true(!there.q || (there.q != twin.view[CLI_SLOT_Q].base && there.o != twin.view[CLI_SLOT_O].base));
        run(plan, &there);
        assert_int_equal(cli_mirror_fetch(&mirror, &twin, &error), CLI_RIGHT);
        for (int s = CLI_SLOT_O; s <= CLI_SLOT_LSE; s++) {
            int64_t elements = 0, above = 0;
            size_t each = cli_types[at.view[s].type].bytes;
            assert_true(cli_view_extent(&at.view[s], &elements, &above));
            const char *mine = (const char *)at.view[s].base - (size_t)above * each;
            const char *its = (const char *)twin.view[s].base - (size_t)above * each;
            assert_memory_equal(mine, its, (size_t)elements * each);
        }
        cli_mirror_release(&mirror);
        attn_plan_destroy(plan);
        cli_case_release(&at);
        cli_case_release(&twin);
    }
    cli_place_close(&place);
}

/* Lengths and seed go along only where the problem wants them there. */
static void words(void **state) {
    (void)state;
    cli_case at;
    cli_mirror mirror;
    cli_place place;
    assert_int_equal(cli_place_open(&place, NULL, 1, &error), CLI_RIGHT);
    make(&at, "fwd:f32:b2:h1:s9:d4:packed_q=12:packed_kv=12:used_q:dropout=0.5:device_lengths:device_seed");
    assert_int_equal(cli_mirror_create(&mirror, place.context, &at, &error), CLI_RIGHT);
    attn_args args = cli_mirror_args(&mirror, &at, ATTN_FORWARD);
    assert_true(args.cu_seqlens_q != at.cu_q && args.used_q != at.used_q && !args.used_kv);
    assert_memory_equal(args.cu_seqlens_q, at.cu_q, 3 * sizeof(int32_t));
    assert_memory_equal(args.used_q, at.used_q, 2 * sizeof(int32_t));
    assert_true(args.device_seed[0] == at.seed && args.device_seed[1] == 0);
    /* A status that no run wrote is no success. */
    assert_int_equal(cli_mirror_fetch(&mirror, &at, &error), CLI_USAGE);
    assert_non_null(strstr(error.text, "no run wrote"));
    *args.status = 0;
    assert_int_equal(cli_mirror_fetch(&mirror, &at, &error), CLI_RIGHT);
    cli_mirror_release(&mirror);
    cli_case_release(&at);
    make(&at, "fwd:f32:b2:h1:s9:d4:packed_q=12:packed_kv=12");
    assert_int_equal(cli_mirror_create(&mirror, place.context, &at, &error), CLI_RIGHT);
    args = cli_mirror_args(&mirror, &at, ATTN_FORWARD);
    assert_true(args.cu_seqlens_q == at.cu_q && !args.status && !args.device_seed);
    cli_mirror_release(&mirror);
    cli_case_release(&at);
    cli_place_close(&place);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_without), cmocka_unit_test(words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
