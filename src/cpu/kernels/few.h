/* SPDX-License-Identifier: Apache-2.0
 * Forward for few query rows (decode): all rows that share a kv head go together, so that K and V stream through once,
 * in place (few_products.h). Where rows of neighbouring kv heads lie side by side, a task carries several of them along
 * the keys, so that it reads whole pages. A block of keys passes in three steps: scores of all heads, softmax head by
 * head, values of all heads.
 *
 * o gets a block's sums at the block's end, so that a long sum is a sum of block sums. Where more than the scale
 * applies, a block passes through score.h's [key][lane] form and back. */
#ifndef ATTN_CPU_FEW_H
#define ATTN_CPU_FEW_H

#include "few_products.h"

typedef struct few_scratch {
    few_head *heads; /* [choice.few_heads] */
    float *block;    /* [group][key][lane] */
    float *extra;    /* likewise */
    float *zeros;    /* a value row that adds nothing */
    key_room room;   /* then few_heads is 1 */
    int64_t q_row, o_row, keys;
    size_t bytes;
} few_scratch;

static inline int64_t few_round(int64_t n) {
    return (n + 15) & ~(int64_t)15;
}

static few_scratch few_carve(const attn_plan *plan, void *base) {
    const attn_problem *p = &plan->problem;
    const int64_t rows = plan->choice.group * p->tokens_q;
    few_scratch s = {0};
    s.q_row = few_round(p->dim_qk);
    s.o_row = few_round(p->dim_v);
    s.keys = few_round(plan->choice.block_kv);
    const size_t lanes = (ATTN__FEW + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    s.heads = scratch_take(base, &s.bytes, (size_t)plan->choice.few_heads * sizeof(few_head));
    for (int64_t n = 0; n < plan->choice.few_heads; n++) {
        float *q = scratch_take(base, &s.bytes, (size_t)(rows * s.q_row) * sizeof(float));
        float *scores = scratch_take(base, &s.bytes, (size_t)(rows * s.keys) * sizeof(float));
        float *sums = scratch_take(base, &s.bytes, (size_t)(rows * s.o_row) * sizeof(float));
        float *state = scratch_take(base, &s.bytes, (size_t)attn__few_state_floats(p) * sizeof(float));
        if (base) {
            few_head *head = &s.heads[n];
            head->q = q;
            head->scores = scores;
            head->sums = sums;
            head->state = state;
        }
    }
    s.block = scratch_take(base, &s.bytes, (size_t)s.keys * lanes * sizeof(float));
    s.extra = scratch_take(base, &s.bytes, (size_t)s.keys * lanes * sizeof(float));
    s.zeros = scratch_take(base, &s.bytes, (size_t)s.o_row * sizeof(float));
    if (p->k.stride[3] != 1) {
        s.room.k = scratch_take(base, &s.bytes, (size_t)(s.keys * p->dim_qk) * sizeof(float));
    }
    if (p->v.stride[3] != 1) {
        s.room.v = scratch_take(base, &s.bytes, (size_t)(s.keys * p->dim_v) * sizeof(float));
    }
    return s;
}

/* Are rows of keys or values read as words? Also where they are copied: the order of sums is that of no layout. */
static bool few_words(const attn_layout *layout) {
    return layout->dtype == ATTN_BF16;
}

static size_t few_scratch_bytes(const attn_plan *plan) {
    return few_carve(plan, NULL).bytes;
}

/* Rows whose elements lie apart, side by side: bf16 as it is, the rest as floats. */
static few_stream few_copy(const attn_layout *layout, const few_stream *from, int64_t count, float *room) {
    const int64_t dim = from->dim;
    few_stream copy = {ATTN_F32, (const char *)room, dim * (int64_t)sizeof(float), 0, dim, count, 0, true};
    if (!few_words(layout)) {
        rows_widen(layout->dtype, from->at, layout->stride[2], layout->stride[3], count, dim, room, dim);
        return copy;
    }
    const uint16_t *in = (const uint16_t *)(const void *)from->at;
    uint16_t *out = (uint16_t *)(void *)room;
    for (int64_t n = 0; n < count; n++) {
        for (int64_t d = 0; d < dim; d++) {
            out[n * dim + d] = in[n * layout->stride[2] + d * layout->stride[3]];
        }
    }
    copy.dtype = ATTN_BF16;
    copy.row = dim * (int64_t)sizeof *out;
    return copy;
}

/* Rows [row, row + keys) of the task's heads. */
static few_stream few_stream_of(const attn__forward_task *task, const attn_layout *layout, const void *tensor,
                                int64_t dim, int64_t row, int64_t keys) {
    const int64_t size = (int64_t)attn_dtype_size(layout->dtype), heads = task->run->plan->choice.few_heads;
    few_stream stream = {.dtype = layout->dtype,
                         .at = (const char *)tensor +
                               size * attn__row_offset(layout, task->rows.segment.sequence, task->head_kv, row),
                         .row = layout->stride[2] * size,
                         .head = layout->stride[1] * size,
                         .dim = dim,
                         .keys = keys};
    stream.solid = stream.row == heads * dim * size && (heads == 1 || stream.head == dim * size);
    stream.ahead = (FEW_AHEAD + heads * dim * size - 1) / (heads * dim * size);
    return stream;
}

/* p in place of the compact scores; m, l and alpha follow. Lane i of a vector belongs to row i % rows. */
static void few_softmax(few_tile *tile, int count, float unit, bool masked) {
    const int rows = tile->rows, total = (count + ATTN_W - 1) / ATTN_W * ATTN_W * rows;
    float lane[ATTN_W] __attribute__((aligned(64))), top[4], reference[4] = {0};
    vf best = vf_set(-INFINITY), sum = vf_set(0.0f), scale = vf_set(unit);
    for (int at = count * rows; at < total; at++) {
        tile->scores[at] = -INFINITY;
    }
    for (int at = 0; at < total; at += ATTN_W) {
        best = vf_max(best, vf_load(tile->scores + at));
    }
    vf_store(lane, best);
    for (int r = 0; r < rows; r++) {
        top[r] = -INFINITY;
        for (int i = r; i < ATTN_W; i += rows) {
            top[r] = lane[i] > top[r] ? lane[i] : top[r];
        }
        float m = top[r] > tile->m[r] ? top[r] : tile->m[r];
        reference[r] = m == -INFINITY ? 0.0f : m;
        tile->alpha[r] = tile->m[r] == m ? 1.0f : exp2f((tile->m[r] - reference[r]) * unit);
        tile->m[r] = m;
    }
    for (int i = 0; i < ATTN_W; i++) {
        lane[i] = reference[i % rows];
    }
    const vf subtract = vf_load(lane);
    for (int at = 0; at < total; at += ATTN_W) {
        vf s = vf_load(tile->scores + at), p = vf_exp2((s - subtract) * scale);
        if (masked || at + ATTN_W > count * rows) {
            p = (vf)(~(s == vf_set(-INFINITY)) & (vi)p);
        }
        sum += p;
        vf_store(tile->scores + at, p);
    }
    vf_store(lane, sum);
    for (int r = 0; r < rows; r++) {
        float added = 0.0f;
        for (int i = r; i < ATTN_W; i += rows) {
            added += lane[i];
        }
        tile->l[r] = tile->l[r] * tile->alpha[r] + added;
    }
}

/* o = o * alpha + the block's sums, which start again from 0. */
static void few_fold(const few_tile *tile, int64_t o_row) {
    for (int r = 0; r < tile->rows; r++) {
        const vf factor = vf_set(tile->alpha[r]);
        for (int64_t d = r * o_row; d < (r + 1) * o_row; d += ATTN_W) {
            vf_store(tile->o + d, vf_fma(vf_load(tile->o + d), factor, vf_load(tile->sums + d)));
            vf_store(tile->sums + d, vf_set(0.0f));
        }
    }
}

/* Scores of all tiles through score.h; n keys from position j. */
static void few_apply(const few_scratch *s, const score_rule *rule, const few_head *head, bool edge, int64_t j,
                      int count) {
    const few_tile *tiles = head->tiles;
    const int n_tiles = head->n_tiles, groups = (head->rows.lanes.count + ATTN_LANES - 1) / ATTN_LANES;
    for (int back = 0; back < 2; back++) {
        for (int t = 0; t < n_tiles; t++) {
            for (int r = 0; r < tiles[t].rows; r++) {
                int lane = tiles[t].first + r;
                float *in = s->block + (int64_t)(lane / ATTN_LANES) * count * ATTN_LANES + lane % ATTN_LANES;
                for (int n = 0; n < count; n++) {
                    float *compact = &tiles[t].scores[n * tiles[t].rows + r];
                    *(back ? compact : in + (int64_t)n * ATTN_LANES) = *(back ? in + (int64_t)n * ATTN_LANES : compact);
                }
            }
        }
        for (int group = 0; group < groups && !back; group++) {
            float top[ATTN_LANES] __attribute__((aligned(64)));
            int64_t at = (int64_t)group * count * ATTN_LANES;
            score_apply(rule, &head->rows, group, edge, rule->has_extra ? s->extra + at : NULL, j, count, s->block + at,
                        top, NULL);
        }
    }
}

static void few_drop(const attn__run *run, const score_rows *rows, const few_tile *tile, int64_t j, int count) {
    const float kept = (float)(1.0 / (1.0 - (double)run->problem->dropout));
    for (int n = 0; n < count; n++) {
        for (int r = 0; r < tile->rows; r++) {
            int lane = tile->first + r;
            float *p = &tile->scores[n * tile->rows + r];
            if (attn__f32_bits(*p) == 0) {
                continue;
            }
            int keep = attn__dropout_keep(run->dropout, rows->lanes.position[lane], j + n,
                                          rows->lanes.head[lane] + run->args->head_first,
                                          rows->lanes.sequence + run->args->batch_first);
            *p *= keep ? kept : -0.0f;
        }
    }
}

static bool few_finite(const few_stream *v, const char *rows, int count) {
    for (int n = 0; n < count; n++) {
        for (int64_t d = 0; d < v->dim; d++) {
            if (!isfinite(attn__load(v->dtype, rows + n * v->row, d))) {
                return false;
            }
        }
    }
    return true;
}

/* Hidden pairs (p is +0) left out one by one. */
static void few_values_careful(const few_tile *tile, const few_stream *v, const char *rows, int count, int64_t o_row) {
    for (int n = 0; n < count; n++) {
        for (int r = 0; r < tile->rows; r++) {
            float p = tile->scores[n * tile->rows + r];
            for (int64_t d = 0; d < v->dim && attn__f32_bits(p) != 0; d++) {
                tile->sums[r * o_row + few_place(v->dtype == ATTN_BF16, v->dim, d)] +=
                    p * (float)attn__load(v->dtype, rows + n * v->row, d);
            }
        }
    }
}

/* p of one head in place of its raw scores of `count` keys from position j on; its state follows. Says whether values
 * may be added in the usual way, and adds them otherwise. */
static void few_weights(const attn__forward_task *task, const score_rule *rule, const few_scratch *s, few_head *head,
                        const few_stream *v, const char *rows, int64_t j, int count, bool edge) {
    const bool masked = edge || rule->has_extra;
    const int groups = (head->rows.lanes.count + ATTN_LANES - 1) / ATTN_LANES;
    head->sees = !rule->has_extra || score_extra(rule, &head->rows, groups, j, count, s->extra);
    head->takes = head->sees && !(masked && !few_finite(v, rows, count));
    if (!head->sees) {
        return;
    }
    if (edge || !rule->plain) {
        few_apply(s, rule, head, edge, j, count);
    }
    for (int t = 0; t < head->n_tiles; t++) {
        few_tile *tile = &head->tiles[t];
        few_softmax(tile, count, rule->unit, masked);
        if (rule->problem->dropout > 0) {
            few_drop(task->run, &head->rows, tile, j, count);
        }
        if (!head->takes) {
            few_values_careful(tile, v, rows, count, s->o_row);
        }
    }
}

/* All heads against rows [row, row + count) of one key segment, `left` rows of which are this task's from there on. */
static void few_key_block(const attn__forward_task *task, const score_rule *rule, const few_scratch *s,
                          const attn_segment *segment, int64_t row, int64_t count, int64_t left) {
    const attn_problem *p = rule->problem;
    const attn_args *args = rule->args;
    const int64_t heads = task->run->plan->choice.few_heads, base = segment->position + row;
    int64_t begin = base, end = base + count;
    score_span span = score_band_span(&p->band, &s->heads->rows.lanes, &begin, &end);
    if (span == SPAN_HIDDEN) {
        return;
    }
    const int64_t first = segment->first + row + (begin - base), keys = left - (begin - base);
    const int n = (int)(end - begin);
    few_stream k = few_stream_of(task, &p->k, args->k, p->dim_qk, first, keys);
    few_stream v = few_stream_of(task, &p->v, args->v, p->dim_v, first, keys);
    k = s->room.k ? few_copy(&p->k, &k, n, s->room.k) : k;
    v = s->room.v ? few_copy(&p->v, &v, n, s->room.v) : v;
    few_scores(s->heads, heads, &k, n, s->q_row);
    for (int64_t h = 0; h < heads; h++) {
        few_weights(task, rule, s, &s->heads[h], &v, v.at + h * v.head, begin, n, span == SPAN_EDGE);
    }
    few_values(s->heads, heads, &v, (const char *)s->zeros, n, s->o_row);
    for (int64_t h = 0; h < heads; h++) {
        for (int t = 0; t < s->heads[h].n_tiles && s->heads[h].sees; t++) {
            few_fold(&s->heads[h].tiles[t], s->o_row);
        }
    }
}

/* Rows of the task's kv head number `n`. */
static attn__query_rows few_rows(const attn__forward_task *task, int64_t n) {
    attn__query_rows rows = task->rows;
    rows.head_first += n * rows.heads;
    return rows;
}

/* One row of q as float, in the order in which rows of keys are read. */
static void few_query(const attn_problem *p, const char *row, bool negative, float *q) {
    rows_widen(p->q.dtype, row, 0, p->q.stride[3], 1, p->dim_qk, q, 0);
    for (int64_t d = 0; d < p->dim_qk && negative; d++) {
        q[d] = -q[d];
    }
    for (int64_t d = 0; few_words(&p->k) && d + 2 * ATTN_W <= p->dim_qk; d += 2 * ATTN_W) {
        float pairs[2 * ATTN_W];
        memcpy(pairs, q + d, sizeof pairs);
        for (int i = 0; i < ATTN_W; i++) {
            q[d + i] = pairs[2 * i];
            q[d + ATTN_W + i] = pairs[2 * i + 1];
        }
    }
}

static void few_start(const attn__forward_task *task, const score_rule *rule, const few_scratch *s, int64_t n) {
    const attn_problem *p = rule->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->q.dtype);
    const attn__query_rows rows = few_rows(task, n);
    few_head *head = &s->heads[n];
    const attn__lanes *lanes = &head->rows.lanes;
    float *state = head->state = task->partial ? task->partial + n * attn__few_state_floats(p) : head->state;
    memset(state, 0, (size_t)attn__few_state_floats(p) * sizeof(float));
    score_rows_fill(&head->rows, rule, &rows, rows.row_begin);
    memset(head->q, 0, (size_t)(lanes->count * s->q_row) * sizeof(float));
    memset(head->sums, 0, (size_t)(lanes->count * s->o_row) * sizeof(float));
    for (int lane = 0; lane < lanes->count; lane++) {
        few_query(p, (const char *)rule->args->q + attn__lane_offset(&p->q, lanes, lane) * size, rule->negative,
                  head->q + lane * s->q_row);
        score_sink_start(rule, lanes, lane, task->with_sink, &state[lane], &state[ATTN__FEW + lane]);
    }
    head->n_tiles = 0;
    for (int first = 0; first < lanes->count;) {
        int left = lanes->count - first, rows_here = left >= 4 && ATTN_W >= 4 ? 4 : left >= 2 ? 2 : 1;
        head->tiles[head->n_tiles++] = (few_tile){.first = first,
                                                  .rows = rows_here,
                                                  .scores = head->scores + first * s->keys,
                                                  .m = state + first,
                                                  .l = state + ATTN__FEW + first,
                                                  .o = state + 2 * ATTN__FEW + first * s->o_row,
                                                  .sums = head->sums + first * s->o_row,
                                                  .q = head->q + first * s->q_row};
        first += rows_here;
    }
}

