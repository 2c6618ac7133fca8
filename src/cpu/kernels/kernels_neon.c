/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_neon.h"

#include "kernels.h"

const attn__kernels attn__kernels_neon = ATTN__KERNELS;
