/* SPDX-License-Identifier: Apache-2.0
 * Matrix products between rows of tensors and the stored matrices. Operands are packed into float32 panels block by
 * block; the register tile of the instruction set does the rest.
 *
 * When a packed block of the right side holds NaN or inf, hidden pairs must not be multiplied: those blocks go through
 * a slower tile that leaves out what the left side marks as hidden. */
#include <string.h>

#include "native/native.h"

int64_t attn__native_width(int64_t dim) {
    return (dim + COLUMNS - 1) / COLUMNS * COLUMNS;
}

void attn__native_clear(native_scratch *w, int64_t dim) {
    memset(w->c, 0, (size_t)(BLOCK * attn__native_width(dim)) * sizeof *w->c);
}

static int64_t up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

/* Lines [from, the end of its panel) become 0. */
static void clear_lines(const native_packing *packing, float *panels, int64_t depth, int64_t from) {
    const int width = packing->width;
    for (int64_t line = from; line < up(from, width); line++) {
        for (int64_t d = 0; d < depth; d++) {
            panels[line / width * width * depth + d * width + line % width] = 0;
        }
    }
}

static const float *load_line(const native_run *run, native_scratch *w, const native_rows *rows, int64_t n) {
    int64_t index = attn__native_index(rows->layout, rows->side, rows->sequence, rows->head, rows->map->row[n]);
    attn__native_load(run, rows->layout, rows->base, index, rows->dim, w->line);
    return w->line;
}

/* Rows [first, first + count) as lines along dim. */
static void pack_lines(const native_run *run, native_scratch *w, const native_rows *rows, int64_t first, int64_t count,
                       const native_packing *packing, float *panels) {
    for (int64_t n = 0; n < count; n++) {
        packing->line(panels, rows->dim, n, load_line(run, w, rows, first + n));
    }
    clear_lines(packing, panels, rows->dim, count);
}

/* Rows [first, first + count) as the depth of lines along dim; tells whether all elements are finite. */
static bool pack_depth(const native_run *run, native_scratch *w, const native_rows *rows, int64_t first,
                       int64_t count) {
    bool finite = true;
    for (int64_t n = 0; n < count; n++) {
        const float *line = load_line(run, w, rows, first + n);
        finite = run->kernels->finite(line, rows->dim) && finite;
        run->kernels->right.depth(w->right, count, n, line, rows->dim, attn__native_width(rows->dim));
    }
    return finite;
}

typedef void (*tile_fn)(int64_t depth, const float *left, const float *right, float *c, int64_t ldc);

/* c[lines][columns] += left * right, tile by tile; both padded to whole panels. */
static void multiply(const native_kernels *kernels, tile_fn tile, int64_t lines, int64_t columns, int64_t depth,
                     const float *left, const float *right, float *c) {
    for (int64_t column = 0; column < columns; column += kernels->columns) {
        for (int64_t line = 0; line < lines; line += kernels->rows) {
            tile(depth, left + line * depth, right + column * depth, c + line * columns + column, columns);
        }
    }
}

void attn__native_scores(const native_run *run, native_scratch *w, char *matrix, int64_t head, const native_rows *a,
                         const native_rows *b, int64_t first, int64_t count, float scale) {
    const native_kernels *kernels = run->kernels;
    const attn_dtype dtype = run->problem->q.dtype;
    const int64_t lines = up(count, kernels->rows);
    pack_lines(run, w, a, first, count, &kernels->left, w->left);
    for (int64_t m = 0; m < b->map->count; m += DEPTH) {
        int64_t some = b->map->count - m < DEPTH ? b->map->count - m : DEPTH;
        pack_lines(run, w, b, m, some, &kernels->right, w->right);
        memset(w->c, 0, (size_t)(lines * DEPTH) * sizeof *w->c);
        multiply(kernels, kernels->multiply, lines, up(some, kernels->columns), a->dim, w->left, w->right, w->c);
        for (int64_t n = 0; n < count; n++) {
            float *row = w->c + n * up(some, kernels->columns);
            kernels->scale(row, scale, some);
            char *to = attn__native_matrix(run, matrix, a->sequence, head, first + n);
            kernels->narrow(dtype, row, some, to + m * (int64_t)attn_dtype_size(dtype));
        }
    }
}

/* The panels' product into w->c. */
static void mix(const native_run *run, native_scratch *w, int64_t dim, int64_t count, int64_t depth, bool finite) {
    int64_t lines = up(count, run->kernels->rows), columns = attn__native_width(dim);
    tile_fn tile = finite ? run->kernels->multiply : run->kernels->multiply_visible;
    multiply(run->kernels, tile, lines, columns, depth, w->left, w->right, w->c);
}

static const float *load_matrix(const native_run *run, native_scratch *w, char *matrix, int64_t s, int64_t head,
                                int64_t n, int64_t from, int64_t count) {
    const attn_dtype dtype = run->problem->q.dtype;
    const char *row = attn__native_matrix(run, matrix, s, head, n);
    run->kernels->widen(dtype, row + from * (int64_t)attn_dtype_size(dtype), count, w->line);
    return w->line;
}

void attn__native_mix(const native_run *run, native_scratch *w, char *matrix, int64_t head, const native_rows *b,
                      int64_t first, int64_t count) {
    const native_packing *packing = &run->kernels->left;
    for (int64_t m = 0; m < b->map->count && count > 0; m += DEPTH) {
        int64_t some = b->map->count - m < DEPTH ? b->map->count - m : DEPTH;
        for (int64_t n = 0; n < count; n++) {
            packing->line(w->left, some, n, load_matrix(run, w, matrix, b->sequence, head, first + n, m, some));
        }
        clear_lines(packing, w->left, some, count);
        bool finite = pack_depth(run, w, b, m, some);
        mix(run, w, b->dim, count, some, finite);
    }
}

void attn__native_mix_transposed(const native_run *run, native_scratch *w, char *matrix, int64_t head,
                                 const native_rows *b, int64_t first, int64_t count) {
    const native_packing *packing = &run->kernels->left;
    for (int64_t n = 0; n < b->map->count && count > 0; n += DEPTH) {
        int64_t some = b->map->count - n < DEPTH ? b->map->count - n : DEPTH;
        for (int64_t d = 0; d < some; d++) {
            const float *line = load_matrix(run, w, matrix, b->sequence, head, n + d, first, count);
            packing->depth(w->left, some, d, line, count, up(count, packing->width));
        }
        bool finite = pack_depth(run, w, b, n, some);
        mix(run, w, b->dim, count, some, finite);
    }
}
