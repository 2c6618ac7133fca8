/* SPDX-License-Identifier: Apache-2.0
 * Facts of this machine: instruction sets the CPU and the operating system both allow, caches, threads. */
#define _GNU_SOURCE
#include "backend.h"

#include <string.h>
#include <unistd.h>

#include "base/parallel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>

/* State the kernel saves for us, from XGETBV: bits 1-2 SSE and AVX, 5-7 AVX-512, 17-18 AMX. */
static uint64_t enabled_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool made_by_amd(void) {
    uint32_t a, name[3] = {0};
    return __get_cpuid(0, &a, &name[0], &name[2], &name[1]) && !memcmp(name, "AuthenticAMD", 12);
}

/* Linux hands out the AMX registers on request only, a process at a time. */
static int request_amx(void) {
#ifdef SYS_arch_prctl
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
#else
    return 0;
#endif
}

static uint32_t detect_isa(void) {
    uint32_t a, b, c, d, isa = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return 0;
    }
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c)) {
        return 0;
    }
    uint64_t state = enabled_state();
    if ((state & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return 0;
    }
    uint32_t leaf7_edx = d;
    if (b & 1u << 5) {
        isa |= ATTN__ISA_AVX2;
    }
    const uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((b & avx512) == avx512 && (state & 0xe0) == 0xe0) {
        isa |= ATTN__ISA_AVX512;
        if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5)) {
            isa |= ATTN__ISA_AVX512BF16;
        }
        const uint32_t amx = 1u << 22 | 1u << 24; /* BF16, TILE */
        if ((leaf7_edx & amx) == amx && (state & 0x60000) == 0x60000 && request_amx()) {
            isa |= ATTN__ISA_AMX;
        }
    }
    return isa;
}
#elif defined(__aarch64__)
static uint32_t detect_isa(void) {
    return ATTN__ISA_NEON;
}
#else
static uint32_t detect_isa(void) {
    return 0;
}
#endif

static int64_t cache_bytes(int name, int64_t otherwise) {
    long bytes = sysconf(name);
    return bytes > 0 ? bytes : otherwise;
}

void attn__machine_detect(attn__machine *machine) {
    memset(machine, 0, sizeof *machine);
    machine->isa = detect_isa();
#if defined(__x86_64__)
    machine->fast_bf16_pairs = (machine->isa & ATTN__ISA_AVX512BF16) && made_by_amd();
#endif
    machine->threads = attn__parallel_default_threads();
    machine->l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
    machine->l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 512 << 10);
    machine->l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 8 << 20);
    machine->hertz = 3e9;        /* no portable way to ask; a round figure for expected times */
    machine->memory_rate = 20e9; /* likewise */
}
