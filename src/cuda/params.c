/* SPDX-License-Identifier: Apache-2.0
 * The kernels' parameter block. What follows from the problem is computed once for a plan; a run adds addresses. */
#include <string.h>

#include "base/philox.h"
#include "cuda/device.h"
#include "problem/problem.h"

static attn__tensor_ref ref_of(const attn_layout *layout) {
    attn__tensor_ref ref = {NULL, {layout->stride[0], layout->stride[1], layout->stride[2], layout->stride[3]}};
    return ref;
}

/* Do extents and strides allow 16-byte accesses along dim, if the address does? A row then holds whole 16-byte pieces,
 * so that none reaches past its end. */
static bool strides_align(const attn_layout *layout, int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
    int64_t elements = layout->dtype ? 16 / (int64_t)attn_dtype_size(layout->dtype) : 0;
    return elements && (dim == 1 || layout->stride[3] == 1) && dim % elements == 0 &&
           (batch <= 1 || layout->stride[0] % elements == 0) && (heads <= 1 || layout->stride[1] % elements == 0) &&
           (rows <= 1 || layout->stride[2] % elements == 0);
}

static unsigned aligned_bits(const attn_problem *p) {
    int64_t rows_q = p->rows_q == ATTN_DENSE ? p->tokens_q : p->total_q;
    int64_t rows_kv = p->rows_kv == ATTN_DENSE ? p->tokens_kv : p->total_kv;
    const struct {
        const attn_layout *layout;
        unsigned bit;
        bool queries, value;
    } tensors[] = {{&p->q, ATTN__ALIGNED_Q, true, false},      {&p->k, ATTN__ALIGNED_K, false, false},
                   {&p->v, ATTN__ALIGNED_V, false, true},      {&p->o, ATTN__ALIGNED_O, true, true},
                   {&p->dout, ATTN__ALIGNED_DOUT, true, true}, {&p->dq, ATTN__ALIGNED_DQ, true, false},
                   {&p->dk, ATTN__ALIGNED_DK, false, false},   {&p->dv, ATTN__ALIGNED_DV, false, true}};
    unsigned bits = 0;
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0]; n++) {
        bool queries = tensors[n].queries;
        if (strides_align(tensors[n].layout, p->batch, queries ? p->heads_q : p->heads_kv, queries ? rows_q : rows_kv,
                          tensors[n].value ? p->dim_v : p->dim_qk)) {
            bits |= tensors[n].bit;
        }
    }
    return bits;
}

/* [batch, heads, rows] in the workspace; sequences share one run of rows where q's do. */
static attn__tensor_ref delta_ref(const attn_problem *p) {
    bool dense = p->rows_q == ATTN_DENSE, apart = dense || p->q.stride[0] != 0;
    int64_t rows = dense ? p->tokens_q : p->total_q;
    attn__tensor_ref ref = {NULL, {apart ? p->heads_q * rows : 0, rows, 1, 0}};
    return ref;
}

size_t attn__cuda_delta_size(const attn_problem *p) {
    attn__tensor_ref ref = delta_ref(p);
    return (size_t)((ref.stride[0] ? p->batch : 1) * p->heads_q * ref.stride[1]) * sizeof(float);
}

