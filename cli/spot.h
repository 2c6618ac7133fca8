/* SPDX-License-Identifier: Apache-2.0
 * Checking a problem that is too large for the float64 reference, before it is timed. */
#ifndef CLI_SPOT_H
#define CLI_SPOT_H

#include "judge.h"

/* Judges results that `at` already holds, in the way that `how` then names:
 *   whole      the problem is small enough, everything was judged
 *   last rows  o, lse and dq of the last rows of the first and of the last head, with all keys
 *   smaller    the same implementation on the same rules with short sequences (where rows cannot be judged alone)
 *   both       last rows, and dk and dv by a smaller problem (backward)
 * *wrong is the number of tensors out of bounds. */
cli_exit cli_spot_check(const cli_place *place, const cli_case *at, const attn_hints *hints, const char **how,
                        int *wrong, cli_error *error);

#endif
