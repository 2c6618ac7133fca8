/* SPDX-License-Identifier: Apache-2.0
 * Forward: online softmax over blocks of keys, lanes = query rows.
 *
 * A task carries up to ATTN__MAX_BLOCKS blocks of 64 rows along the keys. For each key block and row block:
 *   S^T = K Q^T (tile.h; the running maximum is taken in registers), scores (score.h), m and l, P^T in place of S^T,
 *   O^T = O^T * alpha + V^T P^T.
 * m is a whole number of log2 units, so that alpha is an exact power of two. K and V are read in place where they are
 * float rows with neighbouring elements, else converted a block at a time.
 *
 * A hidden p is exactly 0 and a visible one never is (vf_exp2). Where a block has hidden pairs and V holds NaN or inf,
 * 0 * NaN must not reach the sum: panel_add_careful skips hidden pairs one by one. */
#ifndef ATTN_CPU_FORWARD_H
#define ATTN_CPU_FORWARD_H

#include "block.h"

typedef struct forward_block {
    score_rows rows;
    int groups;
    float *q;         /* [group][dim_qk][lane] */
    float *m, *l, *o; /* state: m [64], l [64], o [group][dim_v][lane] */
} forward_block;

typedef struct forward_scratch {
    forward_block *blocks; /* [ATTN__MAX_BLOCKS] */
    float *q;              /* [blocks][dim_qk * 64] */
    float *state;          /* [blocks][attn__state_floats] */
    float *scores;         /* [group][key][lane] of one block */
    float *extra;          /* likewise; NULL unless bias or boolean mask */
    float *keep;           /* [key][lane] of one group; NULL unless dropout */
    key_room room;
    size_t bytes;
} forward_scratch;

/* One function lays the scratch out: with base NULL it measures. */
static forward_scratch forward_carve(const attn_plan *plan, void *base) {
    const attn_problem *p = &plan->problem;
    const size_t blocks = (size_t)((plan->choice.block_q + ATTN__BLOCK - 1) / ATTN__BLOCK);
    const size_t keys = (size_t)plan->choice.block_kv;
    const size_t line = ATTN__BLOCK * sizeof(float);
    forward_scratch s = {0};
    s.blocks = scratch_take(base, &s.bytes, blocks * sizeof(forward_block));
    s.q = scratch_take(base, &s.bytes, blocks * (size_t)p->dim_qk * line);
    s.state = scratch_take(base, &s.bytes, blocks * (size_t)attn__state_floats(p) * sizeof(float));
    s.scores = scratch_take(base, &s.bytes, keys * line);
    if (p->bias.dtype != ATTN_NONE || p->mask.dtype != ATTN_NONE) {
        s.extra = scratch_take(base, &s.bytes, keys * line);
    }
    if (p->dropout > 0) {
        s.keep = scratch_take(base, &s.bytes, keys * ATTN_LANES * sizeof(float));
    }
    s.room = key_room_take(base, &s.bytes, p, (int64_t)keys);
    return s;
}

static size_t forward_scratch_bytes(const attn_plan *plan) {
    return forward_carve(plan, NULL).bytes;
}

