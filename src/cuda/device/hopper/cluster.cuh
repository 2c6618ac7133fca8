/* SPDX-License-Identifier: Apache-2.0
 * Two blocks of threads that run side by side (a cluster) and reach each other's shared memory. An address of this
 * block's plus peer_shared() less the own base is the same place in the other. Neither may leave while the other still
 * writes or arrives in it. */
#pragma once
#include "hopper/tma.cuh"

#define BOTH 3 /* blocks that a box goes to, one bit each */

INLINE int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* All threads of both blocks. */
INLINE void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
INLINE uint32_t peer_shared(uint32_t shared, int peer) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(peer));
    return address;
}

/* --- Barriers of the other block. What was read before an arrival may be overwritten after it; arrivals that also
 * published what was written would wait for all of the thread's additions to memory, a thousand cycles and more. --- */

INLINE void peer_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
INLINE void peer_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* A word to the other block, and an arrival that publishes it to those who wait with word_wait. */
INLINE void word_send(uint32_t to, int word, uint32_t barrier) {
    asm volatile("st.shared::cluster.b32 [%0], %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%2];" ::"r"(to),
                 "r"(word), "r"(barrier)
                 : "memory");
}
INLINE void word_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* --- Copies --- */

/* A box to the same place of both blocks; the barrier there hears of it in each. */
INLINE void box_load_both(uint32_t to, const attn__map &map, uint32_t barrier, int column, int row, int head,
                          int sequence, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %8, %7;" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(sequence), "l"(policy),
                 "h"((uint16_t)BOTH)
                 : "memory");
}
/* Bytes of this block's shared memory to the other's; to, barrier: there. */
INLINE void peer_copy(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
