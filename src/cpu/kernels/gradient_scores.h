/* SPDX-License-Identifier: Apache-2.0
 * Gradients at the scores of one block of query rows against one block of keys:
 *     p  = 2^(score - lse)                    no maximum is needed: lse is final
 *     ds = p (keep / (1 - rate) * dP - delta + dlse)
 * One pass over S^T and dP^T of a group of lanes, [key][lane], writes P^T (times keep) and dS^T as [key][SCORE_ROW]
 * over all groups, since dK and dV sum over all rows of the block. SCORE_ROW is odd in cache lines, so that a column of
 * lanes does not fall into few cache sets. Rows of bf16 (`half`) are pairs of rows along lanes as they stand.
 *
 * A hidden p and ds are exactly 0 whatever was read; a visible p never is 0 (vf_exp2). */
#ifndef ATTN_CPU_GRADIENT_SCORES_H
#define ATTN_CPU_GRADIENT_SCORES_H

#include "gradient_rows.h"

#define SCORE_ROW (ATTN__BLOCK + 16)

typedef struct gradient_scores {
    float *scores, *dp; /* [key][lane] of one group */
    float *p, *ds;      /* [key][SCORE_ROW], of floats or bf16; p with keep */
    float *seen;        /* [key][SCORE_ROW]: p without keep */
    float *extra;       /* [group][key][lane]; NULL unless bias or boolean mask */
    float *keep, *bend; /* [key][lane] of one group; NULL unless dropout, soft cap */
} gradient_scores;

static gradient_scores gradient_scores_take(char *base, size_t *used, const attn_problem *p, int64_t block_kv) {
    const size_t keys = (size_t)block_kv, group = keys * ATTN_LANES * sizeof(float);
    const size_t all = keys * SCORE_ROW * sizeof(float);
    gradient_scores g = {0};
    g.scores = scratch_take(base, used, group);
    g.dp = scratch_take(base, used, group);
    g.p = scratch_take(base, used, all);
    g.ds = scratch_take(base, used, all);
    g.seen = scratch_take(base, used, all);
    if (p->bias.dtype != ATTN_NONE || p->mask.dtype != ATTN_NONE) {
        g.extra = scratch_take(base, used, keys * ATTN__BLOCK * sizeof(float));
    }
    if (p->dropout > 0) {
        g.keep = scratch_take(base, used, group);
    }
    if (p->softcap > 0) {
        g.bend = scratch_take(base, used, group);
    }
    return g;
}

/* What is asked of one fill. */
typedef struct score_wish {
    bool edge; /* the band cuts through the block */
    bool bend; /* dS^T at the products <q, k>, before the soft cap; else at the scores */
    bool seen; /* the array `seen` too */
    bool half; /* P^T and dS^T in bf16 */
} score_wish;

/* The pass over one group. Pointers are at its first key, p, ds and seen at element `to`; keep, bend and seen may be
 * NULL. */
typedef struct score_pass {
    const float *scores, *dp, *keep, *bend, *lse, *delta;
    float *p, *ds, *seen;
    int64_t to;
    float unit;
    int count;
} score_pass;

VEC_INLINE void score_store(const bool half, float *rows, int64_t at, vf x) {
    if (half) {
        vf_store_as(ATTN_BF16, (uint16_t *)(void *)rows + at, x);
    } else {
        vf_store(rows + at, x);
    }
}

