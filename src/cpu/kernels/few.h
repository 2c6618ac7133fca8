/* SPDX-License-Identifier: Apache-2.0
 * Forward for few query rows (decode): all rows that share a kv head go together, so that K and V stream through once,
 * in place, row by row (few_products.h). Where rows of neighbouring kv heads lie side by side, a task carries several
 * of them along the keys, so that it reads whole pages.
 *
 * o gets a block's sums at the block's end, so that a long sum is a sum of block sums. Where more than the scale
 * applies, a block passes through score.h's [key][lane] form and back. */
#ifndef ATTN_CPU_FEW_H
#define ATTN_CPU_FEW_H

#include "few_products.h"

/* One kv head of the task. */
typedef struct few_head {
    score_rows rows;
    float *q;     /* [ATTN__FEW][q_row] */
    float *state; /* attn__few_state_floats */
    few_tile tiles[ATTN__FEW];
    int n_tiles;
} few_head;

typedef struct few_scratch {
    few_head *heads; /* [choice.few_heads] */
    float *sums;     /* [ATTN__FEW][o_row] */
    float *scores;   /* [ATTN__FEW][keys], a tile's part after another's */
    float *block;    /* [group][key][lane] */
    float *extra;    /* likewise */
    float *zeros;    /* a value row that adds nothing */
    key_room room;
    int64_t q_row, o_row, keys;
    size_t bytes;
} few_scratch;

static inline int64_t few_round(int64_t n) {
    return (n + 15) & ~(int64_t)15;
}

