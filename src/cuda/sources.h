/* SPDX-License-Identifier: Apache-2.0
 * The device sources as text inside the library; cmake/embed.cmake makes the table. */
#ifndef ATTN_CUDA_SOURCES_H
#define ATTN_CUDA_SOURCES_H

typedef struct attn__source {
    const char *name; /* "mask.cuh" */
    const char *text;
} attn__source;

extern const attn__source attn__sources[]; /* ends with a NULL name */
extern const int attn__sources_count;
extern const char attn__sources_hash[]; /* of all names and texts */

#endif
