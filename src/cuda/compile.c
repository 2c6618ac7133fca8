/* SPDX-License-Identifier: Apache-2.0
 * From a kernel's description to machine code: its constants become a few #define lines before the one #include of its
 * entry file; all device sources are handed over by name, so the compiler needs no file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "cuda/device.h"
#include "cuda/sources.h"

enum { NVRTC_ERROR_INVALID_OPTION = 5, NVRTC_ERROR_COMPILATION = 6, MOST_SOURCES = 128 };

/* The assembler is asked to tell registers and spills. */
static const char *const flags[] = {"-default-device", "-std=c++17", "--ptxas-options=-v"};
const char attn__cuda_flags[] = "-default-device -std=c++17 --ptxas-options=-v";

/* sm_90's warp-group instructions exist in its own dialect alone. */
void attn__cuda_target(const attn__cuda *cuda, char target[16]) {
    int arch = cuda->gpu.arch;
    snprintf(target, 16, "%s_%d%s", attn__cuda_ptx(cuda) ? "compute" : "sm", arch,
             arch == 90 && !attn__cuda_ptx(cuda) ? "a" : "");
}

void attn__cuda_source(const attn__kernel *kernel, attn__text *text) {
    for (int n = 0; n < kernel->n_constants; n++) {
        attn__text_add(text, "#define %s %" PRId64 "\n", kernel->constants[n].name, kernel->constants[n].value);
    }
    attn__text_add(text, "#define ATTN_KERNEL %s\n", kernel->name);
    attn__text_add(text, "#include \"%s\"\n", kernel->source);
}

/* The first complaint of a log, on one line. */
static void first_complaint(const char *log, char *line, size_t size) {
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n') {
        at--;
    }
    at = at ? at : log;
    snprintf(line, size, "%.*s", (int)strcspn(at, "\n"), at);
}

static int number_before(const char *log, const char *word) {
    const char *at = strstr(log, word);
    while (at && at > log && (at[-1] == ' ' || (at[-1] >= '0' && at[-1] <= '9'))) {
        at--;
    }
    return at ? atoi(at) : -1;
}

static void read_usage(const char *log, attn__code *code) {
    const char *used = strstr(log, "Used "); /* other lines speak of registers too */
    code->registers = used ? number_before(used, " registers") : -1;
    code->stack_bytes = number_before(log, " bytes stack frame");
    code->spill_bytes = number_before(log, " bytes spill stores");
    code->serialized = strstr(log, "C7510") || strstr(log, "wgmma.mma_async instructions are serialized");
}

static char *copy_log(const attn__cuda *cuda, nvrtcProgram program) {
    size_t size = 0;
    char *log = NULL;
    if (cuda->nvrtc.GetProgramLogSize(program, &size) == 0 && size > 0) {
        log = attn__context_allocate(cuda->context, size + 1);
    }
    if (log && cuda->nvrtc.GetProgramLog(program, log) == 0) {
        log[size] = 0;
    } else if (log) {
        log[0] = 0;
    }
    return log;
}

static attn_status take_code(const attn__cuda *cuda, nvrtcProgram program, const attn__kernel *kernel, attn__code *code,
                             attn_error *error) {
    const attn__nvrtc *nvrtc = &cuda->nvrtc;
    bool ptx = attn__cuda_ptx(cuda);
    if ((ptx ? nvrtc->GetPTXSize : nvrtc->GetCUBINSize)(program, &code->size) || code->size == 0) {
        return attn__fail(error, ATTN_ERR_COMPILE, "nvrtc", "%d.%d gave no code for %s", nvrtc->major, nvrtc->minor,
                          kernel->name);
    }
    code->data = attn__context_allocate(cuda->context, code->size);
    if (!code->data) {
        return attn__fail(error, ATTN_ERR_MEMORY, "kernel", "%zu bytes could not be allocated", code->size);
    }
    if ((ptx ? nvrtc->GetPTX : nvrtc->GetCUBIN)(program, code->data)) {
        attn__context_release(cuda->context, code->data);
        code->data = NULL;
        return attn__fail(error, ATTN_ERR_COMPILE, "nvrtc", "%d.%d gave no code for %s", nvrtc->major, nvrtc->minor,
                          kernel->name);
    }
    return ATTN_OK;
}

static attn_status compile_program(const attn__cuda *cuda, nvrtcProgram program, const attn__kernel *kernel,
                                   attn__code *code, attn_error *error) {
    char target[16], architecture[48], complaint[120] = "";
    attn__cuda_target(cuda, target);
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s", target);
    const char *options[] = {architecture, flags[0], flags[1], flags[2]};
    int result = cuda->nvrtc.CompileProgram(program, sizeof options / sizeof options[0], options);
    char *log = copy_log(cuda, program);
    if (result == 0) {
        read_usage(log ? log : "", code);
    } else {
        first_complaint(log ? log : "", complaint, sizeof complaint);
    }
    attn__context_release(cuda->context, log);
    if (result == NVRTC_ERROR_INVALID_OPTION) {
        return attn__fail(error, ATTN_ERR_COMPILE, "nvrtc",
                          "%d.%d (%.80s) does not know %s: use one of a newer toolkit, or set max_isa to an older sm",
                          cuda->nvrtc.major, cuda->nvrtc.minor, cuda->nvrtc.path, target);
    }
    if (result) {
        return attn__fail(error, ATTN_ERR_COMPILE, "kernel", "%.70s: NVRTC %d.%d, error %d: %s", kernel->name,
                          cuda->nvrtc.major, cuda->nvrtc.minor, result, complaint);
    }
    return take_code(cuda, program, kernel, code, error);
}

attn_status attn__cuda_compile(attn__cuda *cuda, const attn__kernel *kernel, attn__code *code, attn_error *error) {
    char source[4096];
    const char *texts[MOST_SOURCES], *names[MOST_SOURCES];
    nvrtcProgram program;
    attn__text text = attn__text_start(source, sizeof source);
    memset(code, 0, sizeof *code);
    if (!cuda->nvrtc.library) {
        return attn__fail(error, ATTN_ERR_COMPILE, "nvrtc",
                          "is needed to compile kernels and %s; set ATTN_NVRTC to a libnvrtc.so.12 or .13, or run "
                          "pip install nvidia-cuda-nvrtc in a virtual environment",
                          cuda->nvrtc.why);
    }
    attn__cuda_source(kernel, &text);
    if (text.length >= sizeof source || attn__sources_count > MOST_SOURCES) {
        return attn__fail(error, ATTN_ERR_INTERNAL, "kernel", "%s has too long constants or too many sources",
                          kernel->name);
    }
    for (int n = 0; n < attn__sources_count; n++) {
        texts[n] = attn__sources[n].text;
        names[n] = attn__sources[n].name;
    }
    if (cuda->nvrtc.CreateProgram(&program, source, kernel->name, attn__sources_count, texts, names)) {
        return attn__fail(error, ATTN_ERR_COMPILE, "nvrtc", "%d.%d: nvrtcCreateProgram failed for %s",
                          cuda->nvrtc.major, cuda->nvrtc.minor, kernel->name);
    }
    attn_status status = compile_program(cuda, program, kernel, code, error);
    cuda->nvrtc.DestroyProgram(&program);
    return status;
}
