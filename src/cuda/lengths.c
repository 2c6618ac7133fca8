/* SPDX-License-Identifier: Apache-2.0
 * Lengths and segments of a run. The host's travel to the workspace as parameters of small launches inside the stream;
 * those already on the device are checked there. In the workspace the arrays lie one behind the other, each at a
 * multiple of 16 bytes. */
#include <string.h>

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/device/lengths.h"
#include "problem/problem.h"
#include "problem/tensors.h"

enum { ARRAYS = 8, GAP = 64, CHECK_THREADS = 1024, THREADS = 256 };

typedef struct array {
    const void *from; /* host */
    size_t offset, size;
} array;

static size_t rounded(size_t size) {
    return (size + 15) / 16 * 16;
}

/* Lays the arrays of one side behind *total; sizes are the most that the problem allows. */
static void lay_side(const attn_problem *p, bool queries, array *arrays, size_t *total) {
    attn_rows rows = queries ? p->rows_q : p->rows_kv;
    bool used = p->flags & (queries ? ATTN_USED_Q : ATTN_USED_KV);
    size_t batch = (size_t)p->batch, segments = (size_t)(queries ? p->segments_q : p->segments_kv);
    size_t sizes[4] = {rows == ATTN_PACKED ? (batch + 1) * sizeof(int32_t) : 0, used ? batch * sizeof(int32_t) : 0,
                       rows == ATTN_SEGMENTS ? batch * sizeof(int32_t) : 0,
                       rows == ATTN_SEGMENTS ? segments * sizeof(attn_segment) : 0};
    for (int n = 0; n < 4; n++) {
        arrays[n].from = NULL;
        arrays[n].offset = *total;
        arrays[n].size = sizes[n];
        *total += rounded(sizes[n]);
    }
}

static size_t lay(const attn_problem *p, array arrays[ARRAYS]) {
    size_t total = 0;
    lay_side(p, true, arrays, &total);
    lay_side(p, false, arrays + 4, &total);
    return total;
}

/* The kernels know neither problem nor features: name and constants are their own. */
static void add_kernel(attn_plan *plan, int role, const char *name, int64_t task, int threads) {
    attn__gpu_choice *choice = &plan->gpu_choice;
    int at = choice->n_kernels++;
    if (at < ATTN__MAX_KERNELS) { /* else refused when it is built */
        attn__kernel *kernel = &choice->kernels[at];
        memset(kernel, 0, sizeof *kernel);
        kernel->source = "lengths.cu";
        kernel->threads = threads;
        choice->roles[at] = role;
        attn__kernel_name(kernel, "attn_%s__sm%d", name, plan->gpu->arch);
        attn__kernel_set(kernel, "TASK", task);
    }
}

void attn__cuda_plan_lengths(attn_plan *plan) {
    array arrays[ARRAYS];
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    memset(&choice->lengths, 0, sizeof choice->lengths);
    if (p->flags & ATTN_DEVICE_LENGTHS) {
        add_kernel(plan, ATTN__ROLE_CHECK, "check", 1, CHECK_THREADS);
        return;
    }
    size_t size = lay(p, arrays);
    if (size) {
        choice->lengths = attn__span_take(&plan->workspace, size);
        add_kernel(plan, ATTN__ROLE_UPLOAD, "upload", 0, THREADS);
    }
}

/* --- Bringing the host's --- */

typedef struct parcel {
    attn__cuda_run *run;
    char *memory; /* the span */
    size_t start, length;
    attn__upload block;
} parcel;

static attn_status send(parcel *box) {
    attn_status status = ATTN_OK;
    if (box->length) {
        box->block.to = (int *)(void *)(box->memory + box->start);
        box->block.words = (int)(box->length / sizeof(int));
        status = attn__cuda_launch_raw(box->run, ATTN__ROLE_UPLOAD, 1, &box->block);
    }
    box->length = 0;
    return status;
}

/* Small gaps between arrays travel as zeros, for the sake of fewer launches. */
static attn_status pack(parcel *box, size_t offset, const char *from, size_t size) {
    char *data = (char *)box->block.data;
    attn_status status = ATTN_OK;
    size_t gap = offset - (box->start + box->length);
    if (box->length && (gap > GAP || box->length + gap >= sizeof box->block.data)) {
        status = send(box);
    }
    if (!box->length) {
        box->start = offset;
    } else {
        memset(data + box->length, 0, gap);
        box->length += gap;
    }
    while (size && !status) {
        size_t room = sizeof box->block.data - box->length, part = size < room ? size : room;
        memcpy(data + box->length, from, part);
        box->length += part;
        offset += part;
        from += part;
        size -= part;
        if (size) {
            status = send(box);
            box->start = offset;
        }
    }
    return status;
}

static void take_sizes(const attn_args *a, array arrays[ARRAYS]) {
    const void *from[ARRAYS] = {a->cu_seqlens_q,  a->used_q,  a->lengths_q,  a->segments_q,
                                a->cu_seqlens_kv, a->used_kv, a->lengths_kv, a->segments_kv};
    size_t segments[2] = {(size_t)a->n_segments_q * sizeof(attn_segment),
                          (size_t)a->n_segments_kv * sizeof(attn_segment)};
    for (int n = 0; n < ARRAYS; n++) {
        arrays[n].from = arrays[n].size ? from[n] : NULL;
        if (arrays[n].size && n % 4 == 3) {
            arrays[n].size = segments[n / 4];
        }
    }
}

