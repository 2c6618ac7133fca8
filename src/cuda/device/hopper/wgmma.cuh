/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of a warp group (four warps): sums[64 x N] (+)= A[64 x 16] * B[16 x N], f16 or bf16 factors by DTYPE,
 * float32 sums. B lies in shared memory, A there or in registers; both in panels of 64 elements (128 bytes) a row, as
 * box_load leaves them (tma.cuh).
 *
 * Sums: warp w holds rows 16 w + lane / 4 and 8 more; sums[4 i + e] is column 8 i + 2 (lane % 4) + (e & 1), row + 8
 * (e >> 1). Rounded in pairs they are A's registers of the next product: pairs 4 k .. 4 k + 3 for its k-th 16 columns.
 *
 * Products run on while other work goes on; between issue and wait nothing may touch their registers, or the assembler
 * puts a wait behind every product (its warnings C7510 to C7515: a failed build). */
#pragma once
#include "types.cuh"

/* --- Order --- */

/* Registers written so far are ready; before the first product, and after any of them was touched. */
INLINE void products_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
INLINE void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* At most `groups` commits are under way. */
template <int groups> INLINE void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
/* The compiler moves no access of these registers across. */
template <int count> INLINE void pin(float (&registers)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        asm volatile("" : "+f"(registers[i])::"memory");
    }
}
template <int count> INLINE void pin(uint32_t (&registers)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        asm volatile("" : "+r"(registers[i])::"memory");
    }
}

/* A warp group's share of registers, a multiple of 8; the sum over groups is bounded by what the launch gave. */
template <int count> INLINE void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> INLINE void registers_give() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

/* --- Operands in shared memory --- */

/* Contiguous along the summed index (queries and keys in a score). 16 more of it: + 2 within a panel. */
INLINE uint64_t operand_rows(uint32_t address) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
/* Contiguous along the other index (values; transposed): panels are `panel` bytes apart. 16 more summed: + 128. */
INLINE uint64_t operand_columns(uint32_t address, uint32_t panel) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* An operand as the low word of its descriptor: base and constant are added where it is used (here), since the compiler
 * would otherwise keep every sum in a register of its own through a loop. */
INLINE uint32_t here(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
INLINE uint64_t operand(uint32_t low) {
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | low;
}

/* --- Products. add: 0 overwrites the sums. transpose_a, transpose_b: operand_columns. --- */

#if DTYPE == F16
#define FACTORS "f16.f16"
#else
#define FACTORS "bf16.bf16"
#endif

#define OUT4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT8(i)  OUT4(i), OUT4(i + 4)
#define OUT16(i) OUT8(i), OUT8(i + 8)
#define OUT32(i) OUT16(i), OUT16(i + 16)
#define OUT64(i) OUT32(i), OUT32(i + 32)

/* N columns; P0 ..: the numbers of the operands behind the N / 2 sums. */
#define PRODUCT(N, SUMS, OUTPUTS, P0, P1, P2, P3, P4, P5, P6)                                                          \
    template <int transpose_a, int transpose_b>                                                                        \
    INLINE void product_shared(float(&d)[N / 2], uint64_t a, uint64_t b, int add) {                                    \
        asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #P2 ", 0;\n"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." FACTORS " {" SUMS "}, %" #P0 ", %" #P1          \
                     ", p, 1, 1, %" #P3 ", %" #P4 ";}"                                                                 \
                     : OUTPUTS                                                                                         \
                     : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));                                  \
    }                                                                                                                  \
    template <int transpose_b>                                                                                         \
    INLINE void product_registers(float(&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,    \
                                  int add) {                                                                           \
        asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #P5 ", 0;\n"                                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." FACTORS " {" SUMS "}, {%" #P0 ",%" #P1 ",%" #P2 \
                     ",%" #P3 "}, %" #P4 ", p, 1, 1, %" #P6 ";}"                                                       \
                     : OUTPUTS                                                                                         \
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(transpose_b));                        \
    }

