/* SPDX-License-Identifier: Apache-2.0
 * Sizes, flags and scalars of a problem. */
#include "problem/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "base/error.h"
#include "problem/problem.h"

static attn_status in_range(const char *field, int64_t value, int64_t low, int64_t high, attn_error *error) {
    if (value < low) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is %" PRId64 ", must be at least %" PRId64, value, low);
    }
    if (value > high) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is %" PRId64 ", must be at most %" PRId64, value, high);
    }
    return ATTN_OK;
}

static attn_status known_bits(const char *field, uint32_t value, uint32_t known, attn_error *error) {
    if (value & ~known) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is 0x%" PRIx32 ", has unknown bits 0x%" PRIx32, value,
                          value & ~known);
    }
    return ATTN_OK;
}

static attn_status check_kinds(const attn_problem *p, attn_error *error) {
    const uint32_t flags = ATTN_HAS_SCALE | ATTN_USED_Q | ATTN_USED_KV | ATTN_ACCUMULATE | ATTN_DETERMINISTIC |
                           ATTN_ALLOW_TF32 | ATTN_DEVICE_LENGTHS | ATTN_DEVICE_SEED | ATTN_CLEAR_REST;
    const uint32_t kinds = ATTN_CAUSAL | ATTN_WINDOW | ATTN_GLOBALS;
    attn_status status = in_range("pass", (int64_t)p->pass, ATTN_FORWARD, ATTN_BACKWARD, error);
    status = status ? status : known_bits("flags", p->flags, flags, error);
    status = status ? status : in_range("rows_q", (int64_t)p->rows_q, ATTN_DENSE, ATTN_SEGMENTS, error);
    status = status ? status : in_range("rows_kv", (int64_t)p->rows_kv, ATTN_DENSE, ATTN_SEGMENTS, error);
    status = status ? status : known_bits("band.kind", p->band.kind, kinds, error);
    status =
        status ? status : in_range("band.corner", (int64_t)p->band.corner, ATTN_BOTTOM_RIGHT, ATTN_TOP_LEFT, error);
    if (status) {
        return status;
    }
    if (p->flags & ATTN_USED_Q && p->rows_q == ATTN_SEGMENTS) {
        return attn__fail(error, ATTN_ERR_INVALID, "flags", "ATTN_USED_Q is set, but rows_q is segments");
    }
    if (p->flags & ATTN_USED_KV && p->rows_kv == ATTN_SEGMENTS) {
        return attn__fail(error, ATTN_ERR_INVALID, "flags", "ATTN_USED_KV is set, but rows_kv is segments");
    }
    return ATTN_OK;
}

static attn_status check_heads(const attn_problem *p, attn_error *error) {
    bool fits = p->heads_kv ? p->heads_q > 0 && p->heads_q % p->heads_kv == 0 : p->heads_q == 0;
    if (!fits) {
        return attn__fail(error, ATTN_ERR_INVALID, "heads_q",
                          "is %" PRId64 ", must be a multiple of heads_kv = %" PRId64 " (both 0, or neither)",
                          p->heads_q, p->heads_kv);
    }
    return ATTN_OK;
}

/* batch * heads * rows * dim elements of 8 bytes; a 0 counts as 1, since strides are products of the others. */
static attn_status check_product(const char *side, int64_t batch, int64_t heads, int64_t rows, int64_t dim,
                                 attn_error *error) {
    int64_t product = 8, factor[4] = {batch, heads, rows, dim};
    for (int n = 0; n < 4; n++) {
        if (__builtin_mul_overflow(product, factor[n] ? factor[n] : 1, &product)) {
            return attn__fail(error, ATTN_ERR_INVALID, "batch",
                              "is %" PRId64 ": batch * heads_%s * rows * dim = %" PRId64 " * %" PRId64 " * %" PRId64
                              " * %" PRId64 " is past 2^60 elements",
                              batch, side, batch, heads, rows, dim);
        }
    }
    return ATTN_OK;
}

static attn_status check_side(const attn_problem *p, bool kv, attn_error *error) {
    attn_rows rows = kv ? p->rows_kv : p->rows_q;
    int64_t tokens = kv ? p->tokens_kv : p->tokens_q, total = kv ? p->total_kv : p->total_q;
    int64_t segments = kv ? p->segments_kv : p->segments_q, storage = tokens;
    attn_status status = in_range(kv ? "tokens_kv" : "tokens_q", tokens, 0, ATTN__MAX_TOKENS, error);
    if (!status && rows != ATTN_DENSE) {
        /* Packed rows are counted by int32 offsets. */
        int64_t most = rows == ATTN_PACKED ? ATTN__MAX_TOKENS : INT64_MAX;
        status = in_range(kv ? "total_kv" : "total_q", total, 0, most, error);
        storage = total > tokens ? total : tokens;
    }
    if (!status && rows == ATTN_SEGMENTS) {
        status = in_range(kv ? "segments_kv" : "segments_q", segments, 0, ATTN__MAX_TOKENS, error);
    }
    if (status) {
        return status;
    }
    return check_product(kv ? "kv" : "q", p->batch, kv ? p->heads_kv : p->heads_q, storage,
                         p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v, error);
}

static attn_status check_scalars(const attn_problem *p, attn_error *error) {
    if (p->flags & ATTN_HAS_SCALE && !isfinite(p->scale)) {
        return attn__fail(error, ATTN_ERR_INVALID, "scale", "is %g, must be finite", (double)p->scale);
    }
    if (!(p->softcap >= 0) || isinf(p->softcap)) {
        return attn__fail(error, ATTN_ERR_INVALID, "softcap", "is %g, must be 0 (none) or above, and finite",
                          (double)p->softcap);
    }
    if (!(p->dropout >= 0 && p->dropout < 1)) {
        return attn__fail(error, ATTN_ERR_INVALID, "dropout", "is %g, must be at least 0 and below 1",
                          (double)p->dropout);
    }
    return ATTN_OK;
}

attn_status attn__check_sizes(const attn_problem *p, attn_error *error) {
    attn_status status = check_kinds(p, error);
    status = status ? status : in_range("batch", p->batch, 0, ATTN__MAX_TOKENS, error);
    status = status ? status : in_range("heads_q", p->heads_q, 0, ATTN__MAX_TOKENS, error);
    status = status ? status : in_range("heads_kv", p->heads_kv, 0, ATTN__MAX_TOKENS, error);
    status = status ? status : check_heads(p, error);
    status = status ? status : in_range("dim_qk", p->dim_qk, 1, ATTN__MAX_TOKENS, error);
    status = status ? status : in_range("dim_v", p->dim_v, 1, ATTN__MAX_TOKENS, error);
    status = status ? status : check_side(p, false, error);
    status = status ? status : check_side(p, true, error);
    if (!status && p->band.kind & ATTN_WINDOW) {
        status = in_range("band.left", p->band.left, -1, INT64_MAX, error);
        status = status ? status : in_range("band.right", p->band.right, -1, INT64_MAX, error);
    }
    if (!status && p->band.kind & ATTN_GLOBALS) {
        status = in_range("band.globals", p->band.globals, 0, INT64_MAX, error);
    }
    return status ? status : check_scalars(p, error);
}
