/* SPDX-License-Identifier: Apache-2.0
 * The tile that a block of threads owns, and the y blocks that it meets: for PASS_KEYS every block of queries that sees
 * a key of the tile, head by head of the kv head's group (so that dK and dV of the group stay in registers); else the
 * blocks of keys that the queries see. Blocks in which nothing is visible are never visited. Within a run the visited
 * blocks and those in which every pair is visible are stretches, known in advance; with global tokens those visited may
 * have a gap, from the global rows to the window.
 *
 * Registers are for what each step needs, so a walk is little more than a head and a block: what is true of a run lies
 * in shared memory, but for segments, where the run changes under way.
 *
 * Blocks are walked upwards. Where dQ is added up in a fixed order (hopper/backward_order.cuh) they are walked
 * downwards, each by all heads of the group before the next, so that a tile meets what it shares with the tile after it
 * in the same order and no sooner: were heads walked one after another, a tile of few blocks would wait in each head
 * until the longest tile has come there. */
#pragma once
#include "gradient_blocks.cuh"
#include "mask.cuh"

#define TILE_RECORD 128 /* bytes of shared memory for a tile_place */

#define WALK_STEP (DETERMINISTIC ? -1 : 1)

/* Pairs are hidden one by one, so every step is masked. */
#define ALWAYS_MASKED (HAS_MASK || BIAS_DTYPE)
#define Y_SEGMENTS    ((PASS_KEYS ? ROWS_Q : ROWS_KV) == SEGMENTS)

/* A run of y as the tile sees it: blocks [begin, end) but for [gap_begin, gap_end) matter, [full_begin, full_end) are
 * visible to every row. */
typedef struct run_span {
    int begin, end, full_begin, full_end;
    int gap_begin, gap_end; /* global tokens */
    int rows;
    int position; /* of its row 0, on the scale of keys */
    int first;    /* row of the buffers */
    int slot;     /* queries: first slot, of head 0 */
} run_span;

/* Positions are on the scale of keys (queries: i'). */
typedef struct tile_place {
    int sequence, head;       /* head of the x side */
    int head_begin, head_end; /* query heads */
    int run_begin, run_end;   /* of the y side */
    int x_run, block;         /* where the tile lies */
    int part;                 /* of the group's query heads */
    short rows, slot_rows;    /* rows that exist; rows of the slot */
    int shift;                /* i' - i of the sequence */
    int low;                  /* position of the tile's first row */
    int row;                  /* of the buffers */
    run_span span;            /* without segments: the one run */
} tile_place;
static_assert(sizeof(tile_place) <= TILE_RECORD, "the record of a tile");

typedef struct walk {
    int head, block;
    int run;       /* segments */
    run_span span; /* segments */
} walk;

INLINE const run_span &span_of(const tile_place &tile, const walk &w) {
    return Y_SEGMENTS ? w.span : tile.span;
}

INLINE int block_floor(int64_t rows) { /* rows may be negative */
    int64_t block = rows >= 0 ? rows / TILE_Y : -((TILE_Y - 1 - rows) / TILE_Y);
    return clamp_position(block);
}
INLINE int block_between(int64_t block, int64_t last) {
    return (int)(block < 0 ? 0 : block > last ? last : block);
}

