/* SPDX-License-Identifier: Apache-2.0
 * AVX-512, and bf16 by pairs. */
#include "vec_avx512.h"

#include "backward.h"
#include "forward.h"

static const attn__forward_body forward_pairs = {forward_scratch_bytes, forward, finish};
static const attn__backward_body backward_pairs = {backward_scratch_bytes, backward, backward_finish};

const attn__kernels attn__kernels_avx512bf16 = {.forward = &attn__forward_avx512,
                                                .few = &attn__few_avx512,
                                                .backward = &attn__backward_avx512,
                                                .sums = &attn__sums_avx512,
                                                .forward_pairs = &forward_pairs,
                                                .backward_pairs = &backward_pairs};