static void few_finish_rows(const score_rule *rule, const attn__lanes *lanes, const float *state) {
    const attn_problem *p = rule->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->o.dtype), o_row = few_round(p->dim_v);
    for (int lane = 0; lane < lanes->count; lane++) {
        float m = state[lane], l = state[ATTN__FEW + lane], inverse = l == 0 ? 0.0f : 1.0f / l;
        const float *o = state + 2 * ATTN__FEW + lane * o_row;
        char *row = (char *)rule->args->o + attn__lane_offset(&p->o, lanes, lane) * size;
        for (int64_t d = 0; d < p->dim_v; d++) {
            attn__store(p->o.dtype, row, d * p->o.stride[3], o[few_place(few_words(&p->v), p->dim_v, d)] * inverse);
        }
        score_lse_store(rule, lanes, lane, m, l);
    }
}

static void few_forward(const attn__forward_task *task, void *scratch) {
    const attn__run *run = task->run;
    const score_rule rule = score_rule_make(run->problem, run->args);
    const few_scratch s = few_carve(run->plan, scratch);
    const int64_t heads = run->plan->choice.few_heads, block = run->plan->choice.block_kv;
    int64_t first, last, before = 0;
    memset(s.zeros, 0, (size_t)s.o_row * sizeof(float));
    for (int64_t n = 0; n < heads; n++) {
        few_start(task, &rule, &s, n);
    }
    attn__side_range(&run->kv, task->rows.segment.sequence, &first, &last);
    for (int64_t n = first; n < last; n++) {
        attn_segment segment = attn__side_segment(&run->kv, n);
        int64_t row = task->key_begin > before ? task->key_begin - before : 0;
        int64_t stop = task->key_end - before < segment.rows ? task->key_end - before : segment.rows;
        for (; row < stop; row += block) {
            few_key_block(task, &rule, &s, &segment, row, stop - row < block ? stop - row : block, stop - row);
        }
        before += segment.rows;
    }
    for (int64_t n = 0; !task->partial && n < heads; n++) {
        few_finish_rows(&rule, &s.heads[n].rows.lanes, s.heads[n].state);
    }
}

