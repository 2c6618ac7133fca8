/* SPDX-License-Identifier: Apache-2.0
 * What a call costs the host on a GPU: microseconds of attn_forward and attn_backward, without waiting for the device,
 * beside as many bare launches of an empty kernel with as many parameters. How many launches a call makes is counted in
 * a graph that captures it. Bursts are short enough that no queue fills; the median burst counts. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attn/attn.h"
#include "attn/attn_device.h"

#define BURST  64
#define BURSTS 101

/* An entry as large as this keeps the driver as busy copying parameters as ours do. */
#define PARAMETERS 1024
static const char empty_kernel[] = ".version 6.4\n.target sm_75\n.address_size 64\n"
                                   ".visible .entry bare(.param .align 8 .b8 p[1024]) { ret; }\n";

static struct {
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*nodes)(void *graph, void **nodes, size_t *count);
    int (*destroy)(void *graph);
    int (*load)(void **module, const void *image);
    int (*function)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                  unsigned shared, void *stream, void **parameters, void **extra);
} cuda;

static int load_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    static const char *const names[] = {"cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphGetNodes",
                                        "cuGraphDestroy",          "cuModuleLoadData",   "cuModuleGetFunction",
                                        "cuLaunchKernel"};
    void **members[] = {(void **)&cuda.begin, (void **)&cuda.end,      (void **)&cuda.nodes, (void **)&cuda.destroy,
                        (void **)&cuda.load,  (void **)&cuda.function, (void **)&cuda.launch};
    for (int n = 0; n < 7; n++) {
        *members[n] = library ? dlsym(library, names[n]) : NULL;
        if (!*members[n]) {
            return 0;
        }
    }
    return 1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct bench {
    attn_context *context;
    attn_stream stream;
    attn_plan *plans[2];
    attn_args args;
    void *workspace, *bare;
    attn_error error;
} bench;

static int call(bench *b, attn_pass pass) {
    size_t size = attn_plan_workspace(b->plans[pass]);
    return (pass ? attn_backward : attn_forward)(b->plans[pass], &b->args, size ? b->workspace : NULL, size, b->stream,
                                                 &b->error);
}

static int bare(bench *b, int launches) {
    static char parameters[PARAMETERS];
    void *list[] = {parameters};
    int failed = 0;
    for (int n = 0; n < launches; n++) {
        failed |= cuda.launch(b->bare, 1, 1, 1, 128, 1, 1, 0, b->stream, list, NULL);
    }
    return failed;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a call, or of `launches` bare ones. */
static double cost(bench *b, int pass, int launches) {
    double samples[BURSTS];
    for (int n = 0; n < BURSTS; n++) {
        attn_stream_wait(b->context, b->stream, &b->error);
        double start = now();
        for (int m = 0; m < BURST; m++) {
            if (launches ? bare(b, launches) : call(b, (attn_pass)pass)) {
                return -1;
            }
        }
        samples[n] = (now() - start) / BURST;
    }
    qsort(samples, BURSTS, sizeof *samples, ascending);
    return samples[BURSTS / 2];
}

static int count_launches(bench *b, attn_pass pass) {
    void *graph = NULL;
    size_t count = 0;
    attn_stream_wait(b->context, b->stream, &b->error);
    if (cuda.begin(b->stream, 0)) {
        return 0;
    }
    int failed = call(b, pass);
    if (cuda.end(b->stream, &graph) || failed || cuda.nodes(graph, NULL, &count)) {
        return 0;
    }
    cuda.destroy(graph);
    return (int)count;
}

static int prepare(bench *b, const char *implementation) {
    attn_problem p = attn_problem_dense(ATTN_BF16, 1, 2, 2, 128, 128, 64, 64);
    attn_hints hints = {.struct_size = sizeof hints, .implementation = implementation};
    size_t most = 64, size = (size_t)2 * 128 * 64 * sizeof(float);
    p.band.kind = ATTN_CAUSAL;
    for (int pass = 0; pass < 2; pass++) {
        p.pass = (attn_pass)pass;
        if (attn_plan_create(&b->plans[pass], b->context, &p, &hints, &b->error) != ATTN_OK) {
            return 0;
        }
        most = attn_plan_workspace(b->plans[pass]) > most ? attn_plan_workspace(b->plans[pass]) : most;
    }
    void *tensors[10];
    for (int n = 0; n < 10; n++) {
        if (attn_memory_create(&tensors[n], b->context, n ? size : most, &b->error) != ATTN_OK ||
            attn_memory_fill(b->context, tensors[n], 0, n ? size : most, NULL, &b->error) != ATTN_OK) {
            return 0;
        }
    }
    b->workspace = tensors[0];
    b->args = attn_args_init();
    b->args.q = tensors[1];
    b->args.k = tensors[2];
    b->args.v = tensors[3];
    b->args.o = tensors[4];
    b->args.lse = tensors[5];
    b->args.dout = tensors[6];
    b->args.dq = tensors[7];
    b->args.dk = tensors[8];
    b->args.dv = tensors[9];
    return attn_stream_wait(b->context, NULL, &b->error) == ATTN_OK && !call(b, ATTN_FORWARD) &&
           !call(b, ATTN_BACKWARD) && attn_stream_wait(b->context, b->stream, &b->error) == ATTN_OK;
}

int main(int argc, char **argv) {
    bench b;
    void *module = NULL;
    attn_config config = {.struct_size = sizeof config, .device = "cuda"};
    memset(&b, 0, sizeof b);
    if (!load_driver()) {
        fprintf(stderr, "host_gpu: no CUDA driver\n");
        return 1;
    }
    if (attn_context_create(&b.context, &config, &b.error) != ATTN_OK ||
        attn_stream_create(&b.stream, b.context, &b.error) != ATTN_OK || !prepare(&b, argc > 1 ? argv[1] : NULL)) {
        fprintf(stderr, "host_gpu: %s %s\n", b.error.field, b.error.message);
        return 1;
    }
    /* The library leaves no context current; a bare launch needs the stream's. */
    int (*owner)(void *, void **), (*current)(void *);
    void *context = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&owner = dlsym(library, "cuStreamGetCtx");
    *(void **)&current = dlsym(library, "cuCtxSetCurrent");
    if (owner(b.stream, &context) || current(context) || cuda.load(&module, empty_kernel) ||
        cuda.function(&b.bare, module, "bare")) {
        fprintf(stderr, "host_gpu: the empty kernel could not be loaded\n");
        return 1;
    }
    printf("%-9s %-9s %-8s %9s %9s\n", "pass", "launches", "", "call us", "bare us");
    for (int pass = 0; pass < 2; pass++) {
        int launches = count_launches(&b, (attn_pass)pass);
        double ours = cost(&b, pass, 0), empty = cost(&b, pass, launches);
        printf("%-9s %-9d %-8s %9.2f %9.2f\n", pass ? "backward" : "forward", launches, "", ours, empty);
    }
    return 0;
}
