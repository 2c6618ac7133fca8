/* SPDX-License-Identifier: Apache-2.0
 * Scheduling of forward: which rows and keys make a task, and in which order tasks start.
 *
 * Tasks of one query segment are numbered (head group, row block, part of the keys); segments follow one another, a
 * prefix sum over them finds a task's segment. With a causal band the last row blocks see most keys and start first.
 * Which rows share a task, and the parts, depend on the problem alone, so the bits do not depend on the threads. */
#include <math.h>

#include "backend.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "cpu/cpu.h"

typedef struct forward_run {
    attn__run run;
    const attn__forward_body *body;
    const int64_t *prefix; /* [segments + 1], counts tasks of one part */
    float *partials;
    int64_t partial_stride; /* floats of one task */
} forward_run;

static int64_t round_up_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t segment_blocks(const attn_plan *plan, int64_t rows) {
    return round_up_div(plan->choice.group * rows, plan->choice.block_q);
}
/* Head groups of one task. */
static int64_t groups_together(const attn_plan *plan) {
    return plan->choice.few_rows ? plan->choice.few_heads : 1;
}
static int64_t head_groups(const attn_plan *plan) {
    return plan->problem.heads_q / plan->choice.group / groups_together(plan);
}

/* Task `number` (of one part, so that part p of it is apart), all keys. */
static attn__forward_task make_task(const forward_run *f, int64_t number) {
    const attn_plan *plan = f->run.plan;
    const attn_problem *p = f->run.problem;
    int64_t n = attn__prefix_find(f->prefix, attn__side_count(&f->run.q), number);
    int64_t within = number - f->prefix[n];
    attn_segment segment = attn__side_segment(&f->run.q, n);
    int64_t blocks = segment_blocks(plan, segment.rows);
    int64_t block = blocks - 1 - within % blocks;
    attn__forward_task task = {.run = &f->run, .with_sink = true};
    task.rows.segment = segment;
    task.rows.shift = attn__row_shift(p, &f->run.q, &f->run.kv, segment.sequence);
    task.rows.heads = plan->choice.group;
    task.rows.head_first = within / blocks * groups_together(plan) * plan->choice.group;
    task.rows.row_begin = block * plan->choice.block_q;
    task.rows.row_end = task.rows.row_begin + plan->choice.block_q;
    if (task.rows.row_end > plan->choice.group * segment.rows) {
        task.rows.row_end = plan->choice.group * segment.rows;
    }
    task.head_kv = task.rows.head_first / (p->heads_q / p->heads_kv);
    task.key_end = INT64_MAX;
    return task;
}

static void run_task(void *arg, int64_t number, int thread) {
    const forward_run *f = arg;
    const attn__choice *choice = &f->run.plan->choice;
    attn__forward_task task = make_task(f, number / choice->splits);
    if (choice->splits > 1) {
        int64_t part = number % choice->splits;
        int64_t keys = attn__sequence_keys(&f->run.kv, task.rows.segment.sequence);
        int64_t length = round_up_div(round_up_div(keys, choice->splits), choice->block_kv) * choice->block_kv;
        task.key_begin = part * length;
        task.key_end = task.key_begin + length < keys ? task.key_begin + length : keys;
        task.partial = f->partials + number * f->partial_stride;
        task.with_sink = part == 0;
    }
    f->body->run(&task,
                 (char *)attn__span_at(f->run.workspace, choice->scratch) + (size_t)thread * choice->scratch_each);
}

/* One head group of a task. */
static void finish_task(void *arg, int64_t number, int thread) {
    const forward_run *f = arg;
    const attn_plan *plan = f->run.plan;
    const int64_t splits = plan->choice.splits, together = groups_together(plan), group = number % together;
    attn__forward_task task = make_task(f, number / together);
    float *states = f->partials + number / together * splits * f->partial_stride;
    (void)thread;
    task.rows.head_first += group * plan->choice.group;
    f->body->finish(&task, states + group * (f->partial_stride / together), f->partial_stride, splits);
}

/* o = 0 and lse = -inf in the rows of one (sequence, head) past the used length. */
static void pad_task(void *arg, int64_t number, int thread) {
    const forward_run *f = arg;
    const attn_problem *p = f->run.problem;
    int64_t sequence = number / p->heads_q, head = number % p->heads_q;
    attn_segment padding = attn__side_padding(&f->run.q, sequence);
    (void)thread;
    for (int64_t row = padding.first; row < padding.first + padding.rows; row++) {
        int64_t at = attn__row_offset(&p->o, sequence, head, row);
        for (int64_t d = 0; d < p->dim_v; d++) {
            attn__store(p->o.dtype, f->run.args->o, at + d * p->o.stride[3], 0.0);
        }
        if (f->run.args->lse) {
            ((float *)f->run.args->lse)[attn__row_offset(&p->lse, sequence, head, row)] = -INFINITY;
        }
    }
}

attn_status attn__cpu_forward(const attn_plan *plan, const attn_args *args, void *workspace, attn_stream stream,
                              attn_error *error) {
    const attn_problem *p = &plan->problem;
    const attn__choice *choice = &plan->choice;
    const attn__kernels *kernels = plan->impl->kernels;
    forward_run f = {{plan, p, args, attn__side_q(p, args), attn__side_kv(p, args),
                      attn__dropout_key_make(args->seed, args->offset, p->dropout), workspace},
                     attn__forward_body_of(kernels, choice),
                     NULL,
                     NULL,
                     0};
    (void)stream;
    (void)error;
    if (p->heads_q == 0) {
        return ATTN_OK;
    }
    int64_t segments = attn__side_count(&f.run.q), tasks = 0;
    int64_t *prefix = attn__span_at(workspace, choice->prefix);
    for (int64_t n = 0; n < segments; n++) {
        prefix[n] = tasks;
        tasks += head_groups(plan) * segment_blocks(plan, attn__side_segment(&f.run.q, n).rows);
    }
    prefix[segments] = tasks;
    f.prefix = prefix;
    if (choice->splits > 1) {
        f.partials = attn__span_at(workspace, choice->partials);
        f.partial_stride = attn__task_state_floats(plan);
    }
    attn__parallel(choice->threads, tasks * choice->splits, run_task, &f);
    if (choice->splits > 1) {
        attn__parallel(choice->threads, tasks * groups_together(plan), finish_task, &f);
    }
    if (p->flags & ATTN_USED_Q) {
        attn__parallel(choice->threads, p->batch * p->heads_q, pad_task, &f);
    }
    return ATTN_OK;
}
