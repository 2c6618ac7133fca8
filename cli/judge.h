/* SPDX-License-Identifier: Apache-2.0
 * Judging an implementation on one case: the float64 reference and the plain computation in the input's type are run
 * once, then any number of implementations are held against them.
 * The bound of each tensor is 2 * max|error of the plain computation| + 2 units in the last place of its type at
 * max|reference|; for float32 with ATTN_ALLOW_TF32 the plain computation takes q, k and v in float16. Where the plain
 * computation (`native`) refuses the problem, 2e-5, 2e-3 and 1.6e-2 of max(1, |reference|) stand in for float32,
 * float16 and bfloat16, five times as much for gradients, and for the lse 1e-5, with 16-bit inputs 1e-4. */
#ifndef CLI_JUDGE_H
#define CLI_JUDGE_H

#include "compare.h"
#include "execute.h"

typedef struct cli_verdict {
    int slot;
    bool right;
    double bound, plain_error;
    cli_difference difference;
} cli_verdict;

typedef struct cli_judge {
    const cli_case *at;
    cli_case reference;
    double plain_error[CLI_SLOT_COUNT];
    int64_t plain_misplaced[CLI_SLOT_COUNT]; /* NaN and inf that the plain computation makes by itself */
    bool has_plain;
} cli_judge;

/* context: the host's. */
cli_exit cli_judge_create(cli_judge *judge, const attn_context *context, const cli_case *at, cli_error *error);
void cli_judge_release(cli_judge *judge);
/* `tested` has the judge's inputs and results of its own. */
cli_verdict cli_judge_slot(const cli_judge *judge, const cli_case *tested, int slot);

#endif
