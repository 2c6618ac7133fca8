/* SPDX-License-Identifier: Apache-2.0
 * Forward: online softmax over blocks of keys, lanes = query rows.
 *
 * A task carries up to ATTN__MAX_BLOCKS blocks of 64 rows along the keys. For each key block and row block:
 *   S^T = K Q^T (tile.h; the running maximum is taken in registers), scores (score.h), m and l, P^T in place of S^T,
 *   O^T = O^T * alpha + V^T P^T.
 * m is the greatest score as it is stored: the p of a row's greatest score is exactly 1, however large scores are. K
 * and V are read in place where they are float rows with neighbouring elements, else converted a block at a time. Where
 * ATTN_HAVE_DOT2 all inputs are bf16; q, k, v and p stay so in pairs (pairs.h) and sums are float32 all the same.
 *
 * A hidden p is exactly 0 and a visible one never is (vf_exp2). Where a block has hidden pairs and V holds NaN or inf,
 * 0 * NaN must not reach the sum: panel_add_careful skips hidden pairs one by one. */
#ifndef ATTN_CPU_FORWARD_H
#define ATTN_CPU_FORWARD_H

#include "block.h"
#include "pairs.h"

typedef struct forward_block {
    score_rows rows;
    int groups;
    float *q;         /* [group][q_steps][lane], or as q_vector and q_step say */
    int64_t q_steps;  /* dim_qk, or pairs of it */
    int64_t q_vector; /* floats from one vector of lanes to the next of its group */
    int64_t q_step;   /* floats from one step to the next */
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
    float *careful_v; /* ATTN_HAVE_DOT2: values as float rows, for blocks with NaN or inf behind a mask */
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
#if ATTN_HAVE_DOT2
    if (!pairs_in_place(&p->k, p->dim_qk)) {
        s.room.k = scratch_take(base, &s.bytes, keys * (size_t)pairs_of(p->dim_qk) * sizeof(float));
    }
    s.room.v = scratch_take(base, &s.bytes, (size_t)pairs_of((int64_t)keys) * (size_t)p->dim_v * sizeof(float));
    s.careful_v = scratch_take(base, &s.bytes, (keys + 1) * (size_t)p->dim_v * sizeof(float));
#else
    /* A copy that several row blocks read pays where rows lie apart, or where a block reads it once for each group of
     * its lanes: rows side by side, read once a block, were 3 to 4 % faster in place (AVX-512 on the Xeon). */
    const bool shared = plan->choice.block_q > ATTN__BLOCK, again = ATTN_LANES < ATTN__BLOCK;
    s.room = key_room_take(base, &s.bytes, p, (int64_t)keys, shared && (again || p->k.stride[2] != p->dim_qk),
                           shared && (again || p->v.stride[2] != p->dim_v));
#endif
    return s;
}

static __attribute__((unused)) size_t forward_scratch_bytes(const attn_plan *plan) {
    return forward_carve(plan, NULL).bytes;
}

/* Query rows transposed, the scale's sign folded in, to where the block says that q lies. */
static void forward_block_start(forward_block *block, const score_rule *rule, const attn__forward_task *task,
                                int64_t first) {
    const attn_problem *p = rule->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->q.dtype);
    score_rows_fill(&block->rows, rule, &task->rows, first);
    const attn__lanes *lanes = &block->rows.lanes;
    block->groups = (lanes->count + ATTN_LANES - 1) / ATTN_LANES;
    for (int lane = 0; lane < block->groups * ATTN_LANES; lane += ATTN_W) {
        const void *rows[ATTN_W];
        for (int i = 0; i < ATTN_W; i++) {
            rows[i] = (const char *)rule->args->q + attn__lane_offset(&p->q, lanes, lane + i) * size;
        }
        float *q = block->q + (int64_t)(lane / ATTN_LANES) * ATTN_LANES * block->q_steps +
                   lane % ATTN_LANES / ATTN_W * block->q_vector;
#if ATTN_HAVE_DOT2
        pairs_to_lanes(rows, p->dim_qk, p->q.stride[3], q, block->q_step);
#else
        rows_to_lanes(p->q.dtype, rows, p->dim_qk, p->q.stride[3], q, block->q_step);
#endif
    }
    if (rule->negative) {
        const vi signs = vi_set(ATTN_HAVE_DOT2 ? (int32_t)0x80008000u : INT32_MIN);
        for (int64_t at = 0; at < block->groups * ATTN_LANES * block->q_steps; at += ATTN_W) {
            vf_store(block->q + at, (vf)((vi)vf_load(block->q + at) ^ signs));
        }
    }
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        score_sink_start(rule, lanes, lane, task->with_sink, &block->m[lane], &block->l[lane]);
    }
    memset(block->o, 0, (size_t)(block->groups * ATTN_LANES * p->dim_v) * sizeof(float));
}

