/* SPDX-License-Identifier: Apache-2.0
 * Products on AMX tiles, cut into steps so that a caller can put other work between them.
 *
 * A step is 2 x 2 tiles: 32 rows (of keys or dims) x 32 columns (queries), 32 deep: four loads, four multiplications
 * (64 cycles of the tile unit), and every fourth operand is used twice. Tiles 0-3 accumulate, 4-5 hold rows (a), 6-7
 * columns (b). A stream is all steps of one product:
 *     S^T  = K Q^T      a = keys x dims      b = [pair of dims][query]
 *     O^T += V^T P^T    a = dims x keys      b = [pair of keys][query]
 * c lies as the vector code has it, ATTN_LANES words a row; b as tiles one after another, [16 columns][pair][column]. a
 * is packed, [32 rows][32 deep] = 2 tiles of 16 x 64 bytes, missing rows and depth 0; or keys in place. */
#ifndef ATTN_CPU_TILE_AMX_H
#define ATTN_CPU_TILE_AMX_H

#include <stddef.h>
#include <string.h>

#include "vec_types.h"

#define AMX_BLOCK 32                        /* rows, columns and depth of a step */
#define AMX_PACK  (AMX_BLOCK * AMX_BLOCK)   /* halves of two packed tiles */
#define AMX_TILE  1024                      /* bytes */
#define AMX_ROW   (int64_t)(ATTN_LANES * 4) /* bytes from one row of c to the next */

static inline int64_t amx_blocks(int64_t n) {
    return (n + AMX_BLOCK - 1) / AMX_BLOCK;
}

/* Where a lies: bytes to the next row, the second tile of rows, the next depth, the next block of rows. */
typedef struct amx_operand {
    const char *at;
    int64_t row, second, deep, block;
} amx_operand;

/* Packed as [block of rows][depth][AMX_PACK]. */
static inline amx_operand amx_packed(const uint16_t *at, int64_t depth) {
    return (amx_operand){(const char *)at, 64, AMX_TILE, 2 * AMX_TILE, depth * 2 * AMX_TILE};
}

typedef struct amx_stream {
    amx_operand a; /* advanced a block of rows at a time, as c is */
    const char *b;
    char *c;
    int64_t b_tile;     /* bytes from 16 columns of b to the next */
    int steps;          /* left */
    int depth, columns; /* steps of one sum; blocks of columns */
    bool add;           /* to what c holds */
    bool loaded;        /* the step's operands */
    int at, column;     /* in the sum; block of columns */
} amx_stream;

static inline amx_stream amx_stream_make(amx_operand a, int64_t rows, int64_t depth, int64_t columns, const float *b,
                                         int64_t b_tile, float *c, bool add) {
    return (amx_stream){.a = a,
                        .b = (const char *)b,
                        .c = (char *)c,
                        .b_tile = b_tile * (int64_t)sizeof *b,
                        .steps = (int)(rows * depth * columns),
                        .depth = (int)depth,
                        .columns = (int)columns,
                        .add = add};
}

/* Each operand of the next step is loaded as soon as its tile was used for the last time: a core whose tile unit or
 * registers are shared with another thread does not run loads ahead of multiplications by itself. */
VEC_INLINE void amx_step(amx_stream *s) {
    const char *a = s->a.at + s->at * s->a.deep, *b = s->b + s->column * 2 * s->b_tile + s->at * AMX_TILE;
    char *c = s->c + s->column * 128;
    const bool last = s->at + 1 == s->depth;
    if (s->at == 0) {
        if (s->add) {
            amx_load(0, c, AMX_ROW);
            amx_load(1, c + 64, AMX_ROW);
            amx_load(2, c + 16 * AMX_ROW, AMX_ROW);
            amx_load(3, c + 16 * AMX_ROW + 64, AMX_ROW);
        } else {
            amx_zero(0);
            amx_zero(1);
            amx_zero(2);
            amx_zero(3);
        }
    }
    if (!s->loaded) {
        amx_load(4, a, s->a.row);
        amx_load(6, b, 64);
        amx_load(7, b + s->b_tile, 64);
        amx_load(5, a + s->a.second, s->a.row);
        s->loaded = true;
    }
    s->at = last ? 0 : s->at + 1;
    if (last && ++s->column == s->columns) {
        s->column = 0;
        s->a.at += s->a.block;
        s->c += AMX_BLOCK * AMX_ROW;
    }
    amx_multiply(0, 4, 6);
    amx_multiply(1, 4, 7);
    if (--s->steps > 0) {
        a = s->a.at + s->at * s->a.deep;
        b = s->b + s->column * 2 * s->b_tile + s->at * AMX_TILE;
        amx_load(4, a, s->a.row);
        amx_multiply(2, 5, 6);
        amx_load(6, b, 64);
        amx_multiply(3, 5, 7);
        amx_load(7, b + s->b_tile, 64);
        amx_load(5, a + s->a.second, s->a.row);
    } else {
        amx_multiply(2, 5, 6);
        amx_multiply(3, 5, 7);
    }
    if (last) {
        amx_store(0, c, AMX_ROW);
        amx_store(1, c + 64, AMX_ROW);
        amx_store(2, c + 16 * AMX_ROW, AMX_ROW);
        amx_store(3, c + 16 * AMX_ROW + 64, AMX_ROW);
    }
}

