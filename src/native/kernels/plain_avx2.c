/* SPDX-License-Identifier: Apache-2.0
 * AVX2 with FMA: 12 of 16 registers hold sums. */
#define NATIVE_TABLE   attn__native_avx2
#define NATIVE_LANES   8
#define NATIVE_ROWS    6
#define NATIVE_VECTORS 2
#include "native/kernels/body.h"
