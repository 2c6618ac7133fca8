/* SPDX-License-Identifier: Apache-2.0
 * Gradients that are sums over tensors' broadcast axes: dbias and dsink. Both take scores' gradients anew, since what
 * adds to one element comes from tasks of dq, dk and dv that run side by side; here one task owns the element and adds
 * in a fixed order. */
#ifndef ATTN_CPU_GRADIENT_SUMS_H
#define ATTN_CPU_GRADIENT_SUMS_H

#include "gradient_scores.h"

typedef struct sums_scratch {
    gradient_rows block;
    gradient_scores scores;
    key_room room;
    size_t bytes;
} sums_scratch;

static sums_scratch sums_carve(const attn_plan *plan, void *base) {
    sums_scratch s = {.bytes = 0};
    s.block = gradient_rows_take(base, &s.bytes, plan, false);
    s.scores = gradient_scores_take(base, &s.bytes, &plan->problem, plan->choice.block_kv);
    s.room = key_room_take(base, &s.bytes, &plan->problem, plan->choice.block_kv, false, false);
    return s;
}

static size_t sums_scratch_bytes(const attn_plan *plan) {
    return sums_carve(plan, NULL).bytes;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Adds dS^T of keys j ... j + count - 1; sums over a broadcast axis are taken before they meet the element. */
static void dbias_add(const attn__dbias_task *task, const attn__lanes *lanes, const float *ds, int64_t j, int count) {
    const int64_t *stride = task->run->problem->dbias.stride;
    float *out = (float *)task->run->args->dbias + task->batch * stride[0] + task->head * stride[1];
    float columns[SCORE_ROW] = {0}, total = 0.0f;
    for (int n = 0; n < count; n++) {
        const float *row = ds + (int64_t)n * SCORE_ROW;
        float *at = out + (j + n) * stride[3], sum = 0.0f;
        for (int lane = 0; lane < lanes->count; lane++) {
            if (stride[3] == 0) {
                columns[lane] += row[lane];
            } else if (stride[2] == 0) {
                sum += row[lane];
            } else {
                at[lanes->position[lane] * stride[2]] += row[lane];
            }
        }
        if (stride[3] != 0 && stride[2] == 0) {
            *at += sum;
        }
    }
    for (int lane = 0; stride[3] == 0 && lane < lanes->count; lane++) {
        if (stride[2] == 0) {
            total += columns[lane];
        } else {
            out[lanes->position[lane] * stride[2]] += columns[lane];
        }
    }
    if (stride[3] == 0 && stride[2] == 0) {
        *out += total;
    }
}

/* The loaded row block against the task's keys of one key segment. */
static void dbias_keys(const attn__dbias_task *task, const score_rule *rule, sums_scratch *s, int64_t head_kv,
                       const attn_segment *segment) {
    const attn__run *run = task->run;
    const int64_t block_kv = run->plan->choice.block_kv;
    const int64_t last = smaller(task->key_end, segment->position + segment->rows);
    for (int64_t at = larger(task->key_begin, segment->position); at < last; at += block_kv) {
        int64_t begin = at, end = smaller(at + block_kv, last);
        score_span span = score_band_span(&run->problem->band, &s->block.rows.lanes, &begin, &end);
        int count = (int)(end - begin);
        if (span == SPAN_HIDDEN ||
            (rule->has_extra && !score_extra(rule, &s->block.rows, s->block.groups, begin, count, s->scores.extra))) {
            continue;
        }
        key_block keys = key_block_load(run->problem, run->args, &s->room, segment->sequence, head_kv,
                                        segment->first + begin - segment->position, count);
        score_wish wish = {.edge = span == SPAN_EDGE || s->block.closed};
        gradient_scores_fill(&s->scores, &s->block, run, rule, keys, begin, count, wish);
        dbias_add(task, &s->block.rows.lanes, s->scores.ds, begin, count);
    }
}

/* Rows of one query segment and head within the task's positions. */
static void dbias_rows(const attn__dbias_task *task, const score_rule *rule, sums_scratch *s, int64_t head,
                       const attn_segment *segment) {
    const attn__run *run = task->run;
    attn__query_rows query = {.segment = *segment, .head_first = head, .heads = 1};
    int64_t first, last;
    query.shift = attn__row_shift(run->problem, &run->q, &run->kv, segment->sequence);
    query.row_begin = larger(task->row_begin - segment->position, 0);
    query.row_end = smaller(task->row_end - segment->position, segment->rows);
    for (int64_t row = query.row_begin; row < query.row_end; row += ATTN__BLOCK) {
        gradient_rows_place(&s->block, rule, &query, row);
        if (gradient_rows_load(&s->block, run, rule)) {
            attn__side_range(&run->kv, segment->sequence, &first, &last);
            for (int64_t n = first; n < last; n++) {
                attn_segment keys = attn__side_segment(&run->kv, n);
                dbias_keys(task, rule, s, head / (run->problem->heads_q / run->problem->heads_kv), &keys);
            }
        }
    }
}

static void dbias(const attn__dbias_task *task, void *scratch) {
    const attn__run *run = task->run;
    const attn_problem *p = run->problem;
    const int64_t *stride = p->dbias.stride;
    const score_rule rule = score_rule_make(p, run->args);
    sums_scratch s = sums_carve(run->plan, scratch);
    float *out = (float *)run->args->dbias + task->batch * stride[0] + task->head * stride[1];
    for (int64_t i = task->row_begin; !(p->flags & ATTN_ACCUMULATE) && i < (stride[2] ? task->row_end : 1); i++) {
        for (int64_t j = task->key_begin; j < (stride[3] ? task->key_end : 1); j++) {
            out[i * stride[2] + j * stride[3]] = 0.0f;
        }
    }
    const int64_t first = stride[0] ? task->batch : 0, last = stride[0] ? task->batch + 1 : p->batch;
    const int64_t head_first = stride[1] ? task->head : 0, head_last = stride[1] ? task->head + 1 : p->heads_q;
    for (int64_t sequence = first; sequence < last; sequence++) {
        int64_t begin, end;
        attn__side_range(&run->q, sequence, &begin, &end);
        for (int64_t head = head_first; head < head_last; head++) {
            for (int64_t n = begin; n < end; n++) {
                attn_segment segment = attn__side_segment(&run->q, n);
                dbias_rows(task, &rule, &s, head, &segment);
            }
        }
    }
}

static double dsink(const attn__run *run, int64_t head, void *scratch) {
    const attn_problem *p = run->problem;
    const score_rule rule = score_rule_make(p, run->args);
    const double sink = ((const float *)run->args->sink)[head * p->sink.stride[1]];
    sums_scratch s = sums_carve(run->plan, scratch);
    double sum = 0;
    for (int64_t n = 0; sink != -INFINITY && n < attn__side_count(&run->q); n++) {
        attn_segment segment = attn__side_segment(&run->q, n);
        attn__query_rows query = {segment, 0, head, 1, 0, segment.rows};
        for (int64_t row = 0; row < segment.rows; row += ATTN__BLOCK) {
            gradient_rows_place(&s.block, &rule, &query, row);
            gradient_rows_stats(&s.block, run);
            for (int lane = 0; lane < s.block.rows.lanes.count; lane++) {
                const attn__lanes *lanes = &s.block.rows.lanes;
                float lse = ((const float *)run->args->lse)[attn__lane_offset(&p->lse, lanes, lane)];
                if (lse != -INFINITY) {
                    sum -= exp(sink - (double)lse) * (double)s.block.delta[lane];
                }
            }
        }
    }
    return sum;
}

#endif
