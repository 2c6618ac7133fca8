/* SPDX-License-Identifier: Apache-2.0
 * A problem as one line of text. Writes what differs from the defaults of the canonical problem, in the order of the
 * struct, so that equal problems have equal texts. */
#include <inttypes.h>
#include <string.h>

#include "base/number.h"
#include "base/text.h"
#include "problem/problem.h"
#include "problem/tensors.h"
#include "problem/text.h"

static void add_float(attn__text *text, const char *word, float value) {
    char number[32];
    attn__float_write(value, number);
    attn__text_add(text, ":%s=%s", word, number);
}

static void add_sizes(attn__text *text, const attn_problem *p) {
    attn__text_add(text, "%s:%s", p->pass == ATTN_BACKWARD ? "bwd" : "fwd", attn_dtype_name(p->q.dtype));
    attn__text_add(text, ":b%" PRId64 ":hq%" PRId64 ":hk%" PRId64 ":sq%" PRId64 ":skv%" PRId64, p->batch, p->heads_q,
                   p->heads_kv, p->tokens_q, p->tokens_kv);
    if (p->dim_qk == p->dim_v) {
        attn__text_add(text, ":d%" PRId64, p->dim_qk);
    } else {
        attn__text_add(text, ":dqk%" PRId64 ":dv%" PRId64, p->dim_qk, p->dim_v);
    }
}

static void add_rows(attn__text *text, attn_rows rows, const char *packed, const char *segments, int64_t total,
                     int64_t count) {
    if (rows == ATTN_PACKED) {
        attn__text_add(text, ":%s=%" PRId64, packed, total);
    } else if (rows == ATTN_SEGMENTS) {
        attn__text_add(text, ":%s=%" PRId64 ",%" PRId64, segments, total, count);
    }
}

static void add_flag(attn__text *text, bool set, const char *word) {
    if (set) {
        attn__text_add(text, ":%s", word);
    }
}

static void add_band(attn__text *text, const attn_band *band) {
    add_flag(text, band->kind & ATTN_CAUSAL, ATTN__WORD_CAUSAL);
    if (band->kind & ATTN_WINDOW) {
        attn__text_add(text, ":" ATTN__WORD_WINDOW "=%" PRId64 ",%" PRId64, band->left, band->right);
    }
    if (band->kind & ATTN_GLOBALS) {
        attn__text_add(text, ":" ATTN__WORD_GLOBALS "=%" PRId64, band->globals);
    }
    add_flag(text, band->corner == ATTN_TOP_LEFT, ATTN__WORD_TOP_LEFT);
}

static void add_scalars(attn__text *text, const attn_problem *p) {
    if (p->scale != attn__default_scale(p->dim_qk)) {
        add_float(text, ATTN__WORD_SCALE, p->scale);
    }
    if (p->softcap > 0) {
        add_float(text, ATTN__WORD_SOFTCAP, p->softcap);
    }
    if (p->dropout > 0) {
        add_float(text, ATTN__WORD_DROPOUT, p->dropout);
    }
}

static void add_tensor(attn__text *text, const attn_problem *p, const attn__tensor *tensor) {
    const attn_layout *layout = attn__tensor_layout_const(p, tensor);
    attn_layout normal;
    int64_t by_head[4];
    bool known = attn__tensor_normal(p, tensor, &normal);
    bool typed = tensor->unset == ATTN__UNSET_ABSENT || layout->dtype != normal.dtype;
    bool strided = !known || memcmp(layout->stride, normal.stride, sizeof normal.stride) != 0;
    if (layout->dtype == ATTN_NONE || (tensor->backward && p->pass == ATTN_FORWARD) || (!typed && !strided)) {
        return;
    }
    attn__text_add(text, ":%s=%s", tensor->name, typed ? attn_dtype_name(layout->dtype) : "");
    if (!strided) {
        return;
    }
    if (attn__tensor_plain(p, tensor, true, by_head) && memcmp(layout->stride, by_head, sizeof by_head) == 0) {
        attn__text_add(text, "[" ATTN__WORD_HEADS_FIRST "]");
    } else {
        const int64_t *stride = layout->stride;
        attn__text_add(text, "[%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]", stride[0], stride[1], stride[2],
                       stride[3]);
    }
}

size_t attn_problem_format(const attn_problem *problem, char *buffer, size_t size) {
    attn_problem p;
    attn__text text = attn__text_start(buffer, size);
    if (attn__problem_canonical(problem, &p, NULL)) {
        return 0;
    }
    add_sizes(&text, &p);
    add_rows(&text, p.rows_q, ATTN__WORD_PACKED_Q, ATTN__WORD_SEGMENTS_Q, p.total_q, p.segments_q);
    add_rows(&text, p.rows_kv, ATTN__WORD_PACKED_KV, ATTN__WORD_SEGMENTS_KV, p.total_kv, p.segments_kv);
    add_flag(&text, p.flags & ATTN_USED_Q, ATTN__WORD_USED_Q);
    add_flag(&text, p.flags & ATTN_USED_KV, ATTN__WORD_USED_KV);
    add_band(&text, &p.band);
    add_scalars(&text, &p);
    add_flag(&text, p.flags & ATTN_ACCUMULATE, ATTN__WORD_ACCUMULATE);
    add_flag(&text, p.flags & ATTN_DETERMINISTIC, ATTN__WORD_DETERMINISTIC);
    add_flag(&text, p.flags & ATTN_ALLOW_TF32, ATTN__WORD_TF32);
    add_flag(&text, p.flags & ATTN_DEVICE_LENGTHS, ATTN__WORD_DEVICE_LENGTHS);
    add_flag(&text, p.flags & ATTN_DEVICE_SEED, ATTN__WORD_DEVICE_SEED);
    add_flag(&text, p.flags & ATTN_CLEAR_REST, ATTN__WORD_CLEAR_REST);
    for (int n = 0; n < ATTN__TENSORS; n++) {
        add_tensor(&text, &p, &attn__tensors[n]);
    }
    return text.length;
}
