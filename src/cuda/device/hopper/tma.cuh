/* SPDX-License-Identifier: Apache-2.0
 * Hopper's copy engine and the barriers that order it. A full barrier counts one arrival, which tells the bytes that
 * are to come; an empty barrier counts those who have read. Boxes: maps.h. Coordinates outside a tensor, negative ones
 * too, read as zeros and count as bytes like any other. */
#pragma once
#include "barrier.cuh"
#include "maps.h"

#define KEEP_FIRST 0x14F0000000000000ull /* stays in L2 longest: keys and values */
#define DROP_FIRST 0x12F0000000000000ull /* read once */

/* True in one thread of a converged warp. */
INLINE bool elect() {
    uint32_t chosen;
    asm volatile("{.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;}" : "=r"(chosen));
    return chosen;
}

/* --- Barriers --- */

/* After barrier_init, before the __syncthreads. */
INLINE void barrier_publish() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
/* Arrives and announces bytes. */
INLINE void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* All threads of a warp, or one thread, wait as one. */
INLINE void barrier_wait_warp(uint32_t barrier, uint32_t parity) {
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni over;\nbra.uni again;\nover:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/* Is the phase complete? May wait for a while. */
INLINE bool barrier_try(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{.reg .pred done;\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* A ring of stages: which is next, and the parity of its phase. Readers begin with parity 0, who fills with 1. */
typedef struct ring_place {
    int stage;
    uint32_t parity;
} ring_place;

template <int stages> INLINE void ring_next(ring_place &ring) {
    if (++ring.stage == stages) {
        ring.stage = 0;
        ring.parity ^= 1;
    }
}

/* Barriers of the hardware, by number: `threads` take part in all. */
INLINE void named_sync(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
INLINE void named_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* --- Copies --- */

INLINE void map_prefetch(const attn__map &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
INLINE void box_load(uint32_t to, const attn__map &map, uint32_t barrier, int column, int row, int head, int sequence,
                     uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
                 "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(sequence), "l"(policy)
                 : "memory");
}
/* To the second-level cache alone. */
INLINE void box_prefetch(const attn__map &map, int column, int row, int head, int sequence) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(column),
                 "r"(row), "r"(head), "r"(sequence)
                 : "memory");
}
INLINE void box_store(const attn__map &map, uint32_t from, int column, int row, int head, int sequence) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                 "r"(from), "r"(column), "r"(row), "r"(head), "r"(sequence)
                 : "memory");
}
/* Consecutive bytes, a multiple of 16 at a multiple of 16. */
INLINE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
INLINE void stores_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* This thread's stores have read shared memory. */
INLINE void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
INLINE void stores_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Ordinary writes to shared memory so far are seen by copies and matrix products that others start after a barrier. */
INLINE void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
