/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/run_state.h"

bool run_trouble(run *r, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->out->trouble, sizeof r->out->trouble, format, list);
    va_end(list);
    r->out->outcome = RUN_FAILED;
    return false;
}

bool run_wanted(const run *r, tensor_id id) {
    return trial_has(r->trial, id) && !(r->trial->skip >> id & 1) && (id != T_DELTA || r->trial->give_delta);
}

form run_form_of(const run *r, tensor_id id) {
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

attn_dtype run_dtype_of(const run *r, tensor_id id) {
    attn_dtype dtype = tensor_dtype(&r->trial->problem, id);
    return r->how->oracle && dtype != ATTN_U8 ? ATTN_F64 : dtype;
}

bool run_create(run *r, tensor_id id, bool output) {
    form f = run_form_of(r, id);
    int64_t n[4];
    trial_extents(r->trial, id, n);
    tensor *x = &r->tensor[id];
    if (!tensor_create(x, &f, run_dtype_of(r, id), n, output)) {
        return run_trouble(r, "no memory for %s", tensor_name(id));
    }
    for (int axis = 0; axis < 4; axis++) {
        if (r->trial->broadcast[id] >> axis & 1) {
            x->layout.stride[axis] = 0;
        }
    }
    return true;
}

bool run_create_joint(run *r, tensor_id first, bool output) {
    tensor *const parts[3] = {&r->tensor[first], &r->tensor[first + 1], &r->tensor[first + 2]};
    int64_t n[3][4];
    for (int p = 0; p < 3; p++) {
        trial_extents(r->trial, first + p, n[p]);
    }
    return tensor_create_joint(parts, run_dtype_of(r, first), n, output) ||
           run_trouble(r, "no memory for joint tensors");
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

void run_put(run *r, tensor_id id, double *values) {
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
            run_trouble(m->run, "%s was never written", where);
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
            run_trouble(m->run, "%s at row %lld of the buffer, head %lld, past the used length, holds %g instead of %g",
                        tensor_name(m->id), (long long)at[2], (long long)at[1], tensor_get(x, place), m->want);
        }
        tensor_erase(x, place);
    }
}

bool run_get(run *r, tensor_id id) {
    double *values = calloc((size_t)trial_size(r->trial, id) + 1, sizeof *values);
    if (!values) {
        abort();
    }
    r->out->value[id] = values;
    moving m = {.run = r, .id = id, .values = values};
    trial_walk(r->trial, id, get_run, &m);
    return r->out->outcome == RUN_DONE;
}

bool run_erase(run *r, tensor_id id) {
    bool added = id >= T_DQ && r->trial->problem.flags & ATTN_ACCUMULATE;
    moving m = {.run = r, .id = id, .want = added ? NAN : id == T_LSE ? -INFINITY : 0};
    trial_walk_padding(r->trial, id, padding_run, &m);
    trial_walk(r->trial, id, erase_run, &m);
    return r->out->outcome == RUN_DONE;
}

bool run_intact(run *r, tensor_id id) {
    return fence_intact(r->tensor[id].memory) ||
           run_trouble(r, "a gap or guard zone of %s was written", tensor_name(id));
}