void attn__params_of_problem(const attn_plan *plan, attn__params *params, unsigned *aligned) {
    const attn_problem *p = &plan->problem;
    memset(params, 0, sizeof *params);
    params->q = ref_of(&p->q);
    params->k = ref_of(&p->k);
    params->v = ref_of(&p->v);
    params->o = ref_of(&p->o);
    params->lse = ref_of(&p->lse);
    params->bias = ref_of(&p->bias);
    params->mask = ref_of(&p->mask);
    params->alibi = ref_of(&p->alibi);
    params->sink = ref_of(&p->sink);
    params->dout = ref_of(&p->dout);
    params->dq = ref_of(&p->dq);
    params->dk = ref_of(&p->dk);
    params->dv = ref_of(&p->dv);
    params->dlse = ref_of(&p->dlse);
    params->delta = delta_ref(p);
    params->dbias = ref_of(&p->dbias);
    params->dsink = ref_of(&p->sink);
    params->side_q.tokens = (int)p->tokens_q;
    params->side_q.total = p->total_q;
    params->side_kv.tokens = (int)p->tokens_kv;
    params->side_kv.total = p->total_kv;
    params->batch = (int)p->batch;
    params->heads_q = (int)p->heads_q;
    params->heads_kv = (int)p->heads_kv;
    params->group = p->heads_kv ? (int)(p->heads_q / p->heads_kv) : 1;
    params->splits = plan->gpu_choice.splits > 1 ? (int)plan->gpu_choice.splits : 1;
    params->top_left = p->band.corner == ATTN_TOP_LEFT;
    params->left = p->band.left;
    params->right = p->band.right;
    params->globals = p->band.globals;
    params->scale = p->scale;
    params->softcap = p->softcap;
    attn__dropout_key key = attn__dropout_key_make(0, 0, p->dropout);
    params->threshold = key.threshold;
    params->keep_scale = 1.0f / (1.0f - p->dropout);
    params->accumulate = (p->flags & ATTN_ACCUMULATE) != 0;
    *aligned = aligned_bits(p);
}

static void *span_at(void *workspace, attn__span span) {
    return span.size ? attn__span_at(workspace, span) : NULL;
}

/* Addresses are the device's; the host only passes them on. */
static void *address(const void *pointer) {
    return (void *)(uintptr_t)pointer;
}

static unsigned align_bit(const attn__tensor_ref *ref, unsigned bit) {
    return (uintptr_t)ref->data % 16 == 0 ? bit : 0;
}

static unsigned aligned_addresses(const attn__params *p) {
    return align_bit(&p->q, ATTN__ALIGNED_Q) | align_bit(&p->k, ATTN__ALIGNED_K) | align_bit(&p->v, ATTN__ALIGNED_V) |
           align_bit(&p->o, ATTN__ALIGNED_O) | align_bit(&p->dout, ATTN__ALIGNED_DOUT) |
           align_bit(&p->dq, ATTN__ALIGNED_DQ) | align_bit(&p->dk, ATTN__ALIGNED_DK) |
           align_bit(&p->dv, ATTN__ALIGNED_DV);
}

static void backward_args(const attn_plan *plan, const attn_args *a, void *workspace, attn__params *params) {
    params->dout.data = address(a->dout);
    params->dq.data = a->dq;
    params->dk.data = a->dk;
    params->dv.data = a->dv;
    params->dlse.data = address(a->dlse);
    params->dbias.data = a->dbias;
    params->dsink.data = a->dsink;
    params->delta.data = span_at(workspace, plan->gpu_choice.delta);
    if (a->delta) {
        params->delta = params->dlse;
        params->delta.data = address(a->delta);
    }
    params->dq_sum = span_at(workspace, plan->gpu_choice.dq);
}

void attn__params_of_args(const attn_plan *plan, const attn__cuda_built *built, const attn_args *a, void *workspace,
                          attn__params *params) {
    *params = built->params;
    params->q.data = address(a->q);
    params->k.data = address(a->k);
    params->v.data = address(a->v);
    params->o.data = a->o;
    params->lse.data = a->lse;
    params->bias.data = address(a->bias);
    params->mask.data = address(a->mask);
    params->alibi.data = address(a->alibi);
    params->sink.data = address(a->sink);
    params->seed = a->seed;
    params->offset = a->offset;
    params->device_seed =
        plan->problem.flags & ATTN_DEVICE_SEED ? (const attn__u64 *)(const void *)a->device_seed : NULL;
    params->head_first = a->head_first;
    params->batch_first = a->batch_first;
    params->partial_o = span_at(workspace, plan->gpu_choice.partial_o);
    params->partial_lse = span_at(workspace, plan->gpu_choice.partial_lse);
    params->scores = span_at(workspace, plan->gpu_choice.scores);
    params->extra = span_at(workspace, plan->gpu_choice.extra);
    if (plan->problem.pass == ATTN_BACKWARD) {
        backward_args(plan, a, workspace, params);
    }
    params->aligned = built->aligned & aligned_addresses(params);
}
