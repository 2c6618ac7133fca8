/* SPDX-License-Identifier: Apache-2.0
 * The problem with every default filled in, and the data that goes with it, checked. Needs no device.
 *
 * A canonical attn_problem (made only by attn__problem_canonical) has
 *   - struct_size = sizeof(attn_problem), every unknown flag refused, ATTN_HAS_SCALE set and scale filled in;
 *   - band: left and right are -1 where unlimited (also when ATTN_WINDOW is not set); a window that is -1,-1 has its
 *     flag cleared, and ATTN_GLOBALS with it; without ATTN_GLOBALS globals is ATTN__NO_GLOBALS, below every position
 *     (i' may be negative), so that comparing with it needs no look at the flag;
 *   - every layout resolved: o, dout, dq, dk, dv, lse, dlse have dtype and strides; dbias and others stay ATTN_NONE
 *     exactly when the tensor is absent from the problem (no bias, so no dbias);
 *   - packed sides have stride[0] = 0 in every tensor that is addressed by row.
 * Everything behind src/api.c works on canonical problems only. */
#ifndef ATTN_PROBLEM_PROBLEM_H
#define ATTN_PROBLEM_PROBLEM_H

#include <stdbool.h>

#include "attn/attn.h"

#define ATTN__MAX_TOKENS ((int64_t)0x7fffffff)
#define ATTN__NO_GLOBALS (-((int64_t)1 << 32))

attn_status attn__problem_canonical(const attn_problem *in, attn_problem *out, attn_error *error);

/* 1/sqrt(dim_qk), rounded once to float32. */
float attn__default_scale(int64_t dim_qk);

/* Copies *in (size-stamped) into *out and checks presence of pointers, lengths and segments against the canonical
 * problem; nothing is written elsewhere. */
attn_status attn__args_check(const attn_problem *problem, const attn_args *in, attn_args *out, attn_error *error);

/* Reads a size-stamped struct: copies min(stamp, size) bytes over zeros; refuses a non-zero unknown tail.
 * `field` names it in the error, as "struct_size". */
attn_status attn__struct_read(void *out, size_t size, const void *in, size_t stamp, attn_error *error);

/* Refuses a stamp that cuts off fields which the first version already had to be given. */
attn_status attn__struct_minimum(size_t stamp, size_t minimum, attn_error *error);

/* Fills a size-stamped output struct up to its stamp (at least sizeof(size_t)): the fields both sides know from
 * *value, fields that only the caller knows with 0. The stamp stays. */
void attn__struct_write(void *out, const void *value, size_t size);

/* --- Rows: how sequences lie in the buffers, one view for dense, packed and segments (rows.c) --- */

typedef struct attn__side {
    attn_rows rows;
    int64_t batch, tokens;
    const int32_t *cu, *used, *lengths;
    const attn_segment *segments;
    int64_t n_segments;
} attn__side;

attn__side attn__side_q(const attn_problem *problem, const attn_args *args);
attn__side attn__side_kv(const attn_problem *problem, const attn_args *args);

/* True length of sequence s (S_q or S_kv of the definition), over all shards. */
int64_t attn__side_length(const attn__side *side, int64_t s);
/* Number of segments on this side: batch, or the length of the list. */
int64_t attn__side_count(const attn__side *side);
/* Segment n, 0 <= n < count; dense and packed: all used rows of sequence n. May have 0 rows. */
attn_segment attn__side_segment(const attn__side *side, int64_t n);
/* The segments [*begin, *end) of sequence s. */
void attn__side_range(const attn__side *side, int64_t s, int64_t *begin, int64_t *end);
/* Rows of sequence s's slot past its used length (dense and packed with used lengths; 0 rows otherwise). */
attn_segment attn__side_padding(const attn__side *side, int64_t s);

/* i' - i of sequence s: 0 with ATTN_TOP_LEFT, S_kv - S_q otherwise. */
int64_t attn__row_shift(const attn_problem *problem, const attn__side *q, const attn__side *kv, int64_t s);

/* The first and last key position that row i' may see by band alone, ignoring globals and lengths; may be empty
 * (first > last). A global query (i' < globals) is exempt from the window. */
typedef struct attn__range {
    int64_t first, last;
} attn__range;
attn__range attn__band_range(const attn_band *band, int64_t shifted);
/* Does the band let row i' see key j? */
static inline bool attn__band_visible(const attn_band *band, int64_t shifted, int64_t j) {
    if ((band->kind & ATTN_CAUSAL) && j > shifted) {
        return false;
    }
    if (!(band->kind & ATTN_WINDOW) || j < band->globals || shifted < band->globals) {
        return true;
    }
    return (band->left < 0 || j >= shifted - band->left) && (band->right < 0 || j <= shifted + band->right);
}

/* Visible (i, j) pairs of the whole problem at its bounds, for FLOP counts; boolean masks count as visible. */
double attn__visible_pairs(const attn_problem *problem);

#endif
