/* SPDX-License-Identifier: Apache-2.0
 * Ceiling kernels over one vector width. Included once for each width with
 *   WIDTH   bytes of a vector        TARGET  function attribute, or empty        NAMED(x)  x with the width's suffix
 * Needs -ffp-contract=fast, so that a product and a sum become one instruction where there is one. */

typedef float NAMED(vec) __attribute__((vector_size(WIDTH), aligned(WIDTH)));
typedef int NAMED(ints) __attribute__((vector_size(WIDTH), aligned(WIDTH)));

/* Twelve independent chains hide the latency of any current multiply-add. */
TARGET static void NAMED(fma)(long rounds) {
    volatile float zero = 0;
    NAMED(vec) x = {0};
    x += zero + 0.5f;
    NAMED(vec) a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, a6 = x, a7 = x, a8 = x, a9 = x, a10 = x, a11 = x;
    NAMED(vec) y = x + zero;
    for (long r = 0; r < rounds; r++) {
        a0 = a0 * x + y, a1 = a1 * x + y, a2 = a2 * x + y, a3 = a3 * x + y;
        a4 = a4 * x + y, a5 = a5 * x + y, a6 = a6 * x + y, a7 = a7 * x + y;
        a8 = a8 * x + y, a9 = a9 * x + y, a10 = a10 * x + y, a11 = a11 * x + y;
        KEEP(a0, a1, a2, a3, a4, a5);
        KEEP(a6, a7, a8, a9, a10, a11);
    }
    NAMED(vec) sum = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11;
    keep_float(sum[0]);
}

/* exp by 2^k * p(f), |f| <= 1/2, p of degree 5: what a softmax in float32 has to do for one score, and a load. */
TARGET static void NAMED(exp)(long rounds) {
    enum { VECTORS = EXP_ELEMENTS * 4 / WIDTH };
    NAMED(vec) x[VECTORS], sum0 = {0}, sum1 = {0};
    for (int i = 0; i < VECTORS; i++) {
        x[i] = (NAMED(vec)){0} - (float)i * (1.0f / VECTORS);
    }
    const float log2e = 1.44269504f, magic = 12582912.0f; /* 1.5 * 2^23 */
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < VECTORS; i++) {
            NAMED(vec) v = x[i], t = v * log2e + magic, f = v * log2e - (t - magic);
            NAMED(vec) p = f * 1.33977e-3f + 9.67770e-3f;
            p = p * f + 5.55074e-2f;
            p = p * f + 2.40222e-1f;
            p = p * f + 6.93147e-1f;
            p = p * f + 1.0f;
            p = (NAMED(vec))((NAMED(ints))p + ((NAMED(ints))t << 23));
            if (i & 1) {
                sum1 += p;
            } else {
                sum0 += p;
            }
        }
        keep_memory(x);
    }
    sum0 += sum1;
    keep_float(sum0[0]);
}

#undef WIDTH
#undef TARGET
#undef NAMED
