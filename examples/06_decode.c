/* SPDX-License-Identifier: Apache-2.0
 * Decoding: one new query for each sequence against a cache of keys and values that is longer than what is filled.
 * used_kv gives the filled length of each; what lies behind it is never read, so it may hold anything. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { BATCH = 2, HEADS_Q = 8, HEADS_KV = 2, CAPACITY = 100, DIM = 64 };

int main(void) {
    static float q[BATCH * HEADS_Q * DIM], o[BATCH * HEADS_Q * DIM];
    static float k[BATCH * CAPACITY * HEADS_KV * DIM], v[BATCH * CAPACITY * HEADS_KV * DIM];
    const int32_t used[BATCH] = {70, 33};
    for (int b = 0; b < BATCH; b++) {
        for (int t = 0; t < CAPACITY; t++) {
            for (int i = 0; i < HEADS_KV * DIM; i++) {
                int at = (b * CAPACITY + t) * HEADS_KV * DIM + i;
                k[at] = t < used[b] ? 0 : NAN;
                v[at] = t < used[b] ? (float)t : NAN;
            }
        }
    }
    attn_problem problem = attn_problem_dense(ATTN_F32, BATCH, HEADS_Q, HEADS_KV, 1, CAPACITY, DIM, DIM);
    problem.band.kind = ATTN_CAUSAL; /* the bottom right corner: the query sees every key that is there */
    problem.flags = ATTN_USED_KV;

    attn_args args = attn_args_init();
    args.q = q, args.k = k, args.v = v, args.o = o;
    args.used_kv = used;
    attn_error error;
    if (attn_run(&problem, &args, &error)) {
        fprintf(stderr, "%s %s\n", error.field, error.message);
        return 1;
    }
    int wrong = 0;
    for (int b = 0; b < BATCH; b++) {
        float got = o[(b * HEADS_Q + 5) * DIM + 7], want = (float)(used[b] - 1) / 2;
        printf("sequence %d: %g\n", b, got);
        wrong += !(fabsf(got - want) < 1e-4f);
    }
    return wrong != 0;
}
