/* SPDX-License-Identifier: Apache-2.0
 * The table of one instruction set; included last by each kernels_<isa>.c, after its vocabulary. */
#ifndef ATTN_CPU_KERNELS_H
#define ATTN_CPU_KERNELS_H

#include "few.h"
#include "forward.h"

#define ATTN__KERNELS                                                                                                  \
    {                                                                                                                  \
        ATTN_LANES, {forward_scratch_bytes, forward, finish}, {                                                        \
            few_scratch_bytes, few_forward, few_finish                                                                 \
        }                                                                                                              \
    }

#endif
