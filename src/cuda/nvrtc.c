/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
enum { SONAMES = sizeof sonames / sizeof sonames[0] };

/* Fills the table from a library that was opened; false if it is no NVRTC that serves. */
static bool adopt(attn__nvrtc *nvrtc, void *library) {
    struct stat file;
    Dl_info info;
    void *address;
    long long size = 0;
#define ATTN__LOAD(name, symbol, parameters)                                                                           \
    address = dlsym(library, symbol);                                                                                  \
    if (!address) {                                                                                                    \
        snprintf(nvrtc->why, sizeof nvrtc->why, "the library found has no %s: it is older than CUDA 11.2", symbol);    \
        dlclose(library);                                                                                              \
        return false;                                                                                                  \
    }                                                                                                                  \
    memcpy(&nvrtc->name, &address, sizeof address);
    ATTN__NVRTC_LIST(ATTN__LOAD)
#undef ATTN__LOAD
    if (nvrtc->Version(&nvrtc->major, &nvrtc->minor) != 0) {
        snprintf(nvrtc->why, sizeof nvrtc->why, "nvrtcVersion failed");
        dlclose(library);
        return false;
    }
    memcpy(&address, &nvrtc->Version, sizeof address);
    if (dladdr(address, &info) && info.dli_fname) {
        snprintf(nvrtc->path, sizeof nvrtc->path, "%s", info.dli_fname);
        size = stat(info.dli_fname, &file) == 0 ? (long long)file.st_size : 0;
    }
    snprintf(nvrtc->short_version, sizeof nvrtc->short_version, "%d.%d", nvrtc->major, nvrtc->minor);
    snprintf(nvrtc->version, sizeof nvrtc->version, "%d.%d.%lld", nvrtc->major, nvrtc->minor, size);
    nvrtc->library = library;
    nvrtc->why[0] = 0;
    return true;
}

static bool try_name(attn__nvrtc *nvrtc, const char *name, int flags) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);
    return library && adopt(nvrtc, library);
}

static bool try_sonames(attn__nvrtc *nvrtc, int flags) {
    for (int n = 0; n < SONAMES; n++) {
        if (try_name(nvrtc, sonames[n], flags)) {
            return true;
        }
    }
    return false;
}

/* Files that a pattern finds, the newest version first: names sort by version. */
static bool try_pattern(attn__nvrtc *nvrtc, const char *pattern) {
    glob_t found;
    bool done = false;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t n = found.gl_pathc; n > 0 && !done; n--) {
            done = try_name(nvrtc, found.gl_pathv[n - 1], 0);
        }
        globfree(&found);
    }
    return done;
}

/* Folders below a prefix where a toolkit, or Python's wheels, keep the library. */
static bool try_prefix(attn__nvrtc *nvrtc, const char *prefix, const char *const *folders) {
    char pattern[512];
    for (; *folders; folders++) {
        int length = snprintf(pattern, sizeof pattern, "%s/%s/libnvrtc.so.1[23]*", prefix, *folders);
        if (length > 0 && length < (int)sizeof pattern && try_pattern(nvrtc, pattern)) {
            return true;
        }
    }
    return false;
}

static bool try_places(attn__nvrtc *nvrtc, const attn__nvrtc_places *places) {
    static const char *const toolkit[] = {"lib64", "lib", "targets/*/lib", NULL};
    static const char *const wheels[] = {"lib/python3*/*-packages/nvidia/cu1[23]/lib",
                                         "lib/python3*/*-packages/nvidia/cuda_nvrtc/lib", NULL};
    char local[512] = "";
    if (places->home && *places->home) {
        snprintf(local, sizeof local, "%.400s/.local", places->home);
    }
    const struct {
        const char *prefix, *const *folders;
    } sought[] = {{places->cuda, toolkit}, {"/usr/local/cuda", toolkit}, {"/usr/local/cuda-1[23]*", toolkit},
                  {places->venv, wheels},  {places->conda, toolkit},     {places->conda, wheels},
                  {local, wheels},         {"/usr/local", wheels},       {"/usr", wheels}};
    for (size_t n = 0; n < sizeof sought / sizeof sought[0]; n++) {
        if (sought[n].prefix && *sought[n].prefix && try_prefix(nvrtc, sought[n].prefix, sought[n].folders)) {
            return true;
        }
    }
    return false;
}

void attn__nvrtc_open(attn__nvrtc *nvrtc, const char *setting, const attn__nvrtc_places *places) {
    memset(nvrtc, 0, sizeof *nvrtc);
    if (setting) {
        snprintf(nvrtc->why, sizeof nvrtc->why, "%s%.90s", *setting ? "cannot be loaded: " : "switched off by setting",
                 setting);
        if (*setting) {
            try_name(nvrtc, setting, 0);
        }
        return;
    }
    snprintf(nvrtc->why, sizeof nvrtc->why, "found nowhere");
    if (!try_sonames(nvrtc, RTLD_NOLOAD) && !try_sonames(nvrtc, 0)) {
        try_places(nvrtc, places);
    }
}

void attn__nvrtc_close(attn__nvrtc *nvrtc) {
    if (nvrtc->library) {
        dlclose(nvrtc->library);
    }
    memset(nvrtc, 0, sizeof *nvrtc);
}
