/* SPDX-License-Identifier: Apache-2.0 */
#include "support/published.h"

typedef struct formula {
    const trial *trial;
    tensor_id id;
    uint32_t tag;
} formula;

static double by_formula(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    const formula *f = context;
    const attn_problem *p = &f->trial->problem;
    bool kv = f->id == T_K || f->id == T_V;
    const trial_side *side = &f->trial->side[kv];
    if (side->rows != ATTN_DENSE) {
        return case_x(f->tag, trial_index(f->trial, f->id, sequence, head, position, dim));
    }
    int64_t heads = kv ? p->heads_kv : p->heads_q, dims = f->id == T_Q || f->id == T_K ? p->dim_qk : p->dim_v;
    return case_x(f->tag, ((sequence * heads + head) * side->tokens + position) * dims + dim);
}

void published_fill(trial *t) {
    static const tensor_id ids[] = {T_Q, T_K, T_V, T_DOUT};
    for (uint32_t n = 0; n < 4; n++) {
        formula f = {t, ids[n], n + 1};
        trial_set(t, ids[n], by_formula, &f);
    }
}

trial *published_trial(attn_dtype dtype, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t tokens_q,
                       int64_t tokens_kv, int64_t dim_qk, int64_t dim_v) {
    trial *t = trial_create(dtype, batch, heads_q, heads_kv, tokens_q, tokens_kv, dim_qk, dim_v);
    published_fill(t);
    return t;
}

void published_constant(trial *t, tensor_id id, double value) {
    double *values = trial_values(t, id);
    for (int64_t i = 0, count = trial_size(t, id); i < count; i++) {
        values[i] = value;
    }
}

attn_dtype published_precision(const char *implementation, attn_dtype dtype) {
    return dtype == ATTN_F32 && !strcmp(implementation, "mma") ? ATTN_F16 : dtype;
}

bool published_rounds_scores(const char *implementation, attn_dtype dtype) {
    bool plain = !strcmp(implementation, "native") || !strcmp(implementation, "cuda_native");
    return plain && (dtype == ATTN_F16 || dtype == ATTN_BF16);
}

double published_tolerance(const char *implementation, attn_dtype dtype, tensor_id id, double value) {
    double size = fabs(value) > 1 && isfinite(value) ? fabs(value) : 1;
    bool rounds = published_rounds_scores(implementation, dtype);
    dtype = published_precision(implementation, dtype);
    double tolerance = dtype == ATTN_F64 ? 2e-8 : dtype == ATTN_F32 ? 2e-5 : dtype == ATTN_F16 ? 2e-3 : 1.6e-2;
    if (id == T_LSE && dtype != ATTN_F64 && !rounds) {
        tolerance = dtype == ATTN_F32 ? 1e-5 : 1e-4;
    }
    return size * tolerance * (id >= T_DQ ? 5 : 1);
}