/* One vector of new references and factors: m = max(m, top), alpha = 2^((old - new) * unit); returns what to subtract:
 * 0 while nothing was seen, so that -inf - m stays -inf. */
VEC_INLINE vf reference_raise(float *m, float *l, float *alpha, vf top, vf unit) {
    vf old = vf_load(m), new = vf_max(old, top);
    vf subtract = vf_select(new == vf_set(-INFINITY), vf_set(0.0f), new);
    vf factor = vf_exp2((old - subtract) * unit);
    vf_store(m, new);
    vf_store(alpha, factor);
    vf_store(l, vf_load(l) * factor);
    return subtract;
}

/* What softmax does beyond exponentials, constants where it is called. */
typedef enum softmax_form {
    SOFTMAX_MASKED = 1, /* -inf scores may be there: p is 0 for them */
    SOFTMAX_KEEP = 2,   /* dropout: p times keep, after it was added to l */
    SOFTMAX_PAIRS = 4   /* p rounded to bf16, rows 2n and 2n + 1 as the words of row n */
} softmax_form;

VEC_INLINE vf softmax_row(const softmax_form form, const float *scores, const float *keep, int64_t at, vf scale,
                          vf subtract, vf *sum) {
    vf s = vf_load(scores + at), p = vf_exp2((s - subtract) * scale);
    const vi seen = form & SOFTMAX_MASKED ? ~(s == vf_set(-INFINITY)) : vi_set(-1);
    p = (vf)(seen & (vi)p);
    *sum += p;
    return form & SOFTMAX_KEEP ? (vf)(seen & (vi)(p * vf_load(keep + at))) : p;
}

