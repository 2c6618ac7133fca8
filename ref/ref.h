/* SPDX-License-Identifier: Apache-2.0
 * What the files of the oracle share: row lists, one head's keys in float64, visibility and score of a pair, and the
 * workspace that holds them. */
#ifndef ATTN_REF_INTERNAL_H
#define ATTN_REF_INTERNAL_H

#include <stdbool.h>

#include "attn/attn.h"
#include "base/philox.h"
#include "ref/attn_ref.h"

/* One side of the problem: how its sequences lie in the buffers. */
typedef struct ref_side {
    attn_rows rows;
    int64_t tokens;
    const int32_t *cu, *used, *lengths;
    const attn_segment *segments;
    int64_t n_segments;
} ref_side;

/* A row of the buffers and the position in its sequence that it holds. */
typedef struct ref_row {
    int64_t row, position;
} ref_row;

/* Distinct elements of dbias: extent at most 1 along axes of stride 0. */
typedef struct ref_extent {
    int64_t size[4];
} ref_extent;

typedef struct ref_workspace {
    ref_row *rows_q, *rows_kv; /* [tokens_q], [tokens_kv]: of the sequence at hand */
    double *q, *out;           /* [dim_qk], [dim_v]: of the row at hand */
    double *k, *v;             /* [tokens_kv, dim_qk], [tokens_kv, dim_v]: of the sequence and kv head at hand */
    int64_t *seen;             /* [tokens_kv]: entries of rows_kv that the row sees */
    double *score, *slope;     /* [tokens_kv]: s_ij and its derivative by scale * <q, k>, for each entry of seen */
    /* backward */
    double *dout, *dq; /* [dim_v], [dim_qk] */
    double *dk, *dv;   /* as k and v */
    double *dbias;     /* [extent] */
    double *dsink;     /* [heads_q] */
} ref_workspace;

/* Lays the workspace out from base (NULL: only to measure); returns its bytes, SIZE_MAX on overflow. */
size_t attn__ref_carve(const attn_problem *problem, void *base, ref_workspace *workspace);
ref_extent attn__ref_dbias_extent(const attn_problem *problem);

ref_side attn__ref_side_q(const attn_problem *problem, const attn_args *args);
ref_side attn__ref_side_kv(const attn_problem *problem, const attn_args *args);
/* The true length of sequence s. */
int64_t attn__ref_length(const ref_side *side, int64_t s);
/* Lists the rows that hold tokens of sequence s; returns how many. */
int64_t attn__ref_rows(const ref_side *side, int64_t s, ref_row *list);
/* First and number of rows that belong to s but lie past its used length. */
int64_t attn__ref_padding(const ref_side *side, int64_t s, int64_t *first);

/* Index of element (s, head, row, 0) of a tensor that is addressed by row. */
int64_t attn__ref_index(const attn_layout *layout, const ref_side *side, int64_t s, int64_t head, int64_t row);
/* One row of `dim` elements to or from float64. */
void attn__ref_load_row(const attn_layout *layout, const void *base, int64_t index, int64_t dim, double *to);
void attn__ref_store_row(const attn_layout *layout, void *base, int64_t index, int64_t dim, const double *from,
                         bool accumulate);
void attn__ref_store_zeros(const attn_layout *layout, void *base, int64_t index, int64_t dim);

/* One sequence and query head: everything that a pair's score depends on. */
typedef struct ref_head {
    const attn_problem *problem;
    const attn_args *args;
    int64_t sequence, head, head_kv;
    int64_t length_kv, shift;  /* i' = i + shift */
    double scale, alibi, sink; /* sink: -inf if there is none */
    attn__dropout_key dropout;
} ref_head;

ref_head attn__ref_head(const attn_problem *problem, const attn_args *args, int64_t sequence, int64_t head);
/* The head's keys and values as float64: w->rows_kv tells where they lie. */
void attn__ref_load_keys(const ref_head *at, const ref_side *side, int64_t keys, ref_workspace *w);
/* For query position i and query row w->q: fills seen, score and slope from w->k; returns the number seen. */
int64_t attn__ref_scores(const ref_head *at, int64_t i, int64_t keys, ref_workspace *w);
/* keep_ij / (1 - dropout); 1 without dropout. */
double attn__ref_keep(const ref_head *at, int64_t i, int64_t j);

double attn__ref_dot(const double *a, const double *b, int64_t n);
/* y += a * x */
void attn__ref_add(double *y, double a, const double *x, int64_t n);

#endif
