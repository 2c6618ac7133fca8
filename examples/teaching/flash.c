/* SPDX-License-Identifier: Apache-2.0
 * Compiles the teaching kernel flash.cu for the GPU at hand, runs it and compares every number with float64. It needs
 * the driver and NVRTC, no toolkit: both are opened at run time, NVRTC where libattn found it.
 *
 *   teaching_flash [flash.cu]      exit status 0: right; 1: wrong or failed; 77: no GPU here */
#include <attn/attn.h>
#include <attn/attn_device.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 3, DIM = 64, TILE = 32 };

typedef struct gpu {
    attn_context *context;
    attn_stream stream;
    char options[3][48];
    void *nvrtc, *driver, *kernel;
} gpu;

/* One function of a library by its name; calls go through the type that the caller gives. */
static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

static void need(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "%s failed: %d\n", what, failed);
        exit(1);
    }
}

static char *read_text(const char *path) {
    static char text[32768];
    FILE *file = fopen(path, "rb");
    need(!file, path);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return text;
}

/* CUDA C to PTX, PTX to a kernel of the context that the stream belongs to. */
static void compile(gpu *g, const char *text) {
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*build)(void *, int, const char *const *);
    int (*size_of)(void *, size_t *), (*get)(void *, char *), (*log_of)(void *, char *), (*log_size)(void *, size_t *);
    int (*owner)(void *, void **), (*current)(void *), (*load)(void **, const void *),
        (*function)(void **, void *, const char *);
    *(void **)&create = find(g->nvrtc, "nvrtcCreateProgram");
    *(void **)&build = find(g->nvrtc, "nvrtcCompileProgram");
    *(void **)&size_of = find(g->nvrtc, "nvrtcGetPTXSize");
    *(void **)&get = find(g->nvrtc, "nvrtcGetPTX");
    *(void **)&log_size = find(g->nvrtc, "nvrtcGetProgramLogSize");
    *(void **)&log_of = find(g->nvrtc, "nvrtcGetProgramLog");
    *(void **)&owner = find(g->driver, "cuStreamGetCtx");
    *(void **)&current = find(g->driver, "cuCtxSetCurrent");
    *(void **)&load = find(g->driver, "cuModuleLoadData");
    *(void **)&function = find(g->driver, "cuModuleGetFunction");

    const char *options[] = {g->options[0], g->options[1], g->options[2]};
    void *program = NULL, *context = NULL, *module = NULL;
    size_t size = 0;
    need(create(&program, text, "flash.cu", 0, NULL, NULL), "nvrtcCreateProgram");
    if (build(program, 3, options)) {
        need(log_size(program, &size), "nvrtcGetProgramLogSize");
        char *log = malloc(size);
        need(!log || log_of(program, log), "nvrtcGetProgramLog");
        fprintf(stderr, "%s\n", log);
        exit(1);
    }
    need(size_of(program, &size), "nvrtcGetPTXSize");
    char *ptx = malloc(size);
    need(!ptx || get(program, ptx), "nvrtcGetPTX");
    need(owner(g->stream, &context) || current(context), "cuCtxSetCurrent");
    need(load(&module, ptx), "cuModuleLoadData");
    need(function(&g->kernel, module, "flash"), "cuModuleGetFunction");
    free(ptx);
}

static void open_gpu(gpu *g) {
    attn_error error;
    attn_config config = {.struct_size = sizeof config, .device = "cuda"};
    attn_device_info info = {.struct_size = sizeof info};
    g->driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!g->driver || attn_context_create(&g->context, &config, &error)) {
        fprintf(stderr, "no GPU: %s\n", g->driver ? error.message : "no CUDA driver");
        exit(77);
    }
    need(attn_device_query(g->context, &info, &error) || attn_stream_create(&g->stream, g->context, &error),
         error.message);
    g->nvrtc = dlopen(info.nvrtc_path, RTLD_NOW);
    need(!g->nvrtc, info.nvrtc_missing);
    snprintf(g->options[0], sizeof g->options[0], "--gpu-architecture=compute_%d", info.device_arch);
    snprintf(g->options[1], sizeof g->options[1], "-DDIM=%d", DIM);
    snprintf(g->options[2], sizeof g->options[2], "-DTILE=%d", TILE);
}

