/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fence.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/device.h"

static void fill(fence *f) {
    size_t done = f->pattern_size; /* divides the area, which is whole pages */
    memcpy(f->area, f->pattern, done);
    while (done < f->area_size) {
        size_t more = done < f->area_size - done ? done : f->area_size - done;
        memcpy(f->area + done, f->area, more);
        done += more;
    }
}

fence *fence_create(size_t size, fence_edge edge, const void *pattern, size_t pattern_size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fence *f = calloc(1, sizeof *f);
    if (!f) {
        return NULL;
    }
    f->size = size;
    f->sparse = edge == FENCE_SPARSE;
    f->pattern_size = pattern_size;
    memcpy(f->pattern, pattern, pattern_size);
    f->area_size = (size + FENCE_SLACK + page - 1) / page * page;
    f->map_size = f->area_size + 2 * page;
    f->map = mmap(NULL, f->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->map == MAP_FAILED || mprotect(f->map + page, f->area_size, PROT_READ | PROT_WRITE)) {
        if (f->map != MAP_FAILED) {
            munmap(f->map, f->map_size);
        }
        free(f);
        return NULL;
    }
    f->area = f->map + page;
    f->data = edge == FENCE_START ? f->area : f->area + f->area_size - size;
    if (!f->sparse) {
        fill(f);
    }
    return f;
}

void fence_destroy(fence *f) {
    if (f) {
        munmap(f->map, f->map_size);
        device_release(f->twin);
        free(f->pages);
        free(f->snapshot);
        free(f);
    }
}

void fence_note(fence *f, size_t offset, size_t size) {
    size_t start = (size_t)(f->data - f->area) + offset;
    for (size_t page = start / FENCE_PAGE; f->sparse && page <= (start + size - 1) / FENCE_PAGE; page++) {
        if (f->n_pages && f->pages[f->n_pages - 1] == page) {
            continue;
        }
        f->pages = realloc(f->pages, (f->n_pages + 1) * sizeof *f->pages);
        if (!f->pages) {
            abort();
        }
        f->pages[f->n_pages++] = page;
    }
}

bool fence_intact(const fence *f) {
    /* A periodic area equals itself shifted by one period. */
    return f->sparse || (!memcmp(f->area, f->pattern, f->pattern_size) &&
                         !memcmp(f->area, f->area + f->pattern_size, f->area_size - f->pattern_size));
}

void fence_remember(fence *f) {
    if (!f->sparse && !f->snapshot) {
        f->snapshot = malloc(f->area_size);
        if (!f->snapshot) {
            abort();
        }
        memcpy(f->snapshot, f->area, f->area_size);
    }
}

bool fence_unchanged(const fence *f) {
    return f->sparse || !f->snapshot || !memcmp(f->snapshot, f->area, f->area_size);
}
