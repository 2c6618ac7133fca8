/* SPDX-License-Identifier: Apache-2.0
 * AVX-512 with BF16 for all but the forward of bf16, which runs on tiles. */
#include "vec_avx512.h"
#include "vec_amx.h"

#include "kernels.h"
#include "forward_amx.h"

const attn__kernels attn__kernels_amx = ATTN__KERNELS;
