/* SPDX-License-Identifier: Apache-2.0
 * The first five minutes: two queries, three keys, one head of size 4. With q = 0 all keys weigh the same, so each
 * output is the mean of the values. */
#include <attn/attn.h>
#include <stdio.h>

int main(void) {
    float q[2 * 4] = {0}, k[3 * 4] = {0}, o[2 * 4];
    float v[3 * 4] = {1, 10, 100, 1000, 2, 20, 200, 2000, 3, 30, 300, 3000};

    /* type, batch, query heads, key heads, query tokens, key tokens, size of q and k, size of v */
    attn_problem problem = attn_problem_dense(ATTN_F32, 1, 1, 1, 2, 3, 4, 4);
    attn_args args = attn_args_init();
    args.q = q, args.k = k, args.v = v, args.o = o;

    attn_error error;
    if (attn_run(&problem, &args, &error) != ATTN_OK) {
        fprintf(stderr, "%s %s\n", error.field, error.message);
        return 1;
    }
    printf("%g %g %g %g\n", o[0], o[1], o[2], o[3]); /* 2 20 200 2000 */
    return o[0] != 2 || o[7] != 2000;
}
