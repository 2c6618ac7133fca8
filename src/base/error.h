/* SPDX-License-Identifier: Apache-2.0
 * Filling the caller's attn_error. Every failing path ends in one of these two calls. */
#ifndef ATTN_BASE_ERROR_H
#define ATTN_BASE_ERROR_H

#include "attn/attn.h"

/* Writes status, field and the formatted message (cut to fit); returns status. error may be NULL. */
attn_status attn__fail(attn_error *error, attn_status status, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Marks success; returns ATTN_OK. */
attn_status attn__succeed(attn_error *error);

/* Static analysis sees one file at a time: tell it that a failure is one. */
#if defined(__clang_analyzer__)
#define attn__fail(error, status, ...) (attn__fail(error, status, __VA_ARGS__), (status))
#endif

#endif
