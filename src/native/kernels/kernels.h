/* SPDX-License-Identifier: Apache-2.0
 * The inner loops of the plain computation, one table an instruction set: a register tile of a matrix product,
 * conversions, and exp over a row.
 *
 * Panels. A matrix operand is packed as float32 in panels of `rows` (left) or `columns` (right) lines; inside a panel
 * the depth is outermost: element (line, depth) lies at panel[depth * width + line % width]. */
#ifndef ATTN_NATIVE_KERNELS_H
#define ATTN_NATIVE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

#define NATIVE_HIDDEN 0x80000000u /* the bits of -0.0, which no visible element has */

typedef struct native_packing {
    int width; /* lines a panel */
    /* one line, of all its depth */
    void (*line)(float *panels, int64_t depth, int64_t line, const float *from);
    /* all lines [0, to) at depth d; from line n on they are 0 */
    void (*depth)(float *panels, int64_t depth, int64_t d, const float *from, int64_t n, int64_t to);
} native_packing;

typedef struct native_kernels {
    int rows, columns; /* of the register tile */
    native_packing left, right;
    /* c[rows][columns] (row stride ldc) += left panel * right panel over depth */
    void (*multiply)(int64_t depth, const float *left, const float *right, float *c, int64_t ldc);
    /* the same, leaving out what the left side marks as hidden: the right side holds NaN or inf */
    void (*multiply_visible)(int64_t depth, const float *left, const float *right, float *c, int64_t ldc);
    /* n consecutive elements of f32, f16 or bf16 to float32, and back, rounded to nearest even */
    void (*widen)(attn_dtype dtype, const void *from, int64_t n, float *to);
    void (*narrow)(attn_dtype dtype, const float *from, int64_t n, void *to);
    bool (*finite)(const float *x, int64_t n);
    /* One row of scores. visible[m]: position[m] is in [first, last] or at most upto */
    void (*see)(const int32_t *position, int64_t n, int32_t first, int32_t last, int32_t upto, uint8_t *visible);
    /* x = -inf where not visible; returns the largest, NaN left out */
    float (*hide)(float *x, const uint8_t *visible, int64_t n);
    /* x = exp(x - shift), exp(-inf) = 0; returns the sum */
    float (*exp_row)(float *x, float shift, int64_t n);
    void (*scale)(float *x, float factor, int64_t n);
    /* gradient at the score: ds = p * (keep * dp - shift); keep NULL: 1 */
    void (*score_gradient)(const float *p, const float *dp, const float *keep, float shift, int64_t n, float *ds);
    /* -0.0 where not visible, and nowhere else; of the narrowed row */
    void (*mark)(attn_dtype dtype, const uint8_t *visible, int64_t n, void *row);
} native_kernels;

extern const native_kernels attn__native_generic, attn__native_avx2, attn__native_avx512;

#endif
