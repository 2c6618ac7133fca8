/* SPDX-License-Identifier: Apache-2.0
 * Where tokens lie: the three row maps, spelled out, and rows as float64. */
#include "ref/ref.h"

#include "base/dtype.h"

ref_side attn__ref_side_q(const attn_problem *problem, const attn_args *args) {
    ref_side side = {problem->rows_q, problem->tokens_q, args->cu_seqlens_q, NULL,
                     args->lengths_q, args->segments_q,  args->n_segments_q};
    side.used = problem->flags & ATTN_USED_Q ? args->used_q : NULL;
    return side;
}

ref_side attn__ref_side_kv(const attn_problem *problem, const attn_args *args) {
    ref_side side = {problem->rows_kv, problem->tokens_kv, args->cu_seqlens_kv, NULL,
                     args->lengths_kv, args->segments_kv,  args->n_segments_kv};
    side.used = problem->flags & ATTN_USED_KV ? args->used_kv : NULL;
    return side;
}

/* Rows from the first to the last that belong to sequence s, used or not. */
static int64_t slot(const ref_side *side, int64_t s, int64_t *first) {
    if (side->rows == ATTN_PACKED) {
        *first = side->cu[s];
        return (int64_t)side->cu[s + 1] - side->cu[s];
    }
    *first = 0;
    return side->tokens;
}

int64_t attn__ref_length(const ref_side *side, int64_t s) {
    int64_t first;
    if (side->rows == ATTN_SEGMENTS) {
        return side->lengths[s];
    }
    return side->used ? side->used[s] : slot(side, s, &first);
}

int64_t attn__ref_rows(const ref_side *side, int64_t s, ref_row *list) {
    int64_t count = 0, first;
    if (side->rows == ATTN_SEGMENTS) {
        for (int64_t n = 0; n < side->n_segments; n++) {
            const attn_segment *segment = &side->segments[n];
            for (int64_t r = 0; segment->sequence == s && r < segment->rows; r++) {
                list[count++] = (ref_row){segment->first + r, segment->position + r};
            }
        }
        return count;
    }
    slot(side, s, &first);
    for (int64_t i = 0; i < attn__ref_length(side, s); i++) {
        list[count++] = (ref_row){first + i, i};
    }
    return count;
}

int64_t attn__ref_padding(const ref_side *side, int64_t s, int64_t *first) {
    *first = 0;
    if (side->rows == ATTN_SEGMENTS) {
        return 0;
    }
    int64_t rows = slot(side, s, first), length = attn__ref_length(side, s);
    *first += length;
    return rows - length;
}

int64_t attn__ref_index(const attn_layout *layout, const ref_side *side, int64_t s, int64_t head, int64_t row) {
    int64_t batch = side->rows == ATTN_PACKED ? 0 : s;
    return batch * layout->stride[0] + head * layout->stride[1] + row * layout->stride[2];
}

void attn__ref_load_row(const attn_layout *layout, const void *base, int64_t index, int64_t dim, double *to) {
    for (int64_t d = 0; d < dim; d++) {
        to[d] = attn__load(layout->dtype, base, index + d * layout->stride[3]);
    }
}

void attn__ref_store_row(const attn_layout *layout, void *base, int64_t index, int64_t dim, const double *from,
                         bool accumulate) {
    for (int64_t d = 0; d < dim; d++) {
        int64_t at = index + d * layout->stride[3];
        double before = accumulate ? attn__load(layout->dtype, base, at) : 0;
        attn__store(layout->dtype, base, at, before + from[d]);
    }
}

void attn__ref_store_zeros(const attn_layout *layout, void *base, int64_t index, int64_t dim) {
    for (int64_t d = 0; d < dim; d++) {
        attn__store(layout->dtype, base, index + d * layout->stride[3], 0);
    }
}
