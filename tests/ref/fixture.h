/* SPDX-License-Identifier: Apache-2.0
 * Small problems with every feature, for tests of whole implementations. A `feature` row says what the problem has;
 * make() builds problem, arguments and buffers in one float type, with outputs poisoned; sees() states, apart from
 * the library, which query sees which key.
 *
 * Three sequences; dense: all rows of [batch, head, token, dim]; packed and segments: rows of one buffer [row, head,
 * dim] with spare rows behind. Segments are out of order in the buffer, and of the keys some are left out. */
#ifndef ATTN_TESTS_REF_FIXTURE_H
#define ATTN_TESTS_REF_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "attn/attn.h"
#include "backend.h"
#include "base/dtype.h"
#include "problem/problem.h"

enum {
    BATCH = 3,
    TOTAL_Q = 10,
    TOTAL_KV = 16,
    TOKENS_Q = 5,
    TOKENS_KV = 7,
};

enum { BIAS = 1, MASK = 2, ALIBI = 4, SINK = 8, USED = 16, DLSE = 32, DELTA = 64 };

typedef struct feature {
    const char *name;
    attn_rows rows;
    unsigned with;      /* of the bits above */
    unsigned bias_axes; /* axes of bias that are not broadcast, bit 1 << axis; 0: all */
    attn_band band;
    bool has_scale;
    float scale, softcap, dropout;
    int64_t heads_q, heads_kv, dim_qk, dim_v; /* 0: 4, 2, 3, 2 */
} feature;

#define CAUSAL                                                                                                         \
    { ATTN_CAUSAL, ATTN_BOTTOM_RIGHT, 0, 0, 0 }

static const feature features[] = {
    {.name = "plain"},
    {.name = "one head", .heads_q = 1, .heads_kv = 1},
    {.name = "multi-query", .heads_q = 3, .heads_kv = 1},
    {.name = "wide", .dim_qk = 9, .dim_v = 13},
    {.name = "narrow", .dim_qk = 1, .dim_v = 1},
    {.name = "scale 0", .has_scale = true},
    {.name = "negative scale", .has_scale = true, .scale = -0.7f},
    {.name = "causal", .band = CAUSAL},
    {.name = "causal, top left", .band = {ATTN_CAUSAL, ATTN_TOP_LEFT, 0, 0, 0}},
    {.name = "window", .band = {ATTN_WINDOW, ATTN_BOTTOM_RIGHT, 1, 2, 0}},
    {.name = "window, right open", .band = {ATTN_WINDOW, ATTN_TOP_LEFT, 0, -1, 0}},
    {.name = "window, globals", .band = {ATTN_WINDOW | ATTN_GLOBALS, ATTN_BOTTOM_RIGHT, 1, 0, 2}},
    {.name = "causal window, globals", .band = {ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, ATTN_BOTTOM_RIGHT, 1, 0, 1}},
    {.name = "softcap", .softcap = 1.5f},
    {.name = "alibi", .with = ALIBI},
    {.name = "bias", .with = BIAS},
    {.name = "bias over batch", .with = BIAS, .bias_axes = 2 | 4 | 8},
    {.name = "bias over heads and rows", .with = BIAS, .bias_axes = 1 | 8},
    {.name = "bias over keys", .with = BIAS | DLSE, .bias_axes = 1 | 2 | 4},
    {.name = "mask", .with = MASK},
    {.name = "sink", .with = SINK | DLSE, .band = CAUSAL},
    {.name = "dropout", .dropout = 0.3f},
    {.name = "dlse", .with = DLSE},
    {.name = "delta given", .with = DELTA | DLSE},
    {.name = "used lengths", .with = USED | SINK, .band = CAUSAL},
    {.name = "packed", .rows = ATTN_PACKED, .band = CAUSAL},
    {.name = "packed, used lengths", .rows = ATTN_PACKED, .with = USED},
    {.name = "segments", .rows = ATTN_SEGMENTS, .with = SINK | BIAS | DLSE, .band = CAUSAL},
    {.name = "all, dense",
     .with = BIAS | MASK | ALIBI | SINK | USED | DLSE,
     .bias_axes = 2 | 8,
     .band = {ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS, ATTN_BOTTOM_RIGHT, 2, 0, 1},
     .softcap = 2,
     .dropout = 0.2f},
    {.name = "all, packed",
     .rows = ATTN_PACKED,
     .with = BIAS | MASK | ALIBI | SINK | USED | DLSE,
     .band = {ATTN_WINDOW | ATTN_GLOBALS, ATTN_TOP_LEFT, 2, 1, 1},
     .softcap = 2,
     .dropout = 0.2f},
    {.name = "all, segments",
     .rows = ATTN_SEGMENTS,
     .with = BIAS | MASK | ALIBI | SINK | DLSE,
     .band = {ATTN_CAUSAL | ATTN_WINDOW, ATTN_BOTTOM_RIGHT, 3, 0, 0},
     .softcap = 2,
     .dropout = 0.2f},
};
enum { FEATURES = sizeof features / sizeof *features };

