/* SPDX-License-Identifier: Apache-2.0
 * Barriers in shared memory (sm_80 and later): a count of arrivals that completes one phase after another, so that
 * threads wait for data or for room, not for each other. A waiter names the parity of the phase it waits for: phase n
 * of a barrier has parity n % 2. */
#pragma once
#include "mma.cuh"

#define HAS_BARRIERS (__CUDA_ARCH__ >= 800)

/* By one thread, before a __syncthreads. */
INLINE void barrier_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/* Before its memory is used anew. */
INLINE void barrier_end(uint32_t barrier) {
    asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
INLINE void barrier_arrive(uint32_t barrier) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier) : "memory");
}
/* Arrives once this thread's copies so far have landed. */
INLINE void barrier_arrive_copies(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
INLINE void barrier_wait(uint32_t barrier, int parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#else
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
#endif
}
