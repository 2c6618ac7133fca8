/* SPDX-License-Identifier: Apache-2.0
 * Plan once, run often: the plan says what will run and why, and the workspace is the caller's. The output is checked
 * by its definition: the rows are the softmax of known scores. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 8, DIM = 16 };

static int fail(const attn_error *error) {
    fprintf(stderr, "%s: %s %s\n", attn_status_name(error->status), error->field, error->message);
    return 1;
}

int main(void) {
    static float q[TOKENS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], o[TOKENS * DIM];
    float lse[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        q[t * DIM] = 1; /* <q_i, k_j> = j */
        k[t * DIM] = (float)t;
        v[t * DIM + t] = 1; /* o_ij = p_ij */
    }
    attn_problem problem = attn_problem_dense(ATTN_F32, 1, 1, 1, TOKENS, TOKENS, DIM, DIM);
    problem.flags = ATTN_HAS_SCALE;
    problem.scale = 0.5f;

    attn_error error;
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    if (attn_context_create(&context, NULL, &error) || attn_plan_create(&plan, context, &problem, NULL, &error)) {
        attn_context_destroy(context);
        return fail(&error);
    }
    char text[2048];
    attn_plan_describe(plan, text, sizeof text);
    fputs(text, stdout);

    size_t size = attn_plan_workspace(plan);
    void *workspace = size ? aligned_alloc(ATTN_WORKSPACE_ALIGNMENT, (size + 63) / 64 * 64) : NULL;
    attn_args args = attn_args_init();
    args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse;
    double worst = 0, sum = 0;
    for (int j = 0; j < TOKENS; j++) {
        sum += exp(0.5 * j);
    }
    for (int run = 0; run < 3; run++) {
        if (attn_forward(plan, &args, workspace, size, NULL, &error)) {
            return fail(&error);
        }
        for (int j = 0; j < TOKENS; j++) {
            worst = fmax(worst, fabs(o[3 * DIM + j] - exp(0.5 * j) / sum));
        }
        worst = fmax(worst, fabs(lse[3] - log(sum)));
    }
    printf("largest error in row 3: %.1e\n", worst);
    free(workspace);
    attn_plan_destroy(plan);
    attn_context_destroy(context);
    return !(worst < 1e-6);
}
