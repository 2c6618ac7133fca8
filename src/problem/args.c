/* SPDX-License-Identifier: Apache-2.0
 * The data of one call against the canonical problem: which pointers are there, and whether lengths stay inside the
 * buffers that the problem promised. Reads only the lengths; tensors are not touched. Lengths in device memory are
 * checked there, so of these only the pointers and the numbers of segments are looked at.
 *
 * Cost: linear in sequences and segments. A list of segments that does not ascend is compared pair by pair to find
 * rows or positions given twice. */
#include <inttypes.h>
#include <stdio.h>
#include <stdbool.h>

#include "base/error.h"
#include "problem/problem.h"
#include "problem/tensors.h"

enum { FIELD = 64 }; /* longer than attn_error.field, which cuts */

/* --- Pointers --- */

static attn_status check_pointer(const char *field, const void *pointer, bool wanted, bool optional, size_t size,
                                 attn_error *error) {
    if (!pointer) {
        return wanted && !optional ? attn__fail(error, ATTN_ERR_INVALID, field, "is NULL, but the problem needs it")
                                   : ATTN_OK;
    }
    if (!wanted) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is set, must be NULL: the problem has no such data");
    }
    if ((uintptr_t)pointer % size) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is %p, must be a multiple of its element size %zu", pointer,
                          size);
    }
    return ATTN_OK;
}

static bool has_elements(const attn_problem *problem, const attn__tensor *tensor) {
    int64_t extent[4];
    unsigned read;
    attn__tensor_extents(problem, tensor, extent, &read);
    return extent[0] && extent[1] && extent[2] && extent[3];
}

/* The arguments beside the table of tensors, in its order. */
static void tensor_pointers(const attn_args *a, const void *pointers[ATTN__TENSORS]) {
    const void *all[ATTN__TENSORS] = {a->q,    a->k,    a->v,  a->o,  a->lse, a->bias, a->mask, a->alibi,
                                      a->sink, a->dout, a->dq, a->dk, a->dv,  a->dlse, a->dbias};
    for (int n = 0; n < ATTN__TENSORS; n++) {
        pointers[n] = all[n];
    }
}

static bool is_optional(const attn_problem *p, const attn_args *a, const attn__tensor *tensor) {
    if (tensor->layout == offsetof(attn_problem, lse)) {
        return p->pass == ATTN_FORWARD;
    }
    if (tensor->layout == offsetof(attn_problem, o)) {
        return p->pass == ATTN_BACKWARD && a->delta;
    }
    return tensor->backward && tensor->layout != offsetof(attn_problem, dout);
}

static attn_status check_tensors(const attn_problem *p, const attn_args *a, attn_error *error) {
    const void *pointers[ATTN__TENSORS];
    tensor_pointers(a, pointers);
    for (int n = 0; n < ATTN__TENSORS; n++) {
        const attn__tensor *tensor = &attn__tensors[n];
        attn_dtype dtype = attn__tensor_layout_const(p, tensor)->dtype;
        if (tensor->backward && p->pass == ATTN_FORWARD) {
            continue;
        }
        if (dtype == ATTN_NONE && !pointers[n]) { /* every run comes here: most tensors are absent */
            continue;
        }
        bool optional = pointers[n] || is_optional(p, a, tensor) || !has_elements(p, tensor);
        attn_status status = check_pointer(tensor->name, pointers[n], dtype != ATTN_NONE, optional,
                                           dtype == ATTN_NONE ? 1 : attn_dtype_size(dtype), error);
        if (status) {
            return status;
        }
    }
    return ATTN_OK;
}

static attn_status check_backward(const attn_problem *p, const attn_args *a, attn_error *error) {
    size_t stat = attn_dtype_size(p->lse.dtype);
    attn_status status = check_pointer("delta", a->delta, true, true, stat, error);
    status = status ? status : check_pointer("dsink", a->dsink, p->sink.dtype != ATTN_NONE, true, stat, error);
    if (status) {
        return status;
    }
    if (a->dsink && p->sink.stride[1] == 0 && p->heads_q > 1) {
        return attn__fail(error, ATTN_ERR_INVALID, "dsink",
                          "is set, but sink.stride[1] is 0: an output cannot be broadcast");
    }
    bool empty = !p->batch || !p->heads_q || !(p->tokens_q || p->tokens_kv);
    if (!a->dq && !a->dk && !a->dv && !a->dbias && !a->dsink && !empty) {
        return attn__fail(error, ATTN_ERR_INVALID, "dq", "is NULL as all outputs are, at least one must be set");
    }
    return ATTN_OK;
}

