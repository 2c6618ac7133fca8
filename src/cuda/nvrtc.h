/* SPDX-License-Identifier: Apache-2.0
 * NVIDIA's run-time compiler, found and loaded when a context is made. */
#ifndef ATTN_CUDA_NVRTC_H
#define ATTN_CUDA_NVRTC_H

#include <stdbool.h>
#include <stddef.h>

#include "attn/attn.h"

typedef struct attn__nvrtc_program *nvrtcProgram;

/* Member, symbol, parameters. */
#define ATTN__NVRTC_LIST(X)                                                                                            \
    X(Version, "nvrtcVersion", (int *major, int *minor))                                                               \
    X(CreateProgram, "nvrtcCreateProgram",                                                                             \
      (nvrtcProgram * program, const char *source, const char *name, int headers, const char *const *texts,            \
       const char *const *names))                                                                                      \
    X(DestroyProgram, "nvrtcDestroyProgram", (nvrtcProgram * program))                                                 \
    X(CompileProgram, "nvrtcCompileProgram", (nvrtcProgram program, int options, const char *const *option))           \
    X(GetCUBINSize, "nvrtcGetCUBINSize", (nvrtcProgram program, size_t * size))                                        \
    X(GetCUBIN, "nvrtcGetCUBIN", (nvrtcProgram program, char *code))                                                   \
    X(GetPTXSize, "nvrtcGetPTXSize", (nvrtcProgram program, size_t * size))                                            \
    X(GetPTX, "nvrtcGetPTX", (nvrtcProgram program, char *code))                                                       \
    X(GetProgramLogSize, "nvrtcGetProgramLogSize", (nvrtcProgram program, size_t * size))                              \
    X(GetProgramLog, "nvrtcGetProgramLog", (nvrtcProgram program, char *log))

typedef struct attn__nvrtc {
    void *library; /* NULL: none; `why` tells */
    int major, minor;
    char path[512];
    char short_version[16]; /* "13.0" */
    char version[48];       /* "13.0.109338064": with the file's size, which tells patches apart */
    char why[160];
#define ATTN__MEMBER(name, symbol, parameters) int(*name) parameters;
    ATTN__NVRTC_LIST(ATTN__MEMBER)
#undef ATTN__MEMBER
} attn__nvrtc;

/* What the environment says of places where the library may lie; each may be NULL. */
typedef struct attn__nvrtc_places {
    const char *cuda;  /* CUDA_HOME */
    const char *venv;  /* VIRTUAL_ENV */
    const char *conda; /* CONDA_PREFIX */
    const char *home;  /* HOME */
} attn__nvrtc_places;

/* Sought, in this order: `setting` when given (and nothing else), libraries that the process has loaded, sonames, the
 * toolkit's folders, Python's nvidia wheels. An empty setting means none. Missing is no error until a kernel must be
 * compiled. */
void attn__nvrtc_open(attn__nvrtc *nvrtc, const char *setting, const attn__nvrtc_places *places);
void attn__nvrtc_close(attn__nvrtc *nvrtc);

#endif
