/* SPDX-License-Identifier: Apache-2.0
 * What device code of src/cuda/device calls, for a program of the host. A program includes it first, and defines
 * __CUDA_ARCH__ and the constants of its kernel itself. */
#ifndef ATTN_TESTS_DEVICE_ON_HOST_H
#define ATTN_TESTS_DEVICE_ON_HOST_H

#include <stdint.h>
#include <string.h>

#define __device__
#define __forceinline__ inline

static inline float __int_as_float(int x) {
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) {
    float y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline unsigned __float_as_uint(float x) {
    unsigned y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline int atomicAdd(int *to, int x) { /* of a single thread */
    const int before = *to;
    *to += x;
    return before;
}

#endif
