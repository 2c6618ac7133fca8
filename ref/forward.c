/* SPDX-License-Identifier: Apache-2.0
 * Forward, one row at a time: scores, their largest, the sum, the weighted mean of the values. */
#include "ref/ref.h"

#include <math.h>

#include "base/dtype.h"

/* From w->score: lse of the row, and o in w->out. */
static double softmax_row(const ref_head *at, int64_t i, int64_t seen, ref_workspace *w) {
    const int64_t dim_v = at->problem->dim_v;
    double largest = at->sink, sum = 0;
    for (int64_t d = 0; d < dim_v; d++) {
        w->out[d] = 0;
    }
    for (int64_t n = 0; n < seen; n++) {
        if (w->score[n] > largest || isnan(w->score[n])) { /* a NaN stays the largest */
            largest = w->score[n];
        }
    }
    if (largest == -INFINITY) {
        return -INFINITY;
    }
    for (int64_t n = 0; n < seen; n++) {
        sum += exp(w->score[n] - largest);
    }
    if (at->sink != -INFINITY) {
        sum += exp(at->sink - largest);
    }
    for (int64_t n = 0; n < seen; n++) {
        double p = exp(w->score[n] - largest) / sum;
        double keep = attn__ref_keep(at, i, w->rows_kv[w->seen[n]].position);
        attn__ref_add(w->out, p * keep, w->v + w->seen[n] * dim_v, dim_v);
    }
    return largest + log(sum);
}

void attn_ref_forward(const attn_problem *problem, const attn_args *args, void *workspace) {
    const int64_t dim_qk = problem->dim_qk, dim_v = problem->dim_v;
    ref_side q_side = attn__ref_side_q(problem, args), kv_side = attn__ref_side_kv(problem, args);
    ref_workspace w;
    attn__ref_carve(problem, workspace, &w);

    for (int64_t s = 0; s < problem->batch; s++) {
        int64_t queries = attn__ref_rows(&q_side, s, w.rows_q), keys = attn__ref_rows(&kv_side, s, w.rows_kv);
        int64_t pad_first, pad = attn__ref_padding(&q_side, s, &pad_first);
        for (int64_t h = 0; h < problem->heads_q; h++) {
            ref_head at = attn__ref_head(problem, args, s, h);
            attn__ref_load_keys(&at, &kv_side, keys, &w);
            for (int64_t n = 0; n < queries; n++) {
                int64_t row = w.rows_q[n].row, i = w.rows_q[n].position;
                attn__ref_load_row(&problem->q, args->q, attn__ref_index(&problem->q, &q_side, s, h, row), dim_qk, w.q);
                int64_t seen = attn__ref_scores(&at, i, keys, &w);
                double lse = softmax_row(&at, i, seen, &w);
                attn__ref_store_row(&problem->o, args->o, attn__ref_index(&problem->o, &q_side, s, h, row), dim_v,
                                    w.out, false);
                if (args->lse) {
                    attn__store(problem->lse.dtype, args->lse, attn__ref_index(&problem->lse, &q_side, s, h, row), lse);
                }
            }
            for (int64_t row = pad_first; row < pad_first + pad; row++) {
                attn__ref_store_zeros(&problem->o, args->o, attn__ref_index(&problem->o, &q_side, s, h, row), dim_v);
                if (args->lse) {
                    attn__store(problem->lse.dtype, args->lse, attn__ref_index(&problem->lse, &q_side, s, h, row),
                                -INFINITY);
                }
            }
        }
    }
}
