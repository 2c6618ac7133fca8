/* SPDX-License-Identifier: Apache-2.0
 * Memory of the plain computation: the matrices, each thread's scratch, and rows of the caller's tensors. */
#include <string.h>

#include "base/dtype.h"
#include "native/native.h"

static size_t times(size_t a, int64_t b) {
    size_t result;
    return __builtin_mul_overflow(a, (size_t)b, &result) ? SIZE_MAX : result;
}

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void *take(char *base, size_t *total, int64_t count, int64_t columns, size_t size) {
    attn__span span = attn__span_take(total, times(times(size, columns), count));
    return base ? base + span.offset : NULL;
}

/* The walk over one thread's scratch; base NULL: only measures. */
static size_t carve_scratch(const attn_problem *p, char *base, native_scratch *w) {
    const int64_t dim = attn__native_width(largest(p->dim_qk, p->dim_v)), depth = largest(dim, DEPTH);
    const int64_t queries = p->tokens_q, keys = p->tokens_kv;
    size_t total = 0;
    w->q.row = take(base, &total, queries, 1, sizeof *w->q.row);
    w->q.position = take(base, &total, queries, 1, sizeof *w->q.position);
    w->kv.row = take(base, &total, keys, 1, sizeof *w->kv.row);
    w->kv.position = take(base, &total, keys, 1, sizeof *w->kv.position);
    w->left = take(base, &total, depth, BLOCK, sizeof *w->left);
    w->right = take(base, &total, depth, DEPTH, sizeof *w->right);
    w->c = take(base, &total, depth, BLOCK, sizeof *w->c);
    w->line = take(base, &total, largest(depth, keys), 1, sizeof *w->line);
    w->x = take(base, &total, keys, 1, sizeof *w->x);
    w->slope = take(base, &total, keys, 1, sizeof *w->slope);
    w->dp = take(base, &total, keys, 1, sizeof *w->dp);
    w->keep = take(base, &total, keys, 1, sizeof *w->keep);
    w->sum = take(base, &total, largest(keys, 1), 1, sizeof *w->sum);
    w->visible = take(base, &total, keys, 1, sizeof *w->visible);
    return total;
}

size_t attn__native_layout(const attn_problem *p, int threads, native_layout *layout) {
    const size_t element = attn_dtype_size(p->q.dtype);
    const size_t matrix = times(times(times(times(element, p->tokens_kv), p->tokens_q), p->heads_q), p->batch);
    native_scratch scratch;
    size_t total = 0;
    layout->scores = attn__span_take(&total, matrix);
    layout->gradients = attn__span_take(&total, p->pass == ATTN_BACKWARD ? matrix : 0);
    layout->scratch_each = 0;
    attn__span_take(&layout->scratch_each, carve_scratch(p, NULL, &scratch));
    attn__span_take(&layout->scratch_each, 0); /* the next thread's begins aligned */
    layout->scratch = attn__span_take(&total, times(layout->scratch_each, threads));
    return total;
}

native_run attn__native_start(const attn_plan *plan, const attn_args *args, void *workspace) {
    const attn_problem *p = &plan->problem;
    native_layout layout;
    attn__native_layout(p, plan->choice.threads, &layout);
    native_run run = {.plan = plan, .problem = p, .args = args, .kernels = &attn__native_generic};
#if ATTN_NATIVE_HAVE_AVX2
    run.kernels = plan->machine.isa & ATTN__ISA_AVX2 ? &attn__native_avx2 : run.kernels;
#endif
#if ATTN_NATIVE_HAVE_AVX512
    run.kernels = plan->machine.isa & ATTN__ISA_AVX512 ? &attn__native_avx512 : run.kernels;
#endif
    run.q = attn__side_q(p, args);
    run.kv = attn__side_kv(p, args);
    run.dropout = attn__dropout_key_make(args->seed, args->offset, p->dropout);
    run.scores = attn__span_at(workspace, layout.scores);
    run.gradients = attn__span_at(workspace, layout.gradients);
    run.scratch = attn__span_at(workspace, layout.scratch);
    run.scratch_each = layout.scratch_each;
    return run;
}

native_scratch attn__native_scratch(const native_run *run, int thread) {
    native_scratch w;
    memset(&w, 0, sizeof w);
    carve_scratch(run->problem, run->scratch + (size_t)thread * run->scratch_each, &w);
    return w;
}

void attn__native_map(const attn__side *side, int64_t s, native_map *map) {
    int64_t begin, end;
    map->count = 0;
    map->consecutive = true;
    attn__side_range(side, s, &begin, &end);
    for (int64_t n = begin; n < end; n++) {
        attn_segment segment = attn__side_segment(side, n);
        if (map->count && segment.rows && map->position[map->count - 1] + 1 != segment.position) {
            map->consecutive = false;
        }
        for (int64_t r = 0; r < segment.rows; r++) {
            map->row[map->count] = segment.first + r;
            map->position[map->count++] = (int32_t)(segment.position + r);
        }
    }
}

void *attn__native_matrix(const native_run *run, char *matrix, int64_t s, int64_t h, int64_t n) {
    const attn_problem *p = run->problem;
    size_t row = (size_t)((s * p->heads_q + h) * p->tokens_q + n);
    return matrix + row * (size_t)p->tokens_kv * attn_dtype_size(p->q.dtype);
}

int64_t attn__native_index(const attn_layout *layout, const attn__side *side, int64_t s, int64_t head, int64_t row) {
    int64_t batch = side->rows == ATTN_PACKED ? 0 : s;
    return batch * layout->stride[0] + head * layout->stride[1] + row * layout->stride[2];
}

static char *element(const attn_layout *layout, const void *base, int64_t index) {
    return (char *)(uintptr_t)base + index * (int64_t)attn_dtype_size(layout->dtype);
}

void attn__native_load(const native_run *run, const attn_layout *layout, const void *base, int64_t index, int64_t n,
                       float *to) {
    if (layout->stride[3] == 1 && layout->dtype != ATTN_U8) {
        run->kernels->widen(layout->dtype, element(layout, base, index), n, to);
        return;
    }
    for (int64_t d = 0; d < n; d++) {
        to[d] = (float)attn__load(layout->dtype, base, index + d * layout->stride[3]);
    }
}

void attn__native_store(const native_run *run, const attn_layout *layout, void *base, int64_t index, int64_t n,
                        float scale, bool accumulate, float *from) {
    run->kernels->scale(from, scale, n);
    if (layout->stride[3] == 1 && !accumulate) {
        run->kernels->narrow(layout->dtype, from, n, element(layout, base, index));
        return;
    }
    for (int64_t d = 0; d < n; d++) {
        int64_t at = index + d * layout->stride[3];
        float before = accumulate ? (float)attn__load(layout->dtype, base, at) : 0;
        attn__store(layout->dtype, base, at, before + from[d]);
    }
}

void attn__native_store_zeros(const attn_layout *layout, void *base, int64_t index, int64_t n) {
    for (int64_t d = 0; d < n; d++) {
        attn__store(layout->dtype, base, index + d * layout->stride[3], 0);
    }
}
