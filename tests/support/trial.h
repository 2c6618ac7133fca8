/* SPDX-License-Identifier: Apache-2.0
 * A trial: a problem together with its data and the memory form of each tensor, independent of who computes it.
 *
 * Values live in canonical order, whatever the memory looks like: tensors with token rows as [sequence, position, head,
 * dim] over the true lengths, one sequence after the other; bias, mask, alibi and sink as their own (broadcast)
 * extents. So dense, packed and segmented runs of the same data can be compared element by element.
 *
 * Order of use: trial_create; trial_pack / trial_use / trial_segment; trial_add for optional tensors; trial_values or
 * trial_draw to fill; then runs (run.h). Setters must precede trial_add and the filling, since extents follow them. */
#ifndef TESTS_SUPPORT_TRIAL_H
#define TESTS_SUPPORT_TRIAL_H

#include "attn/attn.h"
#include "support/random.h"
#include "support/tensor.h"

typedef enum tensor_id {
    T_Q,
    T_K,
    T_V,
    T_BIAS,
    T_MASK,
    T_ALIBI,
    T_SINK,
    T_DOUT,
    T_DLSE, /* inputs */
    T_O,
    T_LSE,
    T_DELTA,
    T_DQ,
    T_DK,
    T_DV,
    T_DBIAS,
    T_DSINK, /* outputs, and inputs made of them */
    T_COUNT
} tensor_id;
#define T_INPUTS T_O

enum { SIDE_Q, SIDE_KV };

typedef struct trial_side {
    attn_rows rows;
    int64_t tokens, total;
    int32_t *length; /* [batch]: true lengths, of the whole sequence */
    int64_t *base;   /* [batch + 1]: canonical row where each sequence begins */
    int32_t *cu;     /* [batch + 1], packed */
    bool used;       /* lengths are given as used lengths */
    attn_segment *segments;
    int64_t n_segments;
} trial_side;

typedef struct trial {
    attn_problem problem; /* layouts: only the types count */
    trial_side side[2];
    form form[T_COUNT];
    unsigned broadcast[T_COUNT]; /* 1 << axis, for bias, mask, alibi, dbias */
    double *value[T_COUNT];      /* inputs; for gradients what they hold before, with ATTN_ACCUMULATE; o and lse: what
                                    backward is given instead of what its own forward found */
    bool joint, joint_gradients; /* q, k, v in one buffer */
    bool give_delta;             /* backward gets delta instead of o */
    unsigned unset;              /* 1 << tensor_id: the problem leaves this layout to its default */
    unsigned skip;               /* 1 << tensor_id: an optional output that is not asked for */
    uint64_t seed, offset;
    int64_t head_first, batch_first;
    attn_hints hints;
    int threads;
} trial;

/* Dense, every tensor of one type, plain forms, full lengths, no options. */
trial *trial_create(attn_dtype dtype, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t tokens_q,
                    int64_t tokens_kv, int64_t dim_qk, int64_t dim_v);
void trial_destroy(trial *t);
/* The same problem, data and forms; nothing shared. */
trial *trial_copy(const trial *t);

/* slots[batch]: rows of each sequence; `spare` rows follow the last. */
void trial_pack(trial *t, int side, const int32_t *slots, int64_t spare);
/* used[batch]: used lengths inside the dense or packed slots. */
void trial_use(trial *t, int side, const int32_t *used);
/* lengths[batch] of whole sequences and the list of their shards. total: rows of the buffer. */
void trial_segment(trial *t, int side, const int32_t *lengths, const attn_segment *list, int64_t count, int64_t total);

/* Declares an optional tensor (bias, mask, alibi, sink, dlse, dbias, dsink). broadcast: 1 << axis. */
void trial_add(trial *t, tensor_id id, attn_dtype dtype, unsigned broadcast);
bool trial_has(const trial *t, tensor_id id);

/* Extents as the memory sees them (rows of buffers; broadcast axes are 1). */
void trial_extents(const trial *t, tensor_id id, int64_t n[4]);
/* Number of canonical values. */
int64_t trial_size(const trial *t, tensor_id id);
/* Canonical index of (sequence, head, position, dim). */
int64_t trial_index(const trial *t, tensor_id id, int64_t sequence, int64_t head, int64_t position, int64_t dim);
/* "o[sequence 0, head 1, row 5, dim 3]" of a canonical index. */
void trial_where(const trial *t, tensor_id id, int64_t index, char *text, size_t size);

/* The array of an input, allocated and zero at first. */
double *trial_values(trial *t, tensor_id id);
/* value(context, sequence, head, position, dim) for each element. */
typedef double (*trial_value)(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim);
void trial_set(trial *t, tensor_id id, trial_value value, void *context);
/* Random values for q, k, v, dout and every declared optional input; accumulated gradients get contents too. */
void trial_draw(trial *t, rng *r);
/* Rounds every input to its type and makes it constant along axes of stride 0. Every run needs it done. */
void trial_settle(trial *t);

/* Visits each run of values that lies along the last axis: canonical index of the first, its place, how many. */
typedef void (*trial_visit)(void *context, int64_t index, const int64_t at[4], int64_t count);
void trial_walk(const trial *t, tensor_id id, trial_visit visit, void *context);
/* Rows of slots past used lengths, which outputs hold zeros (lse: -inf) in. */
void trial_walk_padding(const trial *t, tensor_id id, trial_visit visit, void *context);

const char *tensor_name(tensor_id id);
attn_layout *tensor_layout(attn_problem *problem, tensor_id id); /* where the problem describes it */
void **tensor_argument(attn_args *args, tensor_id id);
bool tensor_is_row(tensor_id id);       /* addressed by token row */
tensor_id tensor_partner(tensor_id id); /* whose layout an unset one takes; itself: none */
/* Type in the given problem, defaults applied; ATTN_NONE if absent. */
attn_dtype tensor_dtype(const attn_problem *problem, tensor_id id);

#endif