/* P^T in place of one group's scores, l updated. */
VEC_INLINE void softmax_as(const softmax_form form, float *scores, int count, float unit, const float *top,
                           const float *keep, float *m, float *l, float *alpha) {
    const vf scale = vf_set(unit);
    vf subtract[ATTN_NV], sum[ATTN_NV];
#pragma GCC unroll 4
    for (int v = 0; v < ATTN_NV; v++) {
        subtract[v] =
            reference_raise(m + v * ATTN_W, l + v * ATTN_W, alpha + v * ATTN_W, vf_load(top + v * ATTN_W), scale);
        sum[v] = vf_set(0.0f);
    }
    for (int n = 0; n < count; n += form & SOFTMAX_PAIRS ? 2 : 1) {
#pragma GCC unroll 4
        for (int v = 0; v < ATTN_NV; v++) {
            int64_t at = (int64_t)n * ATTN_LANES + v * ATTN_W;
            vf p = softmax_row(form, scores, keep, at, scale, subtract[v], &sum[v]);
#if ATTN_HAVE_DOT2
            if (form & SOFTMAX_PAIRS) {
                vf odd = vf_set(0.0f);
                if (n + 1 < count) {
                    odd = softmax_row(form, scores, keep, at + ATTN_LANES, scale, subtract[v], &sum[v]);
                }
                p = form & SOFTMAX_KEEP ? vf_pair(vf_abs(p), vf_abs(odd)) : vf_pair(p, odd); /* dropped is -0 */
                at = (int64_t)(n / 2) * ATTN_LANES + v * ATTN_W;
            }
#endif
            vf_store(scores + at, p);
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < ATTN_NV; v++) {
        vf_store(l + v * ATTN_W, vf_load(l + v * ATTN_W) + sum[v]);
    }
}

static __attribute__((noinline)) void softmax(softmax_form form, float *scores, int count, float unit, const float *top,
                                              const float *keep, float *m, float *l, float *alpha) {
#define ATTN__CASE(constant)                                                                                           \
    case constant: softmax_as(constant, scores, count, unit, top, keep, m, l, alpha); break
    switch ((int)form) {
        ATTN__CASE(1);
        ATTN__CASE(3);
#if !ATTN_HAVE_DOT2
        ATTN__CASE(0);
        ATTN__CASE(2);
#else
        ATTN__CASE(4);
        ATTN__CASE(5);
        ATTN__CASE(6);
        ATTN__CASE(7);
#endif
    }
#undef ATTN__CASE
}

/* o^T = o^T * alpha + V^T P^T of one group. */
static void forward_values(const forward_scratch *s, const key_block *keys, int64_t dim_v, float *probabilities,
                           int count, bool careful, float *o, const float *alpha) {
    attn__operands pv = {keys->v, 1, keys->v_row, probabilities, ATTN_LANES, count};
    if (careful) {
        if (ATTN_HAVE_DOT2) {
            pv.b = s->careful_v;
            pv.b_step = dim_v;
        }
        panel_add_careful(dim_v, pv, o, ATTN_LANES, alpha, (seen_pairs){probabilities, 0, ATTN_LANES, 1});
        return;
    }
    pv.count = ATTN_HAVE_DOT2 ? (count + 1) / 2 : count;
    panel_add(dim_v, pv, o, ATTN_LANES, alpha);
}

static bool forward_careful(const forward_scratch *s, const key_block *keys, int count, int64_t dim_v) {
#if ATTN_HAVE_DOT2
    if (pairs_finite(keys->v, pairs_of(count) * dim_v)) {
        return false;
    }
    pairs_widen(keys->v, pairs_of(count), dim_v, s->careful_v);
    return true;
#else
    (void)s;
    return !rows_finite(keys->v, keys->v_row, count, dim_v);
#endif
}

/* Raw scores of one group. Fetching ahead cuts the panel into its tiles. */
static void forward_scores(attn__operands qk, int count, float *scores, float *top, key_ahead *ahead) {
    for (int n = 0; n < count;) {
        int rows = count - n;
        if (ahead->done < ahead->rows) {
            key_ahead_step(ahead);
            rows = rows < ATTN_ROWS ? rows : ATTN_ROWS;
        }
        panel_scores(rows, qk, scores, ATTN_LANES, top);
        qk.b += rows * qk.b_row;
        scores += (int64_t)rows * ATTN_LANES;
        n += rows;
    }
}

/* One row block against keys j ... j + count - 1, whose rows start at `keys`. */
static void forward_step(const attn__forward_task *task, const score_rule *rule, const forward_scratch *s,
                         forward_block *block, key_block keys, key_ahead *ahead, int64_t j, int count, bool edge) {
    const attn_problem *p = rule->problem;
    const bool masked = edge || rule->has_extra;
    const bool careful = masked && forward_careful(s, &keys, count, p->dim_v);
    const int pairs = ATTN_HAVE_DOT2 && !careful ? SOFTMAX_PAIRS : 0;
    const int form = (masked ? SOFTMAX_MASKED : 0) | (s->keep ? SOFTMAX_KEEP : 0) | pairs;
    for (int group = 0; group < block->groups; group++) {
        float top[ATTN_LANES] __attribute__((aligned(64))), alpha[ATTN_LANES] __attribute__((aligned(64)));
        float *scores = s->scores + (int64_t)group * count * ATTN_LANES;
        float *q = block->q + (int64_t)group * ATTN_LANES * block->q_steps;
        attn__operands qk = {keys.k, keys.k_row, 1, q, ATTN_LANES, block->q_steps};
        for (int lane = 0; lane < ATTN_LANES; lane++) {
            top[lane] = -INFINITY;
        }
        forward_scores(qk, count, scores, top, ahead);
        if (edge || !rule->plain) {
            score_apply(rule, &block->rows, group, edge,
                        rule->has_extra ? s->extra + (int64_t)group * count * ATTN_LANES : NULL, j, count, scores, top,
                        NULL);
        }
        if (s->keep) {
            score_keep(task->run, &block->rows, group, j, count, s->keep);
        }
        softmax((softmax_form)form, scores, count, rule->unit, top, s->keep, block->m + group * ATTN_LANES,
                block->l + group * ATTN_LANES, alpha);
        forward_values(s, &keys, p->dim_v, scores, count, careful, block->o + (int64_t)group * ATTN_LANES * p->dim_v,
                       alpha);
    }
}

/* o = O^T / l as rows, lse = ln(sum). */
static void forward_finish(const score_rule *rule, forward_block *block) {
    const attn_problem *p = rule->problem;
    const attn_args *args = rule->args;
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
    for (int lane = 0; lane < lanes->count; lane++) {
        score_lse_store(rule, lanes, lane, block->m[lane], block->l[lane]);
    }
}

/* Keys [row, row + count) of a segment as this scratch's tiles read them. */
static key_block forward_keys(const attn__forward_task *task, const forward_scratch *s, int64_t sequence, int64_t row,
                              int64_t count) {
    const attn_problem *p = task->run->problem;
    const attn_args *args = task->run->args;
#if ATTN_HAVE_DOT2
    const uint16_t *k = (const uint16_t *)args->k + attn__row_offset(&p->k, sequence, task->head_kv, row);
    const uint16_t *v = (const uint16_t *)args->v + attn__row_offset(&p->v, sequence, task->head_kv, row);
    key_block keys = {(const float *)(const void *)k, s->room.v, p->k.stride[2] / 2, p->dim_v};
    if (s->room.k) {
        pairs_copy_rows(k, p->k.stride[2], p->k.stride[3], count, p->dim_qk, s->room.k);
        keys.k = s->room.k;
        keys.k_row = pairs_of(p->dim_qk);
    }
    pairs_interleave_rows(v, p->v.stride[2], p->v.stride[3], count, p->dim_v, s->room.v);
    return keys;
#else
    return key_block_load(p, args, &s->room, sequence, task->head_kv, row, count);
#endif
}

typedef struct forward_walker {
    const attn__forward_task *task;
    const score_rule *rule;
    const forward_scratch *s;
    int n_blocks;
} forward_walker;

/* All row blocks against rows [row, row + count) of one key segment. */
static void forward_key_block(void *context, const attn_segment *segment, int64_t row, int64_t count) {
    const forward_walker *walker = context;
    const attn__forward_task *task = walker->task;
    const score_rule *rule = walker->rule;
    const forward_scratch *s = walker->s;
    const attn_problem *p = rule->problem;
    const int64_t base = segment->position + row;
    const int64_t block_kv = task->run->plan->choice.block_kv, left = segment->rows - row - count;
    bool loaded = false;
    key_block keys = {0};
    key_ahead ahead = {0};
    for (int b = 0; b < walker->n_blocks; b++) {
        forward_block *block = &s->blocks[b];
        int64_t begin = base, end = base + count;
        score_span span = score_band_span(&p->band, &block->rows.lanes, &begin, &end);
        if (span == SPAN_HIDDEN) {
            continue;
        }
#if ATTN_HAVE_DOT2
        if (pairs_whole(base, count, &begin, &end)) {
            span = SPAN_EDGE; /* the band hides what a cut leaves over */
        }
#endif
        if (rule->has_extra && !score_extra(rule, &block->rows, block->groups, begin, (int)(end - begin), s->extra)) {
            continue;
        }
        if (!loaded) {
            keys = forward_keys(task, s, segment->sequence, segment->first + row, count);
            ahead = key_ahead_make(p, rule->args, segment->sequence, task->head_kv, segment->first + row + count,
                                   left < block_kv ? left : block_kv,
                                   (walker->n_blocks - b) * (block->groups * count / ATTN_ROWS));
            loaded = true;
        }
        key_block cut = keys;
        cut.k += (begin - base) * keys.k_row;
        cut.v += (begin - base) / (ATTN_HAVE_DOT2 ? 2 : 1) * keys.v_row;
        forward_step(task, rule, s, block, cut, &ahead, begin, (int)(end - begin), span == SPAN_EDGE);
    }
}

/* Calls visit for the task's keys, a block at a time: rows [row, row + count) of a segment. */
typedef void (*forward_visit)(void *context, const attn_segment *segment, int64_t row, int64_t count);
static void forward_walk(const attn__forward_task *task, forward_visit visit, void *context) {
    const attn__run *run = task->run;
    const int64_t block = run->plan->choice.block_kv;
    int64_t first, last, before = 0; /* keys of earlier segments */
    attn__side_range(&run->kv, task->rows.segment.sequence, &first, &last);
    for (int64_t n = first; n < last; n++) {
        attn_segment segment = attn__side_segment(&run->kv, n);
        int64_t begin = task->key_begin > before ? task->key_begin - before : 0;
        int64_t end = task->key_end - before < segment.rows ? task->key_end - before : segment.rows;
        for (int64_t row = begin; row < end; row += block) {
            visit(context, &segment, row, end - row < block ? end - row : block);
        }
        before += segment.rows;
    }
}

static __attribute__((unused)) void forward(const attn__forward_task *task, void *scratch) {
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
        block->q_steps = ATTN_HAVE_DOT2 ? (p->dim_qk + 1) / 2 : p->dim_qk;
        block->q_vector = ATTN_W;
        block->q_step = ATTN_LANES;
        forward_block_start(block, &rule, task, row);
        n_blocks++;
    }
    forward_walk(task, forward_key_block, &(forward_walker){task, &rule, &s, n_blocks});
    if (!task->partial) {
        for (int b = 0; b < n_blocks; b++) {
            forward_finish(&rule, &s.blocks[b]);
        }
    }
}

