/* SPDX-License-Identifier: Apache-2.0
 * Which pairs are visible, and what their score is: the first four lines of the definition. */
#include "ref/ref.h"

#include <math.h>

#include "base/dtype.h"

/* Four partial sums, so that the compiler may keep them in vector registers. */
double attn__ref_dot(const double *a, const double *b, int64_t n) {
    double sum[4] = {0, 0, 0, 0};
    int64_t d = 0;
    for (; d + 4 <= n; d += 4) {
        for (int part = 0; part < 4; part++) {
            sum[part] += a[d + part] * b[d + part];
        }
    }
    for (; d < n; d++) {
        sum[0] += a[d] * b[d];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void attn__ref_add(double *y, double a, const double *x, int64_t n) {
    for (int64_t d = 0; d < n; d++) {
        y[d] += a * x[d];
    }
}

ref_head attn__ref_head(const attn_problem *problem, const attn_args *args, int64_t sequence, int64_t head) {
    ref_side q = attn__ref_side_q(problem, args), kv = attn__ref_side_kv(problem, args);
    ref_head at = {.problem = problem, .args = args, .sequence = sequence, .head = head};
    at.head_kv = problem->heads_q ? head / (problem->heads_q / problem->heads_kv) : 0;
    at.length_kv = attn__ref_length(&kv, sequence);
    at.scale = problem->scale;
    at.sink = -INFINITY;
    at.dropout = attn__dropout_key_make(args->seed, args->offset, problem->dropout);
    if (problem->band.corner == ATTN_BOTTOM_RIGHT) {
        at.shift = at.length_kv - attn__ref_length(&q, sequence);
    }
    double natural = 1 / sqrt((double)problem->dim_qk);
    if (problem->q.dtype == ATTN_F64 && problem->scale == (float)natural) {
        at.scale = natural;
    }
    if (args->alibi) {
        const attn_layout *layout = &problem->alibi;
        at.alibi = attn__load(layout->dtype, args->alibi, sequence * layout->stride[0] + head * layout->stride[1]);
    }
    if (args->sink) {
        at.sink = attn__load(problem->sink.dtype, args->sink, head * problem->sink.stride[1]);
    }
    return at;
}

void attn__ref_load_keys(const ref_head *at, const ref_side *side, int64_t keys, ref_workspace *w) {
    const attn_layout *k = &at->problem->k, *v = &at->problem->v;
    const int64_t dim_qk = at->problem->dim_qk, dim_v = at->problem->dim_v;
    for (int64_t n = 0; n < keys; n++) {
        int64_t row = w->rows_kv[n].row;
        attn__ref_load_row(k, at->args->k, attn__ref_index(k, side, at->sequence, at->head_kv, row), dim_qk,
                           w->k + n * dim_qk);
        attn__ref_load_row(v, at->args->v, attn__ref_index(v, side, at->sequence, at->head_kv, row), dim_v,
                           w->v + n * dim_v);
    }
}

/* Element (sequence, head, i, j) of bias or mask. */
static double pair(const ref_head *at, const attn_layout *layout, const void *base, int64_t i, int64_t j) {
    return attn__load(layout->dtype, base,
                      at->sequence * layout->stride[0] + at->head * layout->stride[1] + i * layout->stride[2] +
                          j * layout->stride[3]);
}

static bool visible(const ref_head *at, int64_t i, int64_t j) {
    const attn_band *band = &at->problem->band;
    int64_t shifted = i + at->shift;
    if (j >= at->length_kv) {
        return false;
    }
    if ((band->kind & ATTN_CAUSAL) && j > shifted) {
        return false;
    }
    if (band->kind & ATTN_WINDOW) {
        bool inside = (band->left < 0 || j >= shifted - band->left) && (band->right < 0 || j <= shifted + band->right);
        bool global = (band->kind & ATTN_GLOBALS) && (j < band->globals || shifted < band->globals);
        if (!inside && !global) {
            return false;
        }
    }
    if (at->args->mask && pair(at, &at->problem->mask, at->args->mask, i, j) == 0) {
        return false;
    }
    return !at->args->bias || pair(at, &at->problem->bias, at->args->bias, i, j) != -INFINITY;
}

static double score(const ref_head *at, int64_t i, int64_t j, const double *q, const double *k, double *slope) {
    double cap = at->problem->softcap;
    double s = at->scale * attn__ref_dot(q, k, at->problem->dim_qk);
    *slope = 1;
    if (cap > 0) {
        double t = tanh(s / cap);
        s = cap * t;
        *slope = 1 - t * t;
    }
    if (at->args->bias) {
        s += pair(at, &at->problem->bias, at->args->bias, i, j);
    }
    if (at->args->alibi) {
        s -= at->alibi * fabs((double)(i + at->shift - j));
    }
    return s;
}

int64_t attn__ref_scores(const ref_head *at, int64_t i, int64_t keys, ref_workspace *w) {
    int64_t n = 0;
    for (int64_t key = 0; key < keys; key++) {
        int64_t j = w->rows_kv[key].position;
        if (visible(at, i, j)) {
            w->seen[n] = key;
            w->score[n] = score(at, i, j, w->q, w->k + key * at->problem->dim_qk, &w->slope[n]);
            n++;
        }
    }
    return n;
}

double attn__ref_keep(const ref_head *at, int64_t i, int64_t j) {
    float rate = at->problem->dropout;
    if (!(rate > 0)) {
        return 1;
    }
    int keep =
        attn__dropout_keep(at->dropout, i, j, at->args->head_first + at->head, at->args->batch_first + at->sequence);
    return keep ? 1 / (1 - (double)rate) : 0;
}
