/* SPDX-License-Identifier: Apache-2.0
 * Three sequences of different lengths, one of them empty, packed into one buffer: no padding is stored or computed.
 * Queries are zero, so every row of a sequence is the mean of that sequence's own values. */
#include <attn/attn.h>
#include <stdio.h>

enum { SEQUENCES = 3, ROWS = 6, LONGEST = 4, HEADS = 2, DIM = 4 };

int main(void) {
    const int32_t offsets[SEQUENCES + 1] = {0, 4, 4, 6};
    static float q[ROWS * HEADS * DIM], k[ROWS * HEADS * DIM], v[ROWS * HEADS * DIM], o[ROWS * HEADS * DIM];
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < HEADS * DIM; i++) {
            v[row * HEADS * DIM + i] = (float)row;
        }
    }
    attn_problem problem = attn_problem_dense(ATTN_F32, SEQUENCES, HEADS, HEADS, LONGEST, LONGEST, DIM, DIM);
    problem.rows_q = problem.rows_kv = ATTN_PACKED;
    problem.total_q = problem.total_kv = ROWS;

    attn_args args = attn_args_init();
    args.q = q, args.k = k, args.v = v, args.o = o;
    args.cu_seqlens_q = args.cu_seqlens_kv = offsets;
    attn_error error;
    if (attn_run(&problem, &args, &error)) {
        fprintf(stderr, "%s %s\n", error.field, error.message);
        return 1;
    }
    int wrong = 0;
    for (int row = 0; row < ROWS; row++) {
        float got = o[row * HEADS * DIM + DIM];
        printf("row %d: %g\n", row, got);
        wrong += got != (row < 4 ? 1.5f : 4.5f);
    }
    return wrong != 0;
}
