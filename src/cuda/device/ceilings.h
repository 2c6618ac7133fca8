/* SPDX-License-Identifier: Apache-2.0
 * What the kernels of ceilings.cu are given; the same bytes on host and device. */
#ifndef ATTN_CUDA_CEILINGS_H
#define ATTN_CUDA_CEILINGS_H

/* Constant WORK. */
#define ATTN__WORK_FMA  0
#define ATTN__WORK_MMA  1
#define ATTN__WORK_EXP  2
#define ATTN__WORK_READ 3
#define ATTN__WORK_COPY 4

/* Operations that a thread (MMA: a warp) does a round: chains that do not wait for each other, times steps. */
#define ATTN__CHAINS    16
#define ATTN__STEPS     16
#define ATTN__MMA_SUMS  8
#define ATTN__MMA_STEPS 4

typedef struct attn__ceiling_params {
    float *out;          /* one a thread, written only if it would be `never` */
    void *from, *to;     /* READ, COPY */
    long long units;     /* of 16 bytes */
    float factor, never; /* values that the compiler does not know */
    int rounds;
} attn__ceiling_params;

#endif
