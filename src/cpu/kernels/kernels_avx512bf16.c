/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_avx512.h"

#include "kernels.h"

const attn__kernels attn__kernels_avx512bf16 = ATTN__KERNELS;
