/* SPDX-License-Identifier: Apache-2.0
 * One row of scores: what is visible, soft cap, bias, ALiBi; and rows of probabilities and gradients on their way to
 * the matrices. What every problem runs is in the kernels; the features' loops are here. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "native/native.h"

/* The band is one interval, with globals also everything up to the last global key. */
static void see_band(const native_run *run, native_scratch *w, const native_at *at) {
    const attn_band *band = &run->problem->band;
    const int64_t shifted = at->i + attn__row_shift(run->problem, &run->q, &run->kv, at->s);
    const attn__range range = attn__band_range(band, shifted);
    int64_t global = band->kind & ATTN_GLOBALS ? band->globals - 1 : -1;
    if (band->kind & ATTN_CAUSAL && shifted < global) {
        global = shifted;
    }
    const int32_t last = (int32_t)(range.last < -1 ? -1 : range.last);
    const int32_t first = (int32_t)(range.first > ATTN__MAX_TOKENS ? ATTN__MAX_TOKENS : range.first);
    const int32_t upto = (int32_t)(global < -1 ? -1 : global);
    run->kernels->see(w->kv.position, w->kv.count, first, last, upto, w->visible);
}

/* Row i of bias or mask, for every key of the map. */
static void load_pairs(const native_run *run, native_scratch *w, const native_at *at, const attn_layout *layout,
                       const void *base, float *to) {
    const int64_t *stride = layout->stride;
    const int64_t index = at->s * stride[0] + at->h * stride[1] + at->i * stride[2];
    if (w->kv.consecutive && w->kv.count) {
        attn__native_load(run, layout, base, index + w->kv.position[0] * stride[3], w->kv.count, to);
        return;
    }
    for (int64_t m = 0; m < w->kv.count; m++) {
        to[m] = (float)attn__load(layout->dtype, base, index + w->kv.position[m] * stride[3]);
    }
}

static void see_mask(const native_run *run, native_scratch *w, const native_at *at) {
    load_pairs(run, w, at, &run->problem->mask, run->args->mask, w->line);
    for (int64_t m = 0; m < w->kv.count; m++) {
        w->visible[m] &= w->line[m] != 0;
    }
}

static void add_bias(const native_run *run, native_scratch *w, const native_at *at) {
    load_pairs(run, w, at, &run->problem->bias, run->args->bias, w->line);
    for (int64_t m = 0; m < w->kv.count; m++) {
        w->visible[m] &= w->line[m] != -INFINITY;
        w->x[m] += w->line[m];
    }
}

static void add_alibi(const native_run *run, native_scratch *w, const native_at *at) {
    const attn_layout *layout = &run->problem->alibi;
    const float slope =
        (float)attn__load(layout->dtype, run->args->alibi, at->s * layout->stride[0] + at->h * layout->stride[1]);
    const int64_t shifted = at->i + attn__row_shift(run->problem, &run->q, &run->kv, at->s);
    for (int64_t m = 0; m < w->kv.count; m++) {
        w->x[m] -= slope * fabsf((float)(shifted - w->kv.position[m]));
    }
}

static void cap(native_scratch *w, float softcap) {
    for (int64_t m = 0; m < w->kv.count; m++) {
        float t = tanhf(w->x[m] / softcap);
        w->x[m] = softcap * t;
        w->slope[m] = 1 - t * t;
    }
}

float attn__native_score_row(const native_run *run, native_scratch *w, const native_at *at) {
    const attn_problem *p = run->problem;
    run->kernels->widen(p->q.dtype, attn__native_matrix(run, run->scores, at->s, at->h, at->n), w->kv.count, w->x);
    see_band(run, w, at);
    if (p->softcap > 0) {
        cap(w, p->softcap);
    }
    if (run->args->bias) {
        add_bias(run, w, at);
    }
    if (run->args->alibi) {
        add_alibi(run, w, at);
    }
    if (run->args->mask) {
        see_mask(run, w, at);
    }
    return run->kernels->hide(w->x, w->visible, w->kv.count);
}

void attn__native_keep_row(const native_run *run, native_scratch *w, const native_at *at) {
    const float keep = 1 / (1 - run->problem->dropout);
    const uint32_t head = (uint32_t)(run->args->head_first + at->h),
                   sequence = (uint32_t)(run->args->batch_first + at->s);
    attn__u32x4 words = {{0}};
    int64_t four = -1;
    for (int64_t m = 0; m < w->kv.count; m++) {
        int32_t j = w->kv.position[m];
        if (j >> 2 != four) {
            four = j >> 2;
            words = attn__dropout_words(run->dropout, (uint32_t)four, (uint32_t)at->i, head, sequence);
        }
        w->keep[m] = words.word[j & 3] >= run->dropout.threshold ? keep : 0;
    }
}

void attn__native_put_row(const native_run *run, native_scratch *w, const native_at *at, char *matrix, const float *x) {
    const attn_dtype dtype = run->problem->q.dtype;
    void *row = attn__native_matrix(run, matrix, at->s, at->h, at->n);
    run->kernels->narrow(dtype, x, w->kv.count, row);
    run->kernels->mark(dtype, w->visible, w->kv.count, row);
}

float attn__native_sink(const native_run *run, int64_t h) {
    const attn_layout *layout = &run->problem->sink;
    return run->args->sink ? (float)attn__load(layout->dtype, run->args->sink, h * layout->stride[1]) : -INFINITY;
}
