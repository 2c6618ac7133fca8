/* SPDX-License-Identifier: Apache-2.0
 * The reader of kept kernels: any bytes are either refused or make a record that lies inside them. Looking for damage
 * is left out where a record would be refused for its checksum alone, so that what lies behind is reached too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hold(int condition) {
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    attn__record record, whole;
    char value[24], digits[33];
    const char *bytes = (const char *)data;
    if (attn__record_frame(bytes, size, &record)) {
        hold(record.size <= size && record.key >= bytes && record.code + record.header.code_size <= bytes + size);
        hold(strlen(record.key) < record.header.key_size);
        const char *rest = attn__record_rest(record.key);
        hold(rest >= record.key && rest <= record.key + strlen(record.key));
        attn__record_digits(rest, digits);
        hold(strlen(digits) == 32);
        attn__record_line(record.key, "name", value, sizeof value);
        hold(strlen(value) < sizeof value);
        attn__code code = {(char *)(uintptr_t)record.code, record.header.code_size, 1, 2, 3, false};
        attn__record_header sealed;
        if (strlen(record.key) + 1 == record.header.key_size) {
            attn__record_seal(&sealed, record.key, &code);
            char *copy = malloc(record.size);
            hold(copy != NULL);
            memcpy(copy, &sealed, sizeof sealed);
            memcpy(copy + sizeof sealed, record.key, record.size - sizeof sealed);
            hold(attn__record_read(copy, record.size, &whole) && whole.size == record.size);
            copy[record.size - 1] ^= 1;
            hold(!attn__record_read(copy, record.size, &whole));
            free(copy);
        }
    } else {
        hold(!attn__record_read(bytes, size, &record));
    }
    return 0;
}
