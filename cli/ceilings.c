/* SPDX-License-Identifier: Apache-2.0
 * Measuring ceilings: threads start together at a barrier, the slowest counts, the best of several runs is kept, since
 * whatever disturbs a run can only slow it down. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "ceilings.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "machine.h"

double cli_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_threads_default(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

const cli_ceiling *cli_ceiling_find(cli_ceiling_kind kind, const char *name) {
    const cli_ceiling *const lists[] = {cli_ceilings_x86, cli_ceilings_portable};
    for (int l = 0; l < 2; l++) {
        for (const cli_ceiling *c = lists[l]; c->name; c++) {
            if (c->kind == kind && (!name || strcmp(c->name, name) == 0) && c->available()) {
                return c;
            }
        }
    }
    return NULL;
}

typedef void (*piece)(void *context, int index, int threads);

/* Runs `work` on each thread at once; seconds from the common start to the last end. */
static double time_together(piece work, void *context, int threads) {
    double start = 0, end = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    {
#pragma omp barrier
#pragma omp master
        start = cli_now();
        work(context, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
#pragma omp master
        end = cli_now();
    }
#else
    (void)threads;
    start = cli_now();
    work(context, 0, 1);
    end = cli_now();
#endif
    return end - start;
}

typedef struct rounds {
    const cli_ceiling *ceiling;
    long count;
} rounds;
static void run_rounds(void *context, int index, int threads) {
    const rounds *r = context;
    (void)index, (void)threads;
    r->ceiling->run(r->count);
}

double cli_ceiling_measure(const cli_ceiling *ceiling, int threads) {
    rounds r = {ceiling, 16};
    double seconds = 0, best = 0;
    while (seconds < 4e-3) { /* on one thread, the quickest of three, so that a busy machine does not mislead */
        r.count *= 2;
        seconds = INFINITY;
        for (int i = 0; i < 3; i++) {
            double one = time_together(run_rounds, &r, 1);
            seconds = one < seconds ? one : seconds;
        }
    }
    r.count *= 4;
    for (int i = 0; i < 9; i++) {
        seconds = time_together(run_rounds, &r, threads);
        double rate = threads * ceiling->per_round * (double)r.count / seconds;
        best = rate > best ? rate : best;
    }
    return best;
}

typedef struct reading {
    const unsigned char *base;
    size_t bytes;
} reading;
typedef uint64_t words __attribute__((vector_size(16)));

/* Eight vectors a step keep enough loads in flight for the hardware prefetcher. */
static void read_part(void *context, int index, int threads) {
    const reading *r = context;
    size_t lines = r->bytes / 128, first = lines * (size_t)index / (size_t)threads;
    size_t last = lines * (size_t)(index + 1) / (size_t)threads;
    const words *at = (const words *)(const void *)r->base + first * 8;
    words a = {0}, b = a, c = a, d = a;
    for (size_t l = first; l < last; l++, at += 8) {
        a ^= at[0] ^ at[4];
        b ^= at[1] ^ at[5];
        c ^= at[2] ^ at[6];
        d ^= at[3] ^ at[7];
    }
    a ^= b ^ c ^ d;
    volatile uint64_t sink = a[0] ^ a[1];
    (void)sink;
}

double cli_read_seconds(const void *buffer, size_t bytes, int threads) {
    uintptr_t skip = -(uintptr_t)buffer & 15;
    reading r = {(const unsigned char *)buffer + skip, bytes > skip ? bytes - skip : 0};
    return time_together(read_part, &r, threads);
}

static void touch_part(void *context, int index, int threads) {
    const reading *r = context;
    size_t first = r->bytes / 4096 * (size_t)index / (size_t)threads * 4096;
    size_t last = r->bytes / 4096 * (size_t)(index + 1) / (size_t)threads * 4096;
    memset((void *)(uintptr_t)(r->base + first), 1, last - first);
}

cli_exit cli_read_measure(double *rate, int threads, cli_error *error) {
    cli_machine machine;
    cli_machine_read(&machine);
    size_t bytes = (size_t)512 << 20;
    if (machine.l3 > 64 << 20) {
        bytes = (size_t)machine.l3 * 8;
    }
    if (machine.memory > 0 && bytes > (size_t)machine.memory / 4) {
        bytes = (size_t)machine.memory / 4 / 4096 * 4096;
    }
    void *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) {
        return cli_fail(error, CLI_UNRUN, "out of memory: reading at full rate needs a buffer of %zu bytes", bytes);
    }
    madvise(buffer, bytes, MADV_NOHUGEPAGE);
    reading r = {buffer, bytes};
    time_together(touch_part, &r, threads); /* pages come to the node of the thread that reads them */
    *rate = 0;
    for (int i = 0; i < 7; i++) {
        double one = (double)bytes / cli_read_seconds(buffer, bytes, threads);
        *rate = one > *rate ? one : *rate;
    }
    munmap(buffer, bytes);
    return CLI_RIGHT;
}
