/* SPDX-License-Identifier: Apache-2.0 */
#include "judge.h"

#include <math.h>
#include <string.h>

static bool is_output(int slot) {
    return cli_slot_roles[slot] == CLI_ROLE_OUTPUT || cli_slot_roles[slot] == CLI_ROLE_BACKWARD;
}

static cli_exit run_with(const attn_context *context, cli_case *at, const char *implementation, cli_error *error) {
    cli_runner runner;
    attn_plan_info info;
    const attn_hints hints = {.struct_size = sizeof hints, .implementation = implementation};
    cli_exit code = cli_runner_create(&runner, context, &at->problem, &hints, error);
    if (code) {
        return code;
    }
    code = cli_runner_info(&runner, &info, error);
    if (!code) {
        cli_progress_plan("attn check", &info);
        cli_case_poison(at);
        code = cli_runner_run_all(&runner, at, error);
    }
    cli_runner_release(&runner);
    return code;
}

/* What tf32 does to factors, the plain computation does in float16, which has as many bits of mantissa. */
static cli_exit round_factors(cli_case *plain, const cli_case *from, cli_error *error) {
    plain->problem.q.dtype = plain->problem.k.dtype = plain->problem.v.dtype = ATTN_F16;
    for (int s = CLI_SLOT_Q; s <= CLI_SLOT_V; s++) {
        plain->view[s].type = CLI_F16;
        plain->view[s].base = NULL;
    }
    cli_exit code = cli_case_allocate(plain, error);
    for (int s = CLI_SLOT_Q; s <= CLI_SLOT_V && !code; s++) {
        cli_convert(&plain->view[s], &from->view[s], NULL);
    }
    return code;
}

/* Errors of the plain computation; a refusal of it is no failure. */
static cli_exit run_plain(cli_judge *judge, const attn_context *context, cli_error *error) {
    cli_case plain;
    cli_exit code = cli_case_share(&plain, judge->at, error);
    plain.problem.flags &= ~CLI_DEVICE_FLAGS;
    if (!code && (plain.problem.flags & ATTN_ALLOW_TF32)) {
        code = round_factors(&plain, judge->at, error);
    }
    if (!code) {
        code = run_with(context, &plain, "native", error);
        judge->has_plain = !code;
        code = code == CLI_USAGE ? CLI_RIGHT : code;
    }
    for (int s = 0; s < CLI_SLOT_COUNT && judge->has_plain; s++) {
        if (judge->at->present[s] && is_output(s)) {
            cli_difference d;
            cli_compare(&d, &plain.view[s], &judge->reference.view[s]);
            judge->plain_error[s] = d.largest;
            judge->plain_misplaced[s] = d.misplaced;
        }
    }
    cli_case_release(&plain);
    return code;
}

cli_exit cli_judge_create(cli_judge *judge, const attn_context *context, const cli_case *at, cli_error *error) {
    memset(judge, 0, sizeof *judge);
    judge->at = at;
    cli_exit code = cli_case_widen(&judge->reference, at, error);
    code = code ? code : run_with(context, &judge->reference, "reference", error);
    code = code ? code : run_plain(judge, context, error);
    cli_progress("%s", "");
    return code;
}

void cli_judge_release(cli_judge *judge) {
    cli_case_release(&judge->reference);
    memset(judge, 0, sizeof *judge);
}

static double fixed_tolerance(cli_type type, int slot, double largest) {
    if (slot == CLI_SLOT_LSE) {
        return (type == CLI_F16 || type == CLI_BF16 ? 1e-4
                : type == CLI_F64                   ? 1e-12
                                                    : 1e-5) *
               (largest > 1 ? largest : 1);
    }
    double each = type == CLI_F16 ? 2e-3 : type == CLI_BF16 ? 1.6e-2 : type == CLI_F64 ? 1e-12 : 2e-5;
    return each * (largest > 1 ? largest : 1) * (cli_slot_roles[slot] == CLI_ROLE_BACKWARD ? 5 : 1);
}

cli_verdict cli_judge_slot(const cli_judge *judge, const cli_case *tested, int slot) {
    cli_verdict verdict = {.slot = slot, .plain_error = judge->has_plain ? judge->plain_error[slot] : NAN};
    const cli_view *result = &tested->view[slot];
    cli_compare(&verdict.difference, result, &judge->reference.view[slot]);
    const cli_difference *d = &verdict.difference;
    const double fixed = fixed_tolerance(tested->view[CLI_SLOT_Q].type, slot, d->reference_largest);
    verdict.bound =
        judge->has_plain ? 2 * judge->plain_error[slot] + 2 * cli_ulp(result->type, d->reference_largest) : fixed;
    if (judge->plain_misplaced[slot] && verdict.bound < fixed) { /* what is left of it may be little, or nothing */
        verdict.bound = fixed;
    }
    verdict.right = d->misplaced == 0 && d->largest <= verdict.bound;
    return verdict;
}
