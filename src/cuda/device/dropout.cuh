/* SPDX-License-Identifier: Apache-2.0
 * Dropout's generator, the same text as the CPU's. Constant: HAS_DROPOUT. */
#pragma once
#include "types.cuh"

#include "philox.h"

INLINE attn__dropout_key dropout_key(const attn__params &p) {
    uint64_t seed = p.device_seed ? p.device_seed[0] : p.seed, offset = p.device_seed ? p.device_seed[1] : p.offset;
    attn__dropout_key key = attn__dropout_key_make(seed, offset, 0.0f);
    key.threshold = p.threshold;
    return key;
}

/* Words of keys 4 * j4 ... 4 * j4 + 3 for row position i; head and sequence as the problem counts them. */
INLINE attn__u32x4 dropout_words(const attn__params &p, attn__dropout_key key, int j4, int64_t i, int head, int s) {
    return attn__dropout_words(key, (uint32_t)j4, (uint32_t)i, (uint32_t)(head + p.head_first),
                               (uint32_t)(s + p.batch_first));
}
