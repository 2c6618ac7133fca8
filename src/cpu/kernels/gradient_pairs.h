/* SPDX-License-Identifier: Apache-2.0
 * Gradients at the scores of one block of query rows against one block of keys:
 *     p  = 2^(score - lse)                    no maximum is needed: lse is final
 *     ds = p (keep / (1 - rate) * dP - delta + dlse)
 * One pass over S^T and dP^T of a group of lanes, [key][lane], writes P^T (times keep) and dS^T as [key][PAIR_ROW] over
 * all groups, since dK and dV sum over all rows of the block. PAIR_ROW is odd in cache lines, so that a column of
 * lanes does not fall into few cache sets.
 *
 * A hidden p and ds are exactly 0 whatever was read; a visible p never is 0 (vf_exp2). */
#ifndef ATTN_CPU_GRADIENT_PAIRS_H
#define ATTN_CPU_GRADIENT_PAIRS_H

#include "gradient_rows.h"

#define PAIR_ROW (ATTN__BLOCK + 16)

typedef struct gradient_pairs {
    float *scores, *dp; /* [key][lane] of one group */
    float *p, *ds;      /* [key][PAIR_ROW]; p with keep */
    float *seen;        /* [key][PAIR_ROW]: p without keep */
    float *extra;       /* [group][key][lane]; NULL unless bias or boolean mask */
    float *keep, *bend; /* [key][lane] of one group; NULL unless dropout, soft cap */
} gradient_pairs;

static gradient_pairs gradient_pairs_take(char *base, size_t *used, const attn_problem *p, int64_t block_kv) {
    const size_t keys = (size_t)block_kv, group = keys * ATTN_LANES * sizeof(float);
    const size_t all = keys * PAIR_ROW * sizeof(float);
    gradient_pairs pairs = {0};
    pairs.scores = scratch_take(base, used, group);
    pairs.dp = scratch_take(base, used, group);
    pairs.p = scratch_take(base, used, all);
    pairs.ds = scratch_take(base, used, all);
    pairs.seen = scratch_take(base, used, all);
    if (p->bias.dtype != ATTN_NONE || p->mask.dtype != ATTN_NONE) {
        pairs.extra = scratch_take(base, used, keys * ATTN__BLOCK * sizeof(float));
    }
    if (p->dropout > 0) {
        pairs.keep = scratch_take(base, used, group);
    }
    if (p->softcap > 0) {
        pairs.bend = scratch_take(base, used, group);
    }
    return pairs;
}

/* The pass over one group. Pointers are at its first key and lane; keep, bend and seen may be NULL. */
typedef struct pair_pass {
    const float *scores, *dp, *keep, *bend, *lse, *delta;
    float *p, *ds, *seen;
    float unit;
    int count;
} pair_pass;

/* plain: no keep, bend or seen. masked: -inf scores may be there. */
VEC_INLINE void pair_pass_as(const bool plain, const bool masked, const pair_pass *pass) {
    const pair_pass o = *pass; /* stores cannot change it */
    const vf unit = vf_set(o.unit);
    vf lse[ATTN_NV], delta[ATTN_NV];
    for (int v = 0; v < ATTN_NV; v++) {
        lse[v] = vf_loadu(o.lse + v * ATTN_W);
        delta[v] = vf_loadu(o.delta + v * ATTN_W);
    }
    for (int n = 0; n < o.count; n++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            const int64_t from = (int64_t)n * ATTN_LANES + v * ATTN_W, to = (int64_t)n * PAIR_ROW + v * ATTN_W;
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
            vf_store(o.p + to, weight);
            vf_store(o.ds + to, ds);
        }
    }
}
static __attribute__((noinline)) void pair_pass_run(const pair_pass *o, bool masked) {
    const bool plain = !o->keep && !o->bend && !o->seen;
    if (plain && !masked) {
        pair_pass_as(true, false, o);
    } else if (plain) {
        pair_pass_as(true, true, o);
    } else {
        pair_pass_as(false, true, o);
    }
}

/* P^T and dS^T of keys j ... j + count - 1, whose rows start at `keys`. edge: the band cuts through the block. bend:
 * dS^T is at the products <q, k>, before the soft cap; else at the scores. with_seen: pairs->seen is wanted. */
static void gradient_pairs_fill(const gradient_pairs *pairs, const gradient_rows *block, const attn__run *run,
                                const score_rule *rule, key_block keys, int64_t j, int count, bool edge, bool bend,
                                bool with_seen) {
    const attn_problem *p = rule->problem;
    for (int group = 0; group < block->groups; group++) {
        float top[ATTN_LANES] __attribute__((aligned(64)));
        const int64_t lane = (int64_t)group * ATTN_LANES;
        attn__operands qk = {keys.k, keys.k_row, 1, block->q + lane * p->dim_qk, ATTN_LANES, p->dim_qk};
        attn__operands vo = {keys.v, keys.v_row, 1, block->dout + lane * p->dim_v, ATTN_LANES, p->dim_v};
        pair_pass pass = {.scores = pairs->scores,
                          .dp = pairs->dp,
                          .keep = pairs->keep,
                          .bend = bend ? pairs->bend : NULL,
                          .lse = block->lse + lane,
                          .delta = block->delta + lane,
                          .p = pairs->p + lane,
                          .ds = pairs->ds + lane,
                          .seen = with_seen ? pairs->seen + lane : NULL,
                          .unit = rule->unit,
                          .count = count};
        for (int n = 0; n < ATTN_LANES; n++) {
            top[n] = -INFINITY; /* of no interest here, but the tile takes it for nothing */
        }
        panel_scores(count, qk, pairs->scores, ATTN_LANES, top);
        if (edge || !rule->plain) {
            score_apply(rule, &block->rows, group, edge, rule->has_extra ? pairs->extra + lane * count : NULL, j, count,
                        pairs->scores, top, pass.bend ? pairs->bend : NULL);
        }
        panel_scores(count, vo, pairs->dp, ATTN_LANES, top);
        if (pairs->keep) {
            score_keep(run, &block->rows, group, j, count, pairs->keep);
        }
        pair_pass_run(&pass, edge || rule->has_extra);
    }
}

#endif
