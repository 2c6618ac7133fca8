/* SPDX-License-Identifier: Apache-2.0
 * One block of query rows as backward's products read it: q and dout transposed (lanes = rows) for S^T = K Q^T and
 * dP^T = V dO^T, and as rows cut into column tiles [tile][row][ATTN_LANES] for dK += dS^T Q and dV += P^T dO; lse and
 * delta a lane. Where ATTN_HAVE_DOT2 all four are bf16 in pairs (pairs.h): along dims where they are transposed, of
 * rows in tiles.
 *
 * A row with lse = -inf saw nothing: it is hidden from every key by closing its band, so that nothing it holds counts.
 * Lanes past the last row are as lane 0; products over rows stop before them, or multiply them by 0. */
#ifndef ATTN_CPU_GRADIENT_ROWS_H
#define ATTN_CPU_GRADIENT_ROWS_H

#include "block.h"
#include "pairs.h"

typedef struct gradient_rows {
    score_rows rows;
    int groups;
    bool closed; /* some rows are hidden from every key, though the band may not say so */
    bool q_finite, dout_finite;
    float lse[ATTN__BLOCK];      /* log2 units */
    float delta[ATTN__BLOCK];    /* delta - dlse */
    int64_t q_steps, dout_steps; /* dims, or pairs of them */
    float *q, *dout;             /* [group][steps][lane]; the scale's sign is in q */
    float *q_tiles, *dout_tiles; /* [tile][ATTN__BLOCK, or half of it][ATTN_LANES]; NULL: not wanted */
    float *dq;                   /* [group][dim_qk][lane]; NULL: not wanted */
} gradient_rows;

static inline int64_t tile_count(int64_t dim) {
    return (dim + ATTN_LANES - 1) / ATTN_LANES;
}
static inline int64_t tile_floats(int64_t dim) {
    return tile_count(dim) * ATTN__BLOCK * ATTN_LANES;
}

/* Room for one block. with_sums: for dk, dv and dq, not only for the scores' gradient. */
static gradient_rows gradient_rows_take(char *base, size_t *used, const attn_plan *plan, bool with_sums) {
    const attn_problem *p = &plan->problem;
    const size_t line = ATTN__BLOCK * sizeof(float);
    gradient_rows block = {.groups = 0};
    block.q_steps = ATTN_HAVE_DOT2 ? (p->dim_qk + 1) / 2 : p->dim_qk;
    block.dout_steps = ATTN_HAVE_DOT2 ? (p->dim_v + 1) / 2 : p->dim_v;
    block.q = scratch_take(base, used, (size_t)block.q_steps * line);
    block.dout = scratch_take(base, used, (size_t)block.dout_steps * line);
    if (with_sums) {
        const size_t size = ATTN_HAVE_DOT2 ? sizeof(float) / 2 : sizeof(float);
        block.q_tiles = scratch_take(base, used, (size_t)tile_floats(p->dim_qk) * size);
        block.dout_tiles = scratch_take(base, used, (size_t)tile_floats(p->dim_v) * size);
        block.dq = scratch_take(base, used, (size_t)p->dim_qk * line);
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

static void gradient_rows_close(score_rows *rows, int lane) {
    rows->low[lane] = INT32_MAX;
    rows->high[lane] = rows->causal_high[lane] = INT32_MIN;
}

/* lse and delta. Returns whether some row sees something. */
static bool gradient_rows_stats(gradient_rows *block, const attn__run *run) {
    const attn_problem *p = run->problem;
    const attn_args *args = run->args;
    const attn__lanes *lanes = &block->rows.lanes;
    bool seeing = false, first_closed = false;
    block->closed = false;
    for (int lane = 0; lane < lanes->count; lane++) {
        float lse = ((const float *)args->lse)[attn__lane_offset(&p->lse, lanes, lane)];
        int64_t at = attn__lane_offset(&p->dlse, lanes, lane);
        if (lse == -INFINITY) {
            gradient_rows_close(&block->rows, lane);
            block->lse[lane] = block->delta[lane] = 0.0f;
            block->closed = true;
            first_closed = first_closed || lane == 0;
            continue;
        }
        seeing = true;
        /* The product must not overflow; +inf and NaN are the row's own and show in its pairs. */
        block->lse[lane] = isfinite(lse) ? (float)fmax(fmin((double)lse * ATTN_LOG2E, FLT_MAX), -FLT_MAX) : lse;
        block->delta[lane] = args->delta ? ((const float *)args->delta)[at] : gradient_rows_dot(run, lanes, lane);
        if (args->dlse) {
            block->delta[lane] -= ((const float *)args->dlse)[at];
        }
    }
    for (int lane = lanes->count; lane < ATTN__BLOCK; lane++) {
        block->lse[lane] = block->lse[0];
        block->delta[lane] = block->delta[0];
        if (first_closed) {
            gradient_rows_close(&block->rows, lane);
        }
    }
    return seeing;
}

/* Rows of q or dout as column tiles of floats. */
static void gradient_rows_tile(const attn__lanes *lanes, const attn_layout *layout, const void *base, int64_t dim,
                               float *tiles) {
    const void *rows[ATTN__BLOCK];
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        rows[lane] =
            (const char *)base + attn__lane_offset(layout, lanes, lane) * (int64_t)attn_dtype_size(layout->dtype);
    }
    rows_to_tiles(layout->dtype, rows, ATTN__BLOCK, dim, layout->stride[3], tiles, ATTN__BLOCK * ATTN_LANES);
}

/* Rows of q or dout in both forms; returns whether all are finite (asked of the tiles only). */
static bool gradient_rows_pack(const gradient_rows *block, const attn_layout *layout, const void *base, int64_t dim,
                               float *transposed, int64_t steps, float *tiles) {
    const attn__lanes *lanes = &block->rows.lanes;
    const void *rows[ATTN__BLOCK];
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        rows[lane] =
            (const char *)base + attn__lane_offset(layout, lanes, lane) * (int64_t)attn_dtype_size(layout->dtype);
    }
    for (int lane = 0; lane < block->groups * ATTN_LANES; lane += ATTN_W) {
        float *out = transposed + (int64_t)(lane / ATTN_LANES) * ATTN_LANES * steps + lane % ATTN_LANES;
#if ATTN_HAVE_DOT2
        pairs_to_lanes(rows + lane, dim, layout->stride[3], out, ATTN_LANES);
#else
        rows_to_lanes(layout->dtype, rows + lane, dim, layout->stride[3], out, ATTN_LANES);
#endif
    }
#if ATTN_HAVE_DOT2
    const int64_t words = ATTN__BLOCK / 2 * ATTN_LANES;
    pairs_to_tiles(rows, lanes->count, dim, layout->stride[3], tiles, words);
    bool finite = true;
    for (int64_t tile = 0; tile < tile_count(dim); tile++) {
        finite = finite && pairs_finite(tiles + tile * words, pairs_of(lanes->count) * ATTN_LANES);
    }
    return finite;
#else
    if (!tiles) {
        return true;
    }
    gradient_rows_tile(lanes, layout, base, dim, tiles);
    return rows_finite(tiles, ATTN_LANES, tile_count(dim) * ATTN__BLOCK, ATTN_LANES);
#endif
}

