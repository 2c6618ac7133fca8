/* SPDX-License-Identifier: Apache-2.0
 * Causes are tried in the order in which they explain the most: input already bad, hidden data that leaks, scores that
 * do not fit the type, a row that sees nothing, an exact value that does not fit, an lse that float32 holds too
 * coarsely, and last plain drift. A row of the definition is looked at through q, k and the reference's own o and lse.
 */
#include "diagnose.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Where one row of an output comes from: its sequence, and the rows of the other side that belong to it. */
typedef struct origin {
    int64_t batch, head, token;    /* in the output */
    int64_t sequence, first, rows; /* the other side's rows */
    bool key_side;
} origin;

static bool is_key_side(int slot) {
    return slot == CLI_SLOT_DK || slot == CLI_SLOT_DV;
}

static bool has_rows(int slot) {
    return slot != CLI_SLOT_DBIAS && slot != CLI_SLOT_DSINK;
}

static int64_t sequence_of(const int32_t *cu, int64_t batch, int64_t token) {
    int64_t s = 0;
    while (s + 1 < batch && cu[s + 1] <= token) {
        s++;
    }
    return s;
}

static origin find_origin(const cli_case *at, int slot, const int64_t index[4]) {
    origin from = {.batch = index[0], .head = index[1], .token = index[2], .key_side = is_key_side(slot)};
    const int32_t *own = from.key_side ? at->cu_kv : at->cu_q, *other = from.key_side ? at->cu_q : at->cu_kv;
    const cli_view *across = &at->view[from.key_side ? CLI_SLOT_Q : CLI_SLOT_K];
    from.sequence = own ? sequence_of(own, at->problem.batch, from.token) : from.batch;
    from.first = other ? other[from.sequence] : 0;
    from.rows = other ? other[from.sequence + 1] - other[from.sequence] : across->shape[2];
    return from;
}

/* The first element of rows [first, first + rows) of one head that is NaN or inf. */
static bool first_bad(const cli_view *view, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t at[4]) {
    for (int64_t t = first; t < first + rows; t++) {
        for (int64_t d = 0; d < view->shape[3]; d++) {
            if (!isfinite(cli_view_at(view, b, h, t, d))) {
                memcpy(at, (int64_t[4]){b, h, t, d}, 4 * sizeof *at);
                return true;
            }
        }
    }
    return false;
}

static void say_bad_input(cli_report *report, const cli_case *at, int slot, const int64_t i[4], const char *so) {
    cli_report_remark(report,
                      "  why: input already bad: %s is %g at batch %" PRId64 ", head %" PRId64 ", token %" PRId64
                      ", dim %" PRId64 "%s",
                      cli_slot_names[slot], cli_view_at(&at->view[slot], i[0], i[1], i[2], i[3]), i[0], i[1], i[2],
                      i[3], so);
}

