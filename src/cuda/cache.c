/* SPDX-License-Identifier: Apache-2.0
 * Where a kernel's code comes from: the pack that the context was given, the folder on disk, the compiler. The folder
 * holds one file a kernel and compiler, named by the hash of the key. It may be shared by processes, damaged, full,
 * read-only or absent: whatever is not right there is compiled anew, and what cannot be kept is not. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "cuda/record.h"

static attn__allocator allocator_of(const attn__cuda *cuda) {
    const attn_config *config = &cuda->context->config;
    attn__allocator allocator = {config->allocate, config->release, config->allocator_user};
    return allocator;
}

static attn_status copy_code(const attn__cuda *cuda, const attn__record *record, attn__code *code, attn_error *error) {
    memset(code, 0, sizeof *code);
    code->size = record->header.code_size;
    code->registers = record->header.registers;
    code->stack_bytes = record->header.stack_bytes;
    code->spill_bytes = record->header.spill_bytes;
    code->data = attn__context_allocate(cuda->context, code->size);
    if (!code->data) {
        return attn__fail(error, ATTN_ERR_MEMORY, "kernel", "%zu bytes could not be allocated", code->size);
    }
    memcpy(code->data, record->code, code->size);
    return ATTN_OK;
}

/* --- Packs --- */

attn_status attn__cuda_open_pack(attn__cuda *cuda, const char *path, const char *field, attn_error *error) {
    attn__allocator allocator = allocator_of(cuda);
    attn__record record;
    size_t at = 0;
    int code = attn__file_read(path, (size_t)1 << 31, &allocator, &cuda->pack, &cuda->pack_size);
    if (code) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "%.120s cannot be read: %s", path, strerror(code));
    }
    while (at < cuda->pack_size && attn__record_read(cuda->pack + at, cuda->pack_size - at, &record)) {
        at += record.size;
    }
    return at == cuda->pack_size && at > 0
               ? ATTN_OK
               : attn__fail(error, ATTN_ERR_INVALID, field,
                            "%.100s is damaged, or no file of packed kernels, from byte %zu on; make it anew with attn "
                            "kernels pack",
                            path, at);
}

/* The pack was found sound when it was opened. */
static bool find_packed(const attn__cuda *cuda, const char *rest, attn__record *record) {
    size_t at = 0;
    while (at < cuda->pack_size && attn__record_frame(cuda->pack + at, cuda->pack_size - at, record)) {
        if (strcmp(attn__record_rest(record->key), rest) == 0) {
            return true;
        }
        at += record->size;
    }
    return false;
}

/* --- The folder --- */

/* The file's path; without a compiler that of any whose hash fits. False if there is none, or no folder. */
static bool path_of(const attn__cuda *cuda, const char *rest, char *path, size_t size) {
    char digits[33];
    int length = 0;
    attn__record_digits(rest, digits);
    if (!cuda->folder[0]) {
        return false;
    }
    if (cuda->nvrtc.library) {
        length = snprintf(path, size, "%s/%s-%s%s", cuda->folder, digits, cuda->nvrtc.version, ATTN__RECORD_SUFFIX);
        return length > 0 && (size_t)length < size;
    }
    DIR *folder = opendir(cuda->folder);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry && !length; entry = readdir(folder)) {
        if (strncmp(entry->d_name, digits, 32) == 0 && !attn__draft_named(entry->d_name)) {
            length = snprintf(path, size, "%s/%s", cuda->folder, entry->d_name);
        }
    }
    if (folder) {
        closedir(folder);
    }
    return length > 0 && (size_t)length < size;
}

/* False if the folder has no sound file of that key. */
static bool take_from_disk(const attn__cuda *cuda, const char *key, const char *rest, attn__code *code) {
    char path[1200];
    attn__allocator allocator = allocator_of(cuda);
    attn__record record;
    char *data;
    size_t size;
    if (!path_of(cuda, rest, path, sizeof path) ||
        attn__file_read(path, ATTN__RECORD_MOST + ATTN__KEY_SIZE, &allocator, &data, &size)) {
        return false;
    }
    bool found =
        attn__record_read(data, size, &record) && record.size == size &&
        (cuda->nvrtc.library ? strcmp(record.key, key) == 0 : strcmp(attn__record_rest(record.key), rest) == 0);
    found = found && copy_code(cuda, &record, code, NULL) == ATTN_OK;
    allocator.release(allocator.user, data);
    return found;
}

static void keep_on_disk(const attn__cuda *cuda, const char *key, const char *rest, const attn__code *code) {
    char path[1200];
    attn__draft draft;
    attn__record_header header;
    if (!path_of(cuda, rest, path, sizeof path) || code->size > ATTN__RECORD_MOST ||
        attn__draft_start(&draft, path, true)) {
        return;
    }
    attn__record_seal(&header, key, code);
    int failed = attn__draft_write(&draft, &header, sizeof header);
    failed = failed ? failed : attn__draft_write(&draft, key, header.key_size);
    failed = failed ? failed : attn__draft_write(&draft, code->data, code->size);
    attn__draft_end(&draft, !failed);
}

attn_status attn__cuda_code(attn__cuda *cuda, const attn__kernel *kernel, attn__code *code, const char **origin,
                            attn_error *error) {
    char key[ATTN__KEY_SIZE];
    const char *rest;
    attn__record record;
    if (!attn__record_key(cuda, kernel, key, &rest)) {
        return attn__fail(error, ATTN_ERR_INTERNAL, "kernel", "%s has too long constants", kernel->name);
    }
    if (find_packed(cuda, rest, &record)) {
        *origin = "pack";
        return copy_code(cuda, &record, code, error);
    }
    if (take_from_disk(cuda, key, rest, code)) {
        *origin = "disk";
        return ATTN_OK;
    }
    *origin = "compiled";
    attn_status status = attn__cuda_compile(cuda, kernel, code, error);
    if (!status) {
        pthread_mutex_lock(&cuda->lock);
        cuda->compiled++;
        pthread_mutex_unlock(&cuda->lock);
        keep_on_disk(cuda, key, rest, code);
    }
    return status;
}
