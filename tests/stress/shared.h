/* SPDX-License-Identifier: Apache-2.0
 * One planned pass with everything it needs, for tests that call the library again and again: inputs are shared,
 * outputs and workspace belong to whoever runs it. Memory is the device's if the implementation is. */
#ifndef TESTS_STRESS_SHARED_H
#define TESTS_STRESS_SHARED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "base/dtype.h"
#include "support/device.h"
#include "support/machine.h"
#include "support/random.h"

enum { JOB_Q, JOB_K, JOB_V, JOB_DOUT, JOB_O, JOB_LSE, JOB_DQ, JOB_DK, JOB_DV, JOB_TENSORS };

typedef struct job {
    attn_plan *forward, *backward; /* backward NULL: not wanted */
    bool device;
    size_t bytes[JOB_TENSORS];
    void *input[JOB_O];
} job;

/* What one run owns. */
typedef struct job_room {
    void *output[JOB_TENSORS]; /* from JOB_O on */
    void *workspace;
    size_t workspace_size;
    attn_stream stream;
} job_room;

static inline void *job_memory(bool device, size_t size) {
    size_t whole = (size + ATTN_WORKSPACE_ALIGNMENT) / ATTN_WORKSPACE_ALIGNMENT * ATTN_WORKSPACE_ALIGNMENT;
    return device ? device_allocate(whole) : aligned_alloc(ATTN_WORKSPACE_ALIGNMENT, whole);
}

static inline void job_free(bool device, void *memory) {
    if (device) {
        device_release(memory);
    } else {
        free(memory);
    }
}

static inline void job_poison(bool device, void *memory, size_t size) {
    if (device) {
        device_fill(memory, 0xFF, size);
    } else {
        memset(memory, 0xFF, size);
    }
}

/* Where a job of this implementation runs. */
static inline bool job_on_device(const char *implementation) {
    return machine_is_device(implementation) && !machine_rehearses();
}

/* Do the rules let the implementation take its forward pass? Tells if not. */
static inline bool job_allowed(const char *implementation, const attn_problem *like) {
    attn_problem p = *like;
    p.flags |= machine_allowed(implementation, &p);
    const char *field = machine_expected_refusal(implementation, &p);
    if (field) {
        printf("%s is left out: the rules refuse it by %s\n", implementation, field);
    }
    return !field;
}

/* A dense problem with causal band; false if it is refused or memory is out. */
static inline bool job_create(job *j, const attn_context *context, const char *implementation, const attn_problem *like,
                              uint64_t seed, attn_error *error) {
    attn_problem p = *like;
    attn_hints hints = {.struct_size = sizeof hints, .implementation = implementation};
    int64_t q = p.batch * p.heads_q * p.tokens_q, kv = p.batch * p.heads_kv * p.tokens_kv;
    size_t size = attn_dtype_size(p.q.dtype);
    const size_t bytes[JOB_TENSORS] = {
        [JOB_Q] = (size_t)(q * p.dim_qk) * size,  [JOB_K] = (size_t)(kv * p.dim_qk) * size,
        [JOB_V] = (size_t)(kv * p.dim_v) * size,  [JOB_DOUT] = (size_t)(q * p.dim_v) * size,
        [JOB_O] = (size_t)(q * p.dim_v) * size,   [JOB_LSE] = (size_t)q * sizeof(float),
        [JOB_DQ] = (size_t)(q * p.dim_qk) * size, [JOB_DK] = (size_t)(kv * p.dim_qk) * size,
        [JOB_DV] = (size_t)(kv * p.dim_v) * size,
    };
    memset(j, 0, sizeof *j);
    memcpy(j->bytes, bytes, sizeof bytes);
    j->device = job_on_device(implementation);
    p.flags |= ATTN_DETERMINISTIC | machine_allowed(implementation, &p);
    rng r = rng_seed(seed);
    for (int n = 0; n < JOB_O; n++) {
        void *values = malloc(bytes[n] + 1);
        for (size_t i = 0; values && i < bytes[n] / size; i++) {
            attn__store(p.q.dtype, values, (int64_t)i, rng_normal(&r));
        }
        j->input[n] = values;
        if (j->device) {
            j->input[n] = job_memory(true, bytes[n]);
            device_upload(j->input[n], values, bytes[n]);
            free(values);
        }
    }
    p.pass = ATTN_FORWARD;
    if (attn_plan_create(&j->forward, context, &p, &hints, error) != ATTN_OK) {
        return false;
    }
    p.pass = ATTN_BACKWARD;
    return attn_plan_create(&j->backward, context, &p, &hints, error) == ATTN_OK;
}

