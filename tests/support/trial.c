/* SPDX-License-Identifier: Apache-2.0 */
#include "support/trial.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

/* What a tensor is made of. heads: 0 query heads, 1 kv heads. kind: token rows of a side, [sequence, head, i, j],
 * or a vector over heads. */
enum { KIND_ROW, KIND_PAIR, KIND_HEAD };
typedef struct fact {
    const char *name;
    int kind, side, heads;
    size_t dim; /* offset of the dim in attn_problem; 0: 1 */
    size_t layout, argument;
    tensor_id partner; /* whose layout and form an unset one takes; itself: none */
} fact;
#define FACT(field, kind, side, heads, dim, layout, partner)                                                           \
    { #field, kind, side, heads, dim, offsetof(attn_problem, layout), offsetof(attn_args, field), partner }
#define QK offsetof(attn_problem, dim_qk)
#define VV offsetof(attn_problem, dim_v)
static const fact facts[T_COUNT] = {
    [T_Q] = FACT(q, KIND_ROW, SIDE_Q, 0, QK, q, T_Q),
    [T_K] = FACT(k, KIND_ROW, SIDE_KV, 1, QK, k, T_K),
    [T_V] = FACT(v, KIND_ROW, SIDE_KV, 1, VV, v, T_V),
    [T_BIAS] = FACT(bias, KIND_PAIR, SIDE_Q, 0, 0, bias, T_BIAS),
    [T_MASK] = FACT(mask, KIND_PAIR, SIDE_Q, 0, 0, mask, T_MASK),
    [T_ALIBI] = FACT(alibi, KIND_HEAD, SIDE_Q, 0, 0, alibi, T_ALIBI),
    [T_SINK] = FACT(sink, KIND_HEAD, SIDE_Q, 0, 0, sink, T_SINK),
    [T_DOUT] = FACT(dout, KIND_ROW, SIDE_Q, 0, VV, dout, T_O),
    [T_DLSE] = FACT(dlse, KIND_ROW, SIDE_Q, 0, 0, dlse, T_LSE),
    [T_O] = FACT(o, KIND_ROW, SIDE_Q, 0, VV, o, T_O),
    [T_LSE] = FACT(lse, KIND_ROW, SIDE_Q, 0, 0, lse, T_LSE),
    [T_DELTA] = FACT(delta, KIND_ROW, SIDE_Q, 0, 0, dlse, T_DLSE),
    [T_DQ] = FACT(dq, KIND_ROW, SIDE_Q, 0, QK, dq, T_Q),
    [T_DK] = FACT(dk, KIND_ROW, SIDE_KV, 1, QK, dk, T_K),
    [T_DV] = FACT(dv, KIND_ROW, SIDE_KV, 1, VV, dv, T_V),
    [T_DBIAS] = FACT(dbias, KIND_PAIR, SIDE_Q, 0, 0, dbias, T_BIAS),
    [T_DSINK] = FACT(dsink, KIND_HEAD, SIDE_Q, 0, 0, sink, T_SINK),
};

static void *grab(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) {
        abort();
    }
    return memory;
}

static void *duplicate(const void *from, size_t bytes) {
    return from ? memcpy(grab(bytes, 1), from, bytes) : NULL;
}

const char *tensor_name(tensor_id id) {
    return facts[id].name;
}

attn_layout *tensor_layout(attn_problem *problem, tensor_id id) {
    return (attn_layout *)((char *)problem + facts[id].layout);
}

void **tensor_argument(attn_args *args, tensor_id id) {
    return (void **)((char *)args + facts[id].argument);
}

bool tensor_is_row(tensor_id id) {
    return facts[id].kind == KIND_ROW;
}

tensor_id tensor_partner(tensor_id id) {
    return facts[id].partner;
}

