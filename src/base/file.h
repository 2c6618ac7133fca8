/* SPDX-License-Identifier: Apache-2.0
 * Whole files: read at once, written so that a reader sees the old one or the new one and never a part. */
#ifndef ATTN_BASE_FILE_H
#define ATTN_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct attn__allocator {
    void *(*allocate)(void *user, size_t size);
    void (*release)(void *user, void *memory);
    void *user;
} attn__allocator;

/* Reads a regular file of at most `most` bytes into memory of the allocator; at least one byte is allocated. 0, or an
 * errno value. */
int attn__file_read(const char *path, size_t most, const attn__allocator *allocator, char **data, size_t *size);

/* A file that takes its name when it is whole. */
typedef struct attn__draft {
    int handle;
    char path[1200], temporary[1280];
} attn__draft;
/* With `folders` makes those of `path` where they lack. 0, or an errno value; then nothing is owed. */
int attn__draft_start(attn__draft *draft, const char *path, bool folders);
int attn__draft_write(attn__draft *draft, const void *data, size_t size);
/* Gives the file its name if `keep` and all went well; else removes it. */
int attn__draft_end(attn__draft *draft, bool keep);

/* Is it the name of a draft that some process left behind or is at? */
bool attn__draft_named(const char *name);

#endif
