/* SPDX-License-Identifier: Apache-2.0
 * Memory that shows what was done to it. A fence is a mapping of its own with an inaccessible page on both sides; the
 * data touches one of the two, and the slack on the other side, at least FENCE_SLACK bytes, is a guard zone that holds
 * the pattern. A stray access either faults or leaves a mark.
 *
 * A sparse fence reserves address space only: it may be many gigabytes, is zero instead of patterned, and is not
 * searched for marks. It lists the pages that its elements lie in, for who copies it.
 *
 * When tests run on a device, a fence has a twin there (device.h). */
#ifndef TESTS_SUPPORT_FENCE_H
#define TESTS_SUPPORT_FENCE_H

#include <stdbool.h>
#include <stddef.h>

#define FENCE_SLACK 256
#define FENCE_PAGE  4096 /* granularity of the list of pages */

typedef enum fence_edge { FENCE_END, FENCE_START, FENCE_SPARSE } fence_edge;

typedef struct fence {
    unsigned char *map, *area, *data;
    size_t map_size, area_size, size;
    unsigned char pattern[8];
    size_t pattern_size;
    unsigned char *snapshot;
    bool sparse;
    size_t *pages, n_pages; /* sparse: those noted, counted from the area's begin */
    void *twin;             /* in device memory */
} fence;

/* size is a multiple of pattern_size (1, 2, 4 or 8). NULL if the address space cannot be had. */
fence *fence_create(size_t size, fence_edge edge, const void *pattern, size_t pattern_size);
void fence_destroy(fence *f);
/* Bytes [offset, offset + size) of the data hold something: a sparse fence lists their pages. */
void fence_note(fence *f, size_t offset, size_t size);
/* Does every byte outside and inside the data still hold the pattern? */
bool fence_intact(const fence *f);
/* Remembers the whole area; fence_unchanged compares with that. */
void fence_remember(fence *f);
bool fence_unchanged(const fence *f);

#endif