/* Query rows transposed, the scale's sign folded in. */
static void forward_block_start(forward_block *block, const score_rule *rule, const attn__forward_task *task,
                                int64_t first) {
    const attn_problem *p = rule->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->q.dtype);
    const float *sinks = rule->args->sink;
    score_rows_fill(&block->rows, rule, &task->rows, first);
    const attn__lanes *lanes = &block->rows.lanes;
    block->groups = (lanes->count + ATTN_LANES - 1) / ATTN_LANES;
    for (int lane = 0; lane < block->groups * ATTN_LANES; lane += ATTN_W) {
        const void *rows[ATTN_W];
        for (int i = 0; i < ATTN_W; i++) {
            rows[i] = (const char *)rule->args->q + attn__lane_offset(&p->q, lanes, lane + i) * size;
        }
        float *q = block->q + (int64_t)(lane / ATTN_LANES) * ATTN_LANES * p->dim_qk + lane % ATTN_LANES;
        rows_to_lanes(p->q.dtype, rows, p->dim_qk, p->q.stride[3], q, ATTN_LANES);
    }
    if (rule->negative) {
        for (int64_t at = 0; at < block->groups * ATTN_LANES * p->dim_qk; at += ATTN_W) {
            vf_store(block->q + at, -vf_load(block->q + at));
        }
    }
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        block->m[lane] = -INFINITY;
        block->l[lane] = 0.0f;
        if (sinks && task->with_sink) {
            float sink = sinks[lanes->head[lane] * p->sink.stride[1]] * (float)ATTN_LOG2E;
            if (sink != -INFINITY) {
                block->m[lane] = ceilf(sink);
                block->l[lane] = exp2f(sink - block->m[lane]);
            }
        }
    }
    memset(block->o, 0, (size_t)(block->groups * ATTN_LANES * p->dim_v) * sizeof(float));
}

/* One vector of new references and factors: m = max(m, ceil(top)), alpha = 2^(old - new); returns what to subtract:
 * 0 while nothing was seen, so that -inf - m stays -inf. */
VEC_INLINE vf reference_raise(float *m, float *l, float *alpha, vf top) {
    vf old = vf_load(m), new = vf_max(old, vf_ceil(top));
    vf subtract = vf_select(new == vf_set(-INFINITY), vf_set(0.0f), new);
    vf factor = vf_exp2(old - subtract);
    vf_store(m, new);
    vf_store(alpha, factor);
    vf_store(l, vf_load(l) * factor);
    return subtract;
}

/* P^T in place of one group's scores, l updated. masked: -inf scores may be there, p is 0 for them. */
VEC_INLINE void softmax_as(const bool masked, float *scores, int count, float unit, const float *top, float *m,
                           float *l, float *alpha) {
    const vf scale = vf_set(unit);
    vf subtract[ATTN_NV], sum[ATTN_NV];
    for (int v = 0; v < ATTN_NV; v++) {
        subtract[v] =
            reference_raise(m + v * ATTN_W, l + v * ATTN_W, alpha + v * ATTN_W, vf_load(top + v * ATTN_W) * scale);
        sum[v] = vf_set(0.0f);
    }
    for (int n = 0; n < count; n++) {
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            float *at = scores + (int64_t)n * ATTN_LANES + v * ATTN_W;
            vf s = vf_load(at), p = vf_exp2(vf_fma(s, scale, -subtract[v]));
            if (masked) {
                p = (vf)(~(s == vf_set(-INFINITY)) & (vi)p);
            }
            sum[v] += p;
            vf_store(at, p);
        }
    }
    for (int v = 0; v < ATTN_NV; v++) {
        vf_store(l + v * ATTN_W, vf_load(l + v * ATTN_W) + sum[v]);
    }
}
static __attribute__((noinline)) void softmax(bool masked, float *scores, int count, float unit, const float *top,
                                              float *m, float *l, float *alpha) {
    if (masked) {
        softmax_as(true, scores, count, unit, top, m, l, alpha);
    } else {
        softmax_as(false, scores, count, unit, top, m, l, alpha);
    }
}

