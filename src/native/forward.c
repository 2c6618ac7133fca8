/* SPDX-License-Identifier: Apache-2.0
 * Forward in three walks: S = scale Q K^T; P = softmax(S), in place; O = P V. */
#include <math.h>

#include "base/dtype.h"
#include "base/parallel.h"
#include "native/native.h"
#include "native/tasks.h"

static void scores_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    if (attn__native_block(run, &w, ATTN__NATIVE_QUERIES, task, &b)) {
        native_rows q = {&p->q, run->args->q, &run->q, &w.q, b.s, b.h, p->dim_qk};
        native_rows k = {&p->k, run->args->k, &run->kv, &w.kv, b.s, b.g, p->dim_qk};
        attn__native_scores(run, &w, run->scores, b.h, &q, &k, b.first, b.count, p->scale);
    }
}

void attn__native_run_scores(const native_run *run) {
    attn__native_walk(run, ATTN__NATIVE_QUERIES, scores_task);
}

static void softmax_row(const native_run *run, native_scratch *w, const native_at *at) {
    const attn_problem *p = run->problem;
    const float sink = attn__native_sink(run, at->h);
    float largest = fmaxf(attn__native_score_row(run, w, at), sink), shift = largest == -INFINITY ? 0 : largest;
    float sum = run->kernels->exp_row(w->x, shift, w->kv.count);
    sum += sink != -INFINITY ? expf(sink - shift) : 0;
    float lse = shift + logf(sum);
    run->kernels->scale(w->x, sum == 0 ? 0 : 1 / sum, w->kv.count);
    if (p->dropout > 0) {
        attn__native_keep_row(run, w, at);
        for (int64_t m = 0; m < w->kv.count; m++) {
            w->x[m] *= w->keep[m];
        }
    }
    attn__native_put_row(run, w, at, run->scores, w->x);
    if (run->args->lse) {
        attn__store(p->lse.dtype, run->args->lse, attn__native_index(&p->lse, &run->q, at->s, at->h, at->row), lse);
    }
}

static void softmax_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    bool some = attn__native_block(run, &w, ATTN__NATIVE_QUERIES, task, &b);
    for (int64_t n = 0; some && n < b.count; n++) {
        native_at at = attn__native_at(&w, &b, n);
        softmax_row(run, &w, &at);
    }
}

/* o = 0 and lse = -inf past the used length. */
static void clear_padding(const native_run *run, const native_block *b) {
    const attn_problem *p = run->problem;
    attn_segment padding = attn__side_padding(&run->q, b->s);
    for (int64_t row = padding.first; row < padding.first + padding.rows; row++) {
        attn__native_store_zeros(&p->o, run->args->o, attn__native_index(&p->o, &run->q, b->s, b->h, row), p->dim_v);
        if (run->args->lse) {
            attn__store(p->lse.dtype, run->args->lse, attn__native_index(&p->lse, &run->q, b->s, b->h, row), -INFINITY);
        }
    }
}

static void output_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    bool some = attn__native_block(run, &w, ATTN__NATIVE_QUERIES, task, &b);
    if (b.first == 0) {
        clear_padding(run, &b);
    }
    if (some) {
        native_rows v = {&p->v, run->args->v, &run->kv, &w.kv, b.s, b.g, p->dim_v};
        attn__native_clear(&w, p->dim_v);
        attn__native_mix(run, &w, run->scores, b.h, &v, b.first, b.count);
        for (int64_t n = 0; n < b.count; n++) {
            int64_t index = attn__native_index(&p->o, &run->q, b.s, b.h, w.q.row[b.first + n]);
            attn__native_store(run, &p->o, run->args->o, index, p->dim_v, 1, false,
                               w.c + n * attn__native_width(p->dim_v));
        }
    }
}

void attn__native_forward(const native_run *run) {
    attn__native_run_scores(run);
    attn__native_walk(run, ATTN__NATIVE_QUERIES, softmax_task);
    attn__native_walk(run, ATTN__NATIVE_QUERIES, output_task);
}
