/* SPDX-License-Identifier: Apache-2.0
 * The only place that knows OpenMP: run numbered tasks on a team of threads. */
#ifndef ATTN_BASE_PARALLEL_H
#define ATTN_BASE_PARALLEL_H

#include <stdint.h>

/* thread is 0 ... threads - 1 and tells tasks that run at the same time apart. */
typedef void (*attn__task_fn)(void *arg, int64_t task, int thread);

/* Calls run(arg, task, thread) once for each task in [0, tasks), each thread taking the next one when free, and
 * returns when all are done. The order in which tasks start is their number. Works in a child made by fork(). */
void attn__parallel(int threads, int64_t tasks, attn__task_fn run, void *arg);

/* The number of threads OpenMP would use by itself; 1 without OpenMP. */
int attn__parallel_default_threads(void);

#endif
