/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MARK ".attn-draft-"

static int read_all(int handle, char *data, size_t *size) {
    size_t done = 0;
    while (done < *size) {
        ssize_t part = read(handle, data + done, *size - done);
        if (part < 0 && errno != EINTR) {
            return errno;
        }
        if (part == 0) {
            break;
        }
        done += part > 0 ? (size_t)part : 0;
    }
    *size = done;
    return 0;
}

int attn__file_read(const char *path, size_t most, const attn__allocator *allocator, char **data, size_t *size) {
    struct stat file;
    int handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code = 0; /* a pipe of that name must not hang */
    *data = NULL;
    if (handle < 0) {
        return errno;
    }
    if (fstat(handle, &file) != 0) {
        code = errno;
    } else if (!S_ISREG(file.st_mode)) {
        code = S_ISDIR(file.st_mode) ? EISDIR : EINVAL;
    } else if ((size_t)file.st_size > most) {
        code = EFBIG;
    } else {
        *size = (size_t)file.st_size;
        *data = allocator->allocate(allocator->user, *size + 1);
        code = *data ? read_all(handle, *data, size) : ENOMEM;
    }
    close(handle);
    if (code && *data) {
        allocator->release(allocator->user, *data);
        *data = NULL;
    }
    return code;
}

/* Folders above the last '/'. What exists, or cannot be made, shows when the file is opened. */
static void make_folders(const char *path) {
    char part[sizeof((attn__draft *)0)->path];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(part, 0777);
        *at = '/';
    }
}

int attn__draft_start(attn__draft *draft, const char *path, bool folders) {
    if (!*path || strlen(path) >= sizeof draft->path) {
        return *path ? ENAMETOOLONG : ENOENT;
    }
    snprintf(draft->path, sizeof draft->path, "%s", path);
    if (folders) {
        make_folders(path);
    }
    /* Process and stack address tell concurrent writers apart; O_EXCL decides where they do not. */
    for (int attempt = 0; attempt < 16; attempt++) {
        snprintf(draft->temporary, sizeof draft->temporary, "%s%s%ld-%lx-%d", path, MARK, (long)getpid(),
                 (unsigned long)(size_t)draft & 0xffffff, attempt);
        draft->handle = open(draft->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (draft->handle >= 0 || errno != EEXIST) {
            break;
        }
    }
    return draft->handle >= 0 ? 0 : errno;
}

int attn__draft_write(attn__draft *draft, const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t part = write(draft->handle, at, size);
        if (part < 0 && errno != EINTR) {
            return errno;
        }
        at += part > 0 ? part : 0;
        size -= part > 0 ? (size_t)part : 0;
    }
    return 0;
}

int attn__draft_end(attn__draft *draft, bool keep) {
    int code = close(draft->handle) == 0 ? 0 : errno;
    if (keep && !code && rename(draft->temporary, draft->path) != 0) {
        code = errno;
    }
    if (!keep || code) {
        unlink(draft->temporary);
    }
    return code;
}

bool attn__draft_named(const char *name) {
    return strstr(name, MARK) != NULL;
}