/* --- Lengths --- */

typedef struct side_args {
    const char *suffix; /* "q", "kv" */
    attn__side side;
    const int32_t *cu, *used, *lengths; /* as given */
    bool has_used, written;             /* written: this side's rows are outputs */
    bool on_device;                     /* the arrays of lengths are not to be read here */
    int64_t total, most;                /* rows of the buffer, most segments */
    bool shared;                        /* sequences lie in one run of rows */
} side_args;

static const char *field_of(const side_args *s, const char *name, int64_t index, const char *member,
                            char field[FIELD]) {
    if (index < 0) {
        snprintf(field, FIELD, "%s_%s", name, s->suffix);
    } else {
        snprintf(field, FIELD, "%s_%s[%" PRId64 "]%s", name, s->suffix, index, member);
    }
    return field;
}

static attn_status check_length(const side_args *s, const char *name, int64_t index, const char *member, int64_t value,
                                int64_t high, const char *limit, attn_error *error) {
    char field[FIELD];
    if (value >= 0 && value <= high) {
        return ATTN_OK;
    }
    field_of(s, name, index, member, field);
    if (value < 0) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is %" PRId64 ", must be at least 0", value);
    }
    return attn__fail(error, ATTN_ERR_INVALID, field, "is %" PRId64 ", must be at most %s = %" PRId64, value, limit,
                      high);
}

/* Every run comes here, so a field is spelled only for a message. */
static attn_status check_array(const side_args *s, const char *name, const void *pointer, bool wanted, bool optional,
                               size_t size, attn_error *error) {
    char field[FIELD];
    if (pointer ? wanted && (uintptr_t)pointer % size == 0 : !wanted || optional) {
        return ATTN_OK;
    }
    return check_pointer(field_of(s, name, -1, "", field), pointer, wanted, optional, size, error);
}

static attn_status check_presence(const side_args *s, attn_error *error) {
    bool packed = s->side.rows == ATTN_PACKED, segments = s->side.rows == ATTN_SEGMENTS, any = s->side.batch > 0;
    attn_status status = check_array(s, "cu_seqlens", s->cu, packed, !any, sizeof(int32_t), error);
    status = status ? status : check_array(s, "used", s->used, s->has_used, !any, sizeof(int32_t), error);
    status = status ? status : check_array(s, "lengths", s->lengths, segments, !any, sizeof(int32_t), error);
    return status ? status
                  : check_array(s, "segments", s->side.segments, segments, s->side.n_segments == 0, sizeof(int64_t),
                                error);
}

static attn_status check_cu(const side_args *s, attn_error *error) {
    const int32_t *cu = s->cu;
    char field[FIELD];
    if (s->side.rows != ATTN_PACKED || !cu) {
        return ATTN_OK;
    }
    if (cu[0] != 0) {
        return attn__fail(error, ATTN_ERR_INVALID, field_of(s, "cu_seqlens", 0, "", field), "is %" PRId32 ", must be 0",
                          cu[0]);
    }
    for (int64_t n = 0; n < s->side.batch; n++) {
        if (cu[n + 1] < cu[n]) {
            return attn__fail(error, ATTN_ERR_INVALID, field_of(s, "cu_seqlens", n + 1, "", field),
                              "is %" PRId32 ", must be at least the offset before it, %" PRId32, cu[n + 1], cu[n]);
        }
        if ((int64_t)cu[n + 1] - cu[n] > s->side.tokens) {
            return attn__fail(error, ATTN_ERR_INVALID, field_of(s, "cu_seqlens", n + 1, "", field),
                              "is %" PRId32 ", makes sequence %" PRId64 " %" PRId64
                              " long, must be at most tokens_%s = %" PRId64,
                              cu[n + 1], n, (int64_t)cu[n + 1] - cu[n], s->suffix, s->side.tokens);
        }
        if (cu[n + 1] > s->total) {
            return attn__fail(error, ATTN_ERR_INVALID, field_of(s, "cu_seqlens", n + 1, "", field),
                              "is %" PRId32 ", must be at most total_%s = %" PRId64, cu[n + 1], s->suffix, s->total);
        }
    }
    return ATTN_OK;
}

