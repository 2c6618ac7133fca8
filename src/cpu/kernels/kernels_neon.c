/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_neon.h"

#include "kernels.h"

ATTN__KERNELS(neon);
