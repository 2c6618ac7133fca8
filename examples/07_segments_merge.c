/* SPDX-License-Identifier: Apache-2.0
 * One sequence whose keys lie in two places, as on two machines. Each part is attended to by itself, with segments
 * that say at which positions of the whole its rows stand (so causality stays right); attn_merge joins the partial
 * results. The same numbers come from one call over all keys. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 12, FIRST = 5, DIM = 16, SIZE = TOKENS * DIM };

static void stop_on(attn_status status, const attn_error *error) {
    if (status) {
        fprintf(stderr, "%s %s\n", error->field, error->message);
        exit(1);
    }
}

int main(void) {
    static float q[SIZE], k[SIZE], v[SIZE], whole[SIZE], part[2][SIZE], merged[SIZE];
    float lse[TOKENS], part_lse[2][TOKENS], merged_lse[TOKENS];
    for (int i = 0; i < SIZE; i++) {
        q[i] = (float)sin(1.0 + i);
        k[i] = (float)cos(2.0 + 3.0 * i);
        v[i] = (float)sin(3.0 + 5.0 * i);
    }
    attn_error error;
    attn_args args = attn_args_init();
    attn_problem problem = attn_problem_dense(ATTN_F32, 1, 1, 1, TOKENS, TOKENS, DIM, DIM);
    problem.band.kind = ATTN_CAUSAL;
    args.q = q, args.k = k, args.v = v, args.o = whole, args.lse = lse;
    stop_on(attn_run(&problem, &args, &error), &error);

    const attn_segment queries = {.first = 0, .rows = TOKENS, .position = 0, .sequence = 0};
    const attn_segment keys[2] = {{.rows = FIRST, .position = 0}, {.rows = TOKENS - FIRST, .position = FIRST}};
    const int32_t length = TOKENS;
    problem.rows_q = problem.rows_kv = ATTN_SEGMENTS;
    problem.segments_q = problem.segments_kv = 1;
    problem.total_q = TOKENS;
    for (int p = 0; p < 2; p++) {
        problem.total_kv = keys[p].rows;
        args.k = k + keys[p].position * DIM;
        args.v = v + keys[p].position * DIM;
        args.o = part[p], args.lse = part_lse[p];
        args.segments_q = &queries, args.n_segments_q = 1, args.lengths_q = &length;
        args.segments_kv = &keys[p], args.n_segments_kv = 1, args.lengths_kv = &length;
        stop_on(attn_run(&problem, &args, &error), &error);
    }

    const void *parts[2] = {part[0], part[1]}, *lses[2] = {part_lse[0], part_lse[1]};
    attn_merge_args merge = {.struct_size = sizeof merge, .batch = 1, .heads = 1, .tokens = TOKENS, .dim = DIM};
    merge.o = attn_layout_bshd(ATTN_F32, 1, TOKENS, DIM);
    merge.parts = 2, merge.o_parts = parts, merge.lse_parts = lses;
    merge.o_result = merged, merge.lse_result = merged_lse;
    stop_on(attn_merge(&merge, &error), &error);

    double worst = 0;
    for (int i = 0; i < SIZE; i++) {
        worst = fmax(worst, fabs(merged[i] - whole[i]));
    }
    for (int t = 0; t < TOKENS; t++) {
        worst = fmax(worst, fabs(merged_lse[t] - lse[t]));
    }
    printf("largest difference between merged and whole: %.1e\n", worst);
    return !(worst < 1e-6);
}
