/* SPDX-License-Identifier: Apache-2.0
 * What single units of a Hopper processor do, for choices between designs of a kernel: products by shape, source and
 * number of warp groups, exponentials and what stands around them, shared memory, bulk copies, barriers, sums in
 * memory. One block a processor; cycles are the blocks' own (the median counts), so a rate a cycle does not depend on
 * the clock.
 *
 *   hopper_micro [hopper_micro.cu]      a CSV on stdout; exit status 77: no Hopper GPU here */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "attn/attn_device.h"

#define MEMORY_BYTES ((size_t)1 << 30)
#define OUT_BYTES    (8 + 1024 * 4)
enum { ROUNDS = 512, LANES = 8, SHARED = 200 * 1024, RUNS = 5, OPTIONS = 6 };

typedef struct work {
    const char *name;
    int threads, width, zeros;
    size_t span;   /* bytes that copies walk over; 0: none */
    double amount; /* a block's, in units */
    const char *unit;
} work;

static struct {
    attn_context *context;
    attn_stream stream;
    attn_device_info info;
    void *driver, *nvrtc, *out, *memory;
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*size)(void *, size_t *), (*code)(void *, char *), (*log_size)(void *, size_t *), (*log)(void *, char *);
    int (*destroy)(void **);
    int (*load)(void **, const void *), (*unload)(void *), (*function)(void **, void *, const char *);
    int (*attribute)(void *, int, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                  void **);
} gpu;

static void need(int failed, const char *what) {
    if (failed) {
        fprintf(stderr, "hopper_micro: %s failed: %d\n", what, failed);
        exit(1);
    }
}

static void find(void *member, void *library, const char *name) {
    void *found = dlsym(library, name);
    need(!found, name);
    memcpy(member, &found, sizeof found);
}

static void open_gpu(void) {
    attn_error error;
    attn_config config = {.struct_size = sizeof config, .device = "cuda"};
    int (*owner)(void *, void **), (*current)(void *);
    void *context = NULL;
    gpu.info.struct_size = sizeof gpu.info;
    gpu.driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!gpu.driver || attn_context_create(&gpu.context, &config, &error) ||
        attn_device_query(gpu.context, &gpu.info, &error) || gpu.info.device_arch != 90) {
        fprintf(stderr, "hopper_micro: no Hopper GPU\n");
        exit(77);
    }
    gpu.nvrtc = dlopen(gpu.info.nvrtc_path, RTLD_NOW);
    need(!gpu.nvrtc, "NVRTC");
    find(&gpu.create, gpu.nvrtc, "nvrtcCreateProgram");
    find(&gpu.compile, gpu.nvrtc, "nvrtcCompileProgram");
    find(&gpu.size, gpu.nvrtc, "nvrtcGetCUBINSize");
    find(&gpu.code, gpu.nvrtc, "nvrtcGetCUBIN");
    find(&gpu.log_size, gpu.nvrtc, "nvrtcGetProgramLogSize");
    find(&gpu.log, gpu.nvrtc, "nvrtcGetProgramLog");
    find(&gpu.destroy, gpu.nvrtc, "nvrtcDestroyProgram");
    find(&gpu.load, gpu.driver, "cuModuleLoadData");
    find(&gpu.unload, gpu.driver, "cuModuleUnload");
    find(&gpu.function, gpu.driver, "cuModuleGetFunction");
    find(&gpu.attribute, gpu.driver, "cuFuncSetAttribute");
    find(&gpu.launch, gpu.driver, "cuLaunchKernel");
    find(&owner, gpu.driver, "cuStreamGetCtx");
    find(&current, gpu.driver, "cuCtxSetCurrent");
    need(attn_stream_create(&gpu.stream, gpu.context, &error) ||
             attn_memory_create(&gpu.out, gpu.context, OUT_BYTES * (size_t)gpu.info.processors, &error) ||
             attn_memory_create(&gpu.memory, gpu.context, MEMORY_BYTES, &error) ||
             attn_memory_fill(gpu.context, gpu.memory, 0, MEMORY_BYTES, gpu.stream, &error),
         error.message);
    need(owner(gpu.stream, &context) || current(context), "cuCtxSetCurrent");
}

