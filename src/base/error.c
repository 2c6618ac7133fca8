/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

attn_status(attn__fail)(attn_error *error, attn_status status, const char *field, const char *format, ...) {
    if (error) {
        va_list arguments;
        error->status = status;
        snprintf(error->field, sizeof error->field, "%s", field);
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

attn_status attn__succeed(attn_error *error) {
    if (error) {
        memset(error, 0, sizeof *error);
    }
    return ATTN_OK;
}

const char *attn_status_name(attn_status status) {
    switch (status) {
#define ATTN__CASE(name, number, text)                                                                                 \
    case ATTN_##name: return #name;
        ATTN_STATUS_LIST(ATTN__CASE)
#undef ATTN__CASE
    }
    return "?";
}

const char *attn_status_text(attn_status status) {
    switch (status) {
#define ATTN__CASE(name, number, text)                                                                                 \
    case ATTN_##name: return text;
        ATTN_STATUS_LIST(ATTN__CASE)
#undef ATTN__CASE
    }
    return "?";
}
