/* SPDX-License-Identifier: Apache-2.0
 * Backward, one row at a time, with p_ij = exp(s_ij - lse_i) from the lse that is given:
 *     delta_i = <dout_i, o_i>                                   unless given
 *     dv_j   += p_ij keep_ij dout_i
 *     ds_ij   = p_ij (keep_ij <dout_i, v_j> - delta_i + dlse_i)      gradient at the score
 *     dbias  += ds_ij
 *     dx_ij   = ds_ij * slope_ij * scale                        gradient at <q_i, k_j>; slope: of the soft cap
 *     dq_i   += dx_ij k_j,  dk_j += dx_ij q_i
 *     dsink  += exp(sink - lse_i) (dlse_i - delta_i)
 * dk and dv of a kv head are summed over its query heads. */
#include "ref/ref.h"

#include <math.h>

#include "base/dtype.h"

static void clear(double *values, int64_t n) {
    for (int64_t d = 0; values && d < n; d++) {
        values[d] = 0;
    }
}

static double *dbias_at(const attn_problem *problem, ref_workspace *w, int64_t s, int64_t h, int64_t i, int64_t j) {
    ref_extent extent = attn__ref_dbias_extent(problem);
    int64_t position[4] = {s, h, i, j}, index = 0;
    for (int axis = 0; axis < 4; axis++) {
        index = index * extent.size[axis] + (extent.size[axis] == 1 ? 0 : position[axis]);
    }
    return &w->dbias[index];
}

/* One query row: dq in w->dq; adds to w->dk, w->dv, w->dbias. lse is finite or NaN, or +inf. */
static void backward_row(const ref_head *at, int64_t i, int64_t keys, double lse, double delta, double dlse,
                         ref_workspace *w) {
    const int64_t dim_qk = at->problem->dim_qk, dim_v = at->problem->dim_v;
    int64_t seen = attn__ref_scores(at, i, keys, w);
    for (int64_t n = 0; n < seen; n++) {
        int64_t key = w->seen[n], j = w->rows_kv[key].position;
        double p = exp(w->score[n] - lse);
        double keep = attn__ref_keep(at, i, j);
        double ds = p * (keep * attn__ref_dot(w->dout, w->v + key * dim_v, dim_v) - delta + dlse);
        double dx = ds * w->slope[n] * at->scale;
        attn__ref_add(w->dv + key * dim_v, p * keep, w->dout, dim_v);
        attn__ref_add(w->dq, dx, w->k + key * dim_qk, dim_qk);
        attn__ref_add(w->dk + key * dim_qk, dx, w->q, dim_qk);
        if (at->args->dbias) {
            *dbias_at(at->problem, w, at->sequence, at->head, i, j) += ds;
        }
    }
}

/* All query rows of one sequence and head. */
static void backward_head(const ref_head *at, const ref_side *side, int64_t queries, int64_t keys, ref_workspace *w) {
    const attn_problem *problem = at->problem;
    const attn_args *args = at->args;
    const int64_t dim_qk = problem->dim_qk, dim_v = problem->dim_v, s = at->sequence, h = at->head;
    for (int64_t n = 0; n < queries; n++) {
        int64_t row = w->rows_q[n].row;
        int64_t at_dlse = attn__ref_index(&problem->dlse, side, s, h, row);
        double lse = attn__load(problem->lse.dtype, args->lse, attn__ref_index(&problem->lse, side, s, h, row));
        clear(w->dq, dim_qk);
        if (lse != -INFINITY) {
            double dlse = args->dlse ? attn__load(problem->dlse.dtype, args->dlse, at_dlse) : 0, delta;
            attn__ref_load_row(&problem->q, args->q, attn__ref_index(&problem->q, side, s, h, row), dim_qk, w->q);
            attn__ref_load_row(&problem->dout, args->dout, attn__ref_index(&problem->dout, side, s, h, row), dim_v,
                               w->dout);
            if (args->delta) {
                delta = attn__load(problem->dlse.dtype, args->delta, at_dlse);
            } else {
                attn__ref_load_row(&problem->o, args->o, attn__ref_index(&problem->o, side, s, h, row), dim_v, w->out);
                delta = attn__ref_dot(w->dout, w->out, dim_v);
            }
            backward_row(at, w->rows_q[n].position, keys, lse, delta, dlse, w);
            if (at->sink != -INFINITY) {
                w->dsink[h] += exp(at->sink - lse) * (dlse - delta);
            }
        }
        if (args->dq) {
            attn__ref_store_row(&problem->dq, args->dq, attn__ref_index(&problem->dq, side, s, h, row), dim_qk, w->dq,
                                problem->flags & ATTN_ACCUMULATE);
        }
    }
}

