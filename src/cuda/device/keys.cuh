/* SPDX-License-Identifier: Apache-2.0
 * The walk of one query tile over the keys that some row of it may see: stretches of consecutive positions, cut into
 * blocks of TILE_KV keys. A run of the sequence is one stretch, as far as the band reaches; two where a gap lies
 * between the global keys and the window. A split takes its share of the blocks of each stretch.
 *
 * What a walk needs of its tile lies in shared memory, since registers are short. Most walks are one stretch (WALKED is
 * 0), whose block n follows from n alone; else one thread walks ahead and leaves the blocks in a short ring. Stretches
 * begin at a multiple of 8 keys from the run's first, which keeps groups of four keys that share dropout words whole.
 */
#pragma once
#include "mask.cuh"

#define STRETCHES_A_RUN ((BAND & GLOBALS) && (BAND & WINDOW) ? 2 : 1)
#define WALKED          (ROWS_KV == SEGMENTS || STRETCHES_A_RUN > 1)
#define RING            4 /* blocks of a walk that are known at once: two more than are being brought */

/* The tile, to the walk. */
typedef struct key_view {
    int64_t low, high; /* i' of the first and the last row */
    int length;        /* keys of the sequence */
    int run, runs;     /* first run, and how many; 0 runs: no key is seen */
    int split, splits;
} key_view;

/* A block. Positions are the sequence's. */
typedef struct key_block {
    int position; /* of its first key */
    int count;    /* keys that exist, at most TILE_KV; 0 or less: no block is left */
    bool whole;   /* every row sees all TILE_KV keys, as far as lengths and the band go */
    int64_t row;  /* of its first key: of the buffers (segments), of the run (else) */
} key_block;

typedef struct key_walk {
    int at, end;    /* positions of this stretch that are left */
    int whole, far; /* blocks of [whole, far) are seen whole by every row */
    int stretch;    /* next one */
    int64_t shift;  /* row - position (segments; else the run begins at position 0) */
    key_block ring[WALKED ? RING : 1];
} key_walk;

INLINE key_view view_keys(const attn__params &p, int sequence, int64_t low, int rows, int split, int splits) {
    int run, end;
    side_range<ROWS_KV>(p.side_kv, sequence, &run, &end);
    key_view view = {low,   low + rows - 1,           side_length<ROWS_KV, USED_KV>(p.side_kv, sequence),
                     run,   rows > 0 ? end - run : 0, split,
                     splits};
    return view;
}

/* Stretch `walk.stretch` becomes the current one. */
INLINE void walk_enter(const attn__params &p, const key_view &view, key_walk &walk) {
    rows_run run = side_run<ROWS_KV, USED_KV>(p.side_kv, view.run + walk.stretch / STRETCHES_A_RUN);
    int origin = (int)run.position, begin = origin, end = origin + run.rows;
    band_span(p, view.low, view.high, view.length, &begin, &end);
    begin = origin + ((begin - origin) & ~7);
    if (STRETCHES_A_RUN == 2) {
        bool gap = p.left >= 0 && view.low >= p.globals;
        int64_t global_end = origin + ((larger(p.globals, origin) - origin + 7) & ~(int64_t)7);
        int64_t window = origin + ((larger(view.low - p.left, origin) - origin) & ~(int64_t)7);
        gap = gap && window > global_end;
        if (walk.stretch % 2 == 0) {
            end = gap ? (int)smaller(end, global_end) : end;
        } else {
            begin = gap ? clamp_position(larger(begin, window)) : end;
        }
    }
    int64_t whole = begin, far = end;
    if (BAND & CAUSAL) {
        far = smaller(far, view.low + 1);
    }
    if (BAND & WINDOW) {
        whole = p.left < 0 ? whole : larger(whole, view.high - p.left);
        far = p.right < 0 ? far : smaller(far, view.low + p.right + 1);
    }
    if (view.splits > 1 && begin < end) {
        int64_t blocks = ((int64_t)end - begin + TILE_KV - 1) / TILE_KV, first = begin;
        begin = (int)smaller(end, first + blocks * view.split / view.splits * TILE_KV);
        end = (int)smaller(end, first + blocks * (view.split + 1) / view.splits * TILE_KV);
    }
    walk.at = begin;
    walk.end = end;
    walk.whole = clamp_position(whole);
    walk.far = clamp_position(far);
    walk.shift = ROWS_KV == SEGMENTS ? run.first - run.position : 0;
    walk.stretch++;
}

