/* SPDX-License-Identifier: Apache-2.0
 * Copies between element types and layouts. Widening is exact; narrowing rounds once, to nearest even. */
#ifndef CLI_CONVERT_H
#define CLI_CONVERT_H

#include "tensor.h"

/* A strided array of four axes: batch, head, token, dim. */
typedef struct cli_view {
    cli_type type;
    int64_t shape[4], stride[4];
    void *base; /* element 0, 0, 0, 0 */
} cli_view;

double cli_load(cli_type type, const void *base, int64_t index);
void cli_store(cli_type type, void *base, int64_t index, double value);

static inline int64_t cli_view_offset(const cli_view *view, int64_t b, int64_t h, int64_t t, int64_t d) {
    return b * view->stride[0] + h * view->stride[1] + t * view->stride[2] + d * view->stride[3];
}
static inline double cli_view_at(const cli_view *view, int64_t b, int64_t h, int64_t t, int64_t d) {
    return cli_load(view->type, view->base, cli_view_offset(view, b, h, t, d));
}

/* Finite values that became infinite, and where the first of them is. */
typedef struct cli_overflow {
    int64_t count;
    int64_t first[4];
    double value;
} cli_overflow;

/* to = from, which have the same shape; `overflow` may be NULL. */
void cli_convert(const cli_view *to, const cli_view *from, cli_overflow *overflow);

/* The two lists of types. A type that the library does not know is ATTN_NONE. */
attn_dtype cli_type_dtype(cli_type type);
cli_type cli_dtype_type(attn_dtype dtype);

/* The value of one unit in the last place of `type` at magnitude |value|, and the type's largest finite value. */
double cli_ulp(cli_type type, double value);
double cli_largest(cli_type type);

#endif