/* Gradient of k or v for one sequence and kv head: its rows, then zeros past the used length. */
static void store_kv(const attn_problem *problem, const attn_layout *layout, void *base, const ref_side *side,
                     int64_t s, int64_t g, const ref_row *rows, int64_t keys, int64_t dim, const double *from) {
    bool accumulate = problem->flags & ATTN_ACCUMULATE;
    int64_t pad_first, pad = attn__ref_padding(side, s, &pad_first);
    if (!base) {
        return;
    }
    for (int64_t n = 0; n < keys; n++) {
        attn__ref_store_row(layout, base, attn__ref_index(layout, side, s, g, rows[n].row), dim, from + n * dim,
                            accumulate);
    }
    for (int64_t row = pad_first; row < pad_first + pad && !accumulate; row++) {
        attn__ref_store_zeros(layout, base, attn__ref_index(layout, side, s, g, row), dim);
    }
}

static void store_dbias(const attn_problem *problem, void *dbias, ref_workspace *w) {
    ref_extent extent = attn__ref_dbias_extent(problem);
    const int64_t *size = extent.size, *stride = problem->dbias.stride;
    for (int64_t s = 0; s < size[0]; s++) {
        for (int64_t h = 0; h < size[1]; h++) {
            for (int64_t i = 0; i < size[2]; i++) {
                attn__ref_store_row(&problem->dbias, dbias, s * stride[0] + h * stride[1] + i * stride[2], size[3],
                                    dbias_at(problem, w, s, h, i, 0), problem->flags & ATTN_ACCUMULATE);
            }
        }
    }
}

void attn_ref_backward(const attn_problem *problem, const attn_args *args, void *workspace) {
    const int64_t dim_qk = problem->dim_qk, dim_v = problem->dim_v;
    const int64_t group = problem->heads_kv ? problem->heads_q / problem->heads_kv : 0;
    const bool accumulate = problem->flags & ATTN_ACCUMULATE;
    ref_side q_side = attn__ref_side_q(problem, args), kv_side = attn__ref_side_kv(problem, args);
    ref_extent extent = attn__ref_dbias_extent(problem);
    ref_workspace w;
    attn__ref_carve(problem, workspace, &w);
    clear(w.dsink, problem->heads_q);
    if (args->dbias) {
        clear(w.dbias, extent.size[0] * extent.size[1] * extent.size[2] * extent.size[3]);
    }

    for (int64_t s = 0; s < problem->batch; s++) {
        int64_t queries = attn__ref_rows(&q_side, s, w.rows_q), keys = attn__ref_rows(&kv_side, s, w.rows_kv);
        int64_t pad_first, pad = attn__ref_padding(&q_side, s, &pad_first);
        for (int64_t g = 0; g < problem->heads_kv; g++) {
            ref_head first = attn__ref_head(problem, args, s, g * group);
            attn__ref_load_keys(&first, &kv_side, keys, &w);
            clear(w.dk, keys * dim_qk);
            clear(w.dv, keys * dim_v);
            for (int64_t h = g * group; h < (g + 1) * group; h++) {
                ref_head at = attn__ref_head(problem, args, s, h);
                backward_head(&at, &q_side, queries, keys, &w);
                for (int64_t row = pad_first; row < pad_first + pad && args->dq && !accumulate; row++) {
                    attn__ref_store_zeros(&problem->dq, args->dq, attn__ref_index(&problem->dq, &q_side, s, h, row),
                                          dim_qk);
                }
            }
            store_kv(problem, &problem->dk, args->dk, &kv_side, s, g, w.rows_kv, keys, dim_qk, w.dk);
            store_kv(problem, &problem->dv, args->dv, &kv_side, s, g, w.rows_kv, keys, dim_v, w.dv);
        }
    }
    if (args->dbias) {
        store_dbias(problem, args->dbias, &w);
    }
    for (int64_t h = 0; h < problem->heads_q && args->dsink; h++) {
        double before = accumulate ? attn__load(problem->sink.dtype, args->dsink, h * problem->sink.stride[1]) : 0;
        attn__store(problem->sink.dtype, args->dsink, h * problem->sink.stride[1], before + w.dsink[h]);
    }
}