attn_dtype tensor_dtype(const attn_problem *problem, tensor_id id) {
    attn_dtype single = problem->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    attn_dtype own = tensor_layout((attn_problem *)problem, id)->dtype;
    if (id == T_DELTA || id == T_DSINK) {
        return single;
    }
    if (own != ATTN_NONE) {
        return own;
    }
    switch (id) {
    case T_LSE:
    case T_DLSE: return single;
    case T_DBIAS: return problem->bias.dtype ? single : ATTN_NONE;
    default: return facts[id].partner == id ? ATTN_NONE : tensor_dtype(problem, facts[id].partner);
    }
}

/* ---------------------------------------------------------------------------------------- making */

static void side_lengths(trial_side *s, int64_t batch, const int32_t *lengths) {
    free(s->length);
    free(s->base);
    s->length = grab((size_t)batch, sizeof *s->length);
    s->base = grab((size_t)batch + 1, sizeof *s->base);
    for (int64_t b = 0; b < batch; b++) {
        s->length[b] = lengths ? lengths[b] : (int32_t)s->tokens;
        s->base[b + 1] = s->base[b] + s->length[b];
    }
}

trial *trial_create(attn_dtype dtype, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t tokens_q,
                    int64_t tokens_kv, int64_t dim_qk, int64_t dim_v) {
    trial *t = grab(1, sizeof *t);
    t->problem = attn_problem_dense(dtype, batch, heads_q, heads_kv, tokens_q, tokens_kv, dim_qk, dim_v);
    t->problem.lse.dtype = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    t->hints.struct_size = sizeof t->hints;
    t->threads = 2;
    t->side[SIDE_Q].tokens = tokens_q;
    t->side[SIDE_KV].tokens = tokens_kv;
    side_lengths(&t->side[SIDE_Q], batch, NULL);
    side_lengths(&t->side[SIDE_KV], batch, NULL);
    for (int id = 0; id < T_COUNT; id++) {
        if (facts[id].kind == KIND_PAIR || facts[id].dim == 0) {
            t->form[id].order = ORDER_BHSD;
        }
    }
    return t;
}

void trial_destroy(trial *t) {
    if (!t) {
        return;
    }
    for (int s = 0; s < 2; s++) {
        free(t->side[s].length);
        free(t->side[s].base);
        free(t->side[s].cu);
        free(t->side[s].segments);
    }
    for (int id = 0; id < T_COUNT; id++) {
        free(t->value[id]);
    }
    free(t);
}

trial *trial_copy(const trial *t) {
    trial *c = duplicate(t, sizeof *t);
    size_t batch = (size_t)t->problem.batch;
    for (int s = 0; s < 2; s++) {
        const trial_side *from = &t->side[s];
        trial_side *to = &c->side[s];
        to->length = duplicate(from->length, batch * sizeof *to->length);
        to->base = duplicate(from->base, (batch + 1) * sizeof *to->base);
        to->cu = duplicate(from->cu, (batch + 1) * sizeof *to->cu);
        to->segments = duplicate(from->segments, (size_t)from->n_segments * sizeof *to->segments);
    }
    for (int id = 0; id < T_COUNT; id++) {
        c->value[id] = duplicate(t->value[id], (size_t)trial_size(t, id) * sizeof(double));
    }
    return c;
}

static void set_rows(trial *t, int side, attn_rows rows, int64_t total) {
    t->side[side].rows = rows;
    t->side[side].total = total;
    *(side == SIDE_Q ? &t->problem.rows_q : &t->problem.rows_kv) = rows;
    *(side == SIDE_Q ? &t->problem.total_q : &t->problem.total_kv) = total;
}

void trial_pack(trial *t, int side, const int32_t *slots, int64_t spare) {
    trial_side *s = &t->side[side];
    free(s->cu);
    s->cu = grab((size_t)t->problem.batch + 1, sizeof *s->cu);
    for (int64_t b = 0; b < t->problem.batch; b++) {
        s->cu[b + 1] = s->cu[b] + slots[b];
    }
    side_lengths(s, t->problem.batch, slots);
    set_rows(t, side, ATTN_PACKED, s->cu[t->problem.batch] + spare);
}

void trial_use(trial *t, int side, const int32_t *used) {
    t->side[side].used = true;
    t->problem.flags |= side == SIDE_Q ? ATTN_USED_Q : ATTN_USED_KV;
    side_lengths(&t->side[side], t->problem.batch, used);
}

