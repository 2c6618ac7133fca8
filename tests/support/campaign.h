/* SPDX-License-Identifier: Apache-2.0
 * Many recipes against every implementation of this machine: counts, refusals against the rule, failures with all that
 * is needed to run one again. A crash prints the recipe it happened in. */
#ifndef TESTS_SUPPORT_CAMPAIGN_H
#define TESTS_SUPPORT_CAMPAIGN_H

#include "support/judge.h"
#include "support/recipe.h"

typedef struct campaign {
    const char *title;
    int64_t recipes, runs, refusals;
    int failures;
    bool must_run; /* a failure if the rules refuse everything; shards may be too small for that */
} campaign;

/* A recipe's trial and its judge, which is called to the first result: where all refuse, nothing is judged. Its makers
 * set campaign, recipe and trial, and what the judge must know. */
typedef struct court {
    campaign *campaign;
    const recipe *recipe;
    trial *trial;
    judge judge;
    uint64_t redraw_seed;
    bool forward_only, open, sound;
} court;

campaign campaign_begin(const char *title);
/* Runs and counts. RUN_REFUSED: as the rules say; any other refusal is RUN_FAILED. Where the rules refuse backward
 * alone, forward runs alone and how->forward_only is set. */
run_outcome campaign_run(campaign *c, const trial *t, run_options *how, result *out);
/* Forward and backward on every implementation, judged by the bound. */
void campaign_try(campaign *c, const recipe *p);
/* The same, and the same bits again: with 1, 2, 3 and 8 threads; on a device with ATTN_DETERMINISTIC, twice. */
void campaign_try_again(campaign *c, const recipe *p);
void campaign_fail(campaign *c, const recipe *p, const char *implementation, const char *text, const char *trouble);
/* Is there a sound judge? Opened by the first question; a failure if it is not sound. */
bool court_judge(court *s);
/* Ends the judge and the trial. */
void court_close(court *s);
/* Says what was done; returns the number of failures. */
int campaign_end(const campaign *c);

#endif