static attn_status check_used(const side_args *s, attn_error *error) {
    for (int64_t n = 0; s->has_used && s->used && n < s->side.batch; n++) {
        bool packed = s->side.rows == ATTN_PACKED;
        int64_t slot = packed ? (int64_t)s->cu[n + 1] - s->cu[n] : s->side.tokens;
        attn_status status = check_length(s, "used", n, "", s->used[n], slot,
                                          packed ? "the sequence's slot" : "the tokens of a slot", error);
        if (status) {
            return status;
        }
    }
    return ATTN_OK;
}

/* --- Segments --- */

static attn_status check_segment(const side_args *s, int64_t n, attn_error *error) {
    attn_segment g = s->side.segments[n];
    int64_t length = 0;
    const char *total = s->suffix[0] == 'q' ? "total_q" : "total_kv";
    attn_status status = check_length(s, "segments", n, ".sequence", g.sequence, s->side.batch - 1, "batch - 1", error);
    status = status ? status : check_length(s, "segments", n, ".first", g.first, s->total, total, error);
    if (!status) {
        length = s->lengths[g.sequence];
        status = check_length(s, "segments", n, ".rows", g.rows, s->total - g.first, "the rows behind first", error);
    }
    status = status ? status
                    : check_length(s, "segments", n, ".position", g.position, length, "the sequence's length", error);
    return status ? status
                  : check_length(s, "segments", n, ".rows", g.rows, length - g.position,
                                 "what the sequence's length leaves", error);
}

static bool meet(int64_t a, int64_t b, int64_t a_rows, int64_t b_rows) {
    return a < b + b_rows && b < a + a_rows && a_rows > 0 && b_rows > 0;
}

static attn_status compare_segments(const side_args *s, int64_t a, int64_t b, attn_error *error) {
    const attn_segment *x = &s->side.segments[a], *y = &s->side.segments[b];
    bool same = x->sequence == y->sequence;
    char field[FIELD];
    if (same && meet(x->position, y->position, x->rows, y->rows)) {
        return attn__fail(error, ATTN_ERR_INVALID, field_of(s, "segments", b, ".position", field),
                          "is %" PRId64 ", covers positions that segment %" PRId64 " holds already", y->position, a);
    }
    if (s->written && (same || s->shared) && meet(x->first, y->first, x->rows, y->rows)) {
        return attn__fail(error, ATTN_ERR_INVALID, field_of(s, "segments", b, ".first", field),
                          "is %" PRId64 ", covers rows of an output that segment %" PRId64 " holds already", y->first,
                          a);
    }
    return ATTN_OK;
}

/* Does segment n lie behind everything before it, in rows and in the positions of its sequence? `rows` and `position`
 * are the ends so far. */
static bool ascends(const attn_segment *list, int64_t n, int64_t *rows, int64_t *position) {
    const attn_segment *g = &list[n];
    bool fresh = n == 0 || list[n - 1].sequence != g->sequence;
    bool behind = g->first >= *rows && (fresh || g->position >= *position);
    *rows = g->first + g->rows > *rows ? g->first + g->rows : *rows;
    *position = fresh || g->position + g->rows > *position ? g->position + g->rows : *position;
    return behind;
}

static attn_status check_count(const side_args *s, attn_error *error) {
    int64_t count = s->side.n_segments;
    char field[FIELD];
    if (s->side.rows != ATTN_SEGMENTS || (count >= 0 && count <= s->most)) {
        return ATTN_OK;
    }
    snprintf(field, sizeof field, "n_segments_%s", s->suffix);
    return attn__fail(error, ATTN_ERR_INVALID, field,
                      "is %" PRId64 ", must be at least 0 and at most segments_%s = %" PRId64, count, s->suffix,
                      s->most);
}

static attn_status check_segments(const side_args *s, attn_error *error) {
    const attn_segment *list = s->side.segments;
    int64_t count = s->side.n_segments, rows = 0, position = 0;
    const char *limit = s->suffix[0] == 'q' ? "tokens_q" : "tokens_kv";
    char field[FIELD];
    if (s->side.rows != ATTN_SEGMENTS) {
        return ATTN_OK;
    }
    for (int64_t n = 0; n < s->side.batch; n++) {
        attn_status status = check_length(s, "lengths", n, "", s->lengths[n], s->side.tokens, limit, error);
        if (status) {
            return status;
        }
    }
    for (int64_t n = 0; n < count; n++) {
        attn_status status = check_segment(s, n, error);
        if (!status && n && list[n].sequence < list[n - 1].sequence) {
            status = attn__fail(error, ATTN_ERR_INVALID, field_of(s, "segments", n, ".sequence", field),
                                "is %" PRId64 ", must be at least that of the segment before it, %" PRId64,
                                list[n].sequence, list[n - 1].sequence);
        }
        if (!status && !ascends(list, n, &rows, &position)) {
            for (int64_t m = 0; m < n && !status; m++) {
                status = compare_segments(s, m, n, error);
            }
        }
        if (status) {
            return status;
        }
    }
    return ATTN_OK;
}