void trial_segment(trial *t, int side, const int32_t *lengths, const attn_segment *list, int64_t count, int64_t total) {
    trial_side *s = &t->side[side];
    free(s->segments);
    free(s->cu);
    s->cu = NULL;
    s->used = false;
    t->problem.flags &= ~(uint32_t)(side == SIDE_Q ? ATTN_USED_Q : ATTN_USED_KV);
    s->segments = duplicate(list, (size_t)count * sizeof *list);
    s->n_segments = count;
    int32_t *copy = duplicate(lengths, (size_t)t->problem.batch * sizeof *lengths);
    side_lengths(s, t->problem.batch, copy);
    free(copy);
    *(side == SIDE_Q ? &t->problem.segments_q : &t->problem.segments_kv) = count;
    set_rows(t, side, ATTN_SEGMENTS, total);
}

void trial_add(trial *t, tensor_id id, attn_dtype dtype, unsigned broadcast) {
    tensor_layout(&t->problem, id)->dtype = dtype;
    t->broadcast[id] = broadcast;
    if (id < T_INPUTS) {
        trial_values(t, id);
    }
}

bool trial_has(const trial *t, tensor_id id) {
    switch (id) {
    case T_DLSE: return t->value[T_DLSE] != NULL;
    case T_DSINK: return t->problem.sink.dtype != ATTN_NONE;
    case T_DBIAS: return t->problem.bias.dtype != ATTN_NONE;
    default: return tensor_dtype(&t->problem, id) != ATTN_NONE;
    }
}

/* ---------------------------------------------------------------------------------------- extents */

static int64_t dim_of(const trial *t, tensor_id id) {
    return facts[id].dim ? *(const int64_t *)((const char *)&t->problem + facts[id].dim) : 1;
}

static int64_t heads_of(const trial *t, tensor_id id) {
    return facts[id].heads ? t->problem.heads_kv : t->problem.heads_q;
}

void trial_extents(const trial *t, tensor_id id, int64_t n[4]) {
    const trial_side *s = &t->side[facts[id].side];
    n[0] = t->problem.batch;
    n[1] = heads_of(t, id);
    if (facts[id].kind == KIND_ROW) {
        n[0] = s->rows == ATTN_PACKED ? 1 : n[0];
        n[2] = s->rows == ATTN_DENSE ? s->tokens : s->total;
        n[3] = dim_of(t, id);
        return;
    }
    n[2] = facts[id].kind == KIND_PAIR ? t->problem.tokens_q : 1;
    n[3] = facts[id].kind == KIND_PAIR ? t->problem.tokens_kv : 1;
    if (id == T_SINK || id == T_DSINK) {
        n[0] = 1;
    }
    for (int axis = 0; axis < 4; axis++) {
        if (t->broadcast[id] >> axis & 1) {
            n[axis] = n[axis] < 1 ? n[axis] : 1;
        }
    }
}

int64_t trial_size(const trial *t, tensor_id id) {
    if (facts[id].kind == KIND_ROW) {
        return t->side[facts[id].side].base[t->problem.batch] * heads_of(t, id) * dim_of(t, id);
    }
    int64_t n[4];
    trial_extents(t, id, n);
    return n[0] * n[1] * n[2] * n[3];
}

int64_t trial_index(const trial *t, tensor_id id, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    if (facts[id].kind == KIND_ROW) {
        int64_t row = t->side[facts[id].side].base[sequence] + position;
        return (row * heads_of(t, id) + head) * dim_of(t, id) + dim;
    }
    int64_t n[4], at[4] = {sequence, head, position, dim}, index = 0;
    trial_extents(t, id, n);
    for (int axis = 0; axis < 4; axis++) {
        index = index * n[axis] + (at[axis] < n[axis] ? at[axis] : n[axis] - 1);
    }
    return index;
}

