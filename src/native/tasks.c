/* SPDX-License-Identifier: Apache-2.0 */
#include "native/tasks.h"

/* At least one block for each head, so that padding is reached when a side has no tokens. */
static int64_t blocks(const attn_problem *p, native_axis axis) {
    int64_t tokens = axis == ATTN__NATIVE_QUERIES ? p->tokens_q : p->tokens_kv;
    return tokens > BLOCK ? (tokens + BLOCK - 1) / BLOCK : 1;
}

void attn__native_walk(const native_run *run, native_axis axis, attn__task_fn run_task) {
    const attn_problem *p = run->problem;
    int64_t heads = axis == ATTN__NATIVE_QUERIES ? p->heads_q : p->heads_kv;
    attn__parallel(run->plan->choice.threads, p->batch * heads * blocks(p, axis), run_task, (void *)(uintptr_t)run);
}

bool attn__native_block(const native_run *run, native_scratch *w, native_axis axis, int64_t task, native_block *block) {
    const attn_problem *p = run->problem;
    const int64_t group = p->heads_q / p->heads_kv, each = blocks(p, axis);
    const int64_t heads = axis == ATTN__NATIVE_QUERIES ? p->heads_q : p->heads_kv;
    const int64_t head = task / each % heads;
    block->s = task / each / heads;
    block->h = axis == ATTN__NATIVE_QUERIES ? head : head * group;
    block->g = block->h / group;
    block->first = task % each * BLOCK;
    attn__native_map(&run->q, block->s, &w->q);
    attn__native_map(&run->kv, block->s, &w->kv);
    int64_t left = (axis == ATTN__NATIVE_QUERIES ? w->q.count : w->kv.count) - block->first;
    block->count = left < 0 ? 0 : left < BLOCK ? left : BLOCK;
    return left > 0;
}

native_at attn__native_at(const native_scratch *w, const native_block *block, int64_t n) {
    int64_t place = block->first + n;
    return (native_at){block->s, block->h, place, w->q.position[place], w->q.row[place]};
}
