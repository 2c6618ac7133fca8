/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_avx512.h"

#include "kernels.h"

ATTN__KERNELS(avx512);
