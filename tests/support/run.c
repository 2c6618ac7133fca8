/* SPDX-License-Identifier: Apache-2.0 */
#include "support/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"
#include "support/machine.h"
#include "support/run_state.h"

#define ANY_STRIDE 0x5a5a5a5a5a5a /* where the header says that a stride is not read */

/* ---------------------------------------------------------------------------------------- describing */

/* The layout of a tensor that is not there (yet): an output that is not asked for. */
static void plain_layout(const run *r, tensor_id id, attn_layout *layout) {
    form f = run_form_of(r, id);
    int64_t n[4], origin;
    trial_extents(r->trial, id, n);
    form_layout(&f, run_dtype_of(r, id), n, layout, &origin);
    for (int axis = 0; axis < 4; axis++) {
        layout->stride[axis] = r->trial->broadcast[id] >> axis & 1 ? 0 : layout->stride[axis];
    }
}

static uint32_t flags_of(const run *r) {
    const trial_side *q = &r->trial->side[SIDE_Q], *kv = &r->trial->side[SIDE_KV];
    uint32_t flags = r->trial->problem.flags | machine_allowed(r->how->implementation, &r->trial->problem);
    bool lengths = q->rows != ATTN_DENSE || kv->rows != ATTN_DENSE || q->used || kv->used;
    flags |= r->how->deterministic ? ATTN_DETERMINISTIC : 0;
    if (r->device && r->how->device_data) {
        flags |= (lengths ? ATTN_DEVICE_LENGTHS : 0) | (r->trial->problem.dropout > 0 ? ATTN_DEVICE_SEED : 0);
    }
    return flags;
}