/* Lengths of the three sequences, and where their rows are. */
static const int32_t packed_q[BATCH + 1] = {0, 3, 3, 8}, packed_kv[BATCH + 1] = {0, 7, 11, 13};
static const int32_t used_q[BATCH] = {2, 0, 4}, used_kv[BATCH] = {6, 0, 2};
static const int32_t lengths_q[BATCH] = {3, 0, 5}, lengths_kv[BATCH] = {7, 4, 3};
static const attn_segment segments_q[] = {{8, 1, 2, 0}, {4, 2, 0, 0}, {0, 2, 3, 2}, {6, 1, 0, 2}};
static const attn_segment segments_kv[] = {{9, 3, 4, 0}, {0, 2, 1, 0}, {2, 4, 0, 1}, {12, 3, 0, 2}};

/* One tensor's memory. */
typedef struct buffer {
    attn_dtype dtype;
    int64_t count;
    void *data;
} buffer;

typedef enum tensor {
    Q,
    K,
    V,
    O,
    LSE,
    BIASES,
    MASKS,
    SLOPES,
    SINKS,
    DOUT,
    DLSES,
    DELTAS,
    DQ,
    DK,
    DV,
    DBIAS,
    DSINK,
    TENSORS
} tensor;

typedef struct fixture {
    const feature *feature;
    attn_problem problem; /* canonical */
    attn_args args;
    buffer buffers[TENSORS];
    uint32_t isa_without; /* instruction sets that plans must not use */
} fixture;

static inline double fixture_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    uint32_t word = *seed ^ *seed >> 15;
    return ((double)(word * 0x2C1B3C6Du >> 16) - 32768) / 32768;
}

static inline double get(const fixture *f, tensor t, int64_t index) {
    return attn__load(f->buffers[t].dtype, f->buffers[t].data, index);
}
static inline void put(const fixture *f, tensor t, int64_t index, double value) {
    attn__store(f->buffers[t].dtype, f->buffers[t].data, index, value);
}

static inline void *buffer_make(fixture *f, tensor t, attn_dtype dtype, int64_t count) {
    buffer *b = &f->buffers[t];
    *b = (buffer){dtype, count, calloc((size_t)count, attn_dtype_size(dtype))};
    assert_non_null(b->data);
    return b->data;
}

static inline void poison(fixture *f, tensor t) {
    for (int64_t n = 0; n < f->buffers[t].count; n++) {
        put(f, t, n, NAN);
    }
}

static inline void fixture_free(fixture *f) {
    for (int t = 0; t < TENSORS; t++) {
        free(f->buffers[t].data);
    }
}

static inline attn_layout rows_layout(attn_rows rows, attn_dtype dtype, int64_t heads, int64_t tokens, int64_t dim) {
    if (rows == ATTN_DENSE) {
        return attn_layout_bhsd(dtype, heads, tokens, dim);
    }
    return (attn_layout){dtype, {0, dim, heads * dim, 1}};
}

