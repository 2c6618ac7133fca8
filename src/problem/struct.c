/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "problem/problem.h"

#include <string.h>

attn_status attn__struct_read(void *out, size_t size, const void *in, size_t stamp, attn_error *error) {
    if (stamp < sizeof(size_t)) {
        return attn__fail(error, ATTN_ERR_INVALID, "struct_size", "is %zu, must be sizeof the struct (here %zu)", stamp,
                          size);
    }
    const unsigned char *bytes = in;
    for (size_t n = size; n < stamp; n++) {
        if (bytes[n]) {
            return attn__fail(error, ATTN_ERR_INVALID, "struct_size",
                              "is %zu, this library knows %zu bytes and byte %zu past them is not 0", stamp, size, n);
        }
    }
    memset(out, 0, size);
    memcpy(out, in, stamp < size ? stamp : size);
    memcpy(out, &size, sizeof size);
    return ATTN_OK;
}

attn_status attn__struct_minimum(size_t stamp, size_t minimum, attn_error *error) {
    if (stamp < minimum) {
        return attn__fail(error, ATTN_ERR_INVALID, "struct_size", "is %zu, must be at least %zu", stamp, minimum);
    }
    return ATTN_OK;
}

void attn__struct_write(void *out, const void *value, size_t size) {
    size_t stamp;
    memcpy(&stamp, out, sizeof stamp);
    size_t known = stamp < size ? stamp : size;
    memcpy((char *)out + sizeof stamp, (const char *)value + sizeof stamp, known - sizeof stamp);
    memset((char *)out + known, 0, stamp - known);
}
