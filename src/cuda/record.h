/* SPDX-License-Identifier: Apache-2.0
 * A compiled kernel as bytes: header, key, code. A file of the cache holds one record, a pack any number of them, one
 * behind the other. The key is text: all that the code depends on, a line each; it is compared whole, so two kernels
 * whose hashes meet are not mistaken for each other. Numbers are in the machine's own order: another order shows as
 * damage. */
#ifndef ATTN_CUDA_RECORD_H
#define ATTN_CUDA_RECORD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash.h"
#include "cuda/device.h"

#define ATTN__RECORD_SUFFIX ".attnkernel"
enum { ATTN__KEY_SIZE = 4096, ATTN__RECORD_MOST = 1 << 26 };

typedef struct attn__record_header {
    char magic[8];
    uint32_t key_size, code_size; /* key with its NUL */
    int32_t registers, stack_bytes, spill_bytes, unused;
    attn__hash check; /* of all of the record but itself */
} attn__record_header;

typedef struct attn__record {
    attn__record_header header;
    const char *key, *code;
    size_t size; /* of the whole record */
} attn__record;

/* The key of a kernel: a first line with the compiler's version, and behind it all else, which *rest points to: that
 * alone is compared where any compiler's code will do. False if it does not fit. */
bool attn__record_key(const attn__cuda *cuda, const attn__kernel *kernel, char key[ATTN__KEY_SIZE], const char **rest);
/* The same part of any key. */
const char *attn__record_rest(const char *key);
/* Hash of a text as 32 digits. */
void attn__record_digits(const char *text, char digits[33]);
/* Value of a line of a key ("name", "target", "nvrtc", "sources"), copied; "" if it has none. */
void attn__record_line(const char *key, const char *line, char *value, size_t size);

/* Reads a record at the start of the bytes; false if it is damaged or cut. Points into them. */
bool attn__record_read(const char *data, size_t size, attn__record *record);
/* The same without looking for damage, for bytes that were read once. */
bool attn__record_frame(const char *data, size_t size, attn__record *record);
/* The header of a record of that key and code. */
void attn__record_seal(attn__record_header *header, const char *key, const attn__code *code);

#endif