#define SUMS0  "%0,%1,%2,%3,%4,%5,%6,%7"
#define SUMS1  ",%8,%9,%10,%11,%12,%13,%14,%15"
#define SUMS2  ",%16,%17,%18,%19,%20,%21,%22,%23"
#define SUMS3  ",%24,%25,%26,%27,%28,%29,%30,%31"
#define SUMS4  ",%32,%33,%34,%35,%36,%37,%38,%39"
#define SUMS5  ",%40,%41,%42,%43,%44,%45,%46,%47"
#define SUMS6  ",%48,%49,%50,%51,%52,%53,%54,%55"
#define SUMS7  ",%56,%57,%58,%59,%60,%61,%62,%63"
#define SUMS8  ",%64,%65,%66,%67,%68,%69,%70,%71"
#define SUMS9  ",%72,%73,%74,%75,%76,%77,%78,%79"
#define SUMS10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define SUMS11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define SUMS12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define SUMS13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define SUMS14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define SUMS15 ",%120,%121,%122,%123,%124,%125,%126,%127"

#define OUTPUTS_16  OUT8(0)
#define OUTPUTS_32  OUT16(0)
#define OUTPUTS_48  OUT16(0), OUT8(16)
#define OUTPUTS_64  OUT32(0)
#define OUTPUTS_80  OUT32(0), OUT8(32)
#define OUTPUTS_96  OUT32(0), OUT16(32)
#define OUTPUTS_112 OUT32(0), OUT16(32), OUT8(48)
#define OUTPUTS_128 OUT64(0)
#define OUTPUTS_144 OUT64(0), OUT8(64)
#define OUTPUTS_160 OUT64(0), OUT16(64)
#define OUTPUTS_176 OUT64(0), OUT16(64), OUT8(80)
#define OUTPUTS_192 OUT64(0), OUT32(64)
#define OUTPUTS_224 OUT64(0), OUT32(64), OUT16(96)
#define OUTPUTS_256 OUT64(0), OUT64(64)
PRODUCT(16, SUMS0, OUTPUTS_16, 8, 9, 10, 11, 12, 13, 14)
PRODUCT(32, SUMS0 SUMS1, OUTPUTS_32, 16, 17, 18, 19, 20, 21, 22)
PRODUCT(48, SUMS0 SUMS1 SUMS2, OUTPUTS_48, 24, 25, 26, 27, 28, 29, 30)
PRODUCT(64, SUMS0 SUMS1 SUMS2 SUMS3, OUTPUTS_64, 32, 33, 34, 35, 36, 37, 38)
PRODUCT(80, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4, OUTPUTS_80, 40, 41, 42, 43, 44, 45, 46)
PRODUCT(96, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5, OUTPUTS_96, 48, 49, 50, 51, 52, 53, 54)
PRODUCT(112, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6, OUTPUTS_112, 56, 57, 58, 59, 60, 61, 62)
PRODUCT(128, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7, OUTPUTS_128, 64, 65, 66, 67, 68, 69, 70)
PRODUCT(144, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7 SUMS8, OUTPUTS_144, 72, 73, 74, 75, 76, 77, 78)
PRODUCT(160, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7 SUMS8 SUMS9, OUTPUTS_160, 80, 81, 82, 83, 84, 85, 86)
PRODUCT(176, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7 SUMS8 SUMS9 SUMS10, OUTPUTS_176, 88, 89, 90, 91, 92, 93,
        94)
PRODUCT(192, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7 SUMS8 SUMS9 SUMS10 SUMS11, OUTPUTS_192, 96, 97, 98, 99,
        100, 101, 102)
PRODUCT(224, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7 SUMS8 SUMS9 SUMS10 SUMS11 SUMS12 SUMS13, OUTPUTS_224, 112,
        113, 114, 115, 116, 117, 118)
PRODUCT(256, SUMS0 SUMS1 SUMS2 SUMS3 SUMS4 SUMS5 SUMS6 SUMS7 SUMS8 SUMS9 SUMS10 SUMS11 SUMS12 SUMS13 SUMS14 SUMS15,
        OUTPUTS_256, 128, 129, 130, 131, 132, 133, 134)
