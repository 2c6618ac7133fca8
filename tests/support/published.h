/* SPDX-License-Identifier: Apache-2.0
 * The field cases' common rules: inputs by formula, values with the published tolerances, every implementation and
 * every type. Values are stated as data; a failing one prints where it is. For programs that include cmocka before. */
#ifndef TESTS_SUPPORT_PUBLISHED_H
#define TESTS_SUPPORT_PUBLISHED_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/judge.h"
#include "support/machine.h"

/* `count` values from (sequence, head, row, dim) on, along dims; for lse along rows. */
typedef struct published_row {
    tensor_id id;
    int sequence, head, row, dim, count;
    double value[8];
} published_row;

/* Sum of absolute values; head -1: all heads. */
typedef struct published_sum {
    tensor_id id;
    int head;
    double value;
} published_sum;

typedef struct published {
    const char *implementation;
    attn_dtype dtype;
    trial *trial;
    result result;
} published;

/* q, k, v and dout hold x(tag, i), i counted in [B, H, S, D], packed in [T, H, D]. */
void published_fill(trial *t);
trial *published_trial(attn_dtype dtype, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t tokens_q,
                       int64_t tokens_kv, int64_t dim_qk, int64_t dim_v);
/* Sets every element of an input. */
void published_constant(trial *t, tensor_id id, double value);
/* The tolerance of the rules at a true value. The plain computation rounds its scores to the 16-bit type, so there its
 * lse is only as good as that type. */
double published_tolerance(const char *implementation, attn_dtype dtype, tensor_id id, double value);
/* The type whose tolerances hold: tf32 takes float16's. */
attn_dtype published_precision(const char *implementation, attn_dtype dtype);
/* Is it the plain computation in a 16-bit type? */
bool published_rounds_scores(const char *implementation, attn_dtype dtype);

#ifdef fail_msg

static inline double published_at(const published *p, tensor_id id, int sequence, int head, int row, int dim) {
    return result_at(p->trial, &p->result, id, sequence, head, row, dim);
}

static inline void published_near(const published *p, tensor_id id, int sequence, int head, int row, int dim,
                                  double want, double tolerance) {
    double got = published_at(p, id, sequence, head, row, dim);
    if (isinf(want) ? got != want : !(fabs(got - want) <= tolerance)) {
        fail_msg("%s %s: %s[%d][%d][%d][%d] is %.9g, must be %.9g, tolerance %.3g", p->implementation,
                 attn_dtype_name(p->dtype), tensor_name(id), sequence, head, row, dim, got, want, tolerance);
    }
}

/* The value of the rules' tolerance. */
static inline void published_is(const published *p, tensor_id id, int sequence, int head, int row, int dim,
                                double want) {
    published_near(p, id, sequence, head, row, dim, want, published_tolerance(p->implementation, p->dtype, id, want));
}

static inline void published_rows(const published *p, const published_row *rows, size_t count) {
    for (size_t n = 0; n < count; n++) {
        const published_row *w = &rows[n];
        for (int x = 0; x < w->count; x++) {
            bool lse = w->id == T_LSE;
            published_is(p, w->id, w->sequence, w->head, lse ? w->row + x : w->row, lse ? 0 : w->dim + x, w->value[x]);
        }
    }
}

static inline void published_sums(const published *p, const published_sum *sums, size_t count) {
    for (size_t n = 0; n < count; n++) {
        attn_dtype precision = published_precision(p->implementation, p->dtype);
        double got = 0, relative = precision == ATTN_F64   ? 2e-8
                                   : precision == ATTN_F32 ? 1e-5
                                   : precision == ATTN_F16 ? 1e-3
                                                           : 1e-2;
        int64_t heads =
            sums[n].id == T_DK || sums[n].id == T_DV ? p->trial->problem.heads_kv : p->trial->problem.heads_q;
        bool kv = sums[n].id == T_DK || sums[n].id == T_DV;
        bool qk = sums[n].id == T_DQ || sums[n].id == T_DK;
        int64_t dims = sums[n].id == T_LSE ? 1 : qk ? p->trial->problem.dim_qk : p->trial->problem.dim_v;
        for (int64_t s = 0; s < p->trial->problem.batch; s++) {
            for (int64_t h = 0; h < heads; h++) {
                for (int64_t i = 0; i < p->trial->side[kv].length[s] && (sums[n].head < 0 || sums[n].head == h); i++) {
                    for (int64_t d = 0; d < dims; d++) {
                        got += fabs(published_at(p, sums[n].id, (int)s, (int)h, (int)i, (int)d));
                    }
                }
            }
        }
        if (!(fabs(got - sums[n].value) <= relative * fabs(sums[n].value))) {
            fail_msg("%s %s: the sum over |%s|, head %d, is %.9g, must be %.9g", p->implementation,
                     attn_dtype_name(p->dtype), tensor_name(sums[n].id), sums[n].head, got, sums[n].value);
        }
    }
}
#define PUBLISHED_ROWS(p, list) published_rows(p, list, sizeof(list) / sizeof *(list))
#define PUBLISHED_SUMS(p, list) published_sums(p, list, sizeof(list) / sizeof *(list))

/* Runs forward and backward; the trial becomes the run's. A pass that the rules refuse is passed on: so a case's values
 * are checked in what an implementation of a part of the definition does take, and in how the rest falls to others. */
static inline published published_run(const char *implementation, attn_dtype dtype, trial *t) {
    published p = {.implementation = implementation, .dtype = dtype, .trial = t};
    run_options how = {.implementation = implementation, .pass_on = true};
    trial_settle(t);
    if (run_trial(t, &how, &p.result) != RUN_DONE) {
        fail_msg("%s %s: %s%s %s", implementation, attn_dtype_name(dtype), p.result.trouble, p.result.error.field,
                 p.result.error.message);
    }
    return p;
}

static inline void published_end(published *p) {
    result_free(&p->result);
    trial_destroy(p->trial);
}

/* Calls the check for each implementation of this machine and each type that it takes; on the CPU fewer types at
 * intensity 0. */
static inline void published_everywhere(void (*check)(const char *implementation, attn_dtype dtype)) {
    static const attn_dtype dtypes[] = {ATTN_F64, ATTN_F32, ATTN_F16, ATTN_BF16};
    uint64_t n = 0;
    for (const char *const *name = machine_implementations(true); *name; name++) {
        for (int d = 0; d < 4; d++) {
            attn_problem p = attn_problem_dense(dtypes[d], 1, 1, 1, 1, 1, 8, 8);
            p.flags |= machine_allowed(*name, &p);
            bool smoke = machine_intensity() <= 0 && d % 2 == 0 && !machine_device();
            if (!smoke && !machine_expected_refusal(*name, &p) && machine_shard(n++)) {
                check(*name, dtypes[d]);
            }
        }
    }
}

#endif
#endif