static inline void fixture_problem(fixture *f, attn_dtype dtype) {
    const feature *x = f->feature;
    const bool dense = x->rows == ATTN_DENSE;
    attn_problem *p = &f->problem;
    *p = attn_problem_init();
    p->pass = ATTN_BACKWARD;
    p->batch = BATCH;
    p->heads_q = x->heads_q ? x->heads_q : 4;
    p->heads_kv = x->heads_kv ? x->heads_kv : 2;
    p->tokens_q = TOKENS_Q;
    p->tokens_kv = TOKENS_KV;
    p->dim_qk = x->dim_qk ? x->dim_qk : 3;
    p->dim_v = x->dim_v ? x->dim_v : 2;
    p->rows_q = p->rows_kv = x->rows;
    p->total_q = dense ? 0 : TOTAL_Q;
    p->total_kv = dense ? 0 : TOTAL_KV;
    p->segments_q = p->segments_kv = x->rows == ATTN_SEGMENTS ? 4 : 0;
    p->band = x->band;
    p->scale = x->scale;
    p->flags = (x->has_scale ? ATTN_HAS_SCALE : 0) | (x->with & USED ? ATTN_USED_Q | ATTN_USED_KV : 0);
    p->softcap = x->softcap;
    p->dropout = x->dropout;
    p->q = rows_layout(x->rows, dtype, p->heads_q, TOKENS_Q, p->dim_qk);
    p->k = rows_layout(x->rows, dtype, p->heads_kv, TOKENS_KV, p->dim_qk);
    p->v = rows_layout(x->rows, dtype, p->heads_kv, TOKENS_KV, p->dim_v);
    p->o = rows_layout(x->rows, dtype, p->heads_q, TOKENS_Q, p->dim_v);
    attn_dtype exact = dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    p->lse = rows_layout(x->rows, exact, p->heads_q, TOKENS_Q, 1);
    if (x->with & BIAS) {
        const int64_t extent[4] = {BATCH, p->heads_q, TOKENS_Q, TOKENS_KV};
        int64_t stride = 1;
        p->bias.dtype = exact;
        for (int axis = 3; axis >= 0; axis--) {
            if (!x->bias_axes || x->bias_axes & 1u << axis) {
                p->bias.stride[axis] = stride;
                stride *= extent[axis];
            }
        }
    }
    if (x->with & MASK) {
        p->mask = attn_layout_bhsd(ATTN_U8, p->heads_q, TOKENS_Q, TOKENS_KV);
    }
    p->alibi.dtype = x->with & ALIBI ? exact : ATTN_NONE;
    p->alibi.stride[1] = x->with & ALIBI ? 1 : 0;
    p->sink.dtype = x->with & SINK ? exact : ATTN_NONE;
    p->sink.stride[1] = x->with & SINK ? 1 : 0;
}

static inline void fixture_lengths(fixture *f) {
    attn_args *a = &f->args;
    if (f->feature->rows == ATTN_PACKED) {
        a->cu_seqlens_q = packed_q;
        a->cu_seqlens_kv = packed_kv;
    }
    if (f->feature->with & USED) {
        a->used_q = used_q;
        a->used_kv = used_kv;
    }
    if (f->feature->rows == ATTN_SEGMENTS) {
        a->segments_q = segments_q;
        a->segments_kv = segments_kv;
        a->n_segments_q = a->n_segments_kv = 4;
        a->lengths_q = lengths_q;
        a->lengths_kv = lengths_kv;
    }
}

static inline void *random_tensor(fixture *f, tensor t, attn_dtype dtype, int64_t count, double size) {
    uint32_t seed = 77u * (uint32_t)t + 1;
    void *data = buffer_make(f, t, dtype, count);
    for (int64_t n = 0; n < count; n++) {
        put(f, t, n, size * fixture_random(&seed));
    }
    return data;
}

