/* SPDX-License-Identifier: Apache-2.0 */
#include "support/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/machine.h"

typedef struct run {
    const trial *trial;
    const run_options *how;
    attn_problem problem;
    attn_context *context;
    attn_hints hints;
    tensor tensor[T_COUNT];
    attn_args args;
    result *out;
} run;

#define ANY_STRIDE 0x5a5a5a5a5a5a /* where the header says that a stride is not read */

static bool trouble(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool trouble(run *r, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->out->trouble, sizeof r->out->trouble, format, list);
    va_end(list);
    r->out->outcome = RUN_FAILED;
    return false;
}

/* ---------------------------------------------------------------------------------------- memory */

static bool wanted(const run *r, tensor_id id) {
    return trial_has(r->trial, id) && !(r->trial->skip >> id & 1) && (id != T_DELTA || r->trial->give_delta);
}

static form form_of(const run *r, tensor_id id) {
    id = id == T_DELTA ? T_DLSE : id == T_DSINK ? T_SINK : id;
    while (r->trial->unset >> id & 1 && tensor_partner(id) != id) {
        id = tensor_partner(id);
    }
    form f = r->trial->form[id];
    if (r->how->oracle || r->how->plain) {
        form plain = {.order = tensor_is_row(id) && id != T_LSE && id != T_DLSE ? ORDER_BSHD : ORDER_BHSD};
        f = plain;
    }
    return f;
}

static attn_dtype dtype_of(const run *r, tensor_id id) {
    attn_dtype dtype = tensor_dtype(&r->trial->problem, id);
    return r->how->oracle && dtype != ATTN_U8 ? ATTN_F64 : dtype;
}

static bool create(run *r, tensor_id id, bool output) {
    form f = form_of(r, id);
    int64_t n[4];
    trial_extents(r->trial, id, n);
    tensor *x = &r->tensor[id];
    if (!tensor_create(x, &f, dtype_of(r, id), n, output)) {
        return trouble(r, "no memory for %s", tensor_name(id));
    }
    for (int axis = 0; axis < 4; axis++) {
        if (r->trial->broadcast[id] >> axis & 1) {
            x->layout.stride[axis] = 0;
        }
    }
    return true;
}

static bool create_joint(run *r, tensor_id first, bool output) {
    tensor *const parts[3] = {&r->tensor[first], &r->tensor[first + 1], &r->tensor[first + 2]};
    int64_t n[3][4];
    for (int p = 0; p < 3; p++) {
        trial_extents(r->trial, first + p, n[p]);
    }
    return tensor_create_joint(parts, dtype_of(r, first), n, output) || trouble(r, "no memory for joint tensors");
}

typedef struct moving {
    run *run;
    tensor_id id;
    double *values;
    bool keep;   /* collect: leave the elements in place */
    double want; /* padding: what it must hold; NaN: untouched */
} moving;

static void put_run(void *context, int64_t index, const int64_t at[4], int64_t count) {
    moving *m = context;
    int64_t place[4] = {at[0], at[1], at[2], at[3]};
    for (int64_t d = 0; d < count; d++, place[3]++) {
        tensor_put(&m->run->tensor[m->id], place, m->values[index + d]);
    }
}

static void put(run *r, tensor_id id, double *values) {
    moving m = {.run = r, .id = id, .values = values};
    trial_walk(r->trial, id, put_run, &m);
}

static void get_run(void *context, int64_t index, const int64_t at[4], int64_t count) {
    moving *m = context;
    tensor *x = &m->run->tensor[m->id];
    int64_t place[4] = {at[0], at[1], at[2], at[3]};
    for (int64_t d = 0; d < count; d++, place[3]++) {
        if (tensor_untouched(x, place) && m->run->out->outcome == RUN_DONE) {
            char where[80];
            trial_where(m->run->trial, m->id, index + d, where, sizeof where);
            trouble(m->run, "%s was never written", where);
        }
        m->values[index + d] = tensor_get(x, place);
    }
}

static void erase_run(void *context, int64_t index, const int64_t at[4], int64_t count) {
    moving *m = context;
    int64_t place[4] = {at[0], at[1], at[2], at[3]};
    (void)index;
    for (int64_t d = 0; d < count; d++, place[3]++) {
        tensor_erase(&m->run->tensor[m->id], place);
    }
}

