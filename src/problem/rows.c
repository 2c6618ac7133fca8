/* SPDX-License-Identifier: Apache-2.0 */
#include "problem/problem.h"

attn__side attn__side_q(const attn_problem *problem, const attn_args *args) {
    attn__side side = {problem->rows_q, problem->batch, problem->tokens_q, NULL, NULL, NULL, NULL, 0};
    side.used = problem->flags & ATTN_USED_Q ? args->used_q : NULL;
    side.cu = side.rows == ATTN_PACKED ? args->cu_seqlens_q : NULL;
    if (side.rows == ATTN_SEGMENTS) {
        side.lengths = args->lengths_q;
        side.segments = args->segments_q;
        side.n_segments = args->n_segments_q;
    }
    return side;
}

attn__side attn__side_kv(const attn_problem *problem, const attn_args *args) {
    attn__side side = {problem->rows_kv, problem->batch, problem->tokens_kv, NULL, NULL, NULL, NULL, 0};
    side.used = problem->flags & ATTN_USED_KV ? args->used_kv : NULL;
    side.cu = side.rows == ATTN_PACKED ? args->cu_seqlens_kv : NULL;
    if (side.rows == ATTN_SEGMENTS) {
        side.lengths = args->lengths_kv;
        side.segments = args->segments_kv;
        side.n_segments = args->n_segments_kv;
    }
    return side;
}

static int64_t slot(const attn__side *side, int64_t s) {
    return side->cu ? (int64_t)side->cu[s + 1] - side->cu[s] : side->tokens;
}

int64_t attn__side_length(const attn__side *side, int64_t s) {
    if (side->rows == ATTN_SEGMENTS) {
        return side->lengths[s];
    }
    return side->used ? side->used[s] : slot(side, s);
}

int64_t attn__side_count(const attn__side *side) {
    return side->rows == ATTN_SEGMENTS ? side->n_segments : side->batch;
}

attn_segment attn__side_segment(const attn__side *side, int64_t n) {
    if (side->rows == ATTN_SEGMENTS) {
        return side->segments[n];
    }
    attn_segment segment = {side->cu ? side->cu[n] : 0, attn__side_length(side, n), 0, n};
    return segment;
}

/* First segment whose sequence is at least s. */
static int64_t lower_bound(const attn__side *side, int64_t s) {
    int64_t low = 0, high = side->n_segments;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (side->segments[middle].sequence < s) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void attn__side_range(const attn__side *side, int64_t s, int64_t *begin, int64_t *end) {
    if (side->rows == ATTN_SEGMENTS) {
        *begin = lower_bound(side, s);
        *end = lower_bound(side, s + 1);
    } else {
        *begin = s;
        *end = s + 1;
    }
}

attn_segment attn__side_padding(const attn__side *side, int64_t s) {
    attn_segment padding = {0, 0, 0, s};
    if (side->rows != ATTN_SEGMENTS) {
        int64_t length = attn__side_length(side, s);
        padding.first = (side->cu ? side->cu[s] : 0) + length;
        padding.rows = slot(side, s) - length;
        padding.position = length;
    }
    return padding;
}

int64_t attn__row_shift(const attn_problem *problem, const attn__side *q, const attn__side *kv, int64_t s) {
    if (problem->band.corner == ATTN_TOP_LEFT) {
        return 0;
    }
    return attn__side_length(kv, s) - attn__side_length(q, s);
}
