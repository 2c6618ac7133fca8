/* SPDX-License-Identifier: Apache-2.0
 * How far a result is from the reference: positions of NaN and inf first, then errors. */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include "convert.h"

typedef struct cli_difference {
    int64_t count;              /* elements */
    int64_t nan, inf;           /* in the result */
    int64_t misplaced;          /* elements where result and reference disagree on NaN, +inf or -inf */
    int64_t first_misplaced[4]; /* batch, head, token, dim */
    double misplaced_got, misplaced_wanted;
    double largest, rms; /* error over elements that are finite in both */
    int64_t worst[4];    /* where `largest` is */
    double worst_got, worst_wanted;
    double reference_largest; /* max |reference| over finite elements */
} cli_difference;

void cli_compare(cli_difference *difference, const cli_view *result, const cli_view *reference);

/* Rows (tokens of one batch and head) that hold an element off by more than `bound` or misplaced. */
typedef struct cli_bad_rows {
    int64_t count;
    int64_t batch, head, first, last; /* first and last bad row in the first batch and head that has any */
    int64_t heads;                    /* (batch, head) pairs that have any */
} cli_bad_rows;
void cli_compare_rows(cli_bad_rows *bad, const cli_view *result, const cli_view *reference, double bound);

#endif