/* product(d, a, rows, columns): d += A B for `width` columns, A from shared memory or from registers. */
static void write_product(char *text, size_t size, const work *w) {
    int sums = w->width / 2, registers = strstr(w->name, "registers") != NULL;
    size_t n =
        (size_t)snprintf(text, size,
                         "static __device__ void product(float *d, const uint *a, uint64 rows, uint64 columns) {\n"
                         "asm volatile(\"wgmma.mma_async.sync.aligned.m64n%dk16.f32.bf16.bf16 {",
                         w->width);
    for (int i = 0; i < sums; i++) {
        n += (size_t)snprintf(text + n, size - n, "%s%%%d", i ? "," : "", i);
    }
    if (registers) {
        n += (size_t)snprintf(text + n, size - n, "}, {%%%d,%%%d,%%%d,%%%d}, %%%d, 1, 1, 1, 0;\" :", sums, sums + 1,
                              sums + 2, sums + 3, sums + 4);
    } else {
        n += (size_t)snprintf(text + n, size - n, "}, %%%d, %%%d, 1, 1, 1, 0, 0;\" :", sums, sums + 1);
    }
    for (int i = 0; i < sums; i++) {
        n += (size_t)snprintf(text + n, size - n, "%s\"+f\"(d[%d])", i ? "," : "", i);
    }
    snprintf(text + n, size - n, " : %s \"l\"(columns));\n}\n",
             registers ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])," : "\"l\"(rows),");
}

