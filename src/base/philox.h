/* SPDX-License-Identifier: Apache-2.0
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the
 * dropout rule on top of it, exactly as the public header states it. Depends on nothing, so that device code can
 * carry the same text. */
#ifndef ATTN_BASE_PHILOX_H
#define ATTN_BASE_PHILOX_H

#include <stdint.h>

typedef struct attn__u32x4 {
    uint32_t word[4];
} attn__u32x4;

static inline attn__u32x4 attn__philox(attn__u32x4 counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * counter.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * counter.word[2];
        attn__u32x4 next = {{(uint32_t)(product1 >> 32) ^ counter.word[1] ^ key0, (uint32_t)product1,
                             (uint32_t)(product0 >> 32) ^ counter.word[3] ^ key1, (uint32_t)product0}};
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/* The key of one run, from its seed and offset. */
typedef struct attn__dropout_key {
    uint32_t k0, k1;
    uint32_t threshold; /* floor(rate * 2^32): a word below it is dropped */
} attn__dropout_key;

static inline attn__dropout_key attn__dropout_key_make(uint64_t seed, uint64_t offset, float rate) {
    attn__u32x4 counter = {{(uint32_t)offset, (uint32_t)(offset >> 32), 0, 0}};
    attn__u32x4 words = attn__philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    attn__dropout_key key = {words.word[0], words.word[1], (uint32_t)((double)rate * 4294967296.0)};
    return key;
}

/* keep_ij for the four keys 4 * j4 ... 4 * j4 + 3, one word each. */
static inline attn__u32x4 attn__dropout_words(attn__dropout_key key, uint32_t j4, uint32_t i, uint32_t head,
                                              uint32_t sequence) {
    attn__u32x4 counter = {{j4, i, head, sequence}};
    return attn__philox(counter, key.k0, key.k1);
}
static inline int attn__dropout_keep(attn__dropout_key key, int64_t i, int64_t j, int64_t head, int64_t sequence) {
    attn__u32x4 words = attn__dropout_words(key, (uint32_t)(j >> 2), (uint32_t)i, (uint32_t)head, (uint32_t)sequence);
    return words.word[j & 3] >= key.threshold;
}

#endif
