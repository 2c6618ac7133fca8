/* SPDX-License-Identifier: Apache-2.0
 * Tensors as sm_90's copy engine sees them: four axes, read and written by boxes. Which layouts it takes is a rule of
 * the problem alone; maps of real addresses are made in src/cuda/tensor_map.c. */
#ifndef ATTN_PLAN_BOXES_H
#define ATTN_PLAN_BOXES_H

#include <stdbool.h>

#include "attn/attn.h"

/* What a map is made from. A box is `box_rows` rows (at most 256) of 128 bytes of each of `box_heads` heads, head after
 * head, in shared memory with the swizzle that matrix instructions read: 16-byte piece c of row r lies at place c ^ (r
 * & 7). Elements past an extent are read as zeros and never written. */
typedef struct attn__map_shape {
    attn_dtype dtype; /* f16, bf16 or f32 */
    int64_t dim, rows, heads, batch;
    int box_rows, box_heads;
    bool sequences; /* of packed rows: boxes that end with their sequence (below) */
} attn__map_shape;

/* Maps with `sequences`, of batch 1: both the row axis, of `box_rows` places, and the outermost, of rows + box_rows, go
 * from row to row, and the base lies box_rows rows before the tensor. So a box at (n, first + box_rows - n) begins at
 * row `first` and has zeros behind its first box_rows - n rows. */

/* Do strides allow a map (the address aside)? Each is a positive multiple of 16 bytes where the extent is above 1, and
 * dim lies close. Packed rows and rows of one buffer have batch 1. */
bool attn__tensor_map_allows(const attn_layout *layout, const attn__map_shape *shape);

/* Shapes of a problem's tensors, boxes of one head. queries: on the side of q; value: as wide as v. */
attn__map_shape attn__tensor_map_shape(const attn_problem *problem, const attn_layout *layout, bool queries, bool value,
                                       int box_rows);

#endif
