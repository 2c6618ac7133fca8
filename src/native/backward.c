/* SPDX-License-Identifier: Apache-2.0
 * Backward, by walks over the stored matrices:
 *     S = scale Q K^T, dP = dO V^T
 *     dbias = sum of dS over the axes that bias broadcasts, from S and dP
 *     P = exp(S - lse) and dS = P (keep dP - delta + dlse), in place of S and dP
 *     dQ = scale dS K;  dV = P^T dO, dK = scale dS^T Q, over the query heads of each kv head
 * P in dV carries dropout, dS in dQ and dK the derivative of the soft cap. */
#include <math.h>

#include "base/dtype.h"
#include "native/native.h"
#include "native/tasks.h"

static void dp_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    if (attn__native_block(run, &w, ATTN__NATIVE_QUERIES, task, &b)) {
        native_rows dout = {&p->dout, run->args->dout, &run->q, &w.q, b.s, b.h, p->dim_v};
        native_rows v = {&p->v, run->args->v, &run->kv, &w.kv, b.s, b.g, p->dim_v};
        attn__native_scores(run, &w, run->gradients, b.h, &dout, &v, b.first, b.count, 1);
    }
}

/* --- One row --- */

static float load_lse(const native_run *run, const native_at *at) {
    const attn_layout *layout = &run->problem->lse;
    return (float)attn__load(layout->dtype, run->args->lse, attn__native_index(layout, &run->q, at->s, at->h, at->row));
}

/* delta - dlse */
static float load_shift(const native_run *run, native_scratch *w, const native_at *at) {
    const attn_problem *p = run->problem;
    const attn_args *args = run->args;
    const int64_t index = attn__native_index(&p->dlse, &run->q, at->s, at->h, at->row);
    float delta = 0;
    if (args->delta) {
        delta = (float)attn__load(p->dlse.dtype, args->delta, index);
    } else {
        float *o = w->c, *dout = w->line;
        attn__native_load(run, &p->o, args->o, attn__native_index(&p->o, &run->q, at->s, at->h, at->row), p->dim_v, o);
        attn__native_load(run, &p->dout, args->dout, attn__native_index(&p->dout, &run->q, at->s, at->h, at->row),
                          p->dim_v, dout);
        for (int64_t d = 0; d < p->dim_v; d++) {
            delta += o[d] * dout[d];
        }
    }
    return args->dlse ? delta - (float)attn__load(p->dlse.dtype, args->dlse, index) : delta;
}

/* p in w->x, dS in w->dp; what is hidden is not to be read. False if the row sees nothing. */
static bool gradient_row(const native_run *run, native_scratch *w, const native_at *at) {
    const attn_problem *p = run->problem;
    const float lse = load_lse(run, at);
    attn__native_score_row(run, w, at);
    if (lse == -INFINITY) {
        return false;
    }
    const float shift = load_shift(run, w, at);
    run->kernels->exp_row(w->x, lse, w->kv.count);
    run->kernels->widen(p->q.dtype, attn__native_matrix(run, run->gradients, at->s, at->h, at->n), w->kv.count, w->dp);
    if (p->dropout > 0) {
        attn__native_keep_row(run, w, at);
    }
    run->kernels->score_gradient(w->x, w->dp, p->dropout > 0 ? w->keep : NULL, shift, w->kv.count, w->dp);
    return true;
}

static void gradient_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    bool some = attn__native_block(run, &w, ATTN__NATIVE_QUERIES, task, &b);
    for (int64_t n = 0; some && n < b.count; n++) {
        native_at at = attn__native_at(&w, &b, n);
        bool sees = gradient_row(run, &w, &at);
        for (int64_t m = 0; m < w.kv.count && !sees; m++) {
            w.visible[m] = 0;
        }
        for (int64_t m = 0; m < w.kv.count && p->dropout > 0; m++) {
            w.x[m] *= w.keep[m];
        }
        for (int64_t m = 0; m < w.kv.count && p->softcap > 0; m++) {
            w.dp[m] *= w.slope[m];
        }
        attn__native_put_row(run, &w, &at, run->scores, w.x);
        attn__native_put_row(run, &w, &at, run->gradients, w.dp);
    }
}

/* --- dbias: a task for each of its rows, which adds up all rows of scores that the bias row served --- */

typedef struct dbias_extent {
    int64_t sequences, heads, rows, keys; /* 1 where broadcast */
} dbias_extent;

static int64_t extent_along(int64_t stride, int64_t size) {
    return stride == 0 && size > 1 ? 1 : size;
}

static dbias_extent extent_of(const attn_problem *p) {
    const int64_t *stride = p->dbias.stride;
    return (dbias_extent){extent_along(stride[0], p->batch), extent_along(stride[1], p->heads_q),
                          extent_along(stride[2], p->tokens_q), extent_along(stride[3], p->tokens_kv)};
}

static void add_row(const native_run *run, native_scratch *w, const native_at *at, bool over_keys) {
    if (!gradient_row(run, w, at)) {
        return;
    }
    for (int64_t m = 0; m < w->kv.count; m++) {
        w->sum[over_keys ? 0 : w->kv.position[m]] += w->visible[m] ? w->dp[m] : 0;
    }
}

