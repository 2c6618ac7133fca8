/* SPDX-License-Identifier: Apache-2.0
 * Random sound problems: every field, also those that do not count (filled with rubbish where that is allowed), every
 * kind of rows, layouts with permuted axes, gaps, broadcast inputs and negative strides. */
#ifndef ATTN_TESTS_PROBLEM_RANDOM_PROBLEM_H
#define ATTN_TESTS_PROBLEM_RANDOM_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"
#include "problem/tensors.h"

static uint64_t lottery_state = 88172645463325252u;

static uint64_t lottery_word(void) {
    lottery_state ^= lottery_state << 13;
    lottery_state ^= lottery_state >> 7;
    lottery_state ^= lottery_state << 17;
    return lottery_state;
}
static int64_t lottery(int64_t low, int64_t high) {
    uint64_t span = (uint64_t)high - (uint64_t)low + 1;
    return (int64_t)((uint64_t)low + (span ? lottery_word() % span : lottery_word()));
}
static inline bool one_in(int n) {
    return lottery(1, n) == 1;
}

static inline float random_float(bool positive) {
    float value = (float)lottery(1, 1 << 24) / (float)((int64_t)1 << lottery(0, 60));
    return positive || one_in(2) ? value : -value;
}

static inline void random_band(attn_band *band) {
    band->kind = (uint32_t)lottery(0, 7);
    band->corner = one_in(2) ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
    bool window = band->kind & ATTN_WINDOW, globals = band->kind & ATTN_GLOBALS;
    band->left = window ? lottery(-1, one_in(4) ? INT64_MAX - 1 : 9) : lottery(-99, 99);
    band->right = window ? lottery(-1, one_in(4) ? (int64_t)1 << 33 : 9) : lottery(-99, 99);
    band->globals = globals ? lottery(0, one_in(4) ? (int64_t)1 << 40 : 5) : lottery(-99, 99);
}

/* Axes in random order, each stride larger than what the inner ones reach. False if that passes 2^60. */
static inline bool random_strides(const attn_problem *p, const attn__tensor *tensor, bool output, int64_t stride[4]) {
    int64_t extent[4], step = lottery(1, 3);
    unsigned read, used = 0;
    attn__tensor_extents(p, tensor, extent, &read);
    for (int n = 0; n < 4; n++) {
        int axis;
        do {
            axis = (int)lottery(0, 3);
        } while (used & 1u << axis);
        used |= 1u << axis;
        int64_t reach;
        stride[axis] = one_in(5) ? -step : step;
        if (!output && one_in(6)) {
            stride[axis] = 0;
        }
        if (__builtin_mul_overflow(step, extent[axis] ? extent[axis] : 1, &reach) || reach > (int64_t)1 << 57) {
            return false;
        }
        step = reach + (one_in(3) ? lottery(0, 5) : 0);
    }
    return true;
}

static inline bool too_far(const attn_problem *p, const attn__tensor *tensor, const int64_t stride[4]) {
    int64_t extent[4];
    unsigned read;
    double reach = 0;
    attn__tensor_extents(p, tensor, extent, &read);
    for (int axis = 0; axis < 4; axis++) {
        reach += (double)(stride[axis] < 0 ? -stride[axis] : stride[axis]) * (double)(extent[axis] + 1);
    }
    return reach > 1e17;
}

static inline void random_layout(attn_problem *p, const attn__tensor *tensor) {
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_U8};
    attn_layout *layout = attn__tensor_layout(p, tensor);
    /* Gradients default to their partner's strides, which may be broadcast: outputs of backward get their own. */
    bool output = tensor->written & 1 << p->pass, required = tensor->unset == ATTN__UNSET_REFUSED;
    if (tensor->shape == ATTN__SHAPE_SCORES && tensor->backward && p->bias.dtype == ATTN_NONE) {
        return;
    }
    bool needs_own = output && tensor->unset == ATTN__UNSET_PARTNER && tensor->shape != ATTN__SHAPE_SCORES;
    if (!required && !needs_own && one_in(2)) {
        return;
    }
    do {
        layout->dtype = types[lottery(0, 4)];
    } while (!attn__tensor_type_legal(p, tensor, layout->dtype));
    int choice = (int)lottery(0, 3);
    bool fits = choice == 0   ? attn__tensor_plain(p, tensor, false, layout->stride)
                : choice == 1 ? attn__tensor_plain(p, tensor, true, layout->stride)
                              : random_strides(p, tensor, output, layout->stride);
    if (!fits || too_far(p, tensor, layout->stride)) {
        memset(layout, 0, sizeof *layout); /* only scores of two long sides are that large: leave them out */
    }
}

static inline attn_problem random_problem(void) {
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64};
    attn_problem p = attn_problem_init();
    bool large = one_in(8);
    p.pass = one_in(2) ? ATTN_BACKWARD : ATTN_FORWARD;
    p.flags = (uint32_t)lottery(0, 255);
    p.batch = lottery(0, 4);
    p.heads_kv = lottery(0, 3);
    p.heads_q = p.heads_kv * lottery(1, 4);
    p.tokens_q = lottery(0, large ? 0x7fffffff : 9);
    p.tokens_kv = lottery(0, large ? 0x7fffffff : 9);
    p.dim_qk = lottery(1, 70);
    p.dim_v = one_in(2) ? p.dim_qk : lottery(1, 600);
    p.rows_q = (attn_rows)lottery(0, 2);
    p.rows_kv = (attn_rows)lottery(0, 2);
    p.total_q = p.rows_q == ATTN_DENSE ? lottery(-9, 9) : lottery(0, 30);
    p.total_kv = p.rows_kv == ATTN_DENSE ? lottery(-9, 9) : lottery(0, 30);
    p.segments_q = p.rows_q == ATTN_SEGMENTS ? lottery(0, 5) : lottery(-9, 9);
    p.segments_kv = p.rows_kv == ATTN_SEGMENTS ? lottery(0, 5) : lottery(-9, 9);
    p.flags &= p.rows_q == ATTN_SEGMENTS ? ~(uint32_t)ATTN_USED_Q : ~0u;
    p.flags &= p.rows_kv == ATTN_SEGMENTS ? ~(uint32_t)ATTN_USED_KV : ~0u;
    random_band(&p.band);
    p.scale = one_in(5) ? 0.0f : random_float(false);
    p.softcap = one_in(2) ? (one_in(2) ? 0.0f : -0.0f) : random_float(true);
    p.dropout = one_in(2) ? 0.0f : (float)lottery(0, (1 << 24) - 1) / (float)(1 << 24);
    p.q.dtype = types[lottery(0, 3)];
    for (int n = 0; n < ATTN__TENSORS; n++) {
        attn_dtype q = p.q.dtype;
        random_layout(&p, &attn__tensors[n]);
        p.q.dtype = q;
    }
    return p;
}

#endif