static void few_finish(const attn__forward_task *task, float *states, int64_t part_stride, int64_t parts) {
    const score_rule rule = score_rule_make(task->run->problem, task->run->args);
    const int64_t o_row = few_round(rule.problem->dim_v);
    attn__lanes lanes;
    attn__lanes_fill(&lanes, &task->rows, task->rows.row_begin);
    for (int64_t part = 1; part < parts; part++) {
        const float *from = states + part * part_stride;
        for (int lane = 0; lane < lanes.count; lane++) {
            float old = states[lane], other = from[lane], m = old > other ? old : other;
            float reference = m == -INFINITY ? 0.0f : m;
            float a = exp2f((old - reference) * rule.unit), b = exp2f((other - reference) * rule.unit);
            float *o = states + 2 * ATTN__FEW + lane * o_row;
            const float *add = from + 2 * ATTN__FEW + lane * o_row;
            states[lane] = m;
            states[ATTN__FEW + lane] = states[ATTN__FEW + lane] * a + from[ATTN__FEW + lane] * b;
            for (int64_t d = 0; d < o_row; d += ATTN_W) {
                vf_store(o + d, vf_load(o + d) * vf_set(a) + vf_load(add + d) * vf_set(b));
            }
        }
    }
    few_finish_rows(&rule, &lanes, states);
}

#endif
