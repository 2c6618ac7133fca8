/* SPDX-License-Identifier: Apache-2.0
 * What scheduling (src/cpu) and kernels (src/cpu/kernels) share: query rows as lanes, tasks, the table of kernels.
 *
 * A block is up to ATTN__BLOCK query rows. Each row is a lane of the kernels' vectors; a row knows its head, so one
 * block may hold rows of all the query heads that share a kv head. */
#ifndef ATTN_CPU_CPU_H
#define ATTN_CPU_CPU_H

#include "base/philox.h"
#include "plan/plan.h"
#include "problem/problem.h"

#define ATTN__BLOCK      64
#define ATTN__MAX_BLOCKS 4  /* blocks a task carries along the keys, to share one converted key block */
#define ATTN__FEW        16 /* rows up to which lanes run along the head dimension instead */

typedef struct attn__lanes {
    int count;         /* lanes in use; the others repeat lane 0 and are never stored */
    int32_t low, high; /* least and greatest `shifted` */
    int64_t sequence;
    int64_t row[ATTN__BLOCK]; /* in the buffers of q, o, lse ... */
    int32_t head[ATTN__BLOCK];
    int32_t position[ATTN__BLOCK]; /* i, inside the sequence */
    int32_t shifted[ATTN__BLOCK];  /* i' */
} attn__lanes;

/* What does not change within one run. */
typedef struct attn__run {
    const attn_plan *plan;
    const attn_problem *problem;
    const attn_args *args;
    attn__side q, kv;
    attn__dropout_key dropout;
    char *workspace;
} attn__run;

/* Query rows that share their keys: rows [row_begin, row_end) of the list (head, row of the segment), heads outer. */
typedef struct attn__query_rows {
    attn_segment segment;
    int64_t shift; /* i' - i */
    int64_t head_first, heads;
    int64_t row_begin, row_end;
} attn__query_rows;

void attn__lanes_fill(attn__lanes *lanes, const attn__query_rows *rows, int64_t first);

/* Tasks (or blocks) of segments are numbered one segment after another: the segment of `task`, from the numbers
 * before each, prefix[segments + 1]. */
int64_t attn__prefix_find(const int64_t *prefix, int64_t segments, int64_t task);
/* Keys that are here, over all segments of the sequence. */
int64_t attn__sequence_keys(const attn__side *kv, int64_t sequence);

/* Offset in elements of (sequence, head, row) in a tensor addressed by row. */
static inline int64_t attn__row_offset(const attn_layout *layout, int64_t sequence, int64_t head, int64_t row) {
    return sequence * layout->stride[0] + head * layout->stride[1] + row * layout->stride[2];
}
static inline int64_t attn__lane_offset(const attn_layout *layout, const attn__lanes *lanes, int lane) {
    return attn__row_offset(layout, lanes->sequence, lanes->head[lane], lanes->row[lane]);
}

/* Forward of query_rows against keys [key_begin, key_end), counted along the sequence's key segments. */
typedef struct attn__forward_task {
    const attn__run *run;
    attn__query_rows rows;
    int64_t head_kv; /* few_rows: the first of choice.few_heads; `rows` are the first one's */
    int64_t key_begin, key_end;
    float *partial; /* NULL: write o and lse; else leave the state of each block here (attn__state_floats each) */
    bool with_sink; /* the sink counts in one part only */
} attn__forward_task;

/* The state of one block: per lane the reference m (log2 units) and the sum l, then o transposed [dim_v][lanes]. */
static inline int64_t attn__state_floats(const attn_problem *problem) {
    return ATTN__BLOCK * (problem->dim_v + 2);
}

/* The state of few rows: m [16], l [16], o [16][dim_v rounded up to 16]. */
static inline int64_t attn__few_state_floats(const attn_problem *problem) {
    return ATTN__FEW * (2 + ((problem->dim_v + 15) & ~(int64_t)15));
}

/* Floats that one task leaves as a partial result. */
static inline int64_t attn__task_state_floats(const attn_plan *plan) {
    int64_t blocks = (plan->choice.block_q + ATTN__BLOCK - 1) / ATTN__BLOCK;
    return plan->choice.few_rows ? plan->choice.few_heads * attn__few_state_floats(&plan->problem)
                                 : blocks * attn__state_floats(&plan->problem);
}

/* --- Backward: a chunk of the keys of one (sequence, kv head), against all its query rows --- */

