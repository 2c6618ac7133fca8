/* SPDX-License-Identifier: Apache-2.0
 * Causal attention, four query heads that share two key heads, in bfloat16. Keys are zero, so row i of a head is the
 * mean of the first i + 1 values of its key head. */
#include <attn/attn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 5, HEADS_Q = 4, HEADS_KV = 2, DIM = 8 };

/* Exact for the small integers used here. */
static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)(bits >> 16);
}

int main(void) {
    static uint16_t q[TOKENS * HEADS_Q * DIM], k[TOKENS * HEADS_KV * DIM], v[TOKENS * HEADS_KV * DIM];
    static float o[TOKENS * HEADS_Q * DIM];
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HEADS_KV; h++) {
            for (int d = 0; d < DIM; d++) {
                v[(t * HEADS_KV + h) * DIM + d] = to_bf16((float)(2 * t + 100 * h));
            }
        }
    }
    attn_problem problem = attn_problem_dense(ATTN_BF16, 1, HEADS_Q, HEADS_KV, TOKENS, TOKENS, DIM, DIM);
    problem.band.kind = ATTN_CAUSAL;
    problem.o.dtype = ATTN_F32; /* same layout, wider type */

    attn_args args = attn_args_init();
    args.q = q, args.k = k, args.v = v, args.o = o;
    attn_error error;
    if (attn_run(&problem, &args, &error)) {
        fprintf(stderr, "%s %s\n", error.field, error.message);
        return 1;
    }
    int wrong = 0;
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < HEADS_Q; h++) {
            float got = o[(t * HEADS_Q + h) * DIM], want = (float)(t + 100 * (h / 2));
            float off = got > want ? got - want : want - got;
            wrong += !(off <= 0.01f * (1 + want)); /* weights are rounded to bfloat16 */
            printf("%8.3f%s", got, h + 1 < HEADS_Q ? " " : "\n");
        }
    }
    return wrong != 0;
}