/* o and lse in float64 by the library's definition of attention. */
static void truth(const double *const x[3], double *o, double *lse, int tokens, int causal) {
    attn_error error;
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    attn_config config = {.struct_size = sizeof config, .device = "cpu"};
    attn_problem problem = attn_problem_dense(ATTN_F64, BATCH, HEADS, HEADS, tokens, tokens, DIM, DIM);
    problem.band.kind = causal ? ATTN_CAUSAL : 0;
    need(attn_context_create(&context, &config, &error) || attn_plan_create(&plan, context, &problem, NULL, &error),
         "plan");
    size_t size = (attn_plan_workspace(plan) + 63) / 64 * 64;
    void *workspace = size ? aligned_alloc(ATTN_WORKSPACE_ALIGNMENT, size) : NULL;
    attn_args args = attn_args_init();
    args.q = x[0], args.k = x[1], args.v = x[2], args.o = o, args.lse = lse;
    need(attn_forward(plan, &args, workspace, size, NULL, &error), error.message);
    free(workspace);
    attn_plan_destroy(plan);
    attn_context_destroy(context);
}

/* Numbers from -1 to 1, the same on every machine. */
static float draw(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

static double check(gpu *g, int tokens, int causal) {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
    *(void **)&launch = find(g->driver, "cuLaunchKernel");
    size_t count[5], elements = (size_t)BATCH * tokens * HEADS * DIM, rows = (size_t)BATCH * HEADS * tokens;
    float *host[5];
    double *wide[5], worst = 0, scale = 1 / sqrt(DIM);
    void *device[5];
    unsigned state = 1;
    attn_error error;
    for (int n = 0; n < 5; n++) {
        count[n] = n < 4 ? elements : rows;
        host[n] = malloc(count[n] * sizeof(float));
        wide[n] = malloc(count[n] * sizeof(double));
        need(!host[n] || !wide[n] || attn_memory_create(&device[n], g->context, count[n] * sizeof(float), &error),
             "memory");
        for (size_t i = 0; i < count[n]; i++) { /* q, k and v; o and lse begin as NaN */
            host[n][i] = n < 2 ? 4 * draw(&state) : n < 3 ? draw(&state) : NAN;
            wide[n][i] = host[n][i];
        }
        need(attn_memory_copy(g->context, device[n], host[n], count[n] * sizeof(float), g->stream, &error),
             error.message);
    }
    float single = (float)scale;
    void *parameters[] = {&device[0], &device[1], &device[2], &device[3], &device[4], &tokens, &single, &causal};
    need(launch(g->kernel, (unsigned)(tokens + TILE - 1) / TILE, HEADS, BATCH, TILE, 1, 1, 0, g->stream, parameters,
                NULL),
         "cuLaunchKernel");
    truth((const double *const *)wide, wide[3], wide[4], tokens, causal);
    for (int n = 3; n < 5; n++) {
        need(attn_memory_copy(g->context, host[n], device[n], count[n] * sizeof(float), g->stream, &error),
             error.message);
        for (size_t i = 0; i < count[n]; i++) {
            double off = fabs(host[n][i] - wide[n][i]);
            worst = off <= worst ? worst : isnan(off) ? INFINITY : off;
        }
    }
    for (int n = 0; n < 5; n++) {
        free(host[n]);
        free(wide[n]);
        attn_memory_destroy(g->context, device[n]);
    }
    return worst;
}

int main(int argc, char **argv) {
    static const int lengths[] = {1, 31, 32, 33, 200, 512};
    double worst = 0;
    gpu g;
    memset(&g, 0, sizeof g);
    open_gpu(&g);
    compile(&g, read_text(argc > 1 ? argv[1] : TEACHING_SOURCE));
    for (int n = 0; n < 12; n++) {
        double error = check(&g, lengths[n / 2], n % 2);
        printf("%4d tokens%s: largest error %.1e\n", lengths[n / 2], n % 2 ? ", causal" : "        ", error);
        worst = fmax(worst, error);
    }
    attn_stream_destroy(g.context, g.stream);
    attn_context_destroy(g.context);
    return !(worst < 5e-5);
}
