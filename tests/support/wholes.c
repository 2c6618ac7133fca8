/* SPDX-License-Identifier: Apache-2.0 */
#include "support/wholes.h"

#include <string.h>

#include "support/campaign.h"
#include "support/machine.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Whole problems; o and gradients in float32, so that sums of parts are not rounded on the way. */
static const recipe wholes[] = {
    {.name = "plain", .batch = 2, .heads_kv = 2, .group = 2, .tokens_q = 37, .tokens_kv = 70, .dim_qk = 32},
    {.name = "causal",
     .batch = 2,
     .heads_kv = 1,
     .group = 2,
     .tokens_q = 65,
     .tokens_kv = 97,
     .dim_qk = 64,
     .band = {.kind = ATTN_CAUSAL},
     .dlse = true},
    {.name = "top-left",
     .batch = 1,
     .heads_kv = 2,
     .group = 1,
     .tokens_q = 50,
     .tokens_kv = 40,
     .dim_qk = 16,
     .dim_v = 24,
     .band = {.kind = ATTN_CAUSAL, .corner = ATTN_TOP_LEFT},
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED},
    {.name = "window globals",
     .batch = 2,
     .heads_kv = 1,
     .group = 1,
     .tokens_q = 90,
     .tokens_kv = 110,
     .dim_qk = 40,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, .left = 12, .right = -1, .globals = 4}},
    {.name = "sink",
     .batch = 2,
     .heads_kv = 2,
     .group = 3,
     .tokens_q = 20,
     .tokens_kv = 64,
     .dim_qk = 64,
     .sink = true,
     .dlse = true,
     .band = {.kind = ATTN_CAUSAL}},
    {.name = "dropout",
     .batch = 2,
     .heads_kv = 2,
     .group = 1,
     .tokens_q = 33,
     .tokens_kv = 67,
     .dim_qk = 24,
     .dropout = 0.4f},
    {.name = "dropout causal",
     .batch = 3,
     .heads_kv = 1,
     .group = 4,
     .tokens_q = 48,
     .tokens_kv = 48,
     .dim_qk = 64,
     .dropout = 0.25f,
     .band = {.kind = ATTN_CAUSAL},
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED},
    {.name = "bias mask",
     .batch = 2,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 31,
     .tokens_kv = 45,
     .dim_qk = 32,
     .bias = PRESENT | OVER_BATCH,
     .mask = PRESENT | OVER_HEADS},
    {.name = "alibi soft cap",
     .batch = 2,
     .heads_kv = 1,
     .group = 3,
     .tokens_q = 40,
     .tokens_kv = 81,
     .dim_qk = 48,
     .alibi = PRESENT,
     .softcap = 2},
    {.name = "one row", .batch = 2, .heads_kv = 2, .group = 4, .tokens_q = 1, .tokens_kv = 150, .dim_qk = 128},
    {.name = "everything",
     .batch = 2,
     .heads_kv = 2,
     .group = 2,
     .tokens_q = 44,
     .tokens_kv = 72,
     .dim_qk = 40,
     .dim_v = 56,
     .bias = PRESENT | OVER_HEADS,
     .mask = PRESENT | OVER_BATCH,
     .alibi = PRESENT,
     .softcap = 3,
     .dropout = 0.2f,
     .sink = true,
     .dlse = true,
     .has_scale = true,
     .scale = -0.2f,
     .rows_q = ROWS_USED,
     .rows_kv = ROWS_USED,
     .band = {.kind = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, .left = 30, .right = -1, .globals = 3}},
};
static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* One form of a whole. */
static court whole_of(campaign *c, const recipe *p, attn_dtype o, bool forward_only) {
    court w = {.campaign = c, .recipe = p, .trial = recipe_trial(p), .redraw_seed = 1, .forward_only = forward_only};
    w.trial->problem.dout.dtype = p->dtype;
    w.trial->problem.o.dtype = o;
    return w;
}

/* The field by which the rules refused it, or NULL. */
static const char *try_way(court *w, const char *name, wholes_way take, uint64_t seed) {
    rng r = rng_seed(seed);
    result out;
    const char *rule = NULL;
    memset(&out, 0, sizeof out);
    w->campaign->runs++;
    bool taken = take(w->trial, name, &r, &out);
    out.rounds = machine_rounds(name, &w->trial->problem); /* of every part */
    if (!taken && out.outcome == RUN_REFUSED && out.rule && !strcmp(out.rule, out.error.field)) {
        w->campaign->refusals++;
        rule = out.rule;
    } else if (!taken) {
        campaign_fail(w->campaign, w->recipe, name, out.text, out.trouble[0] ? out.trouble : out.error.message);
    } else if (court_judge(w) && !judge_accepts(&w->judge, &out)) {
        campaign_fail(w->campaign, w->recipe, name, out.text, w->judge.trouble);
    }
    result_free(&out);
    return rule;
}

/* Runs the way on every whole, implementation and type; what it gives must be right. Where o must be of q's type, it
 * is.
 */
int wholes_judged(const char *title, wholes_way take, bool forward_only) {
    campaign c = campaign_begin(title);
    c.must_run = true;
    for (size_t n = 0; n < COUNT(wholes) * COUNT(dtypes); n++) {
        recipe p = wholes[n / 3];
        p.dtype = dtypes[n % 3];
        p.seed = n + 1;
        p.f32_out = true;
        if ((machine_intensity() <= 0 && n % 4) || !machine_shard(n / 3)) {
            continue;
        }
        c.recipes++;
        court w = whole_of(&c, &p, ATTN_F32, forward_only);
        for (const char *const *name = machine_implementations(true); *name; name++) {
            const char *rule = try_way(&w, *name, take, n);
            if (rule && !strcmp(rule, "o.dtype") && p.dtype != ATTN_F32) {
                court narrow = whole_of(&c, &p, p.dtype, forward_only);
                try_way(&narrow, *name, take, n);
                court_close(&narrow);
            }
        }
        court_close(&w);
    }
    return campaign_end(&c);
}

void wholes_blame(result *out, const result *part) {
    out->outcome = part->outcome;
    out->error = part->error;
    out->pass = part->pass;
    out->rule = part->rule;
    memcpy(out->trouble, part->trouble, sizeof out->trouble);
    memcpy(out->text, part->text, sizeof out->text);
}

bool wholes_run(const trial *t, const char *implementation, bool forward_only, result *out) {
    run_options how = {.implementation = implementation, .forward_only = forward_only};
    result_free(out);
    return run_trial(t, &how, out) == RUN_DONE;
}