static few_scratch few_carve(const attn_plan *plan, void *base) {
    const attn_problem *p = &plan->problem;
    few_scratch s = {0};
    s.q_row = few_round(p->dim_qk);
    s.o_row = few_round(p->dim_v);
    s.keys = few_round(plan->choice.block_kv);
    const size_t lanes = (ATTN__FEW + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    s.heads = scratch_take(base, &s.bytes, (size_t)plan->choice.few_heads * sizeof(few_head));
    for (int64_t head = 0; head < plan->choice.few_heads; head++) {
        float *q = scratch_take(base, &s.bytes, (size_t)(ATTN__FEW * s.q_row) * sizeof(float));
        float *state = scratch_take(base, &s.bytes, (size_t)attn__few_state_floats(p) * sizeof(float));
        if (base) {
            s.heads[head].q = q;
            s.heads[head].state = state;
        }
    }
    s.sums = scratch_take(base, &s.bytes, (size_t)(ATTN__FEW * s.o_row) * sizeof(float));
    s.scores = scratch_take(base, &s.bytes, (size_t)(ATTN__FEW * s.keys) * sizeof(float));
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

/* Rows whose elements lie apart, side by side: bf16 as it is, the rest as floats. Returns the type of the copy. */
static attn_dtype few_copy(const attn_layout *layout, const char *from, int64_t count, int64_t dim, float *room) {
    if (!few_words(layout)) {
        rows_widen(layout->dtype, from, layout->stride[2], layout->stride[3], count, dim, room, dim);
        return ATTN_F32;
    }
    const uint16_t *in = (const uint16_t *)(const void *)from;
    uint16_t *out = (uint16_t *)(void *)room;
    for (int64_t n = 0; n < count; n++) {
        for (int64_t d = 0; d < dim; d++) {
            out[n * dim + d] = in[n * layout->stride[2] + d * layout->stride[3]];
        }
    }
    return ATTN_BF16;
}

/* Keys [row, row + count) of the task's kv head number `head`. */
static few_keys few_keys_load(const attn__forward_task *task, const few_scratch *s, int64_t head, int64_t row,
                              int64_t count) {
    const attn_problem *p = task->run->problem;
    const attn_args *args = task->run->args;
    const int64_t k_size = (int64_t)attn_dtype_size(p->k.dtype), v_size = (int64_t)attn_dtype_size(p->v.dtype);
    const int64_t sequence = task->rows.segment.sequence, head_kv = task->head_kv + head;
    few_keys keys = {p->k.dtype,
                     p->v.dtype,
                     (const char *)args->k + attn__row_offset(&p->k, sequence, head_kv, row) * k_size,
                     (const char *)args->v + attn__row_offset(&p->v, sequence, head_kv, row) * v_size,
                     p->k.stride[2] * k_size,
                     p->v.stride[2] * v_size,
                     NULL};
    const bool last = head + 1 == task->run->plan->choice.few_heads;
    keys.ahead = last ? keys.k + count * keys.k_row - head * p->k.stride[1] * k_size : keys.k + p->k.stride[1] * k_size;
    if (s->room.k) {
        keys.k_dtype = few_copy(&p->k, keys.k, count, p->dim_qk, s->room.k);
        keys.k = (const char *)s->room.k;
        keys.k_row = p->dim_qk * (int64_t)attn_dtype_size(keys.k_dtype);
    }
    if (s->room.v) {
        keys.v_dtype = few_copy(&p->v, keys.v, count, p->dim_v, s->room.v);
        keys.v = (const char *)s->room.v;
        keys.v_row = p->dim_v * (int64_t)attn_dtype_size(keys.v_dtype);
    }
    return keys;
}

/* p in place of the compact scores; m and l follow, alpha says what o is worth. Lane i of a vector belongs to row
 * i % rows. */
static void few_softmax(const few_tile *tile, int count, float unit, bool masked, float alpha[4]) {
    const int rows = tile->rows, total = (count * rows + ATTN_W - 1) / ATTN_W * ATTN_W;
    float lane[ATTN_W] __attribute__((aligned(64))), top[4], reference[4] = {0};
    vf best = vf_set(-INFINITY), sum = vf_set(0.0f), scale = vf_set(unit);
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
        alpha[r] = tile->m[r] == m ? 1.0f : exp2f((tile->m[r] - reference[r]) * unit);
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
        tile->l[r] = tile->l[r] * alpha[r] + added;
    }
}

/* o = o * alpha + the block's sums, which start again from 0. */
static void few_fold(const few_tile *tile, const float alpha[4], int64_t o_row) {
    for (int r = 0; r < tile->rows; r++) {
        const vf factor = vf_set(alpha[r]);
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

static bool few_finite(const few_keys *keys, int count, int64_t dim) {
    for (int n = 0; n < count; n++) {
        for (int64_t d = 0; d < dim; d++) {
            if (!isfinite(attn__load(keys->v_dtype, keys->v + n * keys->v_row, d))) {
                return false;
            }
        }
    }
    return true;
}

/* Hidden pairs (p is +0) left out one by one. */
static void few_values_careful(const few_tile *tile, const few_keys *keys, int count, int64_t dim, int64_t o_row) {
    for (int n = 0; n < count; n++) {
        for (int r = 0; r < tile->rows; r++) {
            float p = tile->scores[n * tile->rows + r];
            for (int64_t d = 0; d < dim && attn__f32_bits(p) != 0; d++) {
                tile->sums[r * o_row + few_place(keys->v_dtype == ATTN_BF16, dim, d)] +=
                    p * (float)attn__load(keys->v_dtype, keys->v + n * keys->v_row, d);
            }
        }
    }
}

/* One head against `count` keys from position j on. next: keys->ahead is worth fetching. */
static void few_block(const attn__forward_task *task, const score_rule *rule, const few_scratch *s,
                      const few_head *head, const few_keys *keys, int64_t j, int count, bool edge, bool next) {
    const attn_problem *p = rule->problem;
    const bool masked = edge || rule->has_extra;
    const bool careful = masked && !few_finite(keys, count, p->dim_v);
    const int64_t v_bytes = s->room.v ? 0 : p->dim_v * (int64_t)attn_dtype_size(keys->v_dtype);
    const int64_t k_bytes = s->room.k || !next ? 0 : p->dim_qk * (int64_t)attn_dtype_size(keys->k_dtype);
    for (int t = 0; t < head->n_tiles; t++) {
        few_scores_of(keys->k_dtype)(&head->tiles[t], keys, count, p->dim_qk, s->q_row, t == 0 ? v_bytes : 0);
    }
    if (edge || !rule->plain) {
        few_apply(s, rule, head, edge, j, count);
    }
    for (int t = 0; t < head->n_tiles; t++) {
        const few_tile *tile = &head->tiles[t];
        float alpha[4];
        few_softmax(tile, count, rule->unit, masked, alpha);
        if (p->dropout > 0) {
            few_drop(task->run, &head->rows, tile, j, count);
        }
        if (careful) {
            few_values_careful(tile, keys, count, p->dim_v, s->o_row);
        } else {
            few_values_of(keys->v_dtype)(tile, keys, (const char *)s->zeros, count, p->dim_v, s->o_row,
                                         t == 0 ? k_bytes : 0);
        }
        few_fold(tile, alpha, s->o_row);
    }
}

/* Rows of the task's kv head number `n`. */
static attn__query_rows few_rows(const attn__forward_task *task, int64_t n) {
    attn__query_rows rows = task->rows;
    rows.head_first += n * rows.heads;
    return rows;
}

static void few_start(const attn__forward_task *task, const score_rule *rule, const few_scratch *s, int64_t n) {
    const attn_problem *p = rule->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->q.dtype);
    const attn__query_rows rows = few_rows(task, n);
    few_head *head = &s->heads[n];
    const attn__lanes *lanes = &head->rows.lanes;
    float *state = head->state = task->partial ? task->partial + n * attn__few_state_floats(p) : head->state;
    memset(state, 0, (size_t)attn__few_state_floats(p) * sizeof(float));
    memset(head->q, 0, (size_t)(ATTN__FEW * s->q_row) * sizeof(float));
    score_rows_fill(&head->rows, rule, &rows, rows.row_begin);
    for (int lane = 0; lane < lanes->count; lane++) {
        float *q = head->q + lane * s->q_row;
        const char *row = (const char *)rule->args->q + attn__lane_offset(&p->q, lanes, lane) * size;
        for (int64_t d = 0; d < p->dim_qk; d++) {
            float x = (float)attn__load(p->q.dtype, row, d * p->q.stride[3]);
            q[few_place(few_words(&p->k), p->dim_qk, d)] = rule->negative ? -x : x;
        }
        score_sink_start(rule, lanes, lane, task->with_sink, &state[lane], &state[ATTN__FEW + lane]);
    }
    head->n_tiles = 0;
    for (int first = 0; first < lanes->count;) {
        int left = lanes->count - first, rows_here = left >= 4 && ATTN_W >= 4 ? 4 : left >= 2 ? 2 : 1;
        head->tiles[head->n_tiles++] = (few_tile){first,
                                                  rows_here,
                                                  s->scores + first * s->keys,
                                                  state + first,
                                                  state + ATTN__FEW + first,
                                                  state + 2 * ATTN__FEW + first * s->o_row,
                                                  s->sums + first * s->o_row,
                                                  head->q + first * s->q_row};
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

/* All heads against rows [row, row + count) of one key segment. more: as many rows follow. */
static void few_key_block(const attn__forward_task *task, const score_rule *rule, const few_scratch *s,
                          const attn_segment *segment, int64_t row, int64_t count, bool more) {
    const int64_t heads = task->run->plan->choice.few_heads, base = segment->position + row;
    for (int64_t n = 0; n < heads; n++) {
        few_head *head = &s->heads[n];
        const int groups = (head->rows.lanes.count + ATTN_LANES - 1) / ATTN_LANES;
        int64_t begin = base, end = base + count;
        score_span span = score_band_span(&rule->problem->band, &head->rows.lanes, &begin, &end);
        if (span == SPAN_HIDDEN ||
            (rule->has_extra && !score_extra(rule, &head->rows, groups, begin, (int)(end - begin), s->extra))) {
            continue;
        }
        few_keys keys = few_keys_load(task, s, n, segment->first + row + (begin - base), end - begin);
        few_block(task, rule, s, head, &keys, begin, (int)(end - begin), span == SPAN_EDGE, n + 1 < heads || more);
    }
}

static void few_forward(const attn__forward_task *task, void *scratch) {
    const attn__run *run = task->run;
    const score_rule rule = score_rule_make(run->problem, run->args);
    const few_scratch s = few_carve(run->plan, scratch);
    const int64_t heads = run->plan->choice.few_heads, block = run->plan->choice.block_kv;
    int64_t first, last, before = 0;
    memset(s.sums, 0, (size_t)(ATTN__FEW * s.o_row) * sizeof(float));
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
            few_key_block(task, &rule, &s, &segment, row, stop - row < block ? stop - row : block,
                          row + 2 * block <= stop);
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
