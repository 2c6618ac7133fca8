/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_generic.h"

#include "kernels.h"

const attn__kernels attn__kernels_generic = ATTN__KERNELS;
