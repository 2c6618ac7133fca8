/* SPDX-License-Identifier: Apache-2.0
 * Tensor maps: how the copy engine of sm_90 sees a tensor, as boxes [batch, head, row, dim]. The same bytes on host and
 * device; the host's driver fills them (tensor_map.c), a kernel takes them as its second parameter:
 *     ATTN_KERNEL(const __grid_constant__ attn__params p, const __grid_constant__ attn__maps maps) */
#ifndef ATTN_CUDA_MAPS_H
#define ATTN_CUDA_MAPS_H

#define ATTN__MAP_ALIGNMENT 64

typedef struct attn__map {
    unsigned long long word[16];
} __attribute__((aligned(ATTN__MAP_ALIGNMENT))) attn__map;

/* n / d for n < 2^31, as (n * multiplier >> 32) >> shift; multiplier 0: d is 1. */
typedef struct attn__divisor {
    unsigned multiplier, shift;
} attn__divisor;

/* How tiles are dealt out by number: in sections of `width` lines, in each of them block by block of rows, and within
 * that line by line; the lines from `even` on are one section. A line is a column (a head, or heads that share a tile),
 * of a dense sequence or of all rows. */
typedef struct attn__deal {
    unsigned lines, even, width;
    unsigned blocks;                 /* of rows, of a line */
    attn__divisor by_section;        /* tiles of a section */
    attn__divisor by_width, by_rest; /* lines of a section, of the last one */
    unsigned columns;                /* of a sequence */
    attn__divisor by_columns, by_group;
    unsigned each; /* packed rows: blocks that every sequence owns; 0: as many as its rows need */
    attn__divisor by_each;
} attn__deal;

/* Those that a kernel does not use stay zero. */
typedef struct attn__maps {
    attn__map q, k, v, o;
    attn__map dout, dq, dk, dv;
    attn__deal deal;
} attn__maps;

#endif
