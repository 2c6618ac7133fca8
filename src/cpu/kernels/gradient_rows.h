/* SPDX-License-Identifier: Apache-2.0
 * One block of query rows as backward's products read it: q and dout transposed (lanes = rows) for S^T = K Q^T and
 * dP^T = V dO^T, and as rows cut into column tiles [tile][row][ATTN_LANES] for dK += dS^T Q and dV += P^T dO; lse and
 * delta a lane.
 *
 * A row with lse = -inf saw nothing: it is hidden from every key by closing its band, so that nothing it holds counts.
 */
#ifndef ATTN_CPU_GRADIENT_ROWS_H
#define ATTN_CPU_GRADIENT_ROWS_H

#include "block.h"

typedef struct gradient_rows {
    score_rows rows;
    int groups;
    bool closed; /* some rows are hidden from every key, though the band may not say so */
    bool q_finite, dout_finite;
    float lse[ATTN__BLOCK];      /* log2 units */
    float delta[ATTN__BLOCK];    /* delta - dlse */
    float *q, *dout;             /* [group][dim][lane]; the scale's sign is in q */
    float *q_tiles, *dout_tiles; /* [tile][ATTN__BLOCK][ATTN_LANES]; NULL: not wanted */
    float *dq;                   /* [group][dim_qk][lane]; NULL: not wanted */
} gradient_rows;

static inline int64_t tile_count(int64_t dim) {
    return (dim + ATTN_LANES - 1) / ATTN_LANES;
}

/* Room for one block. with_sums: for dk, dv and dq, not only for the scores' gradient. */
static gradient_rows gradient_rows_take(char *base, size_t *used, const attn_problem *p, bool with_sums) {
    const size_t line = ATTN__BLOCK * sizeof(float), qk = (size_t)p->dim_qk, v = (size_t)p->dim_v;
    gradient_rows block = {0};
    block.q = scratch_take(base, used, qk * line);
    block.dout = scratch_take(base, used, v * line);
    if (with_sums) {
        block.q_tiles = scratch_take(base, used, (size_t)tile_count(p->dim_qk) * ATTN_LANES * line);
        block.dout_tiles = scratch_take(base, used, (size_t)tile_count(p->dim_v) * ATTN_LANES * line);
        block.dq = scratch_take(base, used, qk * line);
    }
    return block;
}

/* sum over dim of dout * o of one lane. */
static float gradient_rows_dot(const attn__run *run, const attn__lanes *lanes, int lane) {
    const attn_layout *dout = &run->problem->dout, *o = &run->problem->o;
    return rows_dot(dout->dtype,
                    (const char *)run->args->dout +
                        attn__lane_offset(dout, lanes, lane) * (int64_t)attn_dtype_size(dout->dtype),
                    dout->stride[3], o->dtype,
                    (const char *)run->args->o + attn__lane_offset(o, lanes, lane) * (int64_t)attn_dtype_size(o->dtype),
                    o->stride[3], run->problem->dim_v);
}

/* Which rows; what follows needs it. */
static void gradient_rows_place(gradient_rows *block, const score_rule *rule, const attn__query_rows *query,
                                int64_t first) {
    score_rows_fill(&block->rows, rule, query, first);
    block->groups = (block->rows.lanes.count + ATTN_LANES - 1) / ATTN_LANES;
}

/* lse and delta. Returns whether some row sees something. */
static bool gradient_rows_stats(gradient_rows *block, const attn__run *run) {
    const attn_problem *p = run->problem;
    const attn_args *args = run->args;
    const attn__lanes *lanes = &block->rows.lanes;
    bool seeing = false;
    block->closed = false;
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        block->lse[lane] = block->delta[lane] = 0.0f;
        if (lane >= lanes->count) {
            continue;
        }
        float lse = ((const float *)args->lse)[attn__lane_offset(&p->lse, lanes, lane)];
        int64_t at = attn__lane_offset(&p->dlse, lanes, lane);
        if (lse == -INFINITY) {
            block->rows.low[lane] = INT32_MAX;
            block->rows.high[lane] = block->rows.causal_high[lane] = INT32_MIN;
            block->closed = true;
            continue;
        }
        seeing = true;
        block->lse[lane] = (float)((double)lse * ATTN_LOG2E);
        block->delta[lane] = args->delta ? ((const float *)args->delta)[at] : gradient_rows_dot(run, lanes, lane);
        if (args->dlse) {
            block->delta[lane] -= ((const float *)args->dlse)[at];
        }
    }
    return seeing;
}

/* Rows of q or dout in both forms; returns whether all are finite (asked of the tiles only). */
static bool gradient_rows_pack(const attn__lanes *lanes, int groups, const attn_layout *layout, const void *base,
                               int64_t dim, float *transposed, float *tiles) {
    const int64_t size = (int64_t)attn_dtype_size(layout->dtype);
    const void *rows[ATTN__BLOCK];
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        rows[lane] = (const char *)base + attn__lane_offset(layout, lanes, lane) * size;
    }
    for (int lane = 0; lane < groups * ATTN_LANES; lane += ATTN_W) {
        float *out = transposed + (int64_t)(lane / ATTN_LANES) * ATTN_LANES * dim + lane % ATTN_LANES;
        rows_to_lanes(layout->dtype, rows + lane, dim, layout->stride[3], out, ATTN_LANES);
    }
    if (!tiles) {
        return true;
    }
    rows_to_tiles(layout->dtype, rows, ATTN__BLOCK, dim, layout->stride[3], tiles, ATTN__BLOCK * ATTN_LANES);
    return rows_finite(tiles, ATTN_LANES, tile_count(dim) * ATTN__BLOCK, ATTN_LANES);
}

/* The rest of a placed block; false if none of its rows sees anything. */
static bool gradient_rows_load(gradient_rows *block, const attn__run *run, const score_rule *rule) {
    const attn_problem *p = run->problem;
    const attn__lanes *lanes = &block->rows.lanes;
    if (!gradient_rows_stats(block, run)) {
        return false;
    }
    block->q_finite =
        gradient_rows_pack(lanes, block->groups, &p->q, run->args->q, p->dim_qk, block->q, block->q_tiles);
    block->dout_finite =
        gradient_rows_pack(lanes, block->groups, &p->dout, run->args->dout, p->dim_v, block->dout, block->dout_tiles);
    if (rule->negative) {
        for (int64_t at = 0; at < block->groups * ATTN_LANES * p->dim_qk; at += ATTN_W) {
            vf_store(block->q + at, -vf_load(block->q + at));
        }
    }
    return true;
}

#endif
