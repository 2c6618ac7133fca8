/* SPDX-License-Identifier: Apache-2.0
 * Gradients, checked the way one checks any gradient: by moving an input a little and looking at the loss. The loss is
 * sum(o * w) with fixed w, so dout = w. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 6, HEADS = 2, DIM = 8, SIZE = TOKENS * HEADS * DIM };

static float q[SIZE], k[SIZE], v[SIZE], o[SIZE], w[SIZE], dq[SIZE], dk[SIZE], dv[SIZE];
static float lse[HEADS * TOKENS];

static attn_problem problem_of(attn_pass pass) {
    attn_problem problem = attn_problem_dense(ATTN_F32, 1, HEADS, HEADS, TOKENS, TOKENS, DIM, DIM);
    problem.pass = pass;
    problem.band.kind = ATTN_CAUSAL;
    return problem;
}

static void run(attn_pass pass) {
    attn_problem problem = problem_of(pass);
    attn_args args = attn_args_init();
    args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse;
    if (pass == ATTN_BACKWARD) {
        args.dout = w, args.dq = dq, args.dk = dk, args.dv = dv;
    }
    attn_error error;
    if (attn_run(&problem, &args, &error)) {
        fprintf(stderr, "%s %s\n", error.field, error.message);
        exit(1);
    }
}

static double loss(void) {
    double sum = 0;
    run(ATTN_FORWARD);
    for (int i = 0; i < SIZE; i++) {
        sum += (double)o[i] * w[i];
    }
    return sum;
}

/* Largest difference between a gradient and the slope of the loss, over a few elements. */
static double check(const char *name, float *input, const float *gradient) {
    const float step = 1.0f / 128;
    double worst = 0;
    for (int i = 3; i < SIZE; i += 11) {
        float kept = input[i];
        input[i] = kept + step;
        double above = loss();
        input[i] = kept - step;
        double slope = (above - loss()) / (2 * step);
        input[i] = kept;
        worst = fmax(worst, fabs(slope - gradient[i]));
    }
    printf("%s: largest difference %.1e\n", name, worst);
    return worst;
}

int main(void) {
    for (int i = 0; i < SIZE; i++) {
        q[i] = (float)sin(1.0 + i);
        k[i] = (float)cos(2.0 + 3.0 * i);
        v[i] = (float)sin(3.0 + 5.0 * i);
        w[i] = (float)cos(4.0 + 7.0 * i);
    }
    run(ATTN_FORWARD); /* backward reads its o and lse */
    run(ATTN_BACKWARD);
    double worst = fmax(check("dq", q, dq), fmax(check("dk", k, dk), check("dv", v, dv)));
    return !(worst < 1e-3);
}