static void describe(run *r, attn_pass pass) {
    r->problem = r->trial->problem;
    r->problem.pass = pass;
    r->problem.flags = flags_of(r);
    r->out->rounds = !r->how->oracle && !r->how->plain && machine_rounds(r->how->implementation, &r->problem);
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
        if (r->tensor[id].memory && run_wanted(r, id)) {
            void *base = tensor_base(&r->tensor[id]);
            *tensor_argument(&r->args, id) = r->device ? device_address(r->tensor[id].memory, base) : base;
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
    if (r->device) {
        lengths_push(&r->lengths, &r->problem, &r->args);
    }
}

/* ---------------------------------------------------------------------------------------- running */

static bool refused_by_rule(const run *r) {
    const char *field = r->out->error.field;
    return (r->out->rule && !strcmp(r->out->rule, field)) ||
           (r->problem.pass == ATTN_BACKWARD && machine_may_refuse(r->hints.implementation, &r->problem, field));
}

static bool refused(run *r) {
    attn_error *query = &r->out->error, error;
    const char *name = r->how->oracle ? NULL : r->hints.implementation;
    r->out->pass = r->problem.pass;
    r->out->rule = name ? machine_expected_refusal(name, &r->problem) : NULL;
    memset(query, 0x55, sizeof *query);
    if (attn_supported(r->context, &r->problem, &r->hints, query) == ATTN_OK) {
        if (r->out->rule) {
            return !run_trouble(r, "taken, but the rules refuse it by %s", r->out->rule);
        }
        if (query->status != ATTN_OK || query->field[0]) {
            return !run_trouble(r, "success left an error behind: %s %s", query->field, query->message);
        }
        return false;
    }
    attn_plan *plan = NULL;
    attn_status status = attn_plan_create(&plan, r->context, &r->problem, &r->hints, &error);
    r->out->outcome = RUN_REFUSED;
    if (status != query->status || strcmp(error.field, query->field) || strcmp(error.message, query->message) || plan) {
        run_trouble(r, "query and plan disagree: \"%s %s\" and \"%s %s\"", query->field, query->message, error.field,
                    error.message);
    } else if (!query->field[0] || !query->message[0]) {
        run_trouble(r, "a refusal without field or message");
    } else if (query->status != ATTN_ERR_UNSUPPORTED) {
        run_trouble(r, "taken for unsound: %s %s", query->field, query->message);
    } else if (r->how->pass_on && name && refused_by_rule(r)) {
        r->out->outcome = RUN_DONE;
        r->out->passed_on |= 1u << r->problem.pass;
        r->hints.implementation = NULL;
        return refused(r);
    }
    return true;
}

/* Every fence once: joint tensors share one. */
static void push_tensors(run *r) {
    for (int id = 0; id < T_COUNT; id++) {
        if (r->tensor[id].memory && !r->tensor[id].shared) {
            device_push(r->tensor[id].memory);
        }
    }
}

/* Brings back what the device holds; false if something beside it was written, or lengths were found wanting. */
static bool pull(run *r, fence *workspace) {
    bool intact;
    device_wait();
    for (int id = 0; id < T_COUNT; id++) {
        if (r->tensor[id].memory && !r->tensor[id].shared && !device_pull(r->tensor[id].memory)) {
            return run_trouble(r, "a guard zone of %s was written", tensor_name(id));
        }
    }
    int32_t word = lengths_pull(&r->lengths, &intact);
    if (word || !intact) {
        attn_error error;
        attn_status_word(word, &error);
        return run_trouble(r, "lengths on the device: %s, status word %d: %s %s", intact ? "intact" : "written",
                           (int)word, error.field, error.message);
    }
    return device_pull(workspace) || run_trouble(r, "memory beside the workspace was written");
}

static void arguments(run *r, attn_pass which) {
    if (r->device) {
        push_tensors(r);
    }
    describe_args(r);
    if (which == ATTN_FORWARD) {
        r->args.dout = NULL;
        r->args.dlse = NULL;
    } else if (r->trial->give_delta) {
        r->args.o = NULL;
    }
}

static bool execute(run *r, attn_plan *plan, attn_pass which, fence *workspace) {
    attn_error error;
    void *room = workspace->size ? workspace->data : NULL;
    memset(&error, 0x55, sizeof error);
    arguments(r, which);
    if (r->device) {
        device_note(r->out->text);
        device_push(workspace);
        room = room ? device_address(workspace, room) : NULL;
    }
    attn_status status =
        (which == ATTN_FORWARD ? attn_forward : attn_backward)(plan, &r->args, room, workspace->size, NULL, &error);
    bool back = !r->device || pull(r, workspace);
    lengths_free(&r->lengths);
    memset(workspace->data, 0xFF, workspace->size);
    if (status != ATTN_OK) {
        return run_trouble(r, "%s failed: %s %s", which == ATTN_FORWARD ? "forward" : "backward", error.field,
                           error.message);
    }
    return back && (fence_intact(workspace) || run_trouble(r, "memory past the workspace was written"));
}

static attn_plan *make_plan(run *r, const attn_context *context, const attn_problem *problem, const attn_hints *hints) {
    attn_plan *plan = NULL;
    attn_error error;
    memset(&error, 0x55, sizeof error);
    if (attn_plan_create(&plan, context, problem, hints, &error) != ATTN_OK) {
        run_trouble(r, "no plan: %s %s", error.field, error.message);
    }
    return plan;
}

/* In a rehearsal `reference` on the CPU runs in the device's place, once the plan for the device was made and compiled.
 */
static attn_plan *stand_in(run *r, attn_plan *plan) {
    attn_hints hints = {.struct_size = sizeof hints, .implementation = "reference"};
    attn_plan_destroy(plan);
    return make_plan(r, machine_context(1), &r->problem, &hints);
}

static bool pass(run *r, attn_pass which) {
    attn_plan *plan = make_plan(r, r->context, &r->problem, &r->hints);
    if (plan && r->rehearsal) {
        plan = stand_in(r, plan);
    }
    if (!plan) {
        return false;
    }
    size_t size = attn_plan_workspace(plan);
    fence *workspace =
        fence_create(size, size % ATTN_WORKSPACE_ALIGNMENT ? FENCE_START : FENCE_END, (unsigned char[]){0xFF}, 1);
    bool done =
        workspace ? execute(r, plan, which, workspace) : run_trouble(r, "no memory for a workspace of %zu bytes", size);
    fence_destroy(workspace);
    attn_plan_destroy(plan);
    return done;
}

static bool make_inputs(run *r) {
    bool joint = r->trial->joint && !r->how->oracle && !r->how->plain;
    if (joint && !run_create_joint(r, T_Q, false)) {
        return false;
    }
    for (int id = 0; id < T_INPUTS; id++) {
        bool later = id == T_DOUT || id == T_DLSE;
        if (!run_wanted(r, id) || (later && r->how->forward_only)) {
            continue;
        }
        if (!(joint && id <= T_V) && !run_create(r, id, false)) {
            return false;
        }
        run_put(r, id, r->trial->value[id]);
    }
    for (int id = 0; id < T_INPUTS; id++) {
        if (r->tensor[id].memory) {
            fence_remember(r->tensor[id].memory);
        }
    }
    return true;
}

static bool forward(run *r) {
    if (!run_create(r, T_O, true) || (run_wanted(r, T_LSE) && !run_create(r, T_LSE, true))) {
        return false;
    }
    describe(r, ATTN_FORWARD);
    if (refused(r)) {
        return false;
    }
    if (!pass(r, ATTN_FORWARD) || !run_get(r, T_O) || (run_wanted(r, T_LSE) && !run_get(r, T_LSE))) {
        return false;
    }
    for (int id = T_O; id <= T_LSE; id++) {
        if (r->trial->value[id]) {
            run_put(r, id, r->trial->value[id]);
        }
    }
    return true;
}

static bool make_delta(run *r) {
    int64_t dims = r->problem.dim_v, count = trial_size(r->trial, T_DELTA);
    if (!run_create(r, T_DELTA, false)) {
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
    run_put(r, T_DELTA, delta);
    free(delta);
    return true;
}

static bool backward(run *r) {
    bool joint = r->trial->joint_gradients && !r->how->oracle && !r->how->plain;
    if ((joint && !run_create_joint(r, T_DQ, true)) || (r->trial->give_delta && !make_delta(r))) {
        return false;
    }
    for (int id = T_DQ; id < T_COUNT; id++) {
        if (!run_wanted(r, id)) {
            continue;
        }
        if (!(joint && id <= T_DV) && !run_create(r, id, true)) {
            return false;
        }
        if (r->trial->problem.flags & ATTN_ACCUMULATE) {
            run_put(r, id, r->trial->value[id]);
        }
    }
    r->hints.implementation = r->how->oracle ? "reference" : r->how->implementation;
    describe(r, ATTN_BACKWARD);
    if (refused(r)) {
        return false;
    }
    fence_remember(r->tensor[T_O].memory);
    fence_remember(r->tensor[T_LSE].memory);
    if (!pass(r, ATTN_BACKWARD)) {
        return false;
    }
    for (int id = T_DQ; id < T_COUNT; id++) {
        if (run_wanted(r, id) && (!run_get(r, id) || !run_erase(r, id))) {
            return false;
        }
    }
    for (int id = T_DQ; id < T_COUNT; id++) {
        if (run_wanted(r, id) && !run_intact(r, id)) {
            return false;
        }
    }
    return true;
}

static bool inputs_unchanged(run *r) {
    for (int id = 0; id < T_DELTA; id++) {
        if (r->tensor[id].memory && !fence_unchanged(r->tensor[id].memory)) {
            return run_trouble(r, "%s, an input, was written", tensor_name(id));
        }
    }
    return true;
}

run_outcome run_trial(const trial *t, const run_options *how, result *out) {
    run r = {.trial = t, .how = how, .out = out};
    memset(out, 0, sizeof *out);
    const char *name = how->oracle ? "reference" : how->implementation;
    r.context = machine_context_of(name, how->oracle ? 1 : how->threads ? how->threads : t->threads);
    r.rehearsal = machine_is_device(name) && machine_rehearses();
    r.device = machine_is_device(name) && !r.rehearsal;
    r.hints = t->hints;
    if (how->oracle) {
        memset(&r.hints, 0, sizeof r.hints);
        r.hints.struct_size = sizeof r.hints;
    }
    r.hints.implementation = name;
    if (make_inputs(&r) && forward(&r) && (how->forward_only || backward(&r)) && inputs_unchanged(&r) &&
        run_erase(&r, T_O) && run_intact(&r, T_O) &&
        (!run_wanted(&r, T_LSE) || (run_erase(&r, T_LSE) && run_intact(&r, T_LSE)))) {
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
