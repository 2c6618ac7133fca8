/* SPDX-License-Identifier: Apache-2.0
 * The table of one instruction set; included last by each kernels_<isa>.c, after its vocabulary. */
#ifndef ATTN_CPU_KERNELS_H
#define ATTN_CPU_KERNELS_H

#include "backward.h"
#include "few.h"
#include "forward.h"
#include "gradient_sums.h"

static size_t gradient_scratch_bytes(const attn_plan *plan) {
    size_t rows = backward_scratch_bytes(plan), sums = sums_scratch_bytes(plan);
    return rows > sums ? rows : sums;
}

#define ATTN__KERNELS                                                                                                  \
    {                                                                                                                  \
        ATTN_LANES, ATTN_HAVE_DOT2, {forward_scratch_bytes, forward, finish},                                          \
            {few_scratch_bytes, few_forward, few_finish}, {                                                            \
            gradient_scratch_bytes, backward, backward_finish, dbias, dsink                                            \
        }                                                                                                              \
    }

#endif
