/* SPDX-License-Identifier: Apache-2.0
 * The bodies of one instruction set; included last by each kernels_<isa>.c, after its vocabulary. */
#ifndef ATTN_CPU_KERNELS_H
#define ATTN_CPU_KERNELS_H

#include "backward.h"
#include "few.h"
#include "forward.h"
#include "gradient_sums.h"

/* The table of a set that serves every problem itself. */
#define ATTN__KERNELS(isa)                                                                                             \
    const attn__forward_body attn__forward_##isa = {forward_scratch_bytes, forward, finish};                           \
    const attn__forward_body attn__few_##isa = {few_scratch_bytes, few_forward, few_finish};                           \
    const attn__backward_body attn__backward_##isa = {backward_scratch_bytes, backward, backward_finish};              \
    const attn__sums_body attn__sums_##isa = {sums_scratch_bytes, dbias, dsink};                                       \
    const attn__kernels attn__kernels_##isa = {.forward = &attn__forward_##isa,                                        \
                                               .few = &attn__few_##isa,                                                \
                                               .backward = &attn__backward_##isa,                                      \
                                               .sums = &attn__sums_##isa}

#endif
