/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/record.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cuda/sources.h"

static const char magic[8] = {'A', 'T', 'T', 'N', 'K', 'R', 'N', '1'};

bool attn__record_key(const attn__cuda *cuda, const attn__kernel *kernel, char key[ATTN__KEY_SIZE], const char **rest) {
    char target[16];
    attn__text text = attn__text_start(key, ATTN__KEY_SIZE);
    attn__cuda_target(cuda, target);
    attn__text_add(&text, "nvrtc %s\n", cuda->nvrtc.version);
    *rest = key + text.length;
    attn__text_add(&text, "name %s\ntarget %s\nflags %s\nsources %s\n", kernel->name, target, attn__cuda_flags,
                   attn__sources_hash);
    attn__cuda_source(kernel, &text);
    return text.length < ATTN__KEY_SIZE;
}

const char *attn__record_rest(const char *key) {
    const char *end = strchr(key, '\n');
    return end ? end + 1 : key;
}

void attn__record_digits(const char *text, char digits[33]) {
    attn__hash hash = attn__hash_start();
    attn__hash_text(&hash, text);
    snprintf(digits, 33, "%016llx%016llx", (unsigned long long)hash.high, (unsigned long long)hash.low);
}

void attn__record_line(const char *key, const char *line, char *value, size_t size) {
    size_t length = strlen(line);
    snprintf(value, size, "%s", "");
    for (const char *at = key; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (strncmp(at, line, length) == 0 && at[length] == ' ') {
            snprintf(value, size, "%.*s", (int)strcspn(at + length + 1, "\n"), at + length + 1);
            return;
        }
    }
}

static attn__hash check_of(const attn__record_header *header, const char *key, const char *code) {
    attn__hash hash = attn__hash_start();
    attn__hash_add(&hash, header, offsetof(attn__record_header, check));
    attn__hash_add(&hash, key, header->key_size);
    attn__hash_add(&hash, code, header->code_size);
    return hash;
}

bool attn__record_frame(const char *data, size_t size, attn__record *record) {
    attn__record_header *header = &record->header;
    if (size < sizeof *header) {
        return false;
    }
    memcpy(header, data, sizeof *header);
    size -= sizeof *header;
    if (memcmp(header->magic, magic, sizeof magic) != 0 || header->key_size == 0 || header->key_size > ATTN__KEY_SIZE ||
        header->code_size == 0 || header->code_size > ATTN__RECORD_MOST || header->key_size > size ||
        header->code_size > size - header->key_size) {
        return false;
    }
    record->key = data + sizeof *header;
    record->code = record->key + header->key_size;
    record->size = sizeof *header + header->key_size + header->code_size;
    return record->key[header->key_size - 1] == 0;
}

bool attn__record_read(const char *data, size_t size, attn__record *record) {
    if (!attn__record_frame(data, size, record)) {
        return false;
    }
    attn__hash check = check_of(&record->header, record->key, record->code);
    return check.low == record->header.check.low && check.high == record->header.check.high;
}

void attn__record_seal(attn__record_header *header, const char *key, const attn__code *code) {
    memset(header, 0, sizeof *header);
    memcpy(header->magic, magic, sizeof magic);
    header->key_size = (uint32_t)strlen(key) + 1;
    header->code_size = (uint32_t)code->size;
    header->registers = code->registers;
    header->stack_bytes = code->stack_bytes;
    header->spill_bytes = code->spill_bytes;
    header->check = check_of(header, key, code->data);
}
