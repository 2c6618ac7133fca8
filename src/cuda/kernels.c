/* SPDX-License-Identifier: Apache-2.0
 * attn_kernels.h: listing, packing and cleaning kept kernels. A walk visits every file of a folder that bears the
 * cache's suffix or a draft's mark, ordered by name. */
#include "attn/attn_kernels.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "cuda/record.h"
#include "cuda/sources.h"

enum { PATH = 1400 };

static bool current(const attn__record *record) {
    char sources[80];
    attn__record_line(record->key, "sources", sources, sizeof sources);
    return strcmp(sources, attn__sources_hash) == 0;
}

/* --- Walking --- */

/* `record` is NULL where the file is none, or damaged. Returns 0 or an errno value, which ends the walk. */
typedef int (*visit_fn)(void *user, const char *path, const char *data, const attn__record *record);

static bool has_suffix(const char *name) {
    size_t length = strlen(name), suffix = strlen(ATTN__RECORD_SUFFIX);
    return length > suffix && strcmp(name + length - suffix, ATTN__RECORD_SUFFIX) == 0;
}

static int is_ours(const struct dirent *entry) {
    return has_suffix(entry->d_name) || attn__draft_named(entry->d_name);
}

static attn__allocator allocator_of(const attn_context *context) {
    attn__allocator allocator = {context->config.allocate, context->config.release, context->config.allocator_user};
    return allocator;
}

/* Each record of a file, or the one news that it is none. */
static int visit_file(const attn_context *context, const char *path, visit_fn visit, void *user) {
    attn__allocator allocator = allocator_of(context);
    attn__record record;
    char *data;
    size_t size, at = 0;
    int code = attn__file_read(path, (size_t)1 << 31, &allocator, &data, &size);
    if (code) {
        return code == ENOENT ? 0 : code; /* another process may have removed it */
    }
    while (!code && at < size && attn__record_read(data + at, size - at, &record)) {
        code = visit(user, path, data + at, &record);
        at += record.size;
    }
    if (!code && (at < size || size == 0)) {
        code = visit(user, path, NULL, NULL);
    }
    allocator.release(allocator.user, data);
    return code;
}

static int visit_folder(const attn_context *context, const char *folder, visit_fn visit, void *user) {
    char path[PATH];
    struct dirent **entries;
    int count = scandir(folder, &entries, is_ours, alphasort), code = 0;
    if (count < 0) {
        return errno == ENOENT ? 0 : errno;
    }
    for (int n = 0; n < count; n++) {
        if (!code && snprintf(path, sizeof path, "%s/%s", folder, entries[n]->d_name) < (int)sizeof path) {
            code = attn__draft_named(entries[n]->d_name) ? visit(user, path, NULL, NULL)
                                                         : visit_file(context, path, visit, user);
        }
        free(entries[n]);
    }
    free(entries);
    return code;
}

/* NULL is the context's folder. */
static attn_status folder_of(const attn_context *context, const char **folder, attn_error *error) {
    if (!context) {
        return attn__fail(error, ATTN_ERR_INVALID, "context", "is NULL");
    }
    *folder = *folder ? *folder : context->cache;
    return **folder ? ATTN_OK
                    : attn__fail(error, ATTN_ERR_INVALID, "folder",
                                 "is none: set attn_config.cache, ATTN_CACHE_DIR or HOME, or give one");
}

static attn_status failed(int code, const char *field, const char *path, attn_error *error) {
    bool full = code == ENOMEM || code == ENOSPC || code == EDQUOT;
    return attn__fail(error, full ? ATTN_ERR_MEMORY : ATTN_ERR_INVALID, field, "%.150s: %s", path, strerror(code));
}

/* --- List --- */

typedef struct listing {
    attn_kernel_fn each;
    void *user;
    bool damaged;
} listing;

