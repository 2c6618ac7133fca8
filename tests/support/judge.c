/* SPDX-License-Identifier: Apache-2.0 */
#include "support/judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

#define REDRAWS 12

double type_ulp(attn_dtype dtype, double value) {
    int digits = dtype == ATTN_F64 ? 52 : dtype == ATTN_F32 ? 23 : dtype == ATTN_F16 ? 10 : 7;
    int lowest = dtype == ATTN_F64 ? -1022 : dtype == ATTN_F16 ? -14 : -126, exponent;
    if (!isfinite(value) || value == 0) {
        return ldexp(1, lowest - digits);
    }
    frexp(value, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    return ldexp(1, exponent - digits);
}

static void failed(judge *j, const char *who, const result *r) {
    if (r->outcome == RUN_REFUSED) {
        snprintf(j->trouble, sizeof j->trouble, "%s: refused: %s %s", who, r->error.field, r->error.message);
    } else {
        snprintf(j->trouble, sizeof j->trouble, "%s: %s", who, r->trouble);
    }
}

bool judge_open(judge *j, const trial *t, bool forward_only) {
    memset(j, 0, sizeof *j);
    j->trial = t;
    j->redraw_seed = 1;
    j->forward_only = forward_only;
    run_options oracle = {.oracle = true, .forward_only = forward_only};
    /* Float64 has no plain computation but the oracle itself. */
    const char *native = t->problem.q.dtype == ATTN_F64 ? "reference" : "native";
    run_options plain = {.plain = true, .implementation = native, .forward_only = forward_only};
    if (run_trial(t, &oracle, &j->oracle) != RUN_DONE) {
        failed(j, "the oracle", &j->oracle);
        return false;
    }
    if (run_trial(t, &plain, &j->plain) != RUN_DONE) {
        failed(j, native, &j->plain);
        return false;
    }
    return true;
}

void judge_close(judge *j) {
    if (j->low) {
        trial_destroy(j->low->rounded);
        result_free(&j->low->plain); /* the oracle is ours */
        free(j->low);
    }
    result_free(&j->oracle);
    result_free(&j->plain);
}

static double largest(const double *values, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(values[i]) && fabs(values[i]) > most) {
            most = fabs(values[i]);
        }
    }
    return most;
}

static double largest_norm(const double *values, int64_t count, int64_t dims) {
    double most = 0;
    for (int64_t i = 0; i + dims <= count; i += dims) {
        double sum = 0;
        for (int64_t d = 0; d < dims; d++) {
            sum += isfinite(values[i + d]) ? values[i + d] * values[i + d] : 0;
        }
        most = sum > most ? sum : most;
    }
    return sqrt(most);
}

/* Four roundings, to float32 or tf32, at the size of the terms that are summed (a Cauchy-Schwarz bound on one term). */
static double rounding_noise(const trial *t, tensor_id id, bool tf32) {
    const attn_problem *p = &t->problem;
    double unit = 4 * (tf32 ? 0x1p-12 : 0x1p-24) / (1 - (double)p->dropout);
    double scale = p->flags & ATTN_HAS_SCALE ? fabs((double)p->scale) : 1 / sqrt((double)p->dim_qk);
    double q = largest_norm(t->value[T_Q], trial_size(t, T_Q), p->dim_qk);
    double k = largest_norm(t->value[T_K], trial_size(t, T_K), p->dim_qk);
    if (id == T_LSE) {
        double bias = t->value[T_BIAS] ? largest(t->value[T_BIAS], trial_size(t, T_BIAS)) : 0;
        double slope = t->value[T_ALIBI] ? largest(t->value[T_ALIBI], trial_size(t, T_ALIBI)) : 0;
        return unit * (scale * q * k + bias + slope * (double)(p->tokens_q + p->tokens_kv));
    }
    if (id == T_O || !t->value[T_DOUT]) {
        return 0;
    }
    double v = largest_norm(t->value[T_V], trial_size(t, T_V), p->dim_v);
    double dout = largest_norm(t->value[T_DOUT], trial_size(t, T_DOUT), p->dim_v);
    double term = 2 * dout * v + (t->value[T_DLSE] ? largest(t->value[T_DLSE], trial_size(t, T_DLSE)) : 0);
    /* Roundings of the rows that one element sums over add up as a random walk. */
    double group_rows = sqrt((double)p->tokens_q * (double)p->heads_q / fmax(1, (double)p->heads_kv));
    double pairs = (double)p->batch * (double)p->heads_q * (double)p->tokens_q * (double)p->tokens_kv;
    switch (id) {
    case T_DQ: return unit * scale * term * largest(t->value[T_K], trial_size(t, T_K));
    case T_DK: return unit * scale * term * largest(t->value[T_Q], trial_size(t, T_Q)) * group_rows;
    case T_DV: return unit * largest(t->value[T_DOUT], trial_size(t, T_DOUT)) * group_rows;
    case T_DBIAS: return unit * term * sqrt(pairs / fmax(1, (double)trial_size(t, id)));
    case T_DSINK: return unit * term * sqrt((double)p->batch * (double)p->tokens_q);
    default: return 0;
    }
}