/* NaN or inf in the inputs that this row may depend on. */
static bool blame_inputs(const cli_suspect *s, const origin *from, bool reference_bad, cli_report *report) {
    const cli_case *at = s->tested;
    const attn_problem *p = &at->problem;
    int64_t group = p->heads_kv ? p->heads_q / p->heads_kv : 1, where[4];
    const char *leak = "; it is hidden from this row and must have no influence: it leaks";
    const char *seen = ", and this row sees it";
    static const int query_side[] = {CLI_SLOT_Q, CLI_SLOT_DOUT}, key_side[] = {CLI_SLOT_K, CLI_SLOT_V};
    int64_t packed_batch_q = p->rows_q == ATTN_PACKED ? 0 : from->sequence;
    int64_t packed_batch_kv = p->rows_kv == ATTN_PACKED ? 0 : from->sequence;
    int64_t head_q = from->key_side ? from->head * group : from->head, heads = from->key_side ? group : 1;
    for (int i = 0; i < 2; i++) {
        int slot = query_side[i];
        for (int64_t h = head_q; at->present[slot] && h < head_q + heads; h++) {
            int64_t first = from->key_side ? from->first : from->token, rows = from->key_side ? from->rows : 1;
            if (first_bad(&at->view[slot], packed_batch_q, h, first, rows, where)) {
                say_bad_input(report, at, slot, where, !from->key_side ? "" : reference_bad ? seen : leak);
                return true;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        int slot = key_side[i];
        int64_t head_kv = from->key_side ? from->head : from->head / group;
        int64_t first = from->key_side ? from->token : from->first, rows = from->key_side ? 1 : from->rows;
        if (first_bad(&at->view[slot], packed_batch_kv, head_kv, first, rows, where)) {
            say_bad_input(report, at, slot, where, from->key_side ? "" : reference_bad ? seen : leak);
            return true;
        }
    }
    return false;
}

/* The largest |scale * <q, k>| and |<q, k>| of one query row, over the keys of its sequence, hidden or not. */
typedef struct extreme {
    double scaled, raw;
    int64_t key;
} extreme;
static extreme extreme_score(const cli_case *at, const origin *from) {
    const attn_problem *p = &at->problem;
    const cli_view *q = &at->view[CLI_SLOT_Q], *k = &at->view[CLI_SLOT_K];
    int64_t head_kv = from->head / (p->heads_q / p->heads_kv);
    int64_t batch_q = p->rows_q == ATTN_PACKED ? 0 : from->sequence;
    int64_t batch_kv = p->rows_kv == ATTN_PACKED ? 0 : from->sequence;
    extreme found = {0, 0, -1};
    for (int64_t j = from->first; j < from->first + from->rows; j++) {
        double sum = 0;
        for (int64_t d = 0; d < p->dim_qk; d++) {
            sum += cli_view_at(q, batch_q, from->head, from->token, d) * cli_view_at(k, batch_kv, head_kv, j, d);
        }
        double scaled = fabs(sum * (double)p->scale);
        if (fabs(sum) > found.raw || scaled > found.scaled) {
            found = (extreme){scaled, fabs(sum), j - from->first};
        }
    }
    return found;
}

static bool blame_scores(const cli_suspect *s, const origin *from, cli_report *report) {
    cli_type type = s->tested->view[CLI_SLOT_Q].type;
    extreme most = extreme_score(s->tested, from);
    double limit = cli_largest(type);
    if (most.raw <= limit && most.scaled <= limit) {
        return false;
    }
    cli_report_remark(report,
                      "  why: overflow in scores: |<q, k>| reaches %.4g (%.4g scaled) at key %" PRId64
                      ", the largest %s is %.5g",
                      most.raw, most.scaled, most.key, cli_types[type].name, limit);
    return true;
}

/* Backward takes p = exp(s - lse) from the stored lse. */
static bool blame_lse(const cli_suspect *s, cli_report *report) {
    const cli_view *lse = &s->reference->view[CLI_SLOT_LSE];
    double most = 0;
    for (int64_t b = 0; b < lse->shape[0]; b++) {
        for (int64_t h = 0; h < lse->shape[1]; h++) {
            for (int64_t t = 0; t < lse->shape[2]; t++) {
                double value = fabs(cli_view_at(lse, b, h, t, 0));
                most = isfinite(value) && value > most ? value : most;
            }
        }
    }
    if (most < 4096) {
        return false;
    }
    cli_report_remark(report,
                      "  why: precision of lse: it reaches %.4g, where neighbouring floats are %.2g apart; "
                      "gradients' probabilities are as uncertain as that exponent",
                      most, cli_ulp(CLI_F32, most));
    return true;
}

static void explain(const cli_suspect *s, int slot, const int64_t i[4], double got, double wanted, double bound,
                    cli_report *report) {
    const cli_case *at = s->tested;
    const cli_view *lse = &s->reference->view[CLI_SLOT_LSE];
    cli_type type = at->view[slot].type;
    if (has_rows(slot)) {
        origin from = find_origin(at, slot, i);
        if (blame_inputs(s, &from, !isfinite(wanted), report)) {
            return;
        }
        if (!from.key_side && !isfinite(got) && blame_scores(s, &from, report)) {
            return;
        }
        if (!from.key_side && isinf(cli_view_at(lse, i[0], i[1], i[2], 0))) {
            cli_report_remark(report,
                              "  why: masked row: no key is visible to it, so o and gradients are 0 and lse is %g",
                              cli_view_at(lse, i[0], i[1], i[2], 0));
            return;
        }
    }
    if (isfinite(wanted) && fabs(wanted) > cli_largest(type)) {
        cli_report_remark(report, "  why: the exact value %.6g does not fit in %s", wanted, cli_types[type].name);
        return;
    }
    if (isnan(got) && isfinite(wanted)) {
        cli_report_remark(
            report, "  why: never written, or NaN made inside the implementation; inputs and scores are in range");
        return;
    }
    if (cli_slot_roles[slot] == CLI_ROLE_BACKWARD && type != CLI_F64 && blame_lse(s, report)) {
        return;
    }
    cli_report_remark(report, "  why: drift: off by %.4g where the bound is %.4g; inputs and scores are in range",
                      fabs(got - wanted), bound);
}

void cli_diagnose(const cli_suspect *s, int slot, const cli_difference *d, double bound, cli_report *report) {
    const cli_view *result = &s->tested->view[slot], *reference = &s->reference->view[slot];
    cli_bad_rows bad;
    cli_compare_rows(&bad, result, reference, bound);
    const int64_t *i = d->misplaced ? d->first_misplaced : d->worst;
    double got = d->misplaced ? d->misplaced_got : d->worst_got;
    double wanted = d->misplaced ? d->misplaced_wanted : d->worst_wanted;
    cli_report_remark(report,
                      "%s of %s starts to differ at batch %" PRId64 ", head %" PRId64 ", %s %" PRId64 ": %" PRId64
                      " bad rows in %" PRId64 " heads, rows %" PRId64 " to %" PRId64 " of the first",
                      cli_slot_names[slot], s->implementation, bad.batch, bad.head, is_key_side(slot) ? "key" : "row",
                      bad.first, bad.count, bad.heads, bad.first, bad.last);
    int64_t block = is_key_side(slot) ? s->block_kv : s->block_q;
    if (block > 0 && has_rows(slot) && !s->tested->cu_q) {
        cli_report_remark(report,
                          "  block: rows %" PRId64 " to %" PRId64 " lie in blocks %" PRId64 " to %" PRId64
                          " of %" PRId64 " rows",
                          bad.first, bad.last, bad.first / block, bad.last / block, block);
    }
    cli_report_remark(report,
                      "  %s at batch %" PRId64 ", head %" PRId64 ", token %" PRId64 ", dim %" PRId64
                      ": %.9g, the reference has %.9g",
                      d->misplaced ? "first NaN or inf out of place" : "worst", i[0], i[1], i[2], i[3],
                      isnan(got) ? NAN : got, isnan(wanted) ? NAN : wanted);
    explain(s, slot, i, got, wanted, bound, report);
}

void cli_diagnose_inputs(const cli_case *at, cli_report *report) {
    for (int slot = 0; slot < CLI_SLOT_COUNT; slot++) {
        bool input = cli_slot_roles[slot] == CLI_ROLE_INPUT || cli_slot_roles[slot] == CLI_ROLE_GRADIENT;
        const cli_view *view = &at->view[slot];
        int64_t count = 0, first[4] = {0, 0, 0, 0};
        for (int64_t b = 0; at->present[slot] && input && b < view->shape[0]; b++) {
            for (int64_t h = 0; h < view->shape[1]; h++) {
                for (int64_t t = 0; t < view->shape[2]; t++) {
                    for (int64_t d = 0; d < view->shape[3]; d++) {
                        double value = cli_view_at(view, b, h, t, d);
                        if (!isfinite(value) && !(slot == CLI_SLOT_BIAS && value == -INFINITY) && count++ == 0) {
                            memcpy(first, (int64_t[4]){b, h, t, d}, sizeof first);
                        }
                    }
                }
            }
        }
        if (count) {
            cli_report_remark(report,
                              "input %s holds %" PRId64 " NaN or inf, the first (%g) at batch %" PRId64
                              ", head %" PRId64 ", token %" PRId64 ", dim %" PRId64,
                              cli_slot_names[slot], count, cli_view_at(view, first[0], first[1], first[2], first[3]),
                              first[0], first[1], first[2], first[3]);
        }
    }
}
