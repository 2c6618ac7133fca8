/* SPDX-License-Identifier: Apache-2.0
 * Scheduling of backward. Four passes, each a flat list of tasks:
 *   1. (chunk of keys, sequence, kv head): dk and dv of the chunk, and its part of dq
 *   2. (row block): dq, where there are several chunks
 *   3. (dbias batch, head, rows, keys)   4. (head): dsink
 * and zeros past used lengths. Chunks depend on the problem alone and parts are added in order, so the bits do not
 * depend on the threads. With a causal band the first chunks see most rows: all of them start before the second ones.
 */
#include "backend.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "cpu/cpu.h"

#define DBIAS_KEYS 512 /* keys of a task whose rows are summed */

typedef struct backward_run {
    attn__run run;
    const attn__backward_body *body;
    const attn__sums_body *sums;
    const int64_t *prefix; /* [query segments + 1]: row blocks before each */
    float *partials;       /* NULL with one chunk */
    int64_t partial_stride;
    int64_t dbias_rows, dbias_keys; /* positions of one task */
} backward_run;

static int64_t round_up_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void *thread_scratch(const backward_run *f, int thread) {
    const attn__choice *choice = &f->run.plan->choice;
    return (char *)attn__span_at(f->run.workspace, choice->scratch) + (size_t)thread * choice->scratch_each;
}

attn__query_rows attn__query_list(const attn__run *run, int64_t segment, int64_t list) {
    attn__query_rows query = {.segment = attn__side_segment(&run->q, segment)};
    query.shift = attn__row_shift(run->problem, &run->q, &run->kv, query.segment.sequence);
    query.heads = run->plan->choice.group;
    query.head_first = list * query.heads;
    query.row_end = query.heads * query.segment.rows;
    return query;
}

void attn__backward_chunk(attn__backward_task *task, int64_t chunk) {
    int64_t keys = attn__sequence_keys(&task->run->kv, task->sequence);
    int64_t length = attn__chunk_keys(&task->run->plan->choice, keys);
    task->key_begin = smaller(chunk * length, keys);
    task->key_end = smaller(task->key_begin + length, keys);
}

static void chunk_task(void *arg, int64_t number, int thread) {
    const backward_run *f = arg;
    const attn_problem *p = f->run.problem;
    const int64_t one = p->batch * p->heads_kv, chunk = number / one;
    attn__backward_task task = {.run = &f->run,
                                .sequence = number % one / p->heads_kv,
                                .head_kv = number % p->heads_kv,
                                .prefix = f->prefix,
                                .partials = f->partials ? f->partials + chunk * f->partial_stride : NULL};
    attn__backward_chunk(&task, chunk);
    f->body->run(&task, thread_scratch(f, thread));
}

static void finish_task(void *arg, int64_t number, int thread) {
    const backward_run *f = arg;
    const int64_t lists_kv = attn__kv_head_lists(f->run.plan);
    int64_t n = attn__prefix_find(f->prefix, attn__side_count(&f->run.q), number);
    attn__query_rows query = attn__query_list(&f->run, n, 0);
    int64_t blocks = attn__block_count(query.row_end), list = (number - f->prefix[n]) / blocks;
    query = attn__query_list(&f->run, n, list);
    query.row_begin = (number - f->prefix[n]) % blocks * ATTN__BLOCK;
    attn__backward_task task = {.run = &f->run,
                                .sequence = query.segment.sequence,
                                .head_kv = list / lists_kv,
                                .prefix = f->prefix,
                                .partials = f->partials};
    f->body->finish(task, &query, number, f->partial_stride, thread_scratch(f, thread));
}

static void dbias_task(void *arg, int64_t number, int thread) {
    const backward_run *f = arg;
    const attn_problem *p = f->run.problem;
    int64_t parts_k = round_up_div(p->tokens_kv, f->dbias_keys), parts_q = round_up_div(p->tokens_q, f->dbias_rows);
    int64_t part = number % (parts_q * parts_k), of = number / (parts_q * parts_k);
    attn__dbias_task task = {.run = &f->run,
                             .batch = p->dbias.stride[1] ? of / p->heads_q : of,
                             .head = p->dbias.stride[1] ? of % p->heads_q : 0,
                             .row_begin = part / parts_k * f->dbias_rows,
                             .key_begin = part % parts_k * f->dbias_keys};
    task.row_end = smaller(task.row_begin + f->dbias_rows, p->tokens_q);
    task.key_end = smaller(task.key_begin + f->dbias_keys, p->tokens_kv);
    f->sums->dbias(&task, thread_scratch(f, thread));
}

