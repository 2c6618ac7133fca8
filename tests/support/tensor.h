/* SPDX-License-Identifier: Apache-2.0
 * A tensor in memory of any form: which axis is inner, gaps, negative and zero strides, odd starts, offsets past 2^31.
 * Elements are moved one at a time as doubles, which hold every value of every type exactly; what lies between the
 * elements holds a pattern that is a NaN (or, for bytes, a visible mask value). */
#ifndef TESTS_SUPPORT_TENSOR_H
#define TESTS_SUPPORT_TENSOR_H

#include "attn/attn.h"
#include "support/fence.h"

enum { AXIS_BATCH, AXIS_HEAD, AXIS_TOKEN, AXIS_DIM };

typedef enum form_order { ORDER_BSHD, ORDER_BHSD, ORDER_BHDS, ORDER_SBHD, ORDER_COUNT } form_order;

typedef struct form {
    form_order order;
    int step;          /* stride of the innermost axis; 0 means 1 */
    int pad;           /* elements after each row (head and dim, or the innermost axis): a slice of a wider row */
    int gap;           /* elements after each block of the two inner axes: rows of a longer buffer */
    unsigned negative; /* 1 << axis: runs backwards */
    unsigned zero;     /* 1 << axis: stride 0, one element for the whole axis; inputs only */
    int offset;        /* elements before the first one */
    int spread_axis;   /* with spread: this axis's stride grows by so many elements; memory is sparse */
    int64_t spread;
    fence_edge edge;
} form;

typedef struct tensor {
    attn_layout layout;
    int64_t n[4];
    int64_t origin; /* element of the memory where (0, 0, 0, 0) lies */
    int64_t size;   /* bytes of an element */
    fence *memory;
    bool shared; /* the memory belongs to another tensor */
} tensor;

/* Strides for extents n. Returns how many elements they span; *origin as above. */
int64_t form_layout(const form *f, attn_dtype dtype, const int64_t n[4], attn_layout *layout, int64_t *origin);

/* false if the memory cannot be had. Fills the whole memory: inputs with quiet NaNs, outputs with signalling ones. */
bool tensor_create(tensor *t, const form *f, attn_dtype dtype, const int64_t n[4], bool output);
/* q, k and v (or their gradients) side by side in each row of one buffer. */
bool tensor_create_joint(tensor *const parts[3], attn_dtype dtype, const int64_t n[3][4], bool output);
void tensor_destroy(tensor *t);

void *tensor_base(const tensor *t);
int64_t tensor_offset(const tensor *t, const int64_t at[4]); /* relative to the base */
void tensor_put(tensor *t, const int64_t at[4], double value);
double tensor_get(const tensor *t, const int64_t at[4]);
/* Does the element still hold the fill pattern, bit by bit? And: give it back that pattern. */
bool tensor_untouched(const tensor *t, const int64_t at[4]);
void tensor_erase(tensor *t, const int64_t at[4]);

#endif