/* What the tile sees of a run of y. */
INLINE run_span span_find(const attn__params &p, const tile_place &tile, int number) {
    rows_run run =
        PASS_KEYS ? side_run<ROWS_Q, USED_Q>(p.side_q, number) : side_run<ROWS_KV, USED_KV>(p.side_kv, number);
    run_span span;
    span.rows = run.rows;
    span.first = (int)run.first;
    span.position = (int)(run.position + (PASS_KEYS ? tile.shift : 0));
    span.slot = PASS_KEYS ? (int)run_slot<ROWS_Q>(p.side_q, number, TILE_Q) : 0;
    /* Some pair is visible if the block reaches some_low and does not begin past some_high; all are if it lies within
     * [full_low, full_high]. */
    int64_t far = (int64_t)1 << 40, low = tile.low, last = low + tile.rows - 1;
    int64_t some_low = -far, full_low = -far, some_high = far, full_high = far;
    if (BAND & CAUSAL) {
        if (PASS_KEYS) {
            some_low = low, full_low = last;
        } else {
            some_high = last, full_high = low;
        }
    }
    const int64_t global_low = some_low, global_high = some_high;
    if (BAND & WINDOW) {
        int64_t behind = PASS_KEYS ? p.right : p.left, ahead = PASS_KEYS ? p.left : p.right;
        if (behind >= 0) {
            some_low = larger(some_low, low - behind), full_low = larger(full_low, last - behind);
        }
        if (ahead >= 0) {
            some_high = smaller(some_high, last + ahead), full_high = smaller(full_high, low + ahead);
        }
    }
    int64_t blocks = blocks_of(run.rows, TILE_Y);
    span.gap_begin = span.gap_end = 0;
    if (BAND & GLOBALS) { /* a global row of the tile meets all of y, the others y's global rows beside the window */
        const bool all = low < p.globals;
        const int64_t end = smaller(global_high, (int64_t)p.globals - 1);
        const bool some = !all && end >= global_low && end >= span.position;
        if (some) {
            span.gap_begin = block_between((int64_t)block_floor(end - span.position) + 1, blocks);
            span.gap_end = block_between(block_floor(some_low - span.position), blocks);
        }
        some_low = all || some ? global_low : some_low;
        some_high = all ? global_high : some ? larger(some_high, end) : some_high;
    }
    span.begin = block_between(block_floor(some_low - span.position), blocks);
    span.end = block_between((int64_t)block_floor(some_high - span.position) + 1, blocks);
    span.full_begin = block_floor(full_low - span.position + TILE_Y - 1);
    span.full_end = block_floor(full_high - span.position + 1);
    if (!PASS_KEYS) { /* keys past the run's end are hidden */
        span.full_end = (int)smaller(span.full_end, run.rows / TILE_Y);
    } else if (tile.rows < TILE_KV) {
        span.full_end = 0;
    }
    if (ALWAYS_MASKED) {
        span.full_end = 0;
    }
    return span;
}

/* Of a span, in the direction of the walk: the first block, and whether the walk has left it. */
INLINE int span_start(const run_span &span) {
    return DETERMINISTIC ? span.end - 1 : span.begin;
}
INLINE bool span_left(const run_span &span, int block) {
    return DETERMINISTIC ? block < span.begin : block >= span.end;
}

/* From w.block on to a block that exists and that the tile meets; false if there is none. */
INLINE bool walk_settle(const attn__params &p, const tile_place &tile, walk &w) {
    while (true) {
        while (span_left(span_of(tile, w), w.block)) {
            if (!Y_SEGMENTS || ++w.run >= tile.run_end) {
                if (DETERMINISTIC || ++w.head >= tile.head_end) {
                    return false;
                }
                w.run = tile.run_begin;
            }
            if (Y_SEGMENTS) {
                w.span = span_find(p, tile, w.run);
            }
            w.block = span_start(span_of(tile, w));
        }
        if (!(BAND & GLOBALS)) {
            return true;
        }
        const run_span &span = span_of(tile, w);
        if (w.block < span.gap_begin || w.block >= span.gap_end) {
            return true;
        }
        w.block = DETERMINISTIC ? span.gap_begin - 1 : span.gap_end;
    }
}

/* The first visited block; false if there is none. */
INLINE bool walk_start(const attn__params &p, const tile_place &tile, walk &w) {
    w.head = tile.head_begin;
    w.run = tile.run_begin;
    if (w.run >= tile.run_end) {
        return false;
    }
    if (Y_SEGMENTS) {
        w.span = span_find(p, tile, w.run);
    }
    w.block = span_start(span_of(tile, w));
    return walk_settle(p, tile, w);
}
/* To the next; false past the last. */
INLINE bool walk_next(const attn__params &p, const tile_place &tile, walk &w) {
    if (DETERMINISTIC) { /* by the next head */
        if (++w.head < tile.head_end) {
            return true;
        }
        w.head = tile.head_begin;
    }
    w.block += WALK_STEP;
    return walk_settle(p, tile, w);
}

