/* SPDX-License-Identifier: Apache-2.0 */
#include "support/campaign.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/device.h"
#include "support/machine.h"

#define MOST_FAILURES_SHOWN 10

static char current[1000];
static struct sigaction before[NSIG];

/* Names the case, then lets the fault happen again under whoever watched before. */
static void crashed(int number) {
    if (write(STDERR_FILENO, current, strlen(current)) < 0) {
        _exit(1);
    }
    sigaction(number, &before[number], NULL);
}

campaign campaign_begin(const char *title) {
    static bool watching;
    if (!watching) {
        struct sigaction action = {.sa_handler = crashed};
        watching = true;
        sigaction(SIGSEGV, &action, &before[SIGSEGV]);
        sigaction(SIGBUS, &action, &before[SIGBUS]);
        sigaction(SIGFPE, &action, &before[SIGFPE]);
        sigaction(SIGILL, &action, &before[SIGILL]);
    }
    campaign c = {.title = title};
    return c;
}

static void at(const recipe *p, const char *implementation) {
    char text[600];
    recipe_text(p, text, sizeof text);
    snprintf(current, sizeof current, "crashed in %s: %s\n", implementation, text);
    device_note(current);
}

void campaign_fail(campaign *c, const recipe *p, const char *implementation, const char *text, const char *trouble) {
    char line[600];
    if (++c->failures <= MOST_FAILURES_SHOWN) {
        recipe_text(p, line, sizeof line);
        fprintf(stderr, "%s: %s\n    %s\n    %s\n    %s\n", c->title, implementation, trouble, line, text);
    }
}

static const char *expected_refusal(const char *implementation, const trial *t, attn_pass pass) {
    attn_problem p = t->problem;
    p.pass = pass;
    return machine_expected_refusal(implementation, &p);
}

/* mma adds a dbias that is summed over axes in any order. */
static bool sums_in_any_order(const trial *t, const run_options *how) {
    unsigned summed = t->broadcast[t->unset >> T_DBIAS & 1 ? T_BIAS : T_DBIAS];
    return !strcmp(how->implementation, "mma") && how->deterministic && trial_has(t, T_DBIAS) && summed;
}

bool campaign_allows(const trial *t, const run_options *how, const result *r) {
    const char *name = how->implementation, *field = r->error.field, *forward, *backward;
    attn_problem p = t->problem;
    forward = expected_refusal(name, t, ATTN_FORWARD);
    backward = expected_refusal(name, t, ATTN_BACKWARD);
    p.pass = ATTN_BACKWARD;
    if (r->outcome != RUN_REFUSED) {
        return false;
    }
    if (forward || how->forward_only) {
        return forward && !strcmp(forward, field);
    }
    return (backward && !strcmp(backward, field)) || machine_may_refuse(name, &p, field) ||
           (sums_in_any_order(t, how) && !strcmp(field, "dbias.stride"));
}

/* 1 if it ran, 0 if it was refused as the rules say, -1 if it failed. Where only backward is refused, forward runs
 * alone once the refusal was seen. */
static int one_run(campaign *c, const recipe *p, const trial *t, judge *j, run_options how, result *out) {
    const char *name = how.implementation, *expected = expected_refusal(name, t, ATTN_FORWARD);
    at(p, name);
    run_trial(t, &how, out);
    c->runs++;
    c->refusals += out->outcome == RUN_REFUSED;
    if (campaign_allows(t, &how, out)) {
        if (how.forward_only || expected) {
            return 0;
        }
        how.forward_only = true;
        result_free(out);
        return one_run(c, p, t, j, how, out);
    }
    expected = expected || how.forward_only ? expected : expected_refusal(name, t, ATTN_BACKWARD);
    if (out->outcome == RUN_REFUSED) {
        snprintf(out->trouble, sizeof out->trouble, "refused: %.28s %.224s (expected: %s)", out->error.field,
                 out->error.message, expected ? expected : "no refusal");
    } else if (out->outcome == RUN_DONE && expected) {
        snprintf(out->trouble, sizeof out->trouble, "ran, but the rule expects a refusal of %s", expected);
    } else if (out->outcome == RUN_DONE && judge_accepts(j, out)) {
        return 1;
    }
    campaign_fail(c, p, name, out->text, out->trouble[0] ? out->trouble : j->trouble);
    return -1;
}

static bool open_case(campaign *c, const recipe *p, trial **t, judge *j) {
    c->recipes++;
    *t = recipe_trial(p);
    at(p, "the oracle or native");
    if (judge_open(j, *t, false)) {
        j->redraw_seed = p->seed + 1;
        return true;
    }
    campaign_fail(c, p, "-", j->oracle.text, j->trouble);
    judge_close(j);
    trial_destroy(*t);
    return false;
}

/* On a device once more, with lengths and seeds in its memory, where there are any. */
static bool has_device_data(const trial *t, const char *implementation) {
    const trial_side *q = &t->side[SIDE_Q], *kv = &t->side[SIDE_KV];
    bool lengths = q->rows != ATTN_DENSE || kv->rows != ATTN_DENSE || q->used || kv->used;
    return machine_is_device(implementation) && !machine_rehearses() && (lengths || t->problem.dropout > 0);
}

void campaign_try(campaign *c, const recipe *p) {
    judge j;
    trial *t;
    if (!open_case(c, p, &t, &j)) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        result r;
        run_options how = {.implementation = *name};
        one_run(c, p, t, &j, how, &r);
        result_free(&r);
        if (has_device_data(t, *name)) {
            how.device_data = true;
            one_run(c, p, t, &j, how, &r);
            result_free(&r);
        }
    }
    judge_close(&j);
    trial_destroy(t);
}

/* Every further way of running must give the bits of the first. */
static void same_again(campaign *c, const recipe *p, const trial *t, const result *first, run_options how) {
    char where[200], text[300];
    result again;
    run_outcome outcome = run_trial(t, &how, &again);
    c->runs++;
    if (outcome != RUN_DONE) {
        campaign_fail(c, p, how.implementation, again.text, again.trouble);
    } else if (!results_equal(t, first, &again, where, sizeof where)) {
        snprintf(text, sizeof text, "not the bits of the first run (%d threads) at %s", how.threads, where);
        campaign_fail(c, p, how.implementation, again.text, text);
    }
    result_free(&again);
}

void campaign_try_again(campaign *c, const recipe *p) {
    static const int threads[] = {2, 3, 8};
    judge j;
    trial *t;
    if (!open_case(c, p, &t, &j)) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        bool device = machine_is_device(*name);
        run_options how = {.implementation = *name, .threads = 1, .deterministic = device};
        result first;
        if (one_run(c, p, t, &j, how, &first) == 1) {
            how.forward_only = !first.value[T_DQ] && !first.value[T_DK] && !first.value[T_DV];
            for (int n = 0; n < (device ? 1 : 3); n++) {
                how.threads = threads[n];
                same_again(c, p, t, &first, how);
            }
        }
        result_free(&first);
    }
    judge_close(&j);
    trial_destroy(t);
}

int campaign_end(const campaign *c) {
    printf("%s: %lld cases, %lld runs, %lld refused by the rule, %d failures\n", c->title, (long long)c->recipes,
           (long long)c->runs, (long long)c->refusals, c->failures);
    return c->failures;
}