typedef struct attn__backward_task {
    const attn__run *run;
    int64_t sequence, head_kv;
    int64_t key_begin, key_end; /* counted along the sequence's key segments */
    const int64_t *prefix;      /* [query segments + 1]: row blocks before each segment */
    float *partials;            /* dq of each row block [ATTN__BLOCK * dim_qk]; NULL: dq is complete here */
} attn__backward_task;

/* Keys of one chunk of a sequence with `keys` keys: whole blocks. */
static inline int64_t attn__chunk_keys(const attn__choice *choice, int64_t keys) {
    int64_t blocks = (keys + choice->block_kv - 1) / choice->block_kv;
    return (blocks + choice->splits - 1) / choice->splits * choice->block_kv;
}
/* Sets the task's keys to those of chunk number `chunk`. */
void attn__backward_chunk(attn__backward_task *task, int64_t chunk);

/* Query rows come in lists: the rows of choice.group query heads of one segment. */
static inline int64_t attn__kv_head_lists(const attn_plan *plan) {
    return plan->problem.heads_q / plan->problem.heads_kv / plan->choice.group;
}
static inline int64_t attn__block_count(int64_t rows) {
    return (rows + ATTN__BLOCK - 1) / ATTN__BLOCK;
}
attn__query_rows attn__query_list(const attn__run *run, int64_t segment, int64_t list);

/* A part of dbias: element (batch, head) of its own extents, positions [row_begin, row_end) x [key_begin, key_end),
 * summed over all (sequence, head, row, key) that share it. */
typedef struct attn__dbias_task {
    const attn__run *run;
    int64_t batch, head;
    int64_t row_begin, row_end, key_begin, key_end;
} attn__dbias_task;

typedef struct attn__forward_body {
    /* Bytes of scratch one thread needs. */
    size_t (*scratch)(const attn_plan *plan);
    void (*run)(const attn__forward_task *task, void *scratch);
    /* Merges `parts` states of the same rows (few_rows: of one kv head), part p at states + p * part_stride, in order;
     * writes o and lse. */
    void (*finish)(const attn__forward_task *task, float *states, int64_t part_stride, int64_t parts);
} attn__forward_body;

typedef struct attn__backward_body {
    size_t (*scratch)(const attn_plan *plan);
    void (*run)(const attn__backward_task *task, void *scratch);
    /* dq of row block `block`, with which `query` begins, from the parts of all chunks. */
    void (*finish)(attn__backward_task task, const attn__query_rows *query, int64_t block, int64_t partial_stride,
                   void *scratch);
} attn__backward_body;

typedef struct attn__sums_body {
    size_t (*scratch)(const attn_plan *plan);
    void (*dbias)(const attn__dbias_task *task, void *scratch);
    /* Gradient of one head's sink, over all rows in order. */
    double (*dsink)(const attn__run *run, int64_t head, void *scratch);
} attn__sums_body;

/* Sets share bodies: what one adds takes only the problems it serves, the rest goes as in the set it adds to. */
typedef struct attn__kernels {
    const attn__forward_body *forward, *few; /* few: choice.few_rows */
    const attn__backward_body *backward;
    const attn__sums_body *sums;
    /* choice.pairs: all tensors that are read are bf16. May be NULL. */
    const attn__forward_body *forward_pairs;
    const attn__backward_body *backward_pairs;
    bool pairs_first; /* forward_pairs is the fastest here; otherwise the machine's facts or a wish decide */
} attn__kernels;

static inline const attn__forward_body *attn__forward_body_of(const attn__kernels *kernels, const attn__choice *c) {
    return c->few_rows ? kernels->few : c->pairs ? kernels->forward_pairs : kernels->forward;
}
static inline const attn__backward_body *attn__backward_body_of(const attn__kernels *kernels, const attn__choice *c) {
    return c->pairs ? kernels->backward_pairs : kernels->backward;
}

extern const attn__kernels attn__kernels_generic, attn__kernels_avx2, attn__kernels_avx512, attn__kernels_avx512bf16,
    attn__kernels_amx, attn__kernels_neon;
extern const attn__forward_body attn__forward_avx512, attn__few_avx512;
extern const attn__backward_body attn__backward_avx512;
extern const attn__sums_body attn__sums_avx512;

attn_status attn__cpu_prepare(attn_plan *plan, attn_error *error);
attn_status attn__cpu_forward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                              attn_error *error);
attn_status attn__cpu_backward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                               attn_error *error);

#endif
