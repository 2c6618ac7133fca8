/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

attn__text attn__text_start(char *buffer, size_t size) {
    attn__text text = {buffer, size, 0};
    if (size) {
        buffer[0] = 0;
    }
    return text;
}

void attn__text_add(attn__text *text, const char *format, ...) {
    size_t left = text->length < text->size ? text->size - text->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(left ? text->buffer + text->length : NULL, left, format, arguments);
    va_end(arguments);
    text->length += length > 0 ? (size_t)length : 0;
}
