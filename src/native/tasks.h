/* SPDX-License-Identifier: Apache-2.0
 * A walk's tasks: blocks of BLOCK query rows of a sequence and query head, or of key rows of a sequence and kv head. */
#ifndef ATTN_NATIVE_TASKS_H
#define ATTN_NATIVE_TASKS_H

#include "base/parallel.h"
#include "native/native.h"

typedef enum native_axis { ATTN__NATIVE_QUERIES, ATTN__NATIVE_KEYS } native_axis;

typedef struct native_block {
    int64_t s, h, g;      /* h: the first query head of g when over keys */
    int64_t first, count; /* places in w->q or w->kv */
} native_block;

void attn__native_walk(const native_run *run, native_axis axis, attn__task_fn run_task);
/* Finds the task's block and fills both maps; false if the sequence ends before it (s, h, g, first are set). */
bool attn__native_block(const native_run *run, native_scratch *w, native_axis axis, int64_t task, native_block *block);
native_at attn__native_at(const native_scratch *w, const native_block *block, int64_t n);
/* The first walk of both passes: the stored scores. */
void attn__native_run_scores(const native_run *run);

#endif
