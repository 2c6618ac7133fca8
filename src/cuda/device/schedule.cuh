/* SPDX-License-Identifier: Apache-2.0
 * Which rows and heads a tile of a query-wise kernel is: from its number alone, without a table, so that lengths may
 * change on the device from launch to launch.
 *
 * A tile is `tokens` consecutive rows of one run, for one *column*: a query head, or a few that are packed together.
 * Numbers count, from fastest to slowest: inner (parts of the keys, of the values), columns of a section, blocks of
 * rows from the last to the first (under a causal mask the longest come first, the short ones fill the end), sections.
 * A section is as many columns as share the L2 cache with their keys and values.
 *
 * Packed rows: sequence s owns the block numbers from cu[s] / tokens + s on, which always suffices and needs no sum
 * over the sequences before it; numbers that no block owns are empty tiles. Where the longest sequence is short the
 * plain product is fewer. Segments: blocks are counted along the list. */
#pragma once
#include "rows.cuh"

#define SECTION_BYTES (32 << 20)

typedef struct tile_place {
    rows_run run;
    int first;  /* row of the run's slot that begins the tile */
    int column; /* of `columns` */
    int inner;
    bool exists;
} tile_place;

INLINE int64_t blocks_of(int64_t rows, int tokens) {
    return quotient(rows + tokens - 1, tokens);
}

/* Do sequences have buffers of their own? Else all rows are one buffer's. */
INLINE bool sequences_apart(const attn__params &p) {
    return ROWS_Q == DENSE || (ROWS_Q == SEGMENTS && p.o.stride[0] != 0);
}

/* Blocks of query rows, at most; the host counts the same. */
INLINE int64_t query_blocks(const attn__params &p, int tokens) {
    int64_t each = p.batch * blocks_of(p.side_q.tokens, tokens);
    if (ROWS_Q == DENSE) {
        return each;
    }
    int64_t runs = ROWS_Q == SEGMENTS ? p.side_q.n_segments : p.batch;
    int64_t whole = (sequences_apart(p) ? p.batch : 1) * (p.side_q.total / tokens) + runs;
    return ROWS_Q == SEGMENTS ? whole : smaller(each, whole);
}

/* Finds block `n` of a list of segments. */
INLINE bool segment_block(const attn__params &p, int64_t n, int tokens, tile_place *place) {
    for (int r = 0; r < p.side_q.n_segments; r++) {
        int64_t blocks = blocks_of(p.side_q.segments[r].rows, tokens);
        if (n < blocks) {
            place->run = side_run<ROWS_Q, USED_Q>(p.side_q, r);
            place->first = (int)(n * tokens);
            return true;
        }
        n -= blocks;
    }
    return false;
}

INLINE bool packed_block(const attn__params &p, int64_t n, int tokens, tile_place *place) {
    int low = 0, high = p.batch - 1; /* the last sequence whose numbers begin at or before n */
    int64_t each = blocks_of(p.side_q.tokens, tokens);
    if (p.batch * each <= p.side_q.total / tokens + p.batch) {
        low = (int)(n / each);
        n -= low * each;
    } else {
        while (low < high) {
            int middle = (low + high + 1) / 2;
            if (p.side_q.cu[middle] / tokens + middle <= n) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        n -= p.side_q.cu[low] / tokens + low;
    }
    place->run = side_run<ROWS_Q, USED_Q>(p.side_q, low);
    int64_t blocks = blocks_of(place->run.slot, tokens);
    place->first = (int)((blocks - 1 - n) * tokens);
    return n < blocks;
}

/* Tile `index` of columns * query_blocks * inner. `shared_columns` columns read the same keys; bytes: of a key and its
 * value. */
INLINE tile_place place_tile(const attn__params &p, int64_t index, int columns, int shared_columns, int inner,
                             int tokens, int bytes) {
    tile_place place;
    int64_t at = inner == 1 ? index : quotient(index, inner);
    place.inner = (int)(index - at * inner);
    int64_t fit = quotient(SECTION_BYTES, larger(1, (int64_t)p.side_kv.tokens * bytes));
    int64_t section = shared_columns * larger(1, fit);
    int64_t lines = ROWS_Q == DENSE ? (int64_t)p.batch * columns : columns;
    int64_t blocks = ROWS_Q == DENSE ? blocks_of(p.side_q.tokens, tokens) : query_blocks(p, tokens);
    section = smaller(section, lines);
    int64_t begin = quotient(at, section * blocks) * section;
    int64_t width = smaller(section, lines - begin), rest = at - begin * blocks;
    int64_t block = quotient(rest, width), line = begin + rest - block * width;
    if (ROWS_Q == DENSE) {
        int64_t s = quotient(line, columns);
        place.run = side_run<ROWS_Q, USED_Q>(p.side_q, (int)s);
        place.first = (int)((blocks - 1 - block) * tokens);
        place.column = (int)(line - s * columns);
        place.exists = true;
    } else {
        place.column = (int)line;
        place.exists =
            ROWS_Q == SEGMENTS ? segment_block(p, block, tokens, &place) : packed_block(p, block, tokens, &place);
    }
    return place;
}

/* Rows of all heads, and a row's number among them: where splits leave their parts. */
INLINE int64_t row_count(const attn__params &p) {
    int64_t rows = ROWS_Q == DENSE ? p.side_q.tokens : p.side_q.total;
    return (sequences_apart(p) ? p.batch : 1) * p.heads_q * rows;
}
INLINE int64_t row_number(const attn__params &p, const rows_run &run, int head, int row) {
    int64_t rows = ROWS_Q == DENSE ? p.side_q.tokens : p.side_q.total;
    return ((int64_t)(sequences_apart(p) ? run.sequence : 0) * p.heads_q + head) * rows + run.first + row;
}