static int list_one(void *user, const char *path, const char *data, const attn__record *record) {
    listing *list = user;
    char name[128], target[16], nvrtc[48];
    (void)data;
    if (!record) {
        list->damaged = true;
        return 0;
    }
    attn__record_line(record->key, "name", name, sizeof name);
    attn__record_line(record->key, "target", target, sizeof target);
    attn__record_line(record->key, "nvrtc", nvrtc, sizeof nvrtc);
    attn_kernel_info info = {
        .struct_size = sizeof info,
        .name = name,
        .target = target,
        .nvrtc = nvrtc,
        .file = path,
        .code_bytes = record->header.code_size,
        .registers = record->header.registers,
        .stack_bytes = record->header.stack_bytes,
        .spill_bytes = record->header.spill_bytes,
        .current = current(record),
    };
    list->each(list->user, &info);
    return 0;
}

attn_status attn_kernels_list(const attn_context *context, const char *path, attn_kernel_fn each, void *user,
                              attn_error *error) {
    listing list = {each, user, false};
    struct stat file;
    if (!each) {
        return attn__fail(error, ATTN_ERR_INVALID, "each", "is NULL");
    }
    attn_status status = folder_of(context, &path, error);
    if (status) {
        return status;
    }
    bool folder = stat(path, &file) != 0 || S_ISDIR(file.st_mode);
    int code = folder ? visit_folder(context, path, list_one, &list) : visit_file(context, path, list_one, &list);
    if (!code && !folder && list.damaged) {
        return attn__fail(error, ATTN_ERR_INVALID, "path", "%.120s is damaged, or no file of packed kernels", path);
    }
    return code ? failed(code, "path", path, error) : attn__succeed(error);
}

/* --- Pack --- */

typedef struct packing {
    attn__draft draft;
    int64_t count;
} packing;

static int pack_one(void *user, const char *path, const char *data, const attn__record *record) {
    packing *pack = user;
    (void)path;
    if (!record || !current(record)) {
        return 0;
    }
    pack->count++;
    return attn__draft_write(&pack->draft, data, record->size);
}

attn_status attn_kernels_pack(const attn_context *context, const char *folder, const char *file, int64_t *packed,
                              attn_error *error) {
    packing pack = {.count = 0};
    if (!file || !*file) {
        return attn__fail(error, ATTN_ERR_INVALID, "file", file ? "is empty" : "is NULL");
    }
    attn_status status = folder_of(context, &folder, error);
    if (status) {
        return status;
    }
    int code = attn__draft_start(&pack.draft, file, false);
    if (code) {
        return failed(code, "file", file, error);
    }
    int walked = visit_folder(context, folder, pack_one, &pack);
    code = attn__draft_end(&pack.draft, !walked && pack.count > 0);
    if (walked || code) {
        return walked ? failed(walked, "folder", folder, error) : failed(code, "file", file, error);
    }
    if (packed) {
        *packed = pack.count;
    }
    return pack.count ? attn__succeed(error)
                      : attn__fail(error, ATTN_ERR_INVALID, "folder",
                                   "%.120s holds no kernel of this version; attn kernels build makes some", folder);
}

/* --- Clean --- */

typedef struct cleaning {
    bool all;
    int64_t count;
} cleaning;

static int clean_one(void *user, const char *path, const char *data, const attn__record *record) {
    cleaning *clean = user;
    (void)data;
    if (record && !clean->all && current(record)) {
        return 0;
    }
    if (unlink(path) == 0) {
        clean->count++;
        return 0;
    }
    return errno == ENOENT ? 0 : errno;
}

attn_status attn_kernels_clean(const attn_context *context, const char *folder, int all, int64_t *removed,
                               attn_error *error) {
    cleaning clean = {all != 0, 0};
    attn_status status = folder_of(context, &folder, error);
    if (status) {
        return status;
    }
    int code = visit_folder(context, folder, clean_one, &clean);
    if (removed) {
        *removed = clean.count;
    }
    return code ? failed(code, "folder", folder, error) : attn__succeed(error);
}
