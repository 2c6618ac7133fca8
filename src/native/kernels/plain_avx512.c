/* SPDX-License-Identifier: Apache-2.0
 * AVX-512: 24 of 32 registers hold sums. */
#define NATIVE_TABLE   attn__native_avx512
#define NATIVE_LANES   16
#define NATIVE_ROWS    12
#define NATIVE_VECTORS 2
#include "native/kernels/body.h"