/* Rows of bf16 in a tensor: `count` rows of `dim` halves. */
typedef struct amx_rows {
    const uint16_t *at;
    int64_t row, step, count, dim;
} amx_rows;

/* 32 neighbours of row n from d on; what is missing is 0, and nothing beyond the row is read. */
static inline void amx_row_copy(const amx_rows *rows, int64_t n, int64_t d, uint16_t *out) {
    int64_t left = n < rows->count ? rows->dim - d : 0;
    if (left >= AMX_BLOCK && rows->step == 1) {
        memcpy(out, rows->at + n * rows->row + d, AMX_BLOCK * sizeof *out);
        return;
    }
    for (int i = 0; i < AMX_BLOCK; i++) {
        out[i] = i < left ? rows->at[n * rows->row + (d + i) * rows->step] : 0;
    }
}

/* All rows as a, deep along dims: [block of rows][block of dims][AMX_PACK]. */
static __attribute__((noinline, unused)) void amx_pack_rows(const amx_rows *rows, uint16_t *out) {
    const int64_t deep = amx_blocks(rows->dim);
    for (int64_t n = 0; n < amx_blocks(rows->count) * AMX_BLOCK; n++) {
        uint16_t *to = out + n / AMX_BLOCK * deep * AMX_PACK + n % AMX_BLOCK * AMX_BLOCK;
        for (int64_t d = 0; d < deep; d++) {
            amx_row_copy(rows, n, d * AMX_BLOCK, to + d * AMX_PACK);
        }
    }
}

/* Rows [n, n + 32), dims [d, d + 32) transposed: a of 32 dims, deep along rows. Returns whether all are finite.
 * Each piece of 8 of a vector belongs to its own 8 rows; zipping vector i with vector i + 4 three times transposes
 * every piece. */
static __attribute__((noinline, unused)) bool amx_pack_transposed(const amx_rows *rows, int64_t n, int64_t d,
                                                                  uint16_t *out) {
    uint16_t room[AMX_PACK] __attribute__((aligned(64)));
    const uint16_t *from = rows->at + n * rows->row + d;
    int64_t row = rows->row;
    if (n + AMX_BLOCK > rows->count || d + AMX_BLOCK > rows->dim || rows->step != 1) {
        for (int i = 0; i < AMX_BLOCK; i++) {
            amx_row_copy(rows, n + i, d, room + i * AMX_BLOCK);
        }
        from = room;
        row = AMX_BLOCK;
    }
    const amx_halves exponent = (amx_halves){0} + 0x7f80;
    amx_halves infinite = {0};
    for (int piece = 0; piece < AMX_BLOCK / 8; piece++, from += 8) {
        amx_halves r[8], t[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const uint16_t *at = from + i * row;
            r[i] = amx_gather(at, at + 8 * row, at + 16 * row, at + 24 * row);
            infinite |= (r[i] & exponent) + 0x80; /* carries into the sign where all exponent bits are set */
        }
#pragma GCC unroll 4
        for (int stage = 0; stage < 3; stage++) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                t[2 * i] = amx_zip_first(r[i], r[i + 4]);
                t[2 * i + 1] = amx_zip_last(r[i], r[i + 4]);
            }
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                r[i] = t[i];
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            memcpy(out + (piece * 8 + i) * AMX_BLOCK, &r[i], sizeof r[i]);
        }
    }
    uint16_t all = 0;
    for (int i = 0; i < AMX_BLOCK; i++) {
        all |= infinite[i];
    }
    return !(all & 0x8000);
}

#endif
