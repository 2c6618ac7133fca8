/* SPDX-License-Identifier: Apache-2.0
 * What the files of the plain computation share. One run walks the problem a few times; each walk is a set of tasks:
 * a block of BLOCK query rows (or keys) of one sequence and head. Between the walks scores, probabilities and their
 * gradients lie in the workspace, for all sequences and heads, rounded to q's type.
 *
 * Matrices: element (s, h, n, m) of [batch, heads_q, tokens_q, tokens_kv] belongs to the n-th query row and the m-th
 * key row that sequence s lists. A pair that is hidden is marked by -0.0 in P and in the gradients; no visible pair
 * has that value (it would be stored as +0.0). So a product with rows that hold NaN or inf can leave it out. */
#ifndef ATTN_NATIVE_NATIVE_H
#define ATTN_NATIVE_NATIVE_H

#include <stdbool.h>

#include "base/philox.h"
#include "native/kernels/kernels.h"
#include "plan/plan.h"
#include "problem/problem.h"

enum {
    BLOCK = 96,  /* lines a task: a multiple of every tile's rows */
    DEPTH = 128, /* lines of the other side that are packed at once: a multiple of every tile's columns */
    COLUMNS = 32 /* every tile's columns divide it */
};

/* Rows of one sequence on one side, in the order of its segments. */
typedef struct native_map {
    int64_t count;
    int64_t *row;
    int32_t *position;
    bool consecutive; /* position[n] == position[0] + n */
} native_map;

/* One thread's memory, all of it O(tokens + BLOCK * dim). */
typedef struct native_scratch {
    native_map q, kv;
    float *left, *right; /* panels: BLOCK lines and DEPTH lines, depth up to max(dim, DEPTH) */
    float *c;            /* [BLOCK][width] */
    float *line;         /* one row, widened */
    /* one row of scores */
    float *x;         /* [tokens_kv]: s_ij, -inf where hidden; then probabilities */
    float *slope;     /* derivative of the soft cap */
    float *dp;        /* gradient at the probabilities */
    float *keep;      /* keep_ij / (1 - dropout) */
    float *sum;       /* one row of dbias */
    uint8_t *visible; /* 0 or 1 */
} native_scratch;

typedef struct native_layout {
    attn__span scores, gradients, scratch;
    size_t scratch_each;
} native_layout;

typedef struct native_run {
    const attn_plan *plan;
    const attn_problem *problem;
    const attn_args *args;
    const native_kernels *kernels;
    attn__side q, kv;
    attn__dropout_key dropout;
    char *scores, *gradients; /* the two matrices */
    char *scratch;
    size_t scratch_each;
} native_run;

/* workspace.c */
size_t attn__native_layout(const attn_problem *problem, int threads, native_layout *layout);
native_run attn__native_start(const attn_plan *plan, const attn_args *args, void *workspace);
native_scratch attn__native_scratch(const native_run *run, int thread);
void attn__native_map(const attn__side *side, int64_t s, native_map *map);
/* Row n of sequence s and head h of one of the matrices. */
void *attn__native_matrix(const native_run *run, char *matrix, int64_t s, int64_t h, int64_t n);
/* Element (s, head, row, 0) of a tensor that is addressed by row, as an index. */
int64_t attn__native_index(const attn_layout *layout, const attn__side *side, int64_t s, int64_t head, int64_t row);
/* Reads `n` elements from index on along stride[3]. */
void attn__native_load(const native_run *run, const attn_layout *layout, const void *base, int64_t index, int64_t n,
                       float *to);
/* Stores scale * from, or adds it to what is there. */
void attn__native_store(const native_run *run, const attn_layout *layout, void *base, int64_t index, int64_t n,
                        float scale, bool accumulate, float *from);
void attn__native_store_zeros(const attn_layout *layout, void *base, int64_t index, int64_t n);

/* product.c: matrix products over rows of tensors. */
typedef struct native_rows {
    const attn_layout *layout;
    const void *base;
    const attn__side *side;
    const native_map *map;
    int64_t sequence, head, dim;
} native_rows;
/* matrix[n][m] = scale * <a row n, b row m> for rows [first, first + count) of a and all of b, rounded to q's type. */
void attn__native_scores(const native_run *run, native_scratch *w, char *matrix, int64_t head, const native_rows *a,
                         const native_rows *b, int64_t first, int64_t count, float scale);
/* w->c[n] += sum over m of matrix[first + n][m] * (row m of b); c has attn__native_width(dim) columns. */
void attn__native_mix(const native_run *run, native_scratch *w, char *matrix, int64_t head, const native_rows *b,
                      int64_t first, int64_t count);
/* The same with the matrix transposed: w->c[m] += sum over n of matrix[n][first + m] * (row n of b). */
void attn__native_mix_transposed(const native_run *run, native_scratch *w, char *matrix, int64_t head,
                                 const native_rows *b, int64_t first, int64_t count);
int64_t attn__native_width(int64_t dim);
void attn__native_clear(native_scratch *w, int64_t dim);

/* rows.c: one row of scores. */
typedef struct native_at {
    int64_t s, h, n; /* sequence, head, place in the query map */
    int64_t i;       /* position */
    int64_t row;     /* row of the buffers */
} native_at;
/* x, visible and (with a soft cap) slope from the stored scores; returns the largest x, NaN left out. */
float attn__native_score_row(const native_run *run, native_scratch *w, const native_at *at);
/* keep for all keys; only with dropout. */
void attn__native_keep_row(const native_run *run, native_scratch *w, const native_at *at);
/* Rounds x into row n of a matrix and marks what is hidden. */
void attn__native_put_row(const native_run *run, native_scratch *w, const native_at *at, char *matrix, const float *x);
float attn__native_sink(const native_run *run, int64_t h); /* -inf: none */

void attn__native_forward(const native_run *run);
void attn__native_backward(const native_run *run);

#endif
