/* SPDX-License-Identifier: Apache-2.0
 * Any machine: 128-bit vectors, 8 of 16 registers hold sums. */
#define NATIVE_TABLE   attn__native_generic
#define NATIVE_LANES   4
#define NATIVE_ROWS    4
#define NATIVE_VECTORS 2
#include "native/kernels/body.h"