/* A task has all positions of an axis that is summed. Where rows are, keys are parted; else rows. */
static int64_t dbias_tasks(backward_run *f) {
    const attn_problem *p = f->run.problem;
    const int64_t *stride = p->dbias.stride;
    if (p->tokens_q == 0 || p->tokens_kv == 0) {
        return 0;
    }
    f->dbias_rows = stride[2] ? ATTN__BLOCK : p->tokens_q;
    f->dbias_keys = stride[2] || !stride[3] ? p->tokens_kv : DBIAS_KEYS;
    return (stride[0] ? p->batch : 1) * (stride[1] ? p->heads_q : 1) * round_up_div(p->tokens_q, f->dbias_rows) *
           round_up_div(p->tokens_kv, f->dbias_keys);
}

static void dsink_task(void *arg, int64_t head, int thread) {
    const backward_run *f = arg;
    const attn_problem *p = f->run.problem;
    float *out = (float *)f->run.args->dsink + head * p->sink.stride[1];
    double before = p->flags & ATTN_ACCUMULATE ? (double)*out : 0;
    *out = (float)(before + f->sums->dsink(&f->run, head, thread_scratch(f, thread)));
}

static void store_zeros(const attn_layout *layout, void *base, int64_t dim, int64_t head, attn_segment rows) {
    for (int64_t row = rows.first; base && row < rows.first + rows.rows; row++) {
        int64_t at = attn__row_offset(layout, rows.sequence, head, row);
        for (int64_t d = 0; d < dim; d++) {
            attn__store(layout->dtype, base, at + d * layout->stride[3], 0.0);
        }
    }
}
static void pad_q_task(void *arg, int64_t number, int thread) {
    const backward_run *f = arg;
    const attn_problem *p = f->run.problem;
    (void)thread;
    store_zeros(&p->dq, f->run.args->dq, p->dim_qk, number % p->heads_q,
                attn__side_padding(&f->run.q, number / p->heads_q));
}
static void pad_kv_task(void *arg, int64_t number, int thread) {
    const backward_run *f = arg;
    const attn_problem *p = f->run.problem;
    attn_segment padding = attn__side_padding(&f->run.kv, number / p->heads_kv);
    (void)thread;
    store_zeros(&p->dk, f->run.args->dk, p->dim_qk, number % p->heads_kv, padding);
    store_zeros(&p->dv, f->run.args->dv, p->dim_v, number % p->heads_kv, padding);
}

attn_status attn__cpu_backward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                               attn_error *error) {
    const attn_problem *p = &plan->problem;
    const attn__choice *choice = &plan->choice;
    const int threads = choice->threads;
    const attn__kernels *kernels = plan->impl->kernels;
    backward_run f = {.run = {plan, p, args, attn__side_q(p, args), attn__side_kv(p, args),
                              attn__dropout_key_make(args->seed, args->offset, p->dropout), workspace},
                      .body = attn__backward_body_of(kernels, choice),
                      .sums = kernels->sums};
    (void)stream;
    (void)error;
    if (p->heads_q == 0) {
        return ATTN_OK;
    }
    int64_t segments = attn__side_count(&f.run.q), blocks = 0;
    int64_t *prefix = attn__span_at(workspace, choice->prefix);
    for (int64_t n = 0; n < segments; n++) {
        prefix[n] = blocks;
        blocks += p->heads_q / choice->group * attn__block_count(choice->group * attn__side_segment(&f.run.q, n).rows);
    }
    prefix[segments] = blocks;
    f.prefix = prefix;
    if (choice->splits > 1) {
        f.partials = attn__span_at(workspace, choice->partials);
        f.partial_stride = blocks * ATTN__BLOCK * p->dim_qk;
    }
    if (args->dq || args->dk || args->dv) {
        attn__parallel(threads, choice->splits * p->batch * p->heads_kv, chunk_task, &f);
    }
    if (args->dq && choice->splits > 1) {
        attn__parallel(threads, blocks, finish_task, &f);
    }
    if (p->flags & ATTN_USED_Q && !(p->flags & ATTN_ACCUMULATE)) {
        attn__parallel(threads, p->batch * p->heads_q, pad_q_task, &f);
    }
    if (p->flags & ATTN_USED_KV && !(p->flags & ATTN_ACCUMULATE)) {
        attn__parallel(threads, p->batch * p->heads_kv, pad_kv_task, &f);
    }
    if (args->dbias) {
        attn__parallel(threads, dbias_tasks(&f), dbias_task, &f);
    }
    if (args->dsink) {
        attn__parallel(threads, p->heads_q, dsink_task, &f);
    }
    return ATTN_OK;
}