/* One row block against keys j ... j + count - 1, whose rows start at `keys`. */
static void forward_step(const attn__forward_task *task, const score_rule *rule, const forward_scratch *s,
                         forward_block *block, key_block keys, int64_t j, int count, bool edge) {
    const attn_problem *p = rule->problem;
    const bool masked = edge || rule->has_extra;
    const bool careful = masked && !rows_finite(keys.v, keys.v_row, count, p->dim_v);
    for (int group = 0; group < block->groups; group++) {
        float top[ATTN_LANES] __attribute__((aligned(64))), alpha[ATTN_LANES] __attribute__((aligned(64)));
        float *scores = s->scores + (int64_t)group * count * ATTN_LANES;
        attn__operands qk = {keys.k,     keys.k_row, 1, block->q + (int64_t)group * ATTN_LANES * p->dim_qk,
                             ATTN_LANES, p->dim_qk};
        attn__operands pv = {keys.v, 1, keys.v_row, scores, ATTN_LANES, count};
        for (int lane = 0; lane < ATTN_LANES; lane++) {
            top[lane] = -INFINITY;
        }
        panel_scores(count, qk, scores, ATTN_LANES, top);
        if (edge || !rule->plain) {
            score_apply(rule, &block->rows, group, edge,
                        rule->has_extra ? s->extra + (int64_t)group * count * ATTN_LANES : NULL, j, count, scores, top,
                        NULL);
        }
        softmax(masked, scores, count, rule->unit, top, block->m + group * ATTN_LANES, block->l + group * ATTN_LANES,
                alpha);
        if (s->keep) {
            score_keep(task->run, &block->rows, group, j, count, s->keep);
            for (int64_t at = 0; at < (int64_t)count * ATTN_LANES; at += ATTN_W) {
                vf_store(scores + at, vf_load(scores + at) * vf_load(s->keep + at));
            }
        }
        float *o = block->o + (int64_t)group * ATTN_LANES * p->dim_v;
        if (careful) {
            panel_add_careful(p->dim_v, pv, o, ATTN_LANES, alpha, (seen_pairs){scores, 0, ATTN_LANES, 1});
        } else {
            panel_add(p->dim_v, pv, o, ATTN_LANES, alpha);
        }
    }
}

/* o = O^T / l as rows, lse = ln(sum). */
static void forward_finish(const attn__forward_task *task, forward_block *block) {
    const attn_problem *p = task->run->problem;
    const attn_args *args = task->run->args;
    const attn__lanes *lanes = &block->rows.lanes;
    const int64_t size = (int64_t)attn_dtype_size(p->o.dtype);
    for (int group = 0; group < block->groups; group++) {
        float *o = block->o + (int64_t)group * ATTN_LANES * p->dim_v;
        for (int v = 0; v < ATTN_NV; v++) {
            int first = group * ATTN_LANES + v * ATTN_W, count = lanes->count - first;
            vf l = vf_load(block->l + first);
            vf inverse = vf_select(l == vf_set(0.0f), vf_set(0.0f), vf_set(1.0f) / l);
            void *rows[ATTN_W];
            for (int64_t d = 0; d < p->dim_v; d++) {
                float *at = o + d * ATTN_LANES + v * ATTN_W;
                vf_store(at, vf_load(at) * inverse);
            }
            for (int i = 0; i < ATTN_W; i++) {
                rows[i] = (char *)args->o + attn__lane_offset(&p->o, lanes, first + i) * size;
            }
            lanes_to_rows(p->o.dtype, o + v * ATTN_W, ATTN_LANES, p->dim_v, p->o.stride[3], rows,
                          count < ATTN_W ? count : ATTN_W);
        }
    }
    if (args->lse) {
        for (int lane = 0; lane < lanes->count; lane++) {
            double l = block->l[lane];
            double lse = l == 0 ? -INFINITY : (double)block->m[lane] * ATTN_LN2 + log(l);
            ((float *)args->lse)[attn__lane_offset(&p->lse, lanes, lane)] = (float)lse;
        }
    }
}

/* All row blocks against rows [row, row + count) of one key segment. */
static void forward_key_block(const attn__forward_task *task, const score_rule *rule, const forward_scratch *s,
                              int n_blocks, const attn_segment *segment, int64_t row, int64_t count) {
    const attn_problem *p = rule->problem;
    const int64_t base = segment->position + row;
    bool loaded = false;
    key_block keys = {0};
    for (int b = 0; b < n_blocks; b++) {
        forward_block *block = &s->blocks[b];
        int64_t begin = base, end = base + count;
        score_span span = score_band_span(&p->band, &block->rows.lanes, &begin, &end);
        if (span == SPAN_HIDDEN) {
            continue;
        }
        if (rule->has_extra && !score_extra(rule, &block->rows, block->groups, begin, (int)(end - begin), s->extra)) {
            continue;
        }
        if (!loaded) {
            keys =
                key_block_load(p, rule->args, &s->room, segment->sequence, task->head_kv, segment->first + row, count);
            loaded = true;
        }
        key_block cut = keys;
        cut.k += (begin - base) * keys.k_row;
        cut.v += (begin - base) * keys.v_row;
        forward_step(task, rule, s, block, cut, begin, (int)(end - begin), span == SPAN_EDGE);
    }
}

