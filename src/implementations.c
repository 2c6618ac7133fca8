/* SPDX-License-Identifier: Apache-2.0
 * Every implementation of this build, best first. */
#include "backend.h"

/* Declared whether or not this build has them; taken only where it has. */
extern const attn__impl attn__impl_amx, attn__impl_avx512bf16, attn__impl_avx512, attn__impl_avx2, attn__impl_neon,
    attn__impl_generic, attn__impl_native, attn__impl_reference, attn__impl_hopper, attn__impl_mma, attn__impl_ffma,
    attn__impl_cuda_native;

const attn__impl *const attn__implementations[] = {
#ifdef ATTN_HAVE_AMX
    &attn__impl_amx,
#endif
#ifdef ATTN_HAVE_AVX512BF16
    &attn__impl_avx512bf16,
#endif
#ifdef ATTN_HAVE_AVX512
    &attn__impl_avx512,
#endif
#ifdef ATTN_HAVE_AVX2
    &attn__impl_avx2,
#endif
#ifdef ATTN_HAVE_NEON
    &attn__impl_neon,
#endif
    &attn__impl_generic,    &attn__impl_native, &attn__impl_reference,   &attn__impl_hopper,
    &attn__impl_mma,        &attn__impl_ffma,   &attn__impl_cuda_native, NULL,
};
