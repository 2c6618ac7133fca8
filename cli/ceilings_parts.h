/* SPDX-License-Identifier: Apache-2.0
 * What every file of ceiling kernels needs: ways to keep a value that the compiler would drop. */
#ifndef CLI_CEILINGS_PARTS_H
#define CLI_CEILINGS_PARTS_H

#include "ceilings.h"

#define EXP_ELEMENTS 2048 /* 8 KiB of float32: in L1 */

/* The six vectors may have changed: the loop that made them stays. */
#if defined(__x86_64__)
#define KEEP(a, b, c, d, e, f) __asm__ volatile("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f))
#elif defined(__aarch64__)
#define KEEP(a, b, c, d, e, f) __asm__ volatile("" : "+w"(a), "+w"(b), "+w"(c), "+w"(d), "+w"(e), "+w"(f))
#else
#define KEEP(a, b, c, d, e, f) __asm__ volatile("" : "+m"(a), "+m"(b), "+m"(c), "+m"(d), "+m"(e), "+m"(f))
#endif

static inline void keep_float(float value) {
    volatile float sink = value;
    (void)sink;
}
static inline void keep_memory(const void *memory) {
    __asm__ volatile("" : : "r"(memory) : "memory");
}

#endif
