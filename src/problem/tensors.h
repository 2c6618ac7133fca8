/* SPDX-License-Identifier: Apache-2.0
 * One table of the tensors of a problem: where their layout lies in attn_problem, what shape and type they have, what
 * an unset layout means. Defaults, checks, text form and byte counts all walk this table, so a new tensor is a row. */
#ifndef ATTN_PROBLEM_TENSORS_H
#define ATTN_PROBLEM_TENSORS_H

#include <stdbool.h>
#include <stddef.h>

#include "attn/attn.h"

typedef enum attn__shape {
    ATTN__SHAPE_Q,      /* [batch, heads_q,  token of q,  dim_qk] */
    ATTN__SHAPE_O,      /* [batch, heads_q,  token of q,  dim_v ] */
    ATTN__SHAPE_K,      /* [batch, heads_kv, token of kv, dim_qk] */
    ATTN__SHAPE_V,      /* [batch, heads_kv, token of kv, dim_v ] */
    ATTN__SHAPE_LSE,    /* [batch, heads_q,  token of q] */
    ATTN__SHAPE_SCORES, /* [sequence, heads_q, i, j] */
    ATTN__SHAPE_ALIBI,  /* [sequence, heads_q] */
    ATTN__SHAPE_SINK    /* [heads_q], along stride[1] */
} attn__shape;

typedef enum attn__type_rule {
    ATTN__TYPE_FLOAT,    /* any float type */
    ATTN__TYPE_Q,        /* q's */
    ATTN__TYPE_Q_OR_F32, /* q's or f32; f64 only with q in f64 */
    ATTN__TYPE_BIAS,     /* q's or f32 */
    ATTN__TYPE_STAT,     /* f32; f64 with q in f64 */
    ATTN__TYPE_MASK      /* u8 */
} attn__type_rule;

typedef enum attn__unset {
    ATTN__UNSET_REFUSED,
    ATTN__UNSET_ABSENT,
    ATTN__UNSET_PLAIN,  /* contiguous, in the type its rule prefers */
    ATTN__UNSET_PARTNER /* like another tensor, which may be absent itself */
} attn__unset;

typedef struct attn__tensor {
    const char *name;
    size_t layout, partner; /* offsets in attn_problem */
    attn__shape shape;
    attn__type_rule type;
    attn__unset unset;
    bool backward; /* read only when the pass is backward */
    int written;   /* bit 1 << pass */
} attn__tensor;

enum { ATTN__TENSORS = 15 };
extern const attn__tensor attn__tensors[ATTN__TENSORS];

static inline attn_layout *attn__tensor_layout(attn_problem *problem, const attn__tensor *tensor) {
    return (attn_layout *)(void *)((char *)problem + tensor->layout);
}
static inline const attn_layout *attn__tensor_layout_const(const attn_problem *problem, const attn__tensor *tensor) {
    return (const attn_layout *)(const void *)((const char *)problem + tensor->layout);
}

/* How the side that the tensor belongs to lies in its buffers. */
attn_rows attn__tensor_rows(const attn_problem *problem, const attn__tensor *tensor);
/* Segments: do the sequences of a side lie in one run of rows, so that none may be listed in two of them? They do if a
 * tensor that the pass writes there has a batch stride of 0, or the side's q or k, by which kernels count rows. */
bool attn__rows_shared(const attn_problem *problem, bool kv);
/* Extents in the order of strides; axes whose stride is never read have extent 1 and count as absent in *read
 * (bit 1 << axis). */
void attn__tensor_extents(const attn_problem *problem, const attn__tensor *tensor, int64_t extent[4], unsigned *read);
/* The type an unset layout gets, and the sentence part that names the legal ones. */
attn_dtype attn__tensor_default_type(const attn_problem *problem, const attn__tensor *tensor);
bool attn__tensor_type_legal(const attn_problem *problem, const attn__tensor *tensor, attn_dtype dtype);
const char *attn__tensor_type_text(const attn_problem *problem, const attn__tensor *tensor);
/* Strides of the plain contiguous layout ([batch, token, head, dim]; packed [total, head, dim]; [batch, head, token]
 * and [total] by head for lse; [sequence, head, i, j]; [head] for alibi and sink), or with `heads_first` of
 * [batch, head, token, dim]. False if they pass 63 bits. */
bool attn__tensor_plain(const attn_problem *problem, const attn__tensor *tensor, bool heads_first, int64_t stride[4]);

/* The layout that an unset or partly told one takes: its partner's, or the plain one; partners must be resolved.
 * False if plain strides pass 63 bits. */
bool attn__tensor_normal(const attn_problem *problem, const attn__tensor *tensor, attn_layout *normal);

#endif