static attn_status check_side(const side_args *s, attn_error *error) {
    if (s->side.rows == ATTN_DENSE && !s->has_used && !s->cu && !s->used && !s->lengths && !s->side.segments) {
        return ATTN_OK; /* the plain case, in every run of it */
    }
    attn_status status = check_presence(s, error);
    status = status ? status : check_count(s, error);
    if (status || s->on_device) {
        return status;
    }
    status = check_cu(s, error);
    status = status ? status : check_used(s, error);
    return status ? status : check_segments(s, error);
}

/* Words in device memory: the status that the check of lengths there sets, and dropout's seed. A seed that does not
 * count may be given, as long as dropout is 0: evaluation runs with the arguments of training. */
static attn_status check_words(const attn_problem *p, const attn_args *a, attn_error *error) {
    bool lengths = p->flags & ATTN_DEVICE_LENGTHS, seed = p->flags & ATTN_DEVICE_SEED;
    attn_status status = check_pointer("status", a->status, lengths, false, sizeof(int32_t), error);
    return status || (p->dropout == 0 && !seed)
               ? status
               : check_pointer("device_seed", a->device_seed, seed, false, sizeof(uint64_t), error);
}

/* Dropout counts heads and sequences in 32 bits. */
static attn_status check_first(const char *field, int64_t first, int64_t count, attn_error *error) {
    int64_t most = ((int64_t)1 << 32) - count;
    if (first < 0 || first > most) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is %" PRId64 ", must be at least 0 and at most %" PRId64,
                          first, most);
    }
    return ATTN_OK;
}

attn_status attn__args_check(const attn_problem *p, const attn_args *in, attn_args *out, attn_error *error) {
    attn_args a;
    if (!in) {
        return attn__fail(error, ATTN_ERR_INVALID, "args", "is NULL");
    }
    attn_status status = attn__struct_minimum(in->struct_size, offsetof(attn_args, bias), error);
    status = status ? status : attn__struct_read(&a, sizeof a, in, in->struct_size, error);
    status = status ? status : check_tensors(p, &a, error);
    if (!status && p->pass == ATTN_BACKWARD) {
        status = check_backward(p, &a, error);
    }
    if (status) {
        return status;
    }
    side_args q = {.suffix = "q",
                   .side = attn__side_q(p, &a),
                   .cu = a.cu_seqlens_q,
                   .used = a.used_q,
                   .lengths = a.lengths_q,
                   .has_used = p->flags & ATTN_USED_Q,
                   .written = true,
                   .total = p->total_q,
                   .most = p->segments_q,
                   .shared = p->rows_q == ATTN_SEGMENTS && attn__rows_shared(p, false)};
    side_args kv = {.suffix = "kv",
                    .side = attn__side_kv(p, &a),
                    .cu = a.cu_seqlens_kv,
                    .used = a.used_kv,
                    .lengths = a.lengths_kv,
                    .has_used = p->flags & ATTN_USED_KV,
                    .written = p->pass == ATTN_BACKWARD,
                    .total = p->total_kv,
                    .most = p->segments_kv,
                    .shared = p->rows_kv == ATTN_SEGMENTS && attn__rows_shared(p, true)};
    q.side.segments = a.segments_q;
    kv.side.segments = a.segments_kv;
    q.on_device = kv.on_device = p->flags & ATTN_DEVICE_LENGTHS;
    status = check_side(&q, error);
    status = status ? status : check_side(&kv, error);
    status = status ? status : check_words(p, &a, error);
    status = status ? status : check_first("head_first", a.head_first, p->heads_q, error);
    status = status ? status : check_first("batch_first", a.batch_first, p->batch, error);
    if (status) {
        return status;
    }
    *out = a;
    return attn__succeed(error);
}