/* Backward takes p = exp(s - lse) from scores computed anew and the lse that forward stored in float32. With scores far
 * from 0 the order of their sums shows in p, while the plain computation's two passes agree to the bit; and where a row
 * sees one key its p is 1 by identity, its error 0. Forward's float32 o has the latter too where products take p in 16
 * bits and the sum does not. Eight roundings at the size of the scores are allowed there. */
static double exponent_noise(const judge *j, tensor_id id, double plain_error) {
    const trial *t = j->trial;
    double most = largest(j->oracle.value[id], trial_size(t, id));
    double score = j->oracle.value[T_LSE] ? largest(j->oracle.value[T_LSE], trial_size(t, T_LSE)) : 0;
    bool told_apart = (score > 16 && id >= T_DQ) || plain_error < 4 * type_ulp(ATTN_F32, most);
    bool narrow = id == T_O && t->problem.q.dtype != ATTN_F32 && t->problem.q.dtype != ATTN_F64;
    return (id >= T_DQ || narrow) && told_apart ? 8 * 0x1p-24 * score * most : 0;
}

static double worst_error(const double *got, const double *want, int64_t count, int64_t *where) {
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(want[i]) && isfinite(got[i]) && fabs(got[i] - want[i]) > worst) {
            worst = fabs(got[i] - want[i]);
            *where = i;
        }
    }
    return worst;
}

static void raise_error(judge *j, const trial *t, const result *r, const result *oracle) {
    for (int id = T_O; id < T_COUNT; id++) {
        if (r->value[id] && oracle->value[id]) {
            int64_t where;
            j->redrawn[id] =
                fmax(j->redrawn[id], worst_error(r->value[id], oracle->value[id], trial_size(t, id), &where));
        }
    }
}

static void redraw(judge *j) {
    j->has_redrawn = true;
    run_options exact = {.plain = true, .implementation = "reference", .forward_only = j->forward_only};
    result r;
    if (run_trial(j->trial, &exact, &r) == RUN_DONE) {
        raise_error(j, j->trial, &r, &j->oracle);
    }
    result_free(&r);
    trial *t = trial_copy(j->trial);
    rng draw = rng_seed(j->redraw_seed);
    for (int n = 0; n < REDRAWS && !j->fixed; n++) {
        judge other;
        trial_draw(t, &draw);
        if (judge_open(&other, t, j->forward_only)) {
            raise_error(j, t, &other.plain, &other.oracle);
        }
        judge_close(&other);
    }
    trial_destroy(t);
}

static double rounded(attn_dtype dtype, double value) {
    uint64_t one;
    attn__store(dtype, &one, 0, value);
    return attn__load(dtype, &one, 0);
}

static bool same_kind(double got, double want) {
    return isnan(want) ? isnan(got) : isinf(want) ? got == want : isfinite(got);
}

/* The same problem with q, k, v and dout rounded to 16 bits (float32 inputs: float16, which keeps tf32's bits), against
 * the oracle of what they were. */
