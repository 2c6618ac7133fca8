/* SPDX-License-Identifier: Apache-2.0 */
#include "support/campaign.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
}

void campaign_fail(campaign *c, const recipe *p, const char *implementation, const char *text, const char *trouble) {
    char line[600];
    if (++c->failures <= MOST_FAILURES_SHOWN) {
        recipe_text(p, line, sizeof line);
        fprintf(stderr, "%s: %s\n    %s\n    %s\n    %s\n", c->title, implementation, trouble, line, text);
    }
}

/* 1 if it ran, 0 if it was refused as the rule says, -1 if it failed. */
static int one_run(campaign *c, const recipe *p, const trial *t, judge *j, const char *implementation, int threads,
                   result *out) {
    run_options how = {.implementation = implementation, .threads = threads};
    const char *expected = machine_expected_refusal(implementation, &t->problem);
    at(p, implementation);
    run_trial(t, &how, out);
    c->runs++;
    if (out->outcome == RUN_REFUSED) {
        c->refusals++;
        if (expected && !strcmp(expected, out->error.field)) {
            return 0;
        }
        snprintf(out->trouble, sizeof out->trouble, "refused: %.28s %.224s (expected: %s)", out->error.field,
                 out->error.message, expected ? expected : "no refusal");
    } else if (out->outcome == RUN_DONE && expected) {
        snprintf(out->trouble, sizeof out->trouble, "ran, but the rule expects a refusal of %s", expected);
    } else if (out->outcome == RUN_DONE && judge_accepts(j, out)) {
        return 1;
    }
    campaign_fail(c, p, implementation, out->text, out->trouble[0] ? out->trouble : j->trouble);
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

void campaign_try(campaign *c, const recipe *p) {
    judge j;
    trial *t;
    if (!open_case(c, p, &t, &j)) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        result r;
        one_run(c, p, t, &j, *name, 0, &r);
        result_free(&r);
    }
    judge_close(&j);
    trial_destroy(t);
}

void campaign_try_threads(campaign *c, const recipe *p) {
    static const int threads[] = {2, 3, 8};
    judge j;
    trial *t;
    if (!open_case(c, p, &t, &j)) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        result one, many;
        if (one_run(c, p, t, &j, *name, 1, &one) == 1) {
            for (int n = 0; n < 3; n++) {
                run_options how = {.implementation = *name, .threads = threads[n]};
                char where[200], text[300];
                run_outcome outcome = run_trial(t, &how, &many);
                c->runs++;
                if (outcome != RUN_DONE) {
                    campaign_fail(c, p, *name, many.text, many.trouble);
                } else if (!results_equal(t, &one, &many, where, sizeof where)) {
                    snprintf(text, sizeof text, "1 and %d threads differ at %s", threads[n], where);
                    campaign_fail(c, p, *name, many.text, text);
                }
                result_free(&many);
            }
        }
        result_free(&one);
    }
    judge_close(&j);
    trial_destroy(t);
}

int campaign_end(const campaign *c) {
    printf("%s: %lld cases, %lld runs, %lld refused by the rule, %d failures\n", c->title, (long long)c->recipes,
           (long long)c->runs, (long long)c->refusals, c->failures);
    return c->failures;
}
