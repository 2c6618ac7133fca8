/* SPDX-License-Identifier: Apache-2.0
 * Numbers as text, strictly: no blanks, no leading +, no leading zeros, '.' whatever the locale, overflow refused. */
#ifndef ATTN_BASE_NUMBER_H
#define ATTN_BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each reads all `length` characters or returns false. */
bool attn__int_read(const char *text, size_t length, int64_t *value);
/* The nearest float to a decimal number; values past FLT_MAX are refused. */
bool attn__float_read(const char *text, size_t length, float *value);
/* The shortest decimal number that reads back as the finite value. */
void attn__float_write(float value, char text[32]);

#endif