static void padding_run(void *context, int64_t index, const int64_t at[4], int64_t count) {
    moving *m = context;
    tensor *x = &m->run->tensor[m->id];
    int64_t place[4] = {at[0], at[1], at[2], at[3]};
    (void)index;
    for (int64_t d = 0; d < count; d++, place[3]++) {
        bool right = isnan(m->want) ? tensor_untouched(x, place) : tensor_get(x, place) == m->want;
        if (!right && m->run->out->outcome == RUN_DONE) {
            trouble(m->run, "%s at row %lld of the buffer, head %lld, past the used length, holds %g instead of %g",
                    tensor_name(m->id), (long long)at[2], (long long)at[1], tensor_get(x, place), m->want);
        }
        tensor_erase(x, place);
    }
}

static bool get(run *r, tensor_id id) {
    double *values = calloc((size_t)trial_size(r->trial, id) + 1, sizeof *values);
    if (!values) {
        abort();
    }
    r->out->value[id] = values;
    moving m = {.run = r, .id = id, .values = values};
    trial_walk(r->trial, id, get_run, &m);
    return r->out->outcome == RUN_DONE;
}

/* Takes every element that may have been written out of the memory; what remains must be the pattern. */
static bool erase(run *r, tensor_id id) {
    bool added = id >= T_DQ && r->trial->problem.flags & ATTN_ACCUMULATE;
    moving m = {.run = r, .id = id, .want = added ? NAN : id == T_LSE ? -INFINITY : 0};
    trial_walk_padding(r->trial, id, padding_run, &m);
    trial_walk(r->trial, id, erase_run, &m);
    return r->out->outcome == RUN_DONE;
}

static bool intact(run *r, tensor_id id) {
    return fence_intact(r->tensor[id].memory) || trouble(r, "a gap or guard zone of %s was written", tensor_name(id));
}

/* ---------------------------------------------------------------------------------------- describing */

/* The layout of a tensor that is not there (yet): an output that is not asked for. */
static void plain_layout(const run *r, tensor_id id, attn_layout *layout) {
    form f = form_of(r, id);
    int64_t n[4], origin;
    trial_extents(r->trial, id, n);
    form_layout(&f, dtype_of(r, id), n, layout, &origin);
    for (int axis = 0; axis < 4; axis++) {
        layout->stride[axis] = r->trial->broadcast[id] >> axis & 1 ? 0 : layout->stride[axis];
    }
}

static void describe(run *r, attn_pass pass) {
    r->problem = r->trial->problem;
    r->problem.pass = pass;
    if (pass == ATTN_FORWARD) {
        r->problem.flags &= ~(uint32_t)ATTN_ACCUMULATE;
    }
    for (int id = 0; id < T_COUNT; id++) {
        attn_layout *layout = tensor_layout(&r->problem, id);
        if (id == T_DELTA || id == T_DSINK || !trial_has(r->trial, id)) {
            continue; /* laid out as dlse and sink are */
        }
        if (r->tensor[id].memory) {
            *layout = r->tensor[id].layout;
        } else {
            plain_layout(r, id, layout);
        }
        if (r->trial->unset >> id & 1) {
            memset(layout, 0, sizeof *layout);
            continue;
        }
        if (tensor_is_row(id) && (id >= T_DQ ? id == T_DK || id == T_DV : id == T_K || id == T_V)) {
            layout->stride[0] = r->problem.rows_kv == ATTN_PACKED ? ANY_STRIDE : layout->stride[0];
        } else if (tensor_is_row(id)) {
            layout->stride[0] = r->problem.rows_q == ATTN_PACKED ? ANY_STRIDE : layout->stride[0];
        }
        if (id == T_LSE || id == T_DLSE || id == T_ALIBI || id == T_SINK) {
            layout->stride[3] = ANY_STRIDE;
            layout->stride[2] = id == T_ALIBI || id == T_SINK ? ANY_STRIDE : layout->stride[2];
            layout->stride[0] = id == T_SINK ? ANY_STRIDE : layout->stride[0];
        }
    }
    bool dlse_stated = r->tensor[T_DLSE].memory || r->trial->unset >> T_DLSE & 1;
    if (!dlse_stated && r->tensor[T_DELTA].memory) {
        r->problem.dlse = r->tensor[T_DELTA].layout;
    }
    if (!attn_problem_format(&r->problem, r->out->text, sizeof r->out->text)) {
        snprintf(r->out->text, sizeof r->out->text, "(unsound)");
    }
}