/* plain: no keep, bend or seen. masked: -inf scores may be there. */
VEC_INLINE void score_pass_as(const bool plain, const bool masked, const bool half, const score_pass *pass) {
    const score_pass o = *pass; /* stores cannot change it */
    const vf unit = vf_set(o.unit);
    vf lse[ATTN_NV], delta[ATTN_NV];
#pragma GCC unroll 4
    for (int v = 0; v < ATTN_NV; v++) {
        lse[v] = vf_loadu(o.lse + v * ATTN_W);
        delta[v] = vf_loadu(o.delta + v * ATTN_W);
    }
    for (int n = 0; n < o.count; n++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            const int64_t from = (int64_t)n * ATTN_LANES + v * ATTN_W;
            const int64_t to = o.to + (int64_t)n * SCORE_ROW + v * ATTN_W;
            vf s = vf_load(o.scores + from), dp = vf_load(o.dp + from);
            /* An lse that is not of these keys may leave more than vf_exp2 takes. */
            vf p = vf_exp2(vf_min(vf_set(126.0f), vf_fma(s, unit, -lse[v])));
            vi hidden = s == vf_set(-INFINITY);
            if (masked) {
                p = (vf)(~hidden & (vi)p);
            }
            if (!plain && o.seen) {
                vf_store(o.seen + to, p);
            }
            vf weight = p;
            if (!plain && o.keep) {
                vf keep = vf_load(o.keep + from);
                weight = p * keep;
                dp = dp * keep;
            }
            vf ds = p * (dp - delta[v]);
            if (!plain && o.bend) {
                ds = ds * vf_load(o.bend + from);
            }
            if (masked) {
                ds = (vf)(~hidden & (vi)ds);
            }
            score_store(half, o.p, to, weight);
            score_store(half, o.ds, to, ds);
        }
    }
}
static __attribute__((noinline)) void score_pass_run(const score_pass *o, bool masked, bool half) {
    const int plain = !o->keep && !o->bend && !o->seen;
    switch (plain ? masked + 2 * half : 4 + half) {
    case 4: score_pass_as(false, true, false, o); break;
#if !ATTN_HAVE_DOT2
    case 0: score_pass_as(true, false, false, o); break;
    case 1: score_pass_as(true, true, false, o); break;
#else
    case 2: score_pass_as(true, false, true, o); break;
    case 3: score_pass_as(true, true, true, o); break;
    case 5: score_pass_as(false, true, true, o); break;
#endif
    default: break;
    }
}

static void score_products(int64_t keys, attn__operands o, float *c) {
    float top[ATTN_LANES] __attribute__((aligned(64))) = {0}; /* of no interest here; the tile takes it for nothing */
    panel_scores(keys, o, c, ATTN_LANES, top);
}

/* P^T and dS^T of keys j ... j + count - 1, whose rows start at `keys`. */
static void gradient_scores_fill(const gradient_scores *g, const gradient_rows *block, const attn__run *run,
                                 const score_rule *rule, key_block keys, int64_t j, int count, score_wish wish) {
    float top[ATTN_LANES] __attribute__((aligned(64)));
    for (int group = 0; group < block->groups; group++) {
        const int64_t lane = (int64_t)group * ATTN_LANES;
        attn__operands qk = {keys.k, keys.k_row, 1, block->q + lane * block->q_steps, ATTN_LANES, block->q_steps};
        attn__operands vo = {keys.v,     keys.v_row,       1, block->dout + lane * block->dout_steps,
                             ATTN_LANES, block->dout_steps};
        score_pass pass = {.scores = g->scores,
                           .dp = g->dp,
                           .keep = g->keep,
                           .bend = wish.bend ? g->bend : NULL,
                           .lse = block->lse + lane,
                           .delta = block->delta + lane,
                           .p = g->p,
                           .ds = g->ds,
                           .seen = wish.seen ? g->seen : NULL,
                           .to = lane,
                           .unit = rule->unit,
                           .count = count};
        score_products(count, qk, g->scores);
        if (wish.edge || !rule->plain) {
            score_apply(rule, &block->rows, group, wish.edge, rule->has_extra ? g->extra + lane * count : NULL, j,
                        count, g->scores, top, wish.bend ? g->bend : NULL);
        }
        score_products(count, vo, g->dp);
        if (g->keep) {
            score_keep(run, &block->rows, group, j, count, g->keep);
        }
        score_pass_run(&pass, wish.edge || rule->has_extra, wish.half);
    }
}

#endif
