/* SPDX-License-Identifier: Apache-2.0
 * The CPU backend's rows of the implementation table, one for each instruction set it is compiled for. */
#include "backend.h"
#include "cpu/cpu.h"

#define ATTN__CPU_ROW(id, isa)                                                                                         \
    const attn__impl attn__impl_##id = {.name = #id,                                                                   \
                                        .backend = "cpu",                                                              \
                                        .needs = (isa),                                                                \
                                        .automatic = ATTN__AUTOMATIC,                                                  \
                                        .prepare = attn__cpu_prepare,                                                  \
                                        .forward = attn__cpu_forward,                                                  \
                                        .backward = attn__cpu_backward,                                                \
                                        .kernels = &attn__kernels_##id}

ATTN__CPU_ROW(generic, 0);
#ifdef ATTN_HAVE_AVX2
ATTN__CPU_ROW(avx2, ATTN__ISA_AVX2);
#endif
#ifdef ATTN_HAVE_AVX512
ATTN__CPU_ROW(avx512, ATTN__ISA_AVX512);
#endif
#ifdef ATTN_HAVE_AVX512BF16
ATTN__CPU_ROW(avx512bf16, ATTN__ISA_AVX512 | ATTN__ISA_AVX512BF16);
#endif
#ifdef ATTN_HAVE_AMX
ATTN__CPU_ROW(amx, ATTN__ISA_AVX512 | ATTN__ISA_AVX512BF16 | ATTN__ISA_AMX);
#endif
#ifdef ATTN_HAVE_NEON
ATTN__CPU_ROW(neon, ATTN__ISA_NEON);
#endif
