/* SPDX-License-Identifier: Apache-2.0
 * A 128-bit hash of bytes for names of files and for finding damage; not against an adversary. Two lanes of FNV-1a
 * with different starts, each finished by the mixing steps of MurmurHash3, which spread every bit. */
#ifndef ATTN_BASE_HASH_H
#define ATTN_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct attn__hash {
    uint64_t low, high;
} attn__hash;

static inline attn__hash attn__hash_start(void) {
    attn__hash hash = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
    return hash;
}

static inline uint64_t attn__hash_mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

static inline void attn__hash_add(attn__hash *hash, const void *data, size_t size) {
    const unsigned char *bytes = data;
    for (size_t n = 0; n < size; n++) {
        hash->low = (hash->low ^ bytes[n]) * 0x100000001b3u;
        hash->high = (hash->high ^ bytes[n]) * 0x9e3779b97f4a7c15u;
    }
    hash->low = attn__hash_mix(hash->low);
    hash->high = attn__hash_mix(hash->high ^ hash->low);
}

/* With its terminating NUL, so that texts do not run together. */
static inline void attn__hash_text(attn__hash *hash, const char *text) {
    attn__hash_add(hash, text, strlen(text) + 1);
}

#endif
