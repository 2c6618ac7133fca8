/* SPDX-License-Identifier: Apache-2.0
 * Memory of a job. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define LARGE     (64.0 * 1024 * 1024) /* smaller requests are not worth reading /proc for */

double cli_memory_available(void) {
    FILE *stream = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;
    while (stream && fgets(line, sizeof line, stream) && sscanf(line, "MemAvailable: %llu", &kib) != 1) {
        kib = 0;
    }
    if (stream) {
        fclose(stream);
    }
    return (double)kib * 1024;
}

static bool grow(void **array, int count, int *room, size_t each) {
    if (count < *room) {
        return true;
    }
    void *grown = realloc(*array, (size_t)(*room + 32) * each);
    if (grown) {
        *array = grown;
        *room += 32;
    }
    return grown != NULL;
}

cli_exit cli_memory_take(cli_memory *memory, void **block, double bytes, const char *what, cli_error *error) {
    *block = NULL;
    double free_bytes =
        bytes > LARGE ? cli_memory_available() : 0; /* what is held has been touched, so it is not counted as free */
    if (bytes > 0x1p62 || (free_bytes > 0 && bytes > free_bytes)) {
        return cli_fail(error, CLI_UNRUN, "out of memory: %s needs %.4g GiB besides %.4g GiB held, %.4g GiB are free",
                        what, bytes / 0x1p30, memory->held / 0x1p30, free_bytes / 0x1p30);
    }
    size_t size = ((size_t)bytes + 63) / 64 * 64 + 64;
    size_t alignment = memory->pages != CLI_PAGES_SYSTEM && size > HUGE_PAGE ? HUGE_PAGE : 64;
    size = (size + alignment - 1) / alignment * alignment;
    void *fresh = grow((void **)&memory->blocks, memory->count, &memory->room, sizeof *memory->blocks)
                      ? aligned_alloc(alignment, size)
                      : NULL;
    if (!fresh) {
        return cli_fail(error, CLI_UNRUN, "out of memory: %s needs %.4g GiB", what, bytes / 0x1p30);
    }
    if (alignment > 64) { /* advice: where it fails, pages are as the kernel likes them */
        madvise(fresh, size, memory->pages == CLI_PAGES_HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    memset(fresh, 0, size);
    memory->blocks[memory->count++] = fresh;
    memory->held += bytes;
    *block = fresh;
    return CLI_RIGHT;
}

cli_exit cli_memory_adopt(cli_memory *memory, cli_file *file, cli_error *error) {
    if (!grow((void **)&memory->files, memory->n_files, &memory->files_room, sizeof *memory->files)) {
        cli_file_close(file);
        return cli_fail(error, CLI_UNRUN, "out of memory for the list of files");
    }
    memory->files[memory->n_files++] = *file;
    return CLI_RIGHT;
}

void cli_memory_release(cli_memory *memory) {
    for (int i = 0; i < memory->count; i++) {
        free(memory->blocks[i]);
    }
    for (int i = 0; i < memory->n_files; i++) {
        cli_file_close(&memory->files[i]);
    }
    free(memory->blocks);
    free(memory->files);
    memset(memory, 0, sizeof *memory);
}
