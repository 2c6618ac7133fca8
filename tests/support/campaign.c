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

/* mma adds a dbias that is summed over axes in any order. */
static bool sums_in_any_order(const trial *t, const run_options *how) {
    unsigned summed = t->broadcast[t->unset >> T_DBIAS & 1 ? T_BIAS : T_DBIAS];
    return !strcmp(how->implementation, "mma") && how->deterministic && trial_has(t, T_DBIAS) && summed;
}

/* Do the rules allow this refusal? */
static bool allowed(const trial *t, const run_options *how, const result *r) {
    const char *field = r->error.field;
    return (r->rule && !strcmp(r->rule, field)) ||
           (r->pass == ATTN_BACKWARD && (machine_may_refuse(how->implementation, &t->problem, field) ||
                                         (sums_in_any_order(t, how) && !strcmp(field, "dbias.stride"))));
}

run_outcome campaign_run(campaign *c, const trial *t, run_options *how, result *out) {
    run_outcome outcome = run_trial(t, how, out);
    c->runs++;
    c->refusals += outcome == RUN_REFUSED;
    if (outcome != RUN_REFUSED) {
        return outcome;
    }
    if (!allowed(t, how, out)) {
        snprintf(out->trouble, sizeof out->trouble, "refused: %.28s %.224s (expected: %s)", out->error.field,
                 out->error.message, out->rule ? out->rule : "no refusal");
        return RUN_FAILED;
    }
    if (out->pass == ATTN_FORWARD) {
        return RUN_REFUSED;
    }
    how->forward_only = true;
    result_free(out);
    return campaign_run(c, t, how, out);
}

static court court_of(campaign *c, const recipe *p) {
    court s = {.campaign = c, .recipe = p, .trial = recipe_trial(p), .redraw_seed = p->seed + 1};
    c->recipes++;
    return s;
}

bool court_judge(court *s) {
    if (!s->open) {
        s->open = true;
        s->sound = judge_open(&s->judge, s->trial, s->forward_only);
        s->judge.redraw_seed = s->redraw_seed;
        if (!s->sound) {
            campaign_fail(s->campaign, s->recipe, "-", s->judge.oracle.text, s->judge.trouble);
        }
    }
    return s->sound;
}

void court_close(court *s) {
    if (s->open) {
        judge_close(&s->judge);
    }
    trial_destroy(s->trial);
}

/* Did it run, and right? Where only backward is refused, forward runs alone. */
static bool one_run(court *s, run_options *how, result *out) {
    at(s->recipe, how->implementation);
    run_outcome outcome = campaign_run(s->campaign, s->trial, how, out);
    if (outcome == RUN_REFUSED) {
        return false;
    }
    if (outcome == RUN_DONE && !s->open) {
        at(s->recipe, "the oracle or native");
    }
    if (outcome == RUN_DONE && !court_judge(s)) {
        return false;
    }
    if (outcome == RUN_DONE && judge_accepts(&s->judge, out)) {
        return true;
    }
    campaign_fail(s->campaign, s->recipe, how->implementation, out->text,
                  out->trouble[0] ? out->trouble : s->judge.trouble);
    return false;
}

/* On a device once more, with lengths and seeds in its memory, where there are any. */
static bool has_device_data(const trial *t, const char *implementation) {
    const trial_side *q = &t->side[SIDE_Q], *kv = &t->side[SIDE_KV];
    bool lengths = q->rows != ATTN_DENSE || kv->rows != ATTN_DENSE || q->used || kv->used;
    return machine_is_device(implementation) && !machine_rehearses() && (lengths || t->problem.dropout > 0);
}

void campaign_try(campaign *c, const recipe *p) {
    court s = court_of(c, p);
    for (const char *const *name = machine_implementations(true); *name; name++) {
        result r;
        run_options how = {.implementation = *name};
        one_run(&s, &how, &r);
        result_free(&r);
        if (has_device_data(s.trial, *name)) {
            run_options again = {.implementation = *name, .device_data = true};
            one_run(&s, &again, &r);
            result_free(&r);
        }
    }
    court_close(&s);
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
    court s = court_of(c, p);
    for (const char *const *name = machine_implementations(true); *name; name++) {
        bool device = machine_is_device(*name);
        run_options how = {.implementation = *name, .threads = 1, .deterministic = device};
        result first;
        if (one_run(&s, &how, &first)) {
            for (int n = 0; n < (device ? 1 : 3); n++) {
                how.threads = threads[n];
                same_again(c, p, s.trial, &first, how);
            }
        }
        result_free(&first);
    }
    court_close(&s);
}

int campaign_end(const campaign *c) {
    bool idle = c->must_run && c->runs == c->refusals && !machine_sharded();
    printf("%s: %lld cases, %lld runs, %lld refused by the rule, %d failures\n", c->title, (long long)c->recipes,
           (long long)c->runs, (long long)c->refusals, c->failures);
    if (idle) {
        fprintf(stderr, "%s: nothing was run\n", c->title);
    }
    return c->failures + idle;
}
