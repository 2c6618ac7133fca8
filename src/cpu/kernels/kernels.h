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

/* forward_amx.h puts its own in their place. */
#define ATTN__PAIRS   ATTN_HAVE_DOT2
#define ATTN__FORWARD forward_scratch_bytes, forward

#define ATTN__KERNELS                                                                                                  \
    {                                                                                                                  \
        ATTN_LANES, ATTN__PAIRS, {ATTN__FORWARD, finish}, {few_scratch_bytes, few_forward, few_finish}, {              \
            gradient_scratch_bytes, backward, backward_finish, dbias, dsink                                            \
        }                                                                                                              \
    }

#endif