/* Block n of the current stretch. */
INLINE key_block walk_block(const key_walk &walk, int n) {
    /* Unsigned: past the last block the sum may pass 2^31. */
    int position = (int)((unsigned)walk.at + (unsigned)n * TILE_KV);
    int left = (int)((unsigned)(walk.end - walk.at) - (unsigned)n * TILE_KV);
    key_block block = {position, left < TILE_KV ? left : TILE_KV,
                       position >= walk.whole && position <= walk.far - TILE_KV, position + walk.shift};
    return block;
}

/* Leaves the next block in place n of the ring. */
INLINE void walk_next(const attn__params &p, const key_view &view, key_walk &walk, int n) {
    while (walk.at >= walk.end && walk.stretch < view.runs * STRETCHES_A_RUN) {
        walk_enter(p, view, walk);
    }
    walk.ring[n % RING] = walk_block(walk, 0);
    walk.at += walk.end - walk.at < TILE_KV ? walk.end - walk.at : TILE_KV;
}

/* By one thread; a barrier must follow. blocks: how many must be known at once. */
INLINE void walk_start(const attn__params &p, const key_view &view, key_walk &walk, int blocks) {
    walk.at = walk.end = walk.stretch = 0;
    walk.shift = 0;
    if (!WALKED && view.runs > 0) {
        walk_enter(p, view, walk);
    }
    for (int n = 0; WALKED && n < blocks; n++) {
        walk_next(p, view, walk, n);
    }
}

INLINE key_block block_of_walk(const key_walk &walk, int n) {
    return WALKED ? walk.ring[WALKED ? n % RING : 0] : walk_block(walk, n);
}

/* The band (mask.cuh) as row `r` of the tile sees it, counted from key `origin` of the block and in 32 bits, so that a
 * thread compares constants: keys [low, high], and all up to `global`. */
typedef struct row_keys {
    int low, high, global;
} row_keys;

/* Far more than a tile has rows or keys, and small enough to add them. */
#define FAR_AWAY (1 << 30)
INLINE int nearby(int64_t x) {
    return x < -FAR_AWAY ? -FAR_AWAY : x > FAR_AWAY ? FAR_AWAY : (int)x;
}

INLINE row_keys keys_of_row(const attn__params &p, const key_view &view, const key_block &block, int r, int origin) {
    int64_t at = view.low - block.position;
    int top = block.count - 1;
    if (BAND & CAUSAL) {
        int bound = nearby(at) + r;
        top = top < bound ? top : bound;
    }
    row_keys keys = {0, top, -1};
    if (BAND & WINDOW) {
        bool exempt = (BAND & GLOBALS) && r < nearby(p.globals - view.low);
        if (!exempt && p.left >= 0) {
            keys.low = nearby(at - p.left) + r;
        }
        if (!exempt && p.right >= 0) {
            int bound = nearby(at + p.right) + r;
            keys.high = top < bound ? top : bound;
        }
    }
    if (BAND & GLOBALS) {
        int bound = nearby(p.globals - 1 - block.position);
        keys.global = (top < bound ? top : bound) - origin;
    }
    keys.low -= origin;
    keys.high -= origin;
    return keys;
}
INLINE bool keys_show(const row_keys &keys, int key) {
    return ((!(BAND & WINDOW) || key >= keys.low) && key <= keys.high) || ((BAND & GLOBALS) && key <= keys.global);
}
