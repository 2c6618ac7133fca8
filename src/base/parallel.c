/* SPDX-License-Identifier: Apache-2.0
 *
 * fork(): GNU OpenMP keeps its idle threads in a pool that belongs to the thread which opened the region. A child has
 * the pool's bookkeeping but not its threads, and the first region it opens from that thread waits for ever. A thread
 * that is new in the child has no pool yet, so there the region is opened from such a thread. The process number seen
 * when the library was loaded tells parent from child; it is written once, before any call. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct attn__team {
    int threads;
    int64_t tasks;
    attn__task_fn run;
    void *arg;
} attn__team;

#ifdef _OPENMP
static pid_t loaded_in;

__attribute__((constructor)) static void remember_process(void) {
    loaded_in = getpid();
}

static void *run_team(void *memory) {
    const attn__team *team = memory;
    atomic_llong next = 0;
#pragma omp parallel num_threads(team->threads)
    {
        int thread = omp_get_thread_num();
        for (;;) {
            int64_t task = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
            if (task >= team->tasks) {
                break;
            }
            team->run(team->arg, task, thread);
        }
    }
    return NULL;
}

int attn__parallel_default_threads(void) {
    return omp_get_max_threads();
}
#else
int attn__parallel_default_threads(void) {
    return 1;
}
#endif

void attn__parallel(int threads, int64_t tasks, attn__task_fn run, void *arg) {
    attn__team team = {threads, tasks, run, arg};
    if (threads > tasks) {
        team.threads = (int)tasks;
    }
#ifdef _OPENMP
    if (team.threads > 1) {
        pthread_t fresh;
        if (getpid() == loaded_in) {
            run_team(&team);
            return;
        }
        if (pthread_create(&fresh, NULL, run_team, &team) == 0) {
            pthread_join(fresh, NULL);
            return;
        }
    }
#endif
    for (int64_t task = 0; task < tasks; task++) {
        run(arg, task, 0);
    }
}