/* Builds everything; forward has not run. */
static inline void make(fixture *f, const feature *x, attn_dtype dtype) {
    attn_error error;
    *f = (fixture){.feature = x};
    fixture_problem(f, dtype);
    attn_problem given = f->problem, *p = &f->problem;
    if (attn__problem_canonical(&given, p, &error)) {
        fail_msg("%s: %s %s", x->name, error.field, error.message);
    }
    const int64_t rows_q = x->rows == ATTN_DENSE ? BATCH * TOKENS_Q : TOTAL_Q;
    const int64_t rows_kv = x->rows == ATTN_DENSE ? BATCH * TOKENS_KV : TOTAL_KV;
    const int64_t qs = rows_q * p->heads_q, ks = rows_kv * p->heads_kv;
    attn_args *a = &f->args;
    *a = attn_args_init();
    a->q = random_tensor(f, Q, dtype, qs * p->dim_qk, 2);
    a->k = random_tensor(f, K, dtype, ks * p->dim_qk, 2);
    a->v = random_tensor(f, V, dtype, ks * p->dim_v, 2);
    a->dout = random_tensor(f, DOUT, dtype, qs * p->dim_v, 2);
    a->o = buffer_make(f, O, dtype, qs * p->dim_v);
    a->lse = buffer_make(f, LSE, p->lse.dtype, qs);
    a->dq = buffer_make(f, DQ, dtype, qs * p->dim_qk);
    a->dk = buffer_make(f, DK, dtype, ks * p->dim_qk);
    a->dv = buffer_make(f, DV, dtype, ks * p->dim_v);
    if (x->with & DLSE) {
        a->dlse = random_tensor(f, DLSES, p->lse.dtype, qs, 1);
    }
    if (x->with & DELTA) {
        a->delta = buffer_make(f, DELTAS, p->lse.dtype, qs);
    }
    if (x->with & SINK) {
        a->sink = random_tensor(f, SINKS, p->sink.dtype, p->heads_q, 1);
        a->dsink = buffer_make(f, DSINK, p->sink.dtype, p->heads_q);
    }
    if (x->with & ALIBI) {
        a->alibi = random_tensor(f, SLOPES, p->alibi.dtype, p->heads_q, 0.5);
    }
    if (x->with & BIAS) {
        const int64_t *stride = p->bias.stride, extent[4] = {BATCH, p->heads_q, TOKENS_Q, TOKENS_KV};
        int64_t count = 1;
        for (int axis = 0; axis < 4; axis++) {
            count *= stride[axis] ? extent[axis] : 1;
        }
        a->bias = random_tensor(f, BIASES, p->bias.dtype, count, 2);
        a->dbias = buffer_make(f, DBIAS, p->dbias.dtype, count);
        for (int64_t n = 5; n < count && !x->bias_axes; n += 11) {
            put(f, BIASES, n, -INFINITY);
        }
    }
    if (x->with & MASK) {
        uint32_t seed = 9;
        a->mask = buffer_make(f, MASKS, ATTN_U8, BATCH * p->heads_q * TOKENS_Q * TOKENS_KV);
        for (int64_t n = 0; n < f->buffers[MASKS].count; n++) {
            put(f, MASKS, n, fixture_random(&seed) < 0.4);
        }
    }
    a->seed = 0x123456789abcdefull;
    a->offset = 5;
    a->head_first = 3;
    a->batch_first = 2;
    fixture_lengths(f);
    for (tensor t = 0; t < TENSORS; t++) {
        if (t == O || t == LSE || t == DELTAS || t >= DQ) {
            poison(f, t);
        }
    }
    attn_args checked;
    if (attn__args_check(p, a, &checked, &error)) {
        fail_msg("%s: %s %s", x->name, error.field, error.message);
    }
}

/* --- The row maps, spelled out once more --- */

typedef struct place {
    int64_t sequence, position; /* position -1: past the used length; sequence -1: of no sequence */
} place;

/* What row `row` of the buffer holds; dense rows count on over the sequences. */
static inline place place_of(const fixture *f, bool kv, int64_t row) {
    const int32_t *cu = kv ? packed_kv : packed_q, *used = kv ? used_kv : used_q;
    const attn_segment *segments = kv ? segments_kv : segments_q;
    const int64_t tokens = kv ? TOKENS_KV : TOKENS_Q;
    place none = {-1, -1};
    for (int64_t s = 0; s < BATCH && f->feature->rows != ATTN_SEGMENTS; s++) {
        int64_t begin = f->feature->rows == ATTN_PACKED ? cu[s] : s * tokens;
        int64_t end = f->feature->rows == ATTN_PACKED ? cu[s + 1] : begin + tokens;
        if (row >= begin && row < end) {
            bool past = f->feature->with & USED && row - begin >= used[s];
            return (place){s, past ? -1 : row - begin};
        }
    }
    for (int n = 0; n < 4 && f->feature->rows == ATTN_SEGMENTS; n++) {
        if (row >= segments[n].first && row < segments[n].first + segments[n].rows) {
            return (place){segments[n].sequence, segments[n].position + row - segments[n].first};
        }
    }
    return none;
}

static inline int64_t length_of(const fixture *f, bool kv, int64_t s) {
    if (f->feature->rows == ATTN_SEGMENTS) {
        return kv ? lengths_kv[s] : lengths_q[s];
    }
    if (f->feature->with & USED) {
        return kv ? used_kv[s] : used_q[s];
    }
    if (f->feature->rows == ATTN_PACKED) {
        return kv ? packed_kv[s + 1] - packed_kv[s] : packed_q[s + 1] - packed_q[s];
    }
    return kv ? TOKENS_KV : TOKENS_Q;
}

static inline int64_t rows_of(const fixture *f, bool kv) {
    if (f->feature->rows == ATTN_DENSE) {
        return BATCH * (kv ? TOKENS_KV : TOKENS_Q);
    }
    return kv ? TOTAL_KV : TOTAL_Q;
}