static void dbias_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    const int64_t *stride = p->dbias.stride;
    const dbias_extent extent = extent_of(p);
    native_scratch w = attn__native_scratch(run, thread);
    const int64_t i = task % extent.rows, h = task / extent.rows % extent.heads, s = task / extent.rows / extent.heads;
    for (int64_t m = 0; m < extent.keys; m++) {
        w.sum[m] = 0;
    }
    for (int64_t sequence = s; sequence < (stride[0] ? s + 1 : p->batch); sequence++) {
        attn__native_map(&run->q, sequence, &w.q);
        attn__native_map(&run->kv, sequence, &w.kv);
        for (int64_t head = h; head < (stride[1] ? h + 1 : p->heads_q); head++) {
            for (int64_t n = 0; n < w.q.count; n++) {
                native_at at = {sequence, head, n, w.q.position[n], w.q.row[n]};
                if (!stride[2] || at.i == i) {
                    add_row(run, &w, &at, !stride[3]);
                }
            }
        }
    }
    attn__native_store(run, &p->dbias, run->args->dbias, s * stride[0] + h * stride[1] + i * stride[2], extent.keys, 1,
                       p->flags & ATTN_ACCUMULATE, w.sum);
}

/* --- dsink: a task for each head --- */

static void dsink_task(void *arg, int64_t h, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    const float sink = attn__native_sink(run, h);
    native_scratch w = attn__native_scratch(run, thread);
    float sum = 0;
    for (int64_t s = 0; s < p->batch && sink != -INFINITY; s++) {
        attn__native_map(&run->q, s, &w.q);
        for (int64_t n = 0; n < w.q.count; n++) {
            native_at at = {s, h, n, w.q.position[n], w.q.row[n]};
            float lse = load_lse(run, &at);
            sum -= lse == -INFINITY ? 0 : expf(sink - lse) * load_shift(run, &w, &at);
        }
    }
    int64_t index = h * p->sink.stride[1];
    sum += p->flags & ATTN_ACCUMULATE ? (float)attn__load(p->sink.dtype, run->args->dsink, index) : 0;
    attn__store(p->sink.dtype, run->args->dsink, index, sum);
}

/* --- Gradients of rows --- */

/* Rows [first, first + count) of w->c to dq, dk or dv; zeros past the used length by the first block. */
static void store_block(const native_run *run, native_scratch *w, const attn_layout *layout, void *base,
                        const attn__side *side, const native_map *map, const native_block *b, int64_t head, int64_t dim,
                        float scale) {
    const bool accumulate = run->problem->flags & ATTN_ACCUMULATE;
    attn_segment padding = attn__side_padding(side, b->s);
    for (int64_t n = 0; n < b->count; n++) {
        int64_t index = attn__native_index(layout, side, b->s, head, map->row[b->first + n]);
        attn__native_store(run, layout, base, index, dim, scale, accumulate, w->c + n * attn__native_width(dim));
    }
    for (int64_t row = padding.first; row < padding.first + padding.rows && b->first == 0 && !accumulate; row++) {
        attn__native_store_zeros(layout, base, attn__native_index(layout, side, b->s, head, row), dim);
    }
}

static void dq_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    attn__native_block(run, &w, ATTN__NATIVE_QUERIES, task, &b);
    native_rows k = {&p->k, run->args->k, &run->kv, &w.kv, b.s, b.g, p->dim_qk};
    attn__native_clear(&w, p->dim_qk);
    attn__native_mix(run, &w, run->gradients, b.h, &k, b.first, b.count);
    store_block(run, &w, &p->dq, run->args->dq, &run->q, &w.q, &b, b.h, p->dim_qk, p->scale);
}

/* Sum over the query heads of b->g of the transposed matrix times rows of a tensor on the query side. */
static void mix_heads(const native_run *run, native_scratch *w, char *matrix, const native_block *b,
                      const attn_layout *layout, const void *base, int64_t dim) {
    const int64_t group = run->problem->heads_q / run->problem->heads_kv;
    attn__native_clear(w, dim);
    for (int64_t h = b->h; h < b->h + group; h++) {
        native_rows rows = {layout, base, &run->q, &w->q, b->s, h, dim};
        attn__native_mix_transposed(run, w, matrix, h, &rows, b->first, b->count);
    }
}

static void dkv_task(void *arg, int64_t task, int thread) {
    const native_run *run = arg;
    const attn_problem *p = run->problem;
    native_scratch w = attn__native_scratch(run, thread);
    native_block b;
    attn__native_block(run, &w, ATTN__NATIVE_KEYS, task, &b);
    if (run->args->dv) {
        mix_heads(run, &w, run->scores, &b, &p->dout, run->args->dout, p->dim_v);
        store_block(run, &w, &p->dv, run->args->dv, &run->kv, &w.kv, &b, b.g, p->dim_v, 1);
    }
    if (run->args->dk) {
        mix_heads(run, &w, run->gradients, &b, &p->q, run->args->q, p->dim_qk);
        store_block(run, &w, &p->dk, run->args->dk, &run->kv, &w.kv, &b, b.g, p->dim_qk, p->scale);
    }
}

void attn__native_backward(const native_run *run) {
    const attn_problem *p = run->problem;
    const attn_args *args = run->args;
    attn__native_run_scores(run);
    attn__native_walk(run, ATTN__NATIVE_QUERIES, dp_task);
    if (args->dbias) {
        dbias_extent extent = extent_of(p);
        attn__parallel(run->plan->choice.threads, extent.sequences * extent.heads * extent.rows, dbias_task,
                       (void *)(uintptr_t)run);
    }
    if (args->dsink) {
        attn__parallel(run->plan->choice.threads, p->heads_q, dsink_task, (void *)(uintptr_t)run);
    }
    attn__native_walk(run, ATTN__NATIVE_QUERIES, gradient_task);
    if (args->dq) {
        attn__native_walk(run, ATTN__NATIVE_QUERIES, dq_task);
    }
    if (args->dk || args->dv) {
        attn__native_walk(run, ATTN__NATIVE_KEYS, dkv_task);
    }
}