static attn_status upload(attn__cuda_run *run, const array arrays[ARRAYS]) {
    parcel box;
    attn_status status = ATTN_OK;
    box.run = run;
    box.memory = attn__span_at(run->workspace, run->plan->gpu_choice.lengths);
    box.start = box.length = 0;
    for (int n = 0; n < ARRAYS && !status; n++) {
        if (arrays[n].from && arrays[n].size) {
            status = pack(&box, arrays[n].offset, arrays[n].from, arrays[n].size);
        }
    }
    return status ? status : send(&box);
}

static void point(attn__side_ref *side, const array arrays[4], char *memory) {
    side->cu = arrays[0].size ? (const int *)(const void *)(memory + arrays[0].offset) : NULL;
    side->used = arrays[1].size ? (const int *)(const void *)(memory + arrays[1].offset) : NULL;
    side->lengths = arrays[2].size ? (const int *)(const void *)(memory + arrays[2].offset) : NULL;
    side->segments = (const attn__segment_ref *)(const void *)(memory + arrays[3].offset);
}

/* --- Having the device's checked --- */

/* The output's rows past the last sequence. All zero bits are 0 in every type. */
static attn__rest rest_of(const attn_problem *p, const attn__tensor_ref *ref, const attn_layout *layout, bool queries,
                          int64_t dim) {
    bool packed = (queries ? p->rows_q : p->rows_kv) == ATTN_PACKED;
    attn__rest rest = {
        *ref, 0, (int)attn_dtype_size(layout->dtype), (int)(queries ? p->heads_q : p->heads_kv), (int)dim, !queries};
    rest.tensor.data = packed ? rest.tensor.data : NULL;
    return rest;
}

/* Returns whether there are any. */
static bool add_rests(const attn_problem *p, const attn__params *params, attn__rest rest[ATTN__RESTS]) {
    if (!(p->flags & ATTN_CLEAR_REST)) {
        return false;
    }
    if (p->pass == ATTN_FORWARD) {
        rest[0] = rest_of(p, &params->o, &p->o, true, p->dim_v);
        rest[1] = rest_of(p, &params->lse, &p->lse, true, 1);
        rest[1].value = rest[1].size == 8 ? 0xfff0000000000000u : 0xff800000u; /* -inf */
    } else {
        rest[0] = rest_of(p, &params->dq, &p->dq, true, p->dim_qk);
        rest[1] = rest_of(p, &params->dk, &p->dk, false, p->dim_qk);
        rest[2] = rest_of(p, &params->dv, &p->dv, false, p->dim_v);
    }
    return rest[0].tensor.data || rest[1].tensor.data || rest[2].tensor.data;
}

static attn_status check(attn__cuda_run *run) {
    const attn_problem *p = &run->plan->problem;
    const attn_args *a = run->args;
    attn__params *params = &run->params;
    bool used_q = p->flags & ATTN_USED_Q, used_kv = p->flags & ATTN_USED_KV;
    params->side_q.cu = p->rows_q == ATTN_PACKED ? a->cu_seqlens_q : NULL;
    params->side_q.used = used_q ? a->used_q : NULL;
    params->side_q.lengths = p->rows_q == ATTN_SEGMENTS ? a->lengths_q : NULL;
    params->side_q.segments = (const attn__segment_ref *)(const void *)a->segments_q;
    params->side_kv.cu = p->rows_kv == ATTN_PACKED ? a->cu_seqlens_kv : NULL;
    params->side_kv.used = used_kv ? a->used_kv : NULL;
    params->side_kv.lengths = p->rows_kv == ATTN_SEGMENTS ? a->lengths_kv : NULL;
    params->side_kv.segments = (const attn__segment_ref *)(const void *)a->segments_kv;
    params->status = a->status;
    attn__check block = {
        .q = {params->side_q, p->rows_q, true, attn__rows_shared(p, false)},
        .kv = {params->side_kv, p->rows_kv, p->pass == ATTN_BACKWARD, attn__rows_shared(p, true)},
        .batch = params->batch,
        .status = a->status,
    };
    bool clears = add_rests(p, params, block.rest);
    return attn__cuda_launch_raw(run, ATTN__ROLE_CHECK, clears ? (unsigned)run->plan->gpu->processors : 1, &block);
}

attn_status attn__cuda_bring_lengths(attn__cuda_run *run) {
    array arrays[ARRAYS];
    const attn_problem *p = &run->plan->problem;
    bool device = p->flags & ATTN_DEVICE_LENGTHS;
    if (p->rows_q == ATTN_SEGMENTS) {
        run->params.side_q.n_segments = (int)run->args->n_segments_q;
    }
    if (p->rows_kv == ATTN_SEGMENTS) {
        run->params.side_kv.n_segments = (int)run->args->n_segments_kv;
    }
    if (device) {
        return check(run);
    }
    if (!run->plan->gpu_choice.lengths.size) {
        return ATTN_OK;
    }
    char *memory = attn__span_at(run->workspace, run->plan->gpu_choice.lengths);
    lay(p, arrays);
    point(&run->params.side_q, arrays, memory);
    point(&run->params.side_kv, arrays + 4, memory);
    take_sizes(run->args, arrays);
    return upload(run, arrays);
}