/* Index of element (row, head, 0) in a tensor of `heads` heads and `dim` columns. */
static inline int64_t index_of(const fixture *f, bool kv, int64_t row, int64_t head, int64_t heads, int64_t dim) {
    int64_t tokens = kv ? TOKENS_KV : TOKENS_Q;
    if (f->feature->rows == ATTN_DENSE) {
        return (((row / tokens) * heads + head) * tokens + row % tokens) * dim;
    }
    return (row * heads + head) * dim;
}

/* Index of element (s, h, i, j) of bias or mask. */
static inline int64_t pair_index(const attn_layout *layout, int64_t s, int64_t h, int64_t i, int64_t j) {
    return s * layout->stride[0] + h * layout->stride[1] + i * layout->stride[2] + j * layout->stride[3];
}

static inline int64_t shifted_of(const fixture *f, int64_t s, int64_t i) {
    return f->feature->band.corner == ATTN_TOP_LEFT ? i : i + length_of(f, true, s) - length_of(f, false, s);
}

/* Does query row `qrow` see key row `krow`, under query head h? */
static inline bool sees(const fixture *f, int64_t qrow, int64_t krow, int64_t h) {
    const attn_band *band = &f->feature->band;
    place q = place_of(f, false, qrow), k = place_of(f, true, krow);
    if (q.sequence < 0 || q.sequence != k.sequence || q.position < 0 || k.position < 0) {
        return false;
    }
    int64_t i = shifted_of(f, q.sequence, q.position), j = k.position;
    bool left = !(band->kind & ATTN_WINDOW) || band->left < 0 || i - j <= band->left;
    bool right = !(band->kind & ATTN_WINDOW) || band->right < 0 || j - i <= band->right;
    bool global = band->kind & ATTN_GLOBALS && (i < band->globals || j < band->globals);
    bool causal = !(band->kind & ATTN_CAUSAL) || j <= i;
    bool mask = !f->args.mask || get(f, MASKS, pair_index(&f->problem.mask, q.sequence, h, q.position, j)) != 0;
    bool bias =
        !f->args.bias || get(f, BIASES, pair_index(&f->problem.bias, q.sequence, h, q.position, j)) != -INFINITY;
    return causal && ((left && right) || global) && mask && bias;
}

/* --- Running an implementation without the layers above it --- */

extern const attn__impl attn__impl_reference, attn__impl_native;

static inline attn_plan *plan_make(const fixture *f, const attn__impl *impl, void **workspace) {
    attn_plan *plan = calloc(1, sizeof *plan);
    assert_non_null(plan);
    plan->problem = f->problem;
    plan->impl = impl;
    attn__machine_detect(&plan->machine);
    plan->machine.threads = 1;
    plan->machine.isa &= ~f->isa_without;
    assert_int_equal(impl->prepare(plan, NULL), ATTN_OK);
    *workspace = aligned_alloc(ATTN_WORKSPACE_ALIGNMENT,
                               plan->workspace / ATTN_WORKSPACE_ALIGNMENT * ATTN_WORKSPACE_ALIGNMENT + 128);
    assert_non_null(*workspace);
    memset(*workspace, 0xff, plan->workspace);
    return plan;
}

/* delta_i = <dout_i, o_i>, where the feature gives it. */
static inline void give_delta(fixture *f) {
    const int64_t heads = f->problem.heads_q, dim = f->problem.dim_v;
    for (int64_t row = 0; row < rows_of(f, false) && f->args.delta; row++) {
        for (int64_t h = 0; h < heads; h++) {
            double delta = 0;
            for (int64_t d = 0; d < dim; d++) {
                int64_t at = index_of(f, false, row, h, heads, dim) + d;
                delta += get(f, O, at) * get(f, DOUT, at);
            }
            put(f, DELTAS, index_of(f, false, row, h, heads, 1), delta);
        }
    }
}

static inline void run_passes(fixture *f, const attn__impl *impl, bool backward) {
    void *workspace;
    attn_plan *plan = plan_make(f, impl, &workspace);
    assert_int_equal(impl->forward(plan, &f->args, workspace, NULL, NULL), ATTN_OK);
    if (backward) {
        attn_args args = f->args;
        give_delta(f);
        args.o = args.delta ? NULL : args.o;
        assert_int_equal(impl->backward(plan, &args, workspace, NULL, NULL), ATTN_OK);
    }
    free(workspace);
    free(plan);
}

static inline bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

#endif