static void describe_args(run *r) {
    const trial *t = r->trial;
    r->args = attn_args_init();
    for (int id = 0; id < T_COUNT; id++) {
        if (r->tensor[id].memory && wanted(r, id)) {
            *tensor_argument(&r->args, id) = tensor_base(&r->tensor[id]);
        }
    }
    const trial_side *q = &t->side[SIDE_Q], *kv = &t->side[SIDE_KV];
    r->args.cu_seqlens_q = q->rows == ATTN_PACKED ? q->cu : NULL;
    r->args.cu_seqlens_kv = kv->rows == ATTN_PACKED ? kv->cu : NULL;
    r->args.used_q = q->used ? q->length : NULL;
    r->args.used_kv = kv->used ? kv->length : NULL;
    if (q->rows == ATTN_SEGMENTS) {
        r->args.segments_q = q->segments;
        r->args.n_segments_q = q->n_segments;
        r->args.lengths_q = q->length;
    }
    if (kv->rows == ATTN_SEGMENTS) {
        r->args.segments_kv = kv->segments;
        r->args.n_segments_kv = kv->n_segments;
        r->args.lengths_kv = kv->length;
    }
    r->args.seed = t->seed;
    r->args.offset = t->offset;
    r->args.head_first = t->head_first;
    r->args.batch_first = t->batch_first;
}

/* ---------------------------------------------------------------------------------------- running */

static bool refused(run *r) {
    attn_error *query = &r->out->error, error;
    memset(query, 0x55, sizeof *query);
    if (attn_supported(r->context, &r->problem, &r->hints, query) == ATTN_OK) {
        if (query->status != ATTN_OK || query->field[0]) {
            return !trouble(r, "success left an error behind: %s %s", query->field, query->message);
        }
        return false;
    }
    attn_plan *plan = NULL;
    attn_status status = attn_plan_create(&plan, r->context, &r->problem, &r->hints, &error);
    r->out->outcome = RUN_REFUSED;
    if (status != query->status || strcmp(error.field, query->field) || strcmp(error.message, query->message) || plan) {
        trouble(r, "query and plan disagree: \"%s %s\" and \"%s %s\"", query->field, query->message, error.field,
                error.message);
    } else if (!query->field[0] || !query->message[0]) {
        trouble(r, "a refusal without field or message");
    } else if (query->status != ATTN_ERR_UNSUPPORTED) {
        trouble(r, "taken for unsound: %s %s", query->field, query->message);
    }
    return true;
}

static bool pass(run *r, attn_pass which) {
    attn_plan *plan = NULL;
    attn_error error;
    memset(&error, 0x55, sizeof error);
    if (attn_plan_create(&plan, r->context, &r->problem, &r->hints, &error) != ATTN_OK) {
        return trouble(r, "no plan: %s %s", error.field, error.message);
    }
    size_t size = attn_plan_workspace(plan);
    fence *workspace =
        fence_create(size, size % ATTN_WORKSPACE_ALIGNMENT ? FENCE_START : FENCE_END, (unsigned char[]){0xFF}, 1);
    if (!workspace) {
        attn_plan_destroy(plan);
        return trouble(r, "no memory for a workspace of %zu bytes", size);
    }
    attn_status status = (which == ATTN_FORWARD ? attn_forward : attn_backward)(
        plan, &r->args, size ? workspace->data : NULL, size, NULL, &error);
    memset(workspace->data, 0xFF, size);
    bool inside = fence_intact(workspace);
    fence_destroy(workspace);
    attn_plan_destroy(plan);
    if (status != ATTN_OK) {
        return trouble(r, "%s failed: %s %s", which == ATTN_FORWARD ? "forward" : "backward", error.field,
                       error.message);
    }
    return inside || trouble(r, "memory past the workspace was written");
}

static bool make_inputs(run *r) {
    bool joint = r->trial->joint && !r->how->oracle && !r->how->plain;
    if (joint && !create_joint(r, T_Q, false)) {
        return false;
    }
    for (int id = 0; id < T_INPUTS; id++) {
        bool later = id == T_DOUT || id == T_DLSE;
        if (!wanted(r, id) || (later && r->how->forward_only)) {
            continue;
        }
        if (!(joint && id <= T_V) && !create(r, id, false)) {
            return false;
        }
        put(r, id, r->trial->value[id]);
    }
    for (int id = 0; id < T_INPUTS; id++) {
        if (r->tensor[id].memory) {
            fence_remember(r->tensor[id].memory);
        }
    }
    return true;
}

