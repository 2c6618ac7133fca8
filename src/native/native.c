/* SPDX-License-Identifier: Apache-2.0
 * The implementation `native`: attention as it is usually written down, the scores of all sequences and heads stored.
 * It is the baseline of memory, speed and error, so it keeps to the plain recipe: products in float32, scores and
 * probabilities and their gradients rounded to q's type, softmax in float32, no block left out because of a mask.
 *
 * Limits: memory grows with tokens_q * tokens_kv; each softmax row is one thread's work. */
#include "backend.h"
#include "base/error.h"
#include "native/native.h"

static attn_status prepare(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    native_layout layout;
    plan->choice.threads = plan->machine.threads > 0 ? plan->machine.threads : 1;
    plan->choice.block_q = BLOCK;
    plan->choice.block_kv = DEPTH;
    plan->choice.splits = 1;
    plan->workspace = attn__native_layout(p, plan->choice.threads, &layout);
    return attn__plan_scores_fit(plan, error);
}

static attn_status forward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                           attn_error *error) {
    (void)stream;
    native_run run = attn__native_start(plan, args, workspace);
    attn__native_forward(&run);
    return attn__succeed(error);
}

static attn_status backward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                            attn_error *error) {
    (void)stream;
    native_run run = attn__native_start(plan, args, workspace);
    attn__native_backward(&run);
    return attn__succeed(error);
}

extern const attn__impl attn__impl_native;
const attn__impl attn__impl_native = {
    .name = "native",
    .backend = "native",
    .automatic = 0,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
};
