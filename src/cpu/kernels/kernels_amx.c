/* SPDX-License-Identifier: Apache-2.0
 * AVX-512, and forward of bf16 on tiles. CPUs that have tiles multiply floats faster than pairs: backward takes those.
 */
#include "vec_avx512.h"
#include "vec_amx.h"

#include "forward_amx.h"

static const attn__forward_body forward_tiles = {amx_scratch_bytes, amx_forward, amx_finish};

const attn__kernels attn__kernels_amx = {.forward = &attn__forward_avx512,
                                         .few = &attn__few_avx512,
                                         .backward = &attn__backward_avx512,
                                         .sums = &attn__sums_avx512,
                                         .forward_pairs = &forward_tiles,
                                         .pairs_first = true};
