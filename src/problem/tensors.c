/* SPDX-License-Identifier: Apache-2.0 */
#include "problem/tensors.h"

#include <string.h>

#define AT(name) offsetof(attn_problem, name)
enum { FORWARD = 1 << ATTN_FORWARD, BACKWARD = 1 << ATTN_BACKWARD };

const attn__tensor attn__tensors[ATTN__TENSORS] = {
    {"q", AT(q), 0, ATTN__SHAPE_Q, ATTN__TYPE_FLOAT, ATTN__UNSET_REFUSED, false, 0},
    {"k", AT(k), 0, ATTN__SHAPE_K, ATTN__TYPE_Q, ATTN__UNSET_REFUSED, false, 0},
    {"v", AT(v), 0, ATTN__SHAPE_V, ATTN__TYPE_Q, ATTN__UNSET_REFUSED, false, 0},
    {"o", AT(o), 0, ATTN__SHAPE_O, ATTN__TYPE_Q_OR_F32, ATTN__UNSET_REFUSED, false, FORWARD},
    {"lse", AT(lse), 0, ATTN__SHAPE_LSE, ATTN__TYPE_STAT, ATTN__UNSET_PLAIN, false, FORWARD},
    {"bias", AT(bias), 0, ATTN__SHAPE_SCORES, ATTN__TYPE_BIAS, ATTN__UNSET_ABSENT, false, 0},
    {"mask", AT(mask), 0, ATTN__SHAPE_SCORES, ATTN__TYPE_MASK, ATTN__UNSET_ABSENT, false, 0},
    {"alibi", AT(alibi), 0, ATTN__SHAPE_ALIBI, ATTN__TYPE_STAT, ATTN__UNSET_ABSENT, false, 0},
    {"sink", AT(sink), 0, ATTN__SHAPE_SINK, ATTN__TYPE_STAT, ATTN__UNSET_ABSENT, false, 0},
    {"dout", AT(dout), AT(o), ATTN__SHAPE_O, ATTN__TYPE_Q_OR_F32, ATTN__UNSET_PARTNER, true, 0},
    {"dq", AT(dq), AT(q), ATTN__SHAPE_Q, ATTN__TYPE_Q_OR_F32, ATTN__UNSET_PARTNER, true, BACKWARD},
    {"dk", AT(dk), AT(k), ATTN__SHAPE_K, ATTN__TYPE_Q_OR_F32, ATTN__UNSET_PARTNER, true, BACKWARD},
    {"dv", AT(dv), AT(v), ATTN__SHAPE_V, ATTN__TYPE_Q_OR_F32, ATTN__UNSET_PARTNER, true, BACKWARD},
    {"dlse", AT(dlse), AT(lse), ATTN__SHAPE_LSE, ATTN__TYPE_STAT, ATTN__UNSET_PARTNER, true, 0},
    {"dbias", AT(dbias), AT(bias), ATTN__SHAPE_SCORES, ATTN__TYPE_STAT, ATTN__UNSET_PARTNER, true, BACKWARD},
};

static bool kv_side(attn__shape shape) {
    return shape == ATTN__SHAPE_K || shape == ATTN__SHAPE_V;
}

attn_rows attn__tensor_rows(const attn_problem *problem, const attn__tensor *tensor) {
    return kv_side(tensor->shape) ? problem->rows_kv : problem->rows_q;
}

bool attn__rows_shared(const attn_problem *problem, bool kv) {
    bool shared = (kv ? problem->k : problem->q).stride[0] == 0;
    for (int n = 0; n < ATTN__TENSORS; n++) {
        const attn__tensor *tensor = &attn__tensors[n];
        const attn_layout *layout = attn__tensor_layout_const(problem, tensor);
        bool here = tensor->shape != ATTN__SHAPE_SCORES && kv_side(tensor->shape) == kv;
        shared = shared ||
                 (here && tensor->written & 1 << problem->pass && layout->dtype != ATTN_NONE && layout->stride[0] == 0);
    }
    return shared;
}

void attn__tensor_extents(const attn_problem *problem, const attn__tensor *tensor, int64_t extent[4], unsigned *read) {
    bool kv = kv_side(tensor->shape);
    attn_rows rows = attn__tensor_rows(problem, tensor);
    int64_t tokens = kv ? problem->tokens_kv : problem->tokens_q, total = kv ? problem->total_kv : problem->total_q;
    bool dim_qk = tensor->shape == ATTN__SHAPE_Q || tensor->shape == ATTN__SHAPE_K;
    extent[0] = problem->batch;
    extent[1] = kv ? problem->heads_kv : problem->heads_q;
    extent[2] = rows == ATTN_DENSE ? tokens : total;
    extent[3] = dim_qk ? problem->dim_qk : problem->dim_v;
    *read = rows == ATTN_PACKED ? 0xeu : 0xfu;
    switch (tensor->shape) {
    case ATTN__SHAPE_LSE: *read &= 0x7u; break;
    case ATTN__SHAPE_SCORES:
        extent[2] = problem->tokens_q;
        extent[3] = problem->tokens_kv;
        *read = 0xfu;
        break;
    case ATTN__SHAPE_ALIBI: *read = 0x3u; break;
    case ATTN__SHAPE_SINK: *read = 0x2u; break;
    default: break;
    }
    for (int axis = 0; axis < 4; axis++) {
        if (!(*read & 1u << axis)) {
            extent[axis] = 1;
        }
    }
}