INLINE bool walk_full(const tile_place &tile, const walk &w) {
    const run_span &span = span_of(tile, w);
    return w.block >= span.full_begin && w.block < span.full_end;
}
/* The slot of a block of queries, heads counted in. Its sums alone are 4 KiB, so 32 bits do. */
INLINE uint32_t walk_slot(const attn__params &p, const tile_place &tile, const walk &w) {
    return (uint32_t)(w.head * query_slots(p) + span_of(tile, w).slot + w.block);
}

/* Tile `number` of those that a grid covers, PASS_KEYS with the query heads of a kv head shared out to p.splits tiles;
 * false if it is empty. section: sequences and heads whose tiles are handed out together, those with most to do first.
 */
INLINE bool tile_find(const attn__params &p, int64_t number, int64_t section, tile_place &tile) {
    const int heads = PASS_KEYS ? p.heads_kv : p.heads_q;
    tile.part = 0;
    if (SPLIT) {
        const int64_t whole = quotient(number, p.splits);
        tile.part = (int)(number - whole * p.splits);
        number = whole;
    }
    if ((PASS_KEYS ? ROWS_KV : ROWS_Q) == DENSE) {
        int64_t blocks = PASS_KEYS ? blocks_of(p.side_kv.tokens, TILE_KV) : blocks_of(p.side_q.tokens, TILE_Q);
        const int64_t pairs = (int64_t)p.batch * heads;
        int begin = 0;
        section = smaller(section, pairs);
        if (PASS_KEYS && (BAND & GLOBALS)) { /* global keys are met by all queries: theirs are the longest of all */
            const int64_t longest = smaller(blocks, blocks_of(p.globals, TILE_KV));
            if (number < longest * pairs) {
                section = pairs;
                blocks = longest;
            } else {
                number -= longest * pairs;
                blocks -= longest;
                begin = (int)longest;
            }
        }
        const int64_t first = quotient(number, section * blocks) * section, wide = smaller(section, pairs - first);
        number -= first * blocks;
        tile.block = (int)quotient(number, wide);
        const int64_t pair = first + number - tile.block * wide;
        tile.x_run = (int)quotient(pair, heads);
        tile.head = (int)(pair - (int64_t)tile.x_run * heads);
        tile.block += begin;
        if (!PASS_KEYS) {
            tile.block = (int)blocks - 1 - tile.block;
        }
        return true;
    }
    const int64_t line = quotient(number, heads);
    tile.head = (int)(number - line * heads);
    number = line;
    return PASS_KEYS ? slot_find<ROWS_KV>(p.side_kv, p.batch, number, TILE_KV, &tile.x_run, &tile.block)
                     : slot_find<ROWS_Q>(p.side_q, p.batch, number, TILE_Q, &tile.x_run, &tile.block);
}

/* Everything else about a tile that was found; false if it has no rows. */
INLINE bool tile_describe(const attn__params &p, tile_place &tile) {
    const rows_run run =
        PASS_KEYS ? side_run<ROWS_KV, USED_KV>(p.side_kv, tile.x_run) : side_run<ROWS_Q, USED_Q>(p.side_q, tile.x_run);
    const int done = tile.block * TILE_X;
    tile.slot_rows = (short)larger(0, smaller(run.slot - done, TILE_X));
    tile.rows = (short)larger(0, smaller(run.rows - done, TILE_X));
    tile.row = (int)run.first + done;
    tile.sequence = run.sequence;
    tile.shift = (int)row_shift(p, run.sequence);
    tile.low = (int)(run.position + done + (PASS_KEYS ? 0 : tile.shift));
    if (PASS_KEYS) {
        const int heads = SPLIT ? p.group / p.splits : p.group;
        tile.head_begin = tile.head * p.group + tile.part * heads;
        tile.head_end = tile.head_begin + heads;
        side_range<ROWS_Q>(p.side_q, run.sequence, &tile.run_begin, &tile.run_end);
    } else {
        tile.head_begin = tile.head;
        tile.head_end = tile.head + 1;
        side_range<ROWS_KV>(p.side_kv, run.sequence, &tile.run_begin, &tile.run_end);
    }
    if (!Y_SEGMENTS) {
        tile.span = span_find(p, tile, tile.run_begin);
    }
    return tile.slot_rows > 0;
}
