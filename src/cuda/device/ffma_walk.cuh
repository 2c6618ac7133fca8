/* SPDX-License-Identifier: Apache-2.0
 * Which rows a block of the float32 kernels works on, and which rows of the other side it walks. All of it is the same
 * for every thread of a block: one thread works it out and shared memory holds it, registers are for sums. */
#pragma once
#include "ffma.cuh"
#include "mask.cuh"

/* Up to OUTER query rows of one run and head. */
typedef struct query_tile {
    rows_run run;
    int head, first;             /* first row, counted from the run's first */
    int length;                  /* S_kv */
    int64_t shift;               /* i' - i */
    int64_t position, low, high; /* position of the first row; i' of the first and of the last row that counts */
} query_tile;

/* Tiles are numbered last rows first: under a causal band those see most keys. */
INLINE query_tile query_tile_of(const attn__params &p) {
    const int64_t lists = (int64_t)side_runs<ROWS_Q>(p.side_q, p.batch) * p.heads_q, tile = p.first_tile + blockIdx.x;
    const int64_t block = p.tiles / lists - 1 - tile / lists, list = tile % lists;
    query_tile t;
    t.run = side_run<ROWS_Q, USED_Q>(p.side_q, (int)(list / p.heads_q));
    t.head = (int)(list % p.heads_q);
    t.first = (int)smaller(block * OUTER, t.run.slot);
    t.length = side_length<ROWS_KV, USED_KV>(p.side_kv, t.run.sequence);
    t.shift = row_shift(p, t.run.sequence);
    t.position = t.run.position + t.first;
    t.low = t.position + t.shift;
    t.high = t.run.position + smaller((int64_t)t.first + OUTER, t.run.rows) - 1 + t.shift;
    return t;
}

/* A run of keys, cut to what rows with i' in [low, high] may see. */
typedef struct key_span {
    rows_run run;
    int first, last;
    unsigned count; /* last - first, or 0 */
} key_span;

INLINE key_span key_span_of(const attn__params &p, int64_t low, int64_t high, int length, int list) {
    key_span keys;
    keys.run = side_run<ROWS_KV, USED_KV>(p.side_kv, list);
    keys.first = (int)keys.run.position;
    keys.last = (int)smaller(keys.run.position + keys.run.rows, POSITION_MAX);
    band_span(p, low, high, length, &keys.first, &keys.last);
    /* Blocks begin where dropout's words do, if the run lets them. */
    keys.first = (int)larger(keys.run.position, keys.first & ~3);
    keys.count = keys.last > keys.first ? keys.last - keys.first : 0;
    return keys;
}

/* Does every row with i' in [low, high] see all of `count` keys from position j on, by band and length? */
INLINE bool band_shows_all(const attn__params &p, int64_t low, int64_t high, int length, int64_t j, int count) {
    int from = (int)j, to = (int)smaller(j + count, POSITION_MAX);
    return band_span(p, low, high, length, &from, &to) && from == j && to == j + count;
}