static judge *judge_of_rounded(judge *j) {
    judge *low = calloc(1, sizeof *low);
    trial *t = trial_copy(j->trial);
    if (!low) {
        abort();
    }
    attn_dtype dtype = t->problem.q.dtype == ATTN_BF16 ? ATTN_BF16 : ATTN_F16;
    t->problem.q.dtype = t->problem.k.dtype = t->problem.v.dtype = t->problem.dout.dtype = dtype;
    t->unset &= ~(1u << T_DOUT);
    trial_settle(t);
    low->trial = j->trial;
    low->rounded = t;
    low->oracle = j->oracle;
    low->has_redrawn = true; /* its errors are no luck of few elements: inputs are rounded too */
    run_options plain = {.plain = true, .implementation = "native", .forward_only = j->forward_only};
    if (run_trial(t, &plain, &low->plain) != RUN_DONE) {
        failed(j, "native in 16 bits", &low->plain);
    }
    return low;
}

static bool accepts(judge *j, const result *r, tensor_id id) {
    const trial *t = j->trial;
    const double *got = r->value[id], *want = j->oracle.value[id], *plain = j->plain.value[id];
    int64_t count = trial_size(t, id), at = 0, ignored;
    attn_dtype dtype = tensor_dtype(&t->problem, id);
    attn_dtype precision = j->rounded && id != T_LSE ? j->rounded->problem.q.dtype : dtype;
    char where[80];
    for (int64_t i = 0; i < count; i++) {
        if (!same_kind(got[i], rounded(dtype, want[i]))) {
            trial_where(t, id, i, where, sizeof where);
            snprintf(j->trouble, sizeof j->trouble, "%s is %g, must be %g", where, got[i], want[i]);
            return false;
        }
    }
    double error = worst_error(got, want, count, &at), plain_error = worst_error(plain, want, count, &ignored);
    double units = 2 * type_ulp(precision, largest(want, count)) +
                   rounding_noise(t, id, j->rounded && t->problem.q.dtype == ATTN_F32);
    if (error > 2 * plain_error + units && !j->has_redrawn) {
        redraw(j);
    }
    plain_error = fmax(plain_error, j->redrawn[id]);
    double bound = 2 * plain_error + units + exponent_noise(j, id, plain_error);
    if (error <= bound) {
        return true;
    }
    trial_where(t, id, at, where, sizeof where);
    snprintf(j->trouble, sizeof j->trouble, "%s is %.9g, must be %.9g: error %.3g, allowed %.3g (plain error %.3g)",
             where, got[at], want[at], error, bound, plain_error);
    return false;
}

static bool each_accepted(judge *j, const result *r) {
    for (int id = T_O; id < T_COUNT; id++) {
        if (id != T_DELTA && r->value[id] && !accepts(j, r, id)) {
            return false;
        }
    }
    return true;
}

bool judge_accepts(judge *j, const result *r) {
    if (r->rounds) {
        j->low = j->low ? j->low : judge_of_rounded(j);
        bool right = j->low->plain.outcome == RUN_DONE && each_accepted(j->low, r);
        if (j->low->plain.outcome == RUN_DONE) {
            memcpy(j->trouble, j->low->trouble, sizeof j->trouble);
        }
        return right;
    }
    return each_accepted(j, r);
}

bool results_equal(const trial *t, const result *a, const result *b, char *text, size_t size) {
    for (int id = T_O; id < T_COUNT; id++) {
        if (!a->value[id] || !b->value[id]) {
            continue;
        }
        for (int64_t i = 0, count = trial_size(t, id); i < count; i++) {
            bool nan = isnan(a->value[id][i]) && isnan(b->value[id][i]); /* a payload means nothing */
            if (!nan && memcmp(&a->value[id][i], &b->value[id][i], sizeof(double))) {
                char where[80];
                trial_where(t, id, i, where, sizeof where);
                snprintf(text, size, "%s: %.17g and %.17g", where, a->value[id][i], b->value[id][i]);
                return false;
            }
        }
    }
    return true;
}
