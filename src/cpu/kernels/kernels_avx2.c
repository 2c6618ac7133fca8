/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_avx2.h"

#include "kernels.h"

const attn__kernels attn__kernels_avx2 = ATTN__KERNELS;
