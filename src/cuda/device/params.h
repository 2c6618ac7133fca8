/* SPDX-License-Identifier: Apache-2.0
 * What every kernel is given: one plain struct, the same bytes on host and device. Included by host C and by device
 * code, so it names no type of either; sizes are asserted on both sides. Constants (types, head sizes, features) are
 * not here: they are compiled in. */
#ifndef ATTN_CUDA_PARAMS_H
#define ATTN_CUDA_PARAMS_H

typedef long long attn__i64;
typedef unsigned long long attn__u64;

/* A tensor: address and strides in elements: batch, head, token, dim (scores: sequence, head, i, j). */
typedef struct attn__tensor_ref {
    void *data;
    attn__i64 stride[4];
} attn__tensor_ref;

/* As attn_segment of the public header. */
typedef struct attn__segment_ref {
    attn__i64 first, rows, position, sequence;
} attn__segment_ref;

typedef struct attn__side_ref {
    const int *cu;      /* packed: [batch + 1] */
    const int *used;    /* [batch] or NULL */
    const int *lengths; /* segments: [batch] */
    const attn__segment_ref *segments;
    int n_segments;
    int tokens;      /* the problem's bound: longest sequence */
    attn__i64 total; /* packed, segments: rows of the buffers */
} attn__side_ref;

/* Bits of `aligned`: the tensor's address and strides allow 16-byte accesses along dim (stride[3] is 1). */
enum {
    ATTN__ALIGNED_Q = 1,
    ATTN__ALIGNED_K = 2,
    ATTN__ALIGNED_V = 4,
    ATTN__ALIGNED_O = 8,
    ATTN__ALIGNED_DOUT = 16,
    ATTN__ALIGNED_DQ = 32,
    ATTN__ALIGNED_DK = 64,
    ATTN__ALIGNED_DV = 128
};

typedef struct attn__params {
    attn__tensor_ref q, k, v, o, lse, bias, mask, alibi, sink;
    attn__tensor_ref dout, dq, dk, dv, dlse, delta, dbias, dsink;
    attn__side_ref side_q, side_kv;
    attn__i64 first_tile; /* of this launch, when a grid is too long for one */
    attn__i64 tiles;      /* in all */
    int batch, heads_q, heads_kv;
    int group;  /* heads_q / heads_kv */
    int splits; /* parts of the keys */
    /* Band. left, right: -1 unlimited. globals: far below every position when there are none. */
    int top_left; /* 1: i' = i */
    attn__i64 left, right, globals;
    float scale, softcap;
    /* Dropout: keep if word >= threshold; kept probabilities are multiplied by keep_scale. */
    unsigned threshold;
    float keep_scale;
    attn__u64 seed, offset;
    const attn__u64 *device_seed; /* not NULL: seed and offset are read from here */
    attn__i64 head_first, batch_first;
    /* Written by the check of device lengths; a kernel that finds it other than 0 writes nothing. NULL: not needed. */
    int *status;
    unsigned aligned;
    int accumulate;                 /* backward adds to its outputs */
    float *partial_o, *partial_lse; /* splits: [split][row] ... */
    float *dq_sum;                  /* float32 accumulator of dq, when it has one */
    void *scores, *extra;
} attn__params;

#endif