attn_dtype attn__tensor_default_type(const attn_problem *problem, const attn__tensor *tensor) {
    switch (tensor->type) {
    case ATTN__TYPE_MASK: return ATTN_U8;
    case ATTN__TYPE_STAT:
    case ATTN__TYPE_BIAS: return problem->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    default: return problem->q.dtype;
    }
}

bool attn__tensor_type_legal(const attn_problem *problem, const attn__tensor *tensor, attn_dtype dtype) {
    attn_dtype q = problem->q.dtype;
    switch (tensor->type) {
    case ATTN__TYPE_FLOAT: return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16 || dtype == ATTN_F64;
    case ATTN__TYPE_Q: return dtype == q;
    case ATTN__TYPE_Q_OR_F32: return dtype == q || (dtype == ATTN_F32 && q != ATTN_F64);
    case ATTN__TYPE_BIAS: return dtype == q || dtype == ATTN_F32;
    case ATTN__TYPE_STAT: return dtype == (q == ATTN_F64 ? ATTN_F64 : ATTN_F32);
    case ATTN__TYPE_MASK: return dtype == ATTN_U8;
    }
    return false;
}

const char *attn__tensor_type_text(const attn_problem *problem, const attn__tensor *tensor) {
    bool wide = problem->q.dtype == ATTN_F64;
    switch (tensor->type) {
    case ATTN__TYPE_FLOAT: return "f32, f16, bf16 or f64";
    case ATTN__TYPE_Q: return "q's type";
    case ATTN__TYPE_Q_OR_F32: return wide ? "f64 as q is" : "q's type or f32";
    case ATTN__TYPE_BIAS: return "q's type or f32";
    case ATTN__TYPE_STAT: return wide ? "f64 as q is" : "f32";
    case ATTN__TYPE_MASK: return "u8";
    }
    return "?";
}

/* Segments lie in one run of rows for all sequences; the lse has a batch axis if q was given one. */
static bool batch_shares_rows(const attn_problem *problem, const attn__tensor *tensor) {
    if (attn__tensor_rows(problem, tensor) != ATTN_SEGMENTS || tensor->shape == ATTN__SHAPE_SCORES) {
        return false;
    }
    return tensor->shape != ATTN__SHAPE_LSE || problem->q.stride[0] == 0;
}

bool attn__tensor_plain(const attn_problem *problem, const attn__tensor *tensor, bool heads_first, int64_t stride[4]) {
    /* From the innermost axis outwards. */
    static const int token_major[4] = {3, 1, 2, 0}, head_major[4] = {3, 2, 1, 0};
    bool by_head = heads_first || tensor->shape == ATTN__SHAPE_LSE || tensor->shape == ATTN__SHAPE_SCORES;
    const int *order = by_head ? head_major : token_major;
    int64_t extent[4], step = 1;
    unsigned read;
    attn__tensor_extents(problem, tensor, extent, &read);
    if (tensor->shape == ATTN__SHAPE_ALIBI) {
        read = 0x2u; /* plain slopes are [heads_q], the same in every sequence */
    }
    if (batch_shares_rows(problem, tensor)) {
        read &= ~0x1u;
    }
    bool fits = true;
    for (int n = 0; n < 4; n++) {
        int axis = order[n];
        stride[axis] = 0;
        if (read & 1u << axis) {
            stride[axis] = step;
            fits = fits && !__builtin_mul_overflow(step, extent[axis], &step);
        }
    }
    return fits;
}

bool attn__tensor_normal(const attn_problem *problem, const attn__tensor *tensor, attn_layout *normal) {
    if (tensor->unset != ATTN__UNSET_PARTNER) {
        normal->dtype = attn__tensor_default_type(problem, tensor);
        return attn__tensor_plain(problem, tensor, false, normal->stride);
    }
    *normal = *(const attn_layout *)(const void *)((const char *)problem + tensor->partner);
    if (normal->dtype != ATTN_NONE && tensor->type == ATTN__TYPE_STAT) {
        normal->dtype = attn__tensor_default_type(problem, tensor); /* dbias is not in the bias's 16 bits */
    }
    return true;
}
