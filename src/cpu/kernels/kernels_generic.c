/* SPDX-License-Identifier: Apache-2.0 */
#include "vec_generic.h"

#include "kernels.h"

ATTN__KERNELS(generic);