/* Adds the state `from` into `into`. unit: of m, to log2 units. */
static void state_merge(float *into, const float *from, int groups, int64_t dim_v, float unit) {
    const vf scale = vf_set(unit);
    for (int lane = 0; lane < groups * ATTN_LANES; lane += ATTN_W) {
        vf old = vf_load(into + lane), other = vf_load(from + lane), m = vf_max(old, other);
        vf subtract = vf_select(m == vf_set(-INFINITY), vf_set(0.0f), m);
        vf a = vf_exp2((old - subtract) * scale), b = vf_exp2((other - subtract) * scale);
        vf_store(into + lane, m);
        float *l = into + ATTN__BLOCK + lane;
        vf_store(l, vf_load(l) * a + vf_load(from + ATTN__BLOCK + lane) * b);
        int64_t at = 2 * ATTN__BLOCK + (int64_t)(lane / ATTN_LANES) * ATTN_LANES * dim_v + lane % ATTN_LANES;
        for (int64_t d = 0; d < dim_v; d++, at += ATTN_LANES) {
            vf_store(into + at, vf_load(into + at) * a + vf_load(from + at) * b);
        }
    }
}

static void merge_parts(const attn__forward_task *task, const score_rule *rule, float unit, float *states,
                        int64_t part_stride, int64_t parts) {
    const attn_problem *p = rule->problem;
    for (int64_t row = task->rows.row_begin; row < task->rows.row_end; row += ATTN__BLOCK) {
        forward_block block;
        attn__lanes_fill(&block.rows.lanes, &task->rows, row);
        block.groups = (block.rows.lanes.count + ATTN_LANES - 1) / ATTN_LANES;
        block.m = states;
        block.l = states + ATTN__BLOCK;
        block.o = states + 2 * ATTN__BLOCK;
        for (int64_t part = 1; part < parts; part++) {
            state_merge(states, states + part * part_stride, block.groups, p->dim_v, unit);
        }
        forward_finish(rule, &block);
        states += attn__state_floats(p);
    }
}

static __attribute__((unused)) void finish(const attn__forward_task *task, float *states, int64_t part_stride,
                                           int64_t parts) {
    const score_rule rule = score_rule_make(task->run->problem, task->run->args);
    merge_parts(task, &rule, rule.unit, states, part_stride, parts);
}

#endif