/* The rest of a placed block; false if none of its rows sees anything. */
static bool gradient_rows_load(gradient_rows *block, const attn__run *run, const score_rule *rule) {
    const attn_problem *p = run->problem;
    if (!gradient_rows_stats(block, run)) {
        return false;
    }
    block->q_finite =
        gradient_rows_pack(block, &p->q, run->args->q, p->dim_qk, block->q, block->q_steps, block->q_tiles);
    block->dout_finite = gradient_rows_pack(block, &p->dout, run->args->dout, p->dim_v, block->dout, block->dout_steps,
                                            block->dout_tiles);
    if (rule->negative) {
        const vi signs = vi_set(ATTN_HAVE_DOT2 ? (int32_t)0x80008000u : INT32_MIN);
        for (int64_t at = 0; at < block->groups * ATTN_LANES * block->q_steps; at += ATTN_W) {
            vf_store(block->q + at, (vf)((vi)vf_load(block->q + at) ^ signs));
        }
    }
    return true;
}

static void gradient_row_fetch(const attn_layout *layout, const void *base, int64_t offset, int64_t dim) {
    const int64_t size = (int64_t)attn_dtype_size(layout->dtype);
    for (int64_t at = 0; layout->stride[3] == 1 && at < dim * size; at += 64) {
        __builtin_prefetch((const char *)base + offset * size + at, 0, 2);
    }
}

/* Fetches rows [first, last) of the list ahead of their use: in most layouts they lie apart, where no hardware
 * prefetcher follows. */
static void gradient_rows_fetch(const attn__run *run, const attn__query_rows *query, int64_t first, int64_t last) {
    const attn_problem *p = run->problem;
    const attn_segment *segment = &query->segment;
    for (int64_t at = first; at < last; at++) {
        int64_t head = query->head_first + at / segment->rows, row = segment->first + at % segment->rows;
        gradient_row_fetch(&p->q, run->args->q, attn__row_offset(&p->q, segment->sequence, head, row), p->dim_qk);
        gradient_row_fetch(&p->dout, run->args->dout, attn__row_offset(&p->dout, segment->sequence, head, row),
                           p->dim_v);
        if (!run->args->delta) {
            gradient_row_fetch(&p->o, run->args->o, attn__row_offset(&p->o, segment->sequence, head, row), p->dim_v);
        }
    }
}

#endif