void trial_where(const trial *t, tensor_id id, int64_t index, char *text, size_t size) {
    long long sequence = 0, head, position, dim;
    if (facts[id].kind == KIND_ROW) {
        int64_t dims = dim_of(t, id), heads = heads_of(t, id), row = index / dims / heads;
        const int64_t *base = t->side[facts[id].side].base;
        while (row >= base[sequence + 1]) {
            sequence++;
        }
        head = index / dims % heads;
        position = row - base[sequence];
        dim = index % dims;
    } else {
        int64_t n[4];
        trial_extents(t, id, n);
        dim = index % n[3];
        position = index / n[3] % n[2];
        head = index / n[3] / n[2] % n[1];
        sequence = index / n[3] / n[2] / n[1];
    }
    snprintf(text, size, "%s[sequence %lld, head %lld, row %lld, %s %lld]", facts[id].name, sequence, head, position,
             facts[id].kind == KIND_PAIR ? "key" : "dim", dim);
}

/* ---------------------------------------------------------------------------------------- walking */

static void walk_rows(const trial *t, tensor_id id, int64_t sequence, int64_t position, int64_t rows, int64_t first,
                      trial_visit visit, void *context) {
    bool packed = t->side[facts[id].side].rows == ATTN_PACKED;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t head = 0; head < heads_of(t, id); head++) {
            int64_t at[4] = {packed ? 0 : sequence, head, first + r, 0};
            visit(context, trial_index(t, id, sequence, head, position + r, 0), at, dim_of(t, id));
        }
    }
}

/* Columns of row i of bias or mask that some sequence of the (broadcast) group has keys for; dbias is written whole. */
static int64_t pair_columns(const trial *t, tensor_id id, int64_t sequence, int64_t i) {
    int64_t columns = 0;
    if (id == T_DBIAS) {
        return t->broadcast[id] >> AXIS_DIM & 1 && t->problem.tokens_kv > 1 ? 1 : t->problem.tokens_kv;
    }
    for (int64_t s = 0; s < t->problem.batch; s++) {
        bool mine = t->broadcast[id] >> AXIS_BATCH & 1 || s == sequence;
        bool row = t->broadcast[id] >> AXIS_TOKEN & 1 ? t->side[SIDE_Q].length[s] > 0 : i < t->side[SIDE_Q].length[s];
        if (mine && row && t->side[SIDE_KV].length[s] > columns) {
            columns = t->side[SIDE_KV].length[s];
        }
    }
    return t->broadcast[id] >> AXIS_DIM & 1 && columns > 1 ? 1 : columns;
}

static void walk_extents(const trial *t, tensor_id id, trial_visit visit, void *context) {
    int64_t n[4];
    trial_extents(t, id, n);
    for (int64_t a = 0; a < n[0]; a++) {
        for (int64_t h = 0; h < n[1]; h++) {
            for (int64_t i = 0; i < n[2]; i++) {
                int64_t at[4] = {a, h, i, 0}, count = facts[id].kind == KIND_PAIR ? pair_columns(t, id, a, i) : n[3];
                if (count > 0) {
                    visit(context, ((a * n[1] + h) * n[2] + i) * n[3], at, count);
                }
            }
        }
    }
}

void trial_walk(const trial *t, tensor_id id, trial_visit visit, void *context) {
    const trial_side *s = &t->side[facts[id].side];
    if (facts[id].kind != KIND_ROW) {
        walk_extents(t, id, visit, context);
    } else if (s->rows == ATTN_SEGMENTS) {
        for (int64_t n = 0; n < s->n_segments; n++) {
            const attn_segment *g = &s->segments[n];
            walk_rows(t, id, g->sequence, g->position, g->rows, g->first, visit, context);
        }
    } else {
        for (int64_t b = 0; b < t->problem.batch; b++) {
            walk_rows(t, id, b, 0, s->length[b], s->rows == ATTN_PACKED ? s->cu[b] : 0, visit, context);
        }
    }
}

