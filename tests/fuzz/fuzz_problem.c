/* SPDX-License-Identifier: Apache-2.0
 * The checks of problems and arguments: any bits in any field are refused with a reason, or the problem is one that
 * canonicalises to itself and survives its text, and accepted lengths stay inside the buffers.
 *
 * Input: bytes laid over a sound problem by exclusive or, then lengths and segments for its sides. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "problem/problem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hold(int condition) {
    if (!condition) {
        abort();
    }
}

static void check_problem(const attn_problem *problem, attn_problem *canonical) {
    attn_problem again;
    attn_error error;
    char first[4096], second[4096];
    hold(attn_problem_check(problem, &error) == ATTN_OK);
    hold(attn__problem_canonical(canonical, &again, NULL) == ATTN_OK);
    hold(attn_problem_format(problem, first, sizeof first) < sizeof first);
    hold(attn_problem_parse(&again, first, &error) == ATTN_OK);
    attn_problem_format(&again, second, sizeof second);
    hold(strcmp(first, second) == 0);
    hold(attn__visible_pairs(canonical) >= 0);
}

/* All rows that a side hands out lie in its buffer, all positions in their sequence. */
static void check_side(const attn__side *side, int64_t rows) {
    for (int64_t n = 0; n < attn__side_count(side); n++) {
        attn_segment segment = attn__side_segment(side, n);
        int64_t begin, end;
        hold(segment.first >= 0 && segment.rows >= 0 && segment.first + segment.rows <= rows);
        hold(segment.sequence >= 0 && segment.sequence < side->batch && segment.position >= 0);
        hold(segment.position + segment.rows <= attn__side_length(side, segment.sequence));
        hold(attn__side_length(side, segment.sequence) <= side->tokens);
        attn__side_range(side, segment.sequence, &begin, &end);
        hold(begin <= n && n < end);
        attn_segment padding = attn__side_padding(side, segment.sequence);
        hold(padding.rows >= 0 && (padding.rows == 0 || padding.first + padding.rows <= rows));
    }
}

enum { MOST = 16 };

static void check_arguments(const attn_problem *p, const uint8_t *data, size_t size) {
    static int32_t lengths[4][MOST + 1];
    static attn_segment segments[2][MOST];
    static double somewhere;
    attn_args args = attn_args_init(), copy;
    attn_error error;
    uint8_t lists[sizeof lengths + sizeof segments] = {0};
    memcpy(lists, data, size < sizeof lists ? size : sizeof lists);
    for (int n = 0; n < 4 * (MOST + 1); n++) {
        lengths[n / (MOST + 1)][n % (MOST + 1)] = (int8_t)lists[n];
    }
    for (int n = 0; n < 2 * MOST; n++) {
        const int8_t *four = (const int8_t *)lists + sizeof lengths + (size_t)n * 4;
        segments[n / MOST][n % MOST] = (attn_segment){four[0], four[1], four[2], four[3]};
    }
    args.q = args.k = args.v = args.o = args.lse = &somewhere;
    args.dout = args.dq = args.dk = args.dv = &somewhere;
    args.bias = p->bias.dtype ? &somewhere : NULL;
    args.mask = p->mask.dtype ? &somewhere : NULL;
    args.alibi = p->alibi.dtype ? &somewhere : NULL;
    args.sink = p->sink.dtype ? &somewhere : NULL;
    args.cu_seqlens_q = p->rows_q == ATTN_PACKED ? lengths[0] : NULL;
    args.cu_seqlens_kv = p->rows_kv == ATTN_PACKED ? lengths[1] : NULL;
    args.used_q = p->flags & ATTN_USED_Q ? lengths[2] : NULL;
    args.used_kv = p->flags & ATTN_USED_KV ? lengths[3] : NULL;
    if (p->rows_q == ATTN_SEGMENTS) {
        args.segments_q = segments[0];
        args.n_segments_q = lists[0] % (MOST + 1);
        args.lengths_q = lengths[2];
    }
    if (p->rows_kv == ATTN_SEGMENTS) {
        args.segments_kv = segments[1];
        args.n_segments_kv = lists[1] % (MOST + 1);
        args.lengths_kv = lengths[3];
    }
    args.status = p->flags & ATTN_DEVICE_LENGTHS ? lengths[0] : NULL;
    args.device_seed = p->flags & ATTN_DEVICE_SEED ? (const uint64_t *)&somewhere : NULL;
    if (attn__args_check(p, &args, &copy, &error)) {
        hold(error.status == ATTN_ERR_INVALID && error.field[0] && error.message[0]);
        return;
    }
    if (p->flags & ATTN_DEVICE_LENGTHS) {
        return; /* nothing was read */
    }
    attn__side q = attn__side_q(p, &copy), kv = attn__side_kv(p, &copy);
    check_side(&q, p->rows_q == ATTN_DENSE ? p->tokens_q : p->total_q);
    check_side(&kv, p->rows_kv == ATTN_DENSE ? p->tokens_kv : p->total_kv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    attn_problem problem = attn_problem_dense(ATTN_F32, 2, 4, 2, 5, 7, 16, 24), canonical;
    attn_error error;
    size_t bytes = size < sizeof problem ? size : sizeof problem;
    for (size_t n = 0; n < bytes; n++) {
        ((uint8_t *)&problem)[n] ^= data[n];
    }
    problem.struct_size = sizeof problem;
    if (attn__problem_canonical(&problem, &canonical, &error)) {
        hold(error.status == ATTN_ERR_INVALID && error.field[0] && error.message[0]);
        return 0;
    }
    check_problem(&problem, &canonical);
    if (canonical.batch <= MOST) {
        check_arguments(&canonical, data + bytes, size - bytes);
    }
    return 0;
}
