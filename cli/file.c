/* SPDX-License-Identifier: Apache-2.0
 * Input files: mapped, since one tensor of a large file is the common case; pipes are read whole. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"

static cli_exit read_whole(cli_file *file, int descriptor, const char *what, cli_error *error) {
    size_t room = 0;
    double free_bytes = cli_memory_available();
    size_t limit = free_bytes > 0 && free_bytes < 0x1p62 ? (size_t)(free_bytes / 2) : (size_t)1 << 40;
    for (;;) {
        if (file->size == room) {
            if (room >= limit) {
                return cli_fail(error, CLI_UNRUN, "%s: out of memory: it goes on after %zu bytes, half of what is free",
                                what, file->size);
            }
            room = room ? 2 * room : 1 << 16;
            unsigned char *grown = realloc(file->bytes, room);
            if (!grown) {
                return cli_fail(error, CLI_UNRUN, "%s: out of memory after %zu bytes", what, file->size);
            }
            file->bytes = grown;
        }
        ssize_t n = read(descriptor, file->bytes + file->size, room - file->size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return cli_fail(error, CLI_USAGE, "%s: cannot be read: %s", what, strerror(errno));
        }
        if (n == 0) {
            return CLI_RIGHT;
        }
        file->size += (size_t)n;
    }
}

cli_exit cli_file_open(cli_file *file, const char *path, const char *what, cli_error *error) {
    memset(file, 0, sizeof *file);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (descriptor < 0) {
        return cli_fail(error, CLI_USAGE, "%s: cannot be opened: %s", what, strerror(errno));
    }
    cli_exit code = CLI_RIGHT;
    if (fstat(descriptor, &facts) != 0) {
        code = cli_fail(error, CLI_USAGE, "%s: cannot be read: %s", what, strerror(errno));
    } else if (S_ISDIR(facts.st_mode)) {
        code = cli_fail(error, CLI_USAGE, "%s: is a directory, a file is needed", what);
    } else if (S_ISREG(facts.st_mode) && facts.st_size > 0) {
        void *map = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (map == MAP_FAILED) {
            code = cli_fail(error, CLI_UNRUN, "%s: %lld bytes cannot be mapped: %s", what, (long long)facts.st_size,
                            strerror(errno));
        } else {
            file->bytes = map;
            file->size = (size_t)facts.st_size;
            file->mapped = true;
        }
    } else if (!S_ISREG(facts.st_mode)) {
        code = read_whole(file, descriptor, what, error);
    }
    close(descriptor);
    if (code) {
        cli_file_close(file);
    }
    return code;
}

void cli_file_close(cli_file *file) {
    if (file->mapped) {
        munmap(file->bytes, file->size);
    } else {
        free(file->bytes);
    }
    memset(file, 0, sizeof *file);
}
