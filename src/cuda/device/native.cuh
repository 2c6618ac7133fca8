/* SPDX-License-Identifier: Apache-2.0
 * The unfused computation's matrices in the workspace: scores, later probabilities, in p.scores; backward their
 * gradients in p.extra. Element [sequence, head, i, j] by positions, in q's type. A hidden pair is marked by -0; no
 * visible pair has that value. Positions that no run holds are never read. */
#pragma once
#include "rows.cuh"

INLINE int64_t matrix_at(const attn__params &p, int s, int head, int64_t i, int64_t j) {
    return (((int64_t)s * p.heads_q + head) * p.side_q.tokens + i) * p.side_kv.tokens + j;
}

/* A value of a visible pair, rounded: never -0. */
INLINE element_t<DTYPE> matrix_value(float x) {
    return narrow<DTYPE>(widen<DTYPE>(narrow<DTYPE>(x)) + 0.0f);
}
#define MATRIX_HIDDEN narrow<DTYPE>(-0.0f)