static bool forward(run *r) {
    if (!create(r, T_O, true) || (wanted(r, T_LSE) && !create(r, T_LSE, true))) {
        return false;
    }
    describe(r, ATTN_FORWARD);
    if (refused(r)) {
        return false;
    }
    describe_args(r);
    r->args.dout = NULL;
    r->args.dlse = NULL;
    if (!pass(r, ATTN_FORWARD) || !get(r, T_O) || (wanted(r, T_LSE) && !get(r, T_LSE))) {
        return false;
    }
    for (int id = T_O; id <= T_LSE; id++) {
        if (r->trial->value[id]) {
            put(r, id, r->trial->value[id]);
        }
    }
    return true;
}

static bool make_delta(run *r) {
    int64_t dims = r->problem.dim_v, count = trial_size(r->trial, T_DELTA);
    if (!create(r, T_DELTA, false)) {
        return false;
    }
    const double *o = r->trial->value[T_O] ? r->trial->value[T_O] : r->out->value[T_O];
    double *delta = calloc((size_t)count + 1, sizeof *delta);
    if (!delta) {
        abort();
    }
    for (int64_t i = 0; i < count; i++) {
        for (int64_t d = 0; d < dims; d++) {
            delta[i] += o[i * dims + d] * r->trial->value[T_DOUT][i * dims + d];
        }
    }
    put(r, T_DELTA, delta);
    free(delta);
    return true;
}

static bool backward(run *r) {
    bool joint = r->trial->joint_gradients && !r->how->oracle && !r->how->plain;
    if ((joint && !create_joint(r, T_DQ, true)) || (r->trial->give_delta && !make_delta(r))) {
        return false;
    }
    for (int id = T_DQ; id < T_COUNT; id++) {
        if (!wanted(r, id)) {
            continue;
        }
        if (!(joint && id <= T_DV) && !create(r, id, true)) {
            return false;
        }
        if (r->trial->problem.flags & ATTN_ACCUMULATE) {
            put(r, id, r->trial->value[id]);
        }
    }
    describe(r, ATTN_BACKWARD);
    if (refused(r)) {
        return false;
    }
    describe_args(r);
    if (r->trial->give_delta) {
        r->args.o = NULL;
    }
    fence_remember(r->tensor[T_O].memory);
    fence_remember(r->tensor[T_LSE].memory);
    if (!pass(r, ATTN_BACKWARD)) {
        return false;
    }
    for (int id = T_DQ; id < T_COUNT; id++) {
        if (wanted(r, id) && (!get(r, id) || !erase(r, id))) {
            return false;
        }
    }
    for (int id = T_DQ; id < T_COUNT; id++) {
        if (wanted(r, id) && !intact(r, id)) {
            return false;
        }
    }
    return true;
}

static bool inputs_unchanged(run *r) {
    for (int id = 0; id < T_DELTA; id++) {
        if (r->tensor[id].memory && !fence_unchanged(r->tensor[id].memory)) {
            return trouble(r, "%s, an input, was written", tensor_name(id));
        }
    }
    return true;
}

run_outcome run_trial(const trial *t, const run_options *how, result *out) {
    run r = {.trial = t, .how = how, .out = out};
    memset(out, 0, sizeof *out);
    r.context = machine_context(how->oracle ? 1 : how->threads ? how->threads : t->threads);
    r.hints = t->hints;
    if (how->oracle) {
        memset(&r.hints, 0, sizeof r.hints);
        r.hints.struct_size = sizeof r.hints;
    }
    r.hints.implementation = how->oracle ? "reference" : how->implementation;
    if (make_inputs(&r) && forward(&r) && (how->forward_only || backward(&r)) && inputs_unchanged(&r) &&
        erase(&r, T_O) && intact(&r, T_O) && (!wanted(&r, T_LSE) || (erase(&r, T_LSE) && intact(&r, T_LSE)))) {
        out->outcome = RUN_DONE;
    }
    for (int id = 0; id < T_COUNT; id++) {
        if (r.tensor[id].memory) {
            tensor_destroy(&r.tensor[id]);
        }
    }
    return out->outcome;
}

void result_free(result *r) {
    for (int id = 0; id < T_COUNT; id++) {
        free(r->value[id]);
        r->value[id] = NULL;
    }
}

double result_at(const trial *t, const result *r, tensor_id id, int64_t sequence, int64_t head, int64_t position,
                 int64_t dim) {
    return r->value[id][trial_index(t, id, sequence, head, position, dim)];
}