static void forward(const attn__forward_task *task, void *scratch) {
    const attn__run *run = task->run;
    const attn_problem *p = run->problem;
    const score_rule rule = score_rule_make(p, run->args);
    const forward_scratch s = forward_carve(run->plan, scratch);
    int n_blocks = 0;
    for (int64_t row = task->rows.row_begin; row < task->rows.row_end; row += ATTN__BLOCK) {
        forward_block *block = &s.blocks[n_blocks];
        float *state = (task->partial ? task->partial : s.state) + n_blocks * attn__state_floats(p);
        block->m = state;
        block->l = state + ATTN__BLOCK;
        block->o = state + 2 * ATTN__BLOCK;
        block->q = s.q + n_blocks * ATTN__BLOCK * p->dim_qk;
        forward_block_start(block, &rule, task, row);
        n_blocks++;
    }
    int64_t first, last, before = 0; /* keys of earlier segments */
    attn__side_range(&run->kv, task->rows.segment.sequence, &first, &last);
    for (int64_t n = first; n < last; n++) {
        attn_segment segment = attn__side_segment(&run->kv, n);
        int64_t begin = task->key_begin > before ? task->key_begin - before : 0;
        int64_t end = task->key_end - before < segment.rows ? task->key_end - before : segment.rows;
        for (int64_t row = begin; row < end; row += run->plan->choice.block_kv) {
            int64_t count = end - row < run->plan->choice.block_kv ? end - row : run->plan->choice.block_kv;
            forward_key_block(task, &rule, &s, n_blocks, &segment, row, count);
        }
        before += segment.rows;
    }
    if (!task->partial) {
        for (int b = 0; b < n_blocks; b++) {
            forward_finish(task, &s.blocks[b]);
        }
    }
}

/* Adds the state `from` into `into`. */
static void state_merge(float *into, const float *from, int groups, int64_t dim_v) {
    for (int lane = 0; lane < groups * ATTN_LANES; lane += ATTN_W) {
        vf old = vf_load(into + lane), other = vf_load(from + lane), m = vf_max(old, other);
        vf subtract = vf_select(m == vf_set(-INFINITY), vf_set(0.0f), m);
        vf a = vf_exp2(old - subtract), b = vf_exp2(other - subtract);
        vf_store(into + lane, m);
        float *l = into + ATTN__BLOCK + lane;
        vf_store(l, vf_load(l) * a + vf_load(from + ATTN__BLOCK + lane) * b);
        int64_t at = 2 * ATTN__BLOCK + (int64_t)(lane / ATTN_LANES) * ATTN_LANES * dim_v + lane % ATTN_LANES;
        for (int64_t d = 0; d < dim_v; d++, at += ATTN_LANES) {
            vf_store(into + at, vf_load(into + at) * a + vf_load(from + at) * b);
        }
    }
}

static void finish(const attn__forward_task *task, float *states, int64_t part_stride, int64_t parts) {
    const attn_problem *p = task->run->problem;
    for (int64_t row = task->rows.row_begin; row < task->rows.row_end; row += ATTN__BLOCK) {
        forward_block block;
        attn__lanes_fill(&block.rows.lanes, &task->rows, row);
        block.groups = (block.rows.lanes.count + ATTN_LANES - 1) / ATTN_LANES;
        block.m = states;
        block.l = states + ATTN__BLOCK;
        block.o = states + 2 * ATTN__BLOCK;
        for (int64_t part = 1; part < parts; part++) {
            state_merge(states, states + part * part_stride, block.groups, p->dim_v);
        }
        forward_finish(task, &block);
        states += attn__state_floats(p);
    }
}

#endif
