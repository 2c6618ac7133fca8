/* SPDX-License-Identifier: Apache-2.0
 * Building text in a buffer of the caller as snprintf does: what does not fit is cut, the whole length is counted. */
#ifndef ATTN_BASE_TEXT_H
#define ATTN_BASE_TEXT_H

#include <stddef.h>

typedef struct attn__text {
    char *buffer; /* may be NULL if size is 0; terminated whenever size > 0 */
    size_t size, length;
} attn__text;

attn__text attn__text_start(char *buffer, size_t size);
void attn__text_add(attn__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
