/* SPDX-License-Identifier: Apache-2.0
 * Comparison by logical index; layouts of the two sides may differ. */
#include "compare.h"

#include <math.h>
#include <string.h>

static bool same_kind(double a, double b) {
    if (isnan(a) || isnan(b)) {
        return isnan(a) && isnan(b);
    }
    return (!isinf(a) && !isinf(b)) || a == b;
}

static void at_index(cli_difference *d, double *squares, double got, double wanted, const int64_t index[4]) {
    d->count++;
    d->nan += isnan(got) != 0;
    d->inf += isinf(got) != 0;
    if (isfinite(wanted) && fabs(wanted) > d->reference_largest) {
        d->reference_largest = fabs(wanted);
    }
    if (!same_kind(got, wanted)) {
        if (d->misplaced++ == 0) {
            memcpy(d->first_misplaced, index, sizeof d->first_misplaced);
            d->misplaced_got = got;
            d->misplaced_wanted = wanted;
        }
        return;
    }
    double error = isfinite(got) ? fabs(got - wanted) : 0;
    *squares += error * error;
    if (error > d->largest || d->count == 1) {
        d->largest = error;
        memcpy(d->worst, index, sizeof d->worst);
        d->worst_got = got;
        d->worst_wanted = wanted;
    }
}

void cli_compare(cli_difference *difference, const cli_view *result, const cli_view *reference) {
    memset(difference, 0, sizeof *difference);
    double squares = 0;
    for (int64_t b = 0; b < result->shape[0]; b++) {
        for (int64_t h = 0; h < result->shape[1]; h++) {
            for (int64_t t = 0; t < result->shape[2]; t++) {
                for (int64_t d = 0; d < result->shape[3]; d++) {
                    at_index(difference, &squares, cli_view_at(result, b, h, t, d), cli_view_at(reference, b, h, t, d),
                             (int64_t[4]){b, h, t, d});
                }
            }
        }
    }
    difference->rms = difference->count ? sqrt(squares / (double)difference->count) : 0;
}

static bool row_is_bad(const cli_view *result, const cli_view *reference, int64_t b, int64_t h, int64_t t,
                       double bound) {
    for (int64_t d = 0; d < result->shape[3]; d++) {
        double got = cli_view_at(result, b, h, t, d), wanted = cli_view_at(reference, b, h, t, d);
        if (!same_kind(got, wanted) || (isfinite(got) && !(fabs(got - wanted) <= bound))) {
            return true;
        }
    }
    return false;
}

void cli_compare_rows(cli_bad_rows *bad, const cli_view *result, const cli_view *reference, double bound) {
    memset(bad, 0, sizeof *bad);
    for (int64_t b = 0; b < result->shape[0]; b++) {
        for (int64_t h = 0; h < result->shape[1]; h++) {
            int64_t here = 0;
            for (int64_t t = 0; t < result->shape[2]; t++) {
                if (!row_is_bad(result, reference, b, h, t, bound)) {
                    continue;
                }
                if (bad->heads == 0) {
                    if (here == 0) {
                        bad->batch = b;
                        bad->head = h;
                        bad->first = t;
                    }
                    bad->last = t;
                }
                here++;
            }
            bad->heads += here > 0;
            bad->count += here;
        }
    }
}