static inline void job_destroy(job *j) {
    attn_plan_destroy(j->forward);
    attn_plan_destroy(j->backward);
    for (int n = 0; n < JOB_O; n++) {
        job_free(j->device, j->input[n]);
    }
}

static inline job_room job_room_create(const job *j) {
    job_room room;
    size_t forward = attn_plan_workspace(j->forward), backward = attn_plan_workspace(j->backward);
    memset(&room, 0, sizeof room);
    room.workspace_size = forward > backward ? forward : backward;
    room.workspace = job_memory(j->device, room.workspace_size);
    room.stream = j->device ? device_stream() : NULL;
    for (int n = JOB_O; n < JOB_TENSORS; n++) {
        room.output[n] = job_memory(j->device, j->bytes[n]);
    }
    return room;
}

static inline void job_room_destroy(const job *j, job_room *room) {
    job_free(j->device, room->workspace);
    if (j->device) {
        device_stream_end(room->stream);
    }
    for (int n = JOB_O; n < JOB_TENSORS; n++) {
        job_free(j->device, room->output[n]);
    }
}

static inline void job_poison_all(const job *j, job_room *room) {
    job_poison(j->device, room->workspace, room->workspace_size);
    for (int n = JOB_O; n < JOB_TENSORS; n++) {
        job_poison(j->device, room->output[n], j->bytes[n]);
    }
    if (j->device) {
        device_wait();
    }
}

/* Of both passes: forward does not read backward's. */
static inline attn_args job_args(const job *j, const job_room *room) {
    attn_args args = attn_args_init();
    args.q = j->input[JOB_Q];
    args.k = j->input[JOB_K];
    args.v = j->input[JOB_V];
    args.o = room->output[JOB_O];
    args.lse = room->output[JOB_LSE];
    args.dout = j->input[JOB_DOUT];
    args.dq = room->output[JOB_DQ];
    args.dk = room->output[JOB_DK];
    args.dv = room->output[JOB_DV];
    return args;
}

/* Forward, then backward, without waiting. */
static inline bool job_launch(const job *j, job_room *room, const attn_args *args, attn_error *error) {
    return attn_forward(j->forward, args, room->workspace, attn_plan_workspace(j->forward), room->stream, error) ==
               ATTN_OK &&
           attn_backward(j->backward, args, room->workspace, attn_plan_workspace(j->backward), room->stream, error) ==
               ATTN_OK;
}

/* Outputs and workspace are poisoned before. */
static inline bool job_run(const job *j, job_room *room, attn_error *error) {
    attn_args args = job_args(j, room);
    job_poison_all(j, room);
    bool done = job_launch(j, room, &args, error);
    if (j->device) {
        device_wait();
    }
    return done;
}

static inline bool job_same(const job *j, const job_room *a, const job_room *b) {
    bool same = true;
    for (int n = JOB_O; n < JOB_TENSORS && same; n++) {
        void *x = a->output[n], *y = b->output[n];
        if (j->device) {
            x = malloc(j->bytes[n] + 1);
            y = malloc(j->bytes[n] + 1);
            device_download(x, a->output[n], j->bytes[n]);
            device_download(y, b->output[n], j->bytes[n]);
        }
        same = x && y && !memcmp(x, y, j->bytes[n]);
        if (j->device) {
            free(x);
            free(y);
        }
    }
    return same;
}

#endif
