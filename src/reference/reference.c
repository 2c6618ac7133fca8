/* SPDX-License-Identifier: Apache-2.0
 * The implementation `reference`: the oracle behind the library's interface. Serial, float64 inside, any type
 * outside; it runs by itself for float64 tensors and by name for all others. */
#include "backend.h"

#include "base/error.h"
#include "ref/attn_ref.h"

static attn_status prepare(attn_plan *plan, attn_error *error) {
    size_t size = attn_ref_workspace(&plan->problem);
    if (size == SIZE_MAX) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "tokens_kv",
                          "is %lld: the float64 copies that reference makes exceed the address space",
                          (long long)plan->problem.tokens_kv);
    }
    plan->choice.threads = 1;
    plan->choice.block_q = 1;
    plan->choice.block_kv = plan->problem.tokens_kv;
    plan->choice.splits = 1;
    plan->workspace = size;
    return attn__succeed(error);
}

static attn_status forward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                           attn_error *error) {
    (void)stream;
    attn_ref_forward(&plan->problem, args, workspace);
    return attn__succeed(error);
}

static attn_status backward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                            attn_error *error) {
    (void)stream;
    attn_ref_backward(&plan->problem, args, workspace);
    return attn__succeed(error);
}

extern const attn__impl attn__impl_reference;
const attn__impl attn__impl_reference = {.name = "reference",
                                         .backend = "reference",
                                         .automatic = ATTN__FOR_F64,
                                         .prepare = prepare,
                                         .forward = forward,
                                         .backward = backward};