static void *build(const work *w, const char *source, void **module) {
    static char product[32768];
    char text[OPTIONS][64];
    const char *options[OPTIONS], *headers[] = {product}, *names[] = {"product.h"};
    void *program = NULL, *function = NULL;
    size_t size = 0;
    snprintf(text[0], sizeof text[0], "--gpu-architecture=sm_90a");
    snprintf(text[1], sizeof text[1], "--std=c++17");
    snprintf(text[2], sizeof text[2], "-DWORK_%s=1", w->name);
    snprintf(text[3], sizeof text[3], "-DWIDTH=%d", w->width);
    snprintf(text[4], sizeof text[4], "-DZEROS=%d", w->zeros);
    snprintf(text[5], sizeof text[5], "--device-as-default-execution-space");
    for (int n = 0; n < OPTIONS; n++) {
        options[n] = text[n];
    }
    product[0] = 0;
    if (strstr(w->name, "product")) {
        write_product(product, sizeof product, w);
    }
    need(gpu.create(&program, source, "hopper_micro.cu", 1, headers, names), "nvrtcCreateProgram");
    int failed = gpu.compile(program, OPTIONS, options);
    if (failed) {
        gpu.log_size(program, &size);
        char *log = calloc(1, size + 1);
        gpu.log(program, log);
        fprintf(stderr, "%s\n", log);
        free(log);
    }
    need(failed || gpu.size(program, &size), w->name);
    char *code = malloc(size);
    need(!code || gpu.code(program, code), "nvrtcGetCUBIN");
    need(gpu.load(module, code) || gpu.function(&function, *module, "micro") || gpu.attribute(function, 8, SHARED),
         w->name);
    gpu.destroy(&program);
    free(code);
    return function;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median cycles of the blocks of the fastest run; milliseconds of it. */
static double run(const work *w, void *function, double *milliseconds) {
    enum { MOST = 1024 };
    static unsigned char out[OUT_BYTES * MOST];
    double cycles[MOST], best = 0;
    unsigned long long span = w->span ? w->span : 1;
    float seed = 0.25f;
    void *parameters[] = {&gpu.out, &gpu.memory, &span, &seed};
    unsigned blocks = (unsigned)(gpu.info.processors < MOST ? gpu.info.processors : MOST);
    attn_event *start, *end;
    attn_error error;
    need(attn_event_create(&start, gpu.context, &error) || attn_event_create(&end, gpu.context, &error), error.message);
    *milliseconds = 0;
    for (int n = 0; n < RUNS; n++) {
        double elapsed;
        need(attn_event_record(start, gpu.stream, &error), error.message);
        need(gpu.launch(function, blocks, 1, 1, (unsigned)w->threads, 1, 1, SHARED, gpu.stream, parameters, NULL),
             w->name);
        need(attn_event_record(end, gpu.stream, &error) || attn_event_elapsed(start, end, &elapsed, &error) ||
                 attn_memory_copy(gpu.context, out, gpu.out, OUT_BYTES * blocks, gpu.stream, &error),
             error.message);
        if (n && (*milliseconds == 0 || elapsed < *milliseconds)) {
            *milliseconds = elapsed;
            for (unsigned b = 0; b < blocks; b++) {
                unsigned long long c;
                memcpy(&c, out + OUT_BYTES * b, sizeof c);
                cycles[b] = (double)c;
            }
            qsort(cycles, blocks, sizeof *cycles, ascending);
            best = cycles[blocks / 2];
        }
    }
    attn_event_destroy(start);
    attn_event_destroy(end);
    return best;
}

static void measure(const work *w, const char *source) {
    void *module = NULL, *function = build(w, source, &module);
    double milliseconds, cycles = run(w, function, &milliseconds);
    printf("%s,%d,%d,%s,%zu,%.0f,%.4f,%.4g,%s a cycle and processor,%.4g\n", w->name, w->threads, w->width,
           w->zeros ? "zeros" : "random", w->span >> 20, cycles, milliseconds, w->amount / cycles, w->unit,
           w->amount * gpu.info.processors / milliseconds / 1e9);
    fflush(stdout);
    need(gpu.unload(module), "cuModuleUnload");
}

int main(int argc, char **argv) {
    static const char *const arithmetic[] = {
        "ex2",  "ex2_f16x2", "ex2_bf16x2",   "ffma", "ex2_and_4_ffma", "ex2_polynomial",
        "fmax", "imax3",     "round_bf16x2", "hfma2"};
    static const int widths[] = {64, 80, 96, 112, 128, 176, 192, 256}, pieces[] = {4096, 8192, 16384, 32768};
    static const char *const operands[] = {"product_shared", "product_registers"};
    static char source[32768];
    const char *path = argc > 1 ? argv[1] : MICRO_SOURCE;
    FILE *file = fopen(path, "rb");
    need(!file, path);
    source[fread(source, 1, sizeof source - 1, file)] = 0;
    fclose(file);
    open_gpu();
    printf("work,threads,width,data,span_mib,cycles,milliseconds,rate,unit,tera a second on all processors\n");
    for (size_t n = 0; n < sizeof arithmetic / sizeof *arithmetic; n++) {
        measure(&(work){arithmetic[n], 256, 1, 0, 0, 256.0 * ROUNDS * LANES, "instructions' results"}, source);
    }
    for (int n = 0; n < 8; n++) {
        for (int operand = 0; operand < 2; operand++) {
            for (int groups = 1; groups <= (widths[n] > 192 ? 2 : 3); groups++) {
                double flop = 2.0 * 64 * 16 * widths[n] * 4 * ROUNDS * groups;
                measure(&(work){operands[operand], 128 * groups, widths[n], 0, 0, flop, "FLOP"}, source);
            }
        }
    }
    measure(&(work){"product_shared", 256, 128, 1, 0, 2.0 * 64 * 16 * 128 * 4 * ROUNDS * 2, "FLOP"}, source);
    measure(&(work){"shared", 256, 16, 0, 0, 256.0 * 16 * LANES * ROUNDS, "bytes"}, source);
    for (int n = 0; n < 4; n++) {
        measure(&(work){"copy", 128, pieces[n], 0, (size_t)16 << 20, (double)pieces[n] * ROUNDS, "bytes"}, source);
        measure(&(work){"copy", 128, pieces[n], 0, MEMORY_BYTES, (double)pieces[n] * ROUNDS, "bytes"}, source);
    }
    measure(&(work){"named_turn", 256, 1, 0, 0, ROUNDS, "turns to and fro"}, source);
    measure(&(work){"phase_turn", 256, 1, 0, 0, ROUNDS, "turns to and fro"}, source);
    measure(&(work){"add_one", 256, 1, 0, 0, 256.0 * 4 * ROUNDS, "bytes"}, source);
    measure(&(work){"add_four", 256, 4, 0, 0, 256.0 * 16 * ROUNDS, "bytes"}, source);
    measure(&(work){"add_bulk", 256, 1024, 0, 0, 4096.0 * ROUNDS, "bytes"}, source);
    return 0;
}