void trial_walk_padding(const trial *t, tensor_id id, trial_visit visit, void *context) {
    const trial_side *s = &t->side[facts[id].side];
    for (int64_t b = 0; facts[id].kind == KIND_ROW && s->used && b < t->problem.batch; b++) {
        int64_t first = s->rows == ATTN_PACKED ? s->cu[b] : 0;
        int64_t slot = s->rows == ATTN_PACKED ? s->cu[b + 1] - first : s->tokens;
        walk_rows(t, id, b, s->length[b], slot - s->length[b], first + s->length[b], visit, context);
    }
}

/* ---------------------------------------------------------------------------------------- filling */

double *trial_values(trial *t, tensor_id id) {
    if (!t->value[id]) {
        t->value[id] = grab((size_t)trial_size(t, id), sizeof(double));
    }
    return t->value[id];
}

typedef struct setting {
    const trial *trial;
    tensor_id id;
    double *values;
    trial_value value;
    void *context;
} setting;

static void set_run(void *context, int64_t index, const int64_t at[4], int64_t count) {
    setting *s = context;
    int64_t sequence = at[0], position = at[2];
    if (tensor_is_row(s->id)) {
        const int64_t *base = s->trial->side[facts[s->id].side].base;
        int64_t row = index / dim_of(s->trial, s->id) / heads_of(s->trial, s->id);
        for (sequence = 0; row >= base[sequence + 1]; sequence++) {
        }
        position = row - base[sequence];
    }
    for (int64_t d = 0; d < count; d++) {
        s->values[index + d] = s->value(s->context, sequence, at[1], position, d);
    }
}

void trial_set(trial *t, tensor_id id, trial_value value, void *context) {
    setting s = {t, id, trial_values(t, id), value, context};
    trial_walk(t, id, set_run, &s);
}

static double draw_value(tensor_id id, rng *r) {
    switch (id) {
    case T_BIAS: return rng_chance(r, 0.03) ? -INFINITY : rng_normal(r);
    case T_MASK: return rng_chance(r, 0.25) ? 0 : (double)rng_range(r, 1, 255);
    case T_ALIBI: return rng_unit(r) * 0.3;
    default: return rng_normal(r);
    }
}

void trial_draw(trial *t, rng *r) {
    bool accumulate = t->problem.flags & ATTN_ACCUMULATE;
    for (int id = 0; id < T_COUNT; id++) {
        bool before = accumulate && id >= T_DQ && trial_has(t, id);
        if (id == T_DLSE ? t->value[id] != NULL : before || (id < T_INPUTS && trial_has(t, id))) {
            double *values = trial_values(t, id);
            for (int64_t i = 0, count = trial_size(t, id); i < count; i++) {
                values[i] = draw_value(id, r);
            }
        }
    }
    trial_settle(t);
}

/* Writing through the memory form and reading back is what makes broadcast axes constant. */
typedef struct settling {
    double *values, *memory;
    attn_dtype dtype;
    attn_layout layout;
    int64_t origin;
    bool reading;
} settling;

static void settle_run(void *context, int64_t index, const int64_t at[4], int64_t count) {
    settling *s = context;
    for (int64_t d = 0; d < count; d++) {
        const int64_t *stride = s->layout.stride;
        int64_t place = s->origin + at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2] + (at[3] + d) * stride[3];
        if (s->reading) {
            s->values[index + d] = s->memory[place];
        } else {
            uint64_t one;
            attn__store(s->dtype, &one, 0, s->values[index + d]);
            s->memory[place] = s->dtype == ATTN_U8 ? s->values[index + d] : attn__load(s->dtype, &one, 0);
        }
    }
}

void trial_settle(trial *t) {
    for (int id = 0; id < T_COUNT; id++) {
        if (!t->value[id]) {
            continue;
        }
        form plain = t->form[id];
        plain.spread = 0;
        int64_t n[4];
        trial_extents(t, id, n);
        settling s = {.values = t->value[id], .dtype = tensor_dtype(&t->problem, id)};
        s.memory = grab((size_t)form_layout(&plain, s.dtype, n, &s.layout, &s.origin), sizeof(double));
        trial_walk(t, id, settle_run, &s);
        s.reading = true;
        trial_walk(t, id, settle_run, &s);
        free(s.memory);
    }
}
