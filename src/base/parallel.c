/* SPDX-License-Identifier: Apache-2.0
 *
 * fork(): GNU OpenMP keeps its idle threads in a pool that belongs to the thread which opened the region. A child has
 * the pool's bookkeeping but not its threads, and the first region it opens from that thread waits for ever. A thread
 * that is new in the child has no pool yet, so there the region is opened from such a thread. The process number seen
 * when the library was loaded tells parent from child; it is written once, before any call.
 *
 * ATTN_PROCESS_OPENMP (the Python wheel): the library is linked with no OpenMP runtime and uses the one that the
 * process has by then, so that there is never a second set of threads beside PyTorch's; where there is none, threads of
 * its own live as long as a call. */
#include "base/parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef ATTN_PROCESS_OPENMP
#include <dlfcn.h>
#include <string.h>
#elif defined(_OPENMP)
#include <omp.h>
#endif

typedef struct attn__team {
    int threads;
    int64_t tasks;
    attn__task_fn run;
    void *arg;
} attn__team;

#if defined(_OPENMP) || defined(ATTN_PROCESS_OPENMP)
static pid_t loaded_in;

__attribute__((constructor)) static void remember_process(void) {
    loaded_in = getpid();
}

static void take_tasks(const attn__team *team, atomic_llong *next, int thread) {
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (task >= team->tasks) {
            break;
        }
        team->run(team->arg, task, thread);
    }
}
#endif

#ifdef ATTN_PROCESS_OPENMP
typedef struct shared {
    const attn__team *team;
    atomic_llong next;
    atomic_int threads; /* that have begun */
} shared;

static void *share(void *memory) {
    shared *all = memory;
    take_tasks(all->team, &all->next, atomic_fetch_add(&all->threads, 1));
    return NULL;
}

static void share_region(void *memory) {
    share(memory);
}

/* Data pointers to function pointers, as POSIX allows. */
static int found(const char *name, void *function) {
    void *address = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static void *run_team(void *memory) {
    enum { MOST = 256 };
    const attn__team *team = memory;
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    shared all = {team, 0, 0};
    if (found("GOMP_parallel", &parallel)) {
        parallel(share_region, &all, (unsigned)team->threads, 0);
    } else {
        pthread_t others[MOST];
        int started = 0;
        while (started < team->threads - 1 && started < MOST && !pthread_create(&others[started], NULL, share, &all)) {
            started++;
        }
        share(&all);
        while (started) {
            pthread_join(others[--started], NULL);
        }
    }
    return NULL;
}

int attn__parallel_default_threads(void) {
    int (*most)(void);
    if (found("omp_get_max_threads", &most)) {
        return most();
    }
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    return processors < 1 ? 1 : (int)processors;
}
#elif defined(_OPENMP)
static void *run_team(void *memory) {
    const attn__team *team = memory;
    atomic_llong next = 0;
#pragma omp parallel num_threads(team->threads)
    take_tasks(team, &next, omp_get_thread_num());
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
#if defined(_OPENMP) || defined(ATTN_PROCESS_OPENMP)
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
