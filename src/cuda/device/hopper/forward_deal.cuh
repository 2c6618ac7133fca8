/* SPDX-License-Identifier: Apache-2.0
 * Which tile is next, and where its rows are. Numbers are dealt out in turn, or (DYNAMIC) drawn from a counter in the
 * workspace as blocks come free.
 *
 * The counter needs no launch that clears it: the workspace may hold anything, so a mark beside the counter tells
 * whether it counts for this launch. Whoever finds no mark first claims the counter, clears it and sets the mark; who
 * draws the last number takes the mark away. A block draws as often as it has tiles, once at least, so the last number
 * is drawn after every block has looked.
 *
 * A place is found in 32 bits and without divisions (attn__deal), which would cost as much as a block of keys. Packed
 * rows: sequence s owns the block numbers from cu[s] / POSITIONS + s on (schedule.cuh); the warp looks at 32 sequences
 * at a time. */
#pragma once
#include "hopper/forward_tile.cuh"

#define COUNTER_OPEN  0x9d0fa7e1c35bffd3ull
#define COUNTER_TAKEN 0x9d0fa7e1c35bffd4ull
#define COUNTER_SYNC  (1 + 2 * GROUPS) /* named barrier of the warp that opens and the warp that draws */

typedef struct tile_draw {
    int64_t at;     /* number that was drawn last */
    unsigned drawn; /* by the first thread, under way */
    bool open;
} tile_draw;

/* By one thread. */
INLINE void counter_open(const attn__params &p) {
    unsigned long long *mark = (unsigned long long *)p.extra, seen;
    asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(seen) : "l"(mark) : "memory");
    while (seen != COUNTER_OPEN) {
        if (seen != COUNTER_TAKEN && atomicCAS(mark, seen, COUNTER_TAKEN) == seen) {
            *(volatile unsigned *)(mark + 1) = 0;
            asm volatile("st.release.gpu.b64 [%0], %1;" ::"l"(mark), "l"(COUNTER_OPEN) : "memory");
        }
        asm volatile("ld.acquire.gpu.b64 %0, [%1];" : "=l"(seen) : "l"(mark) : "memory");
    }
}

/* The number is there at draw_finish, after other work. */
INLINE void draw_start(const attn__params &p, tile_draw &draw) {
    if (DYNAMIC) {
        if (!draw.open) {
            named_sync(COUNTER_SYNC, 64);
            draw.open = true;
        }
        if ((threadIdx.x & 31) == 0) {
            /* not atomicAdd: the compiler gathers those of a warp, and waits for the number at once */
            asm volatile("atom.global.inc.u32 %0, [%1], 0xffffffff;"
                         : "=r"(draw.drawn)
                         : "l"((unsigned long long *)p.extra + 1)
                         : "memory");
        }
    }
}
INLINE void draw_finish(const attn__params &p, tile_draw &draw) {
    if (DYNAMIC) {
        draw.at = __shfl_sync(0xffffffffu, draw.drawn, 0);
        if (draw.at == p.tiles - 1 && (threadIdx.x & 31) == 0) {
            *(volatile unsigned long long *)p.extra = 0;
        }
        draw.at += gridDim.x;
    } else {
        draw.at += gridDim.x;
    }
}
INLINE void draw_again(const attn__params &p, tile_draw &draw) {
    draw_start(p, draw);
    draw_finish(p, draw);
}

INLINE unsigned divide(unsigned n, const attn__divisor &d) {
    return d.multiplier ? __umulhi(n, d.multiplier) >> d.shift : n;
}

/* The last sequence whose block numbers begin at or before n. All lanes. */
INLINE int owner_of_block(const attn__params &p, unsigned n) {
    int low = 0, count = p.batch;
    while (count > 1) {
        const int width = (count + 31) / 32, probe = (threadIdx.x & 31) * width, s = low + probe;
        const bool before = probe < count && (unsigned)p.side_q.cu[s] / POSITIONS + (unsigned)s <= n;
        const int found = __popc(__ballot_sync(0xffffffffu, before)) - 1;
        low += found * width;
        count = count - found * width < width ? count - found * width : width;
    }
    return low;
}

/* Block n of packed rows. */
INLINE void deal_packed(const attn__params &p, const attn__deal &deal, unsigned n, tile_place &place) {
    const int s = deal.each ? (int)divide(n, deal.by_each) : owner_of_block(p, n);
    place.run = side_run<ROWS_Q, USED_Q>(p.side_q, s);
    const int block = (int)(n - (deal.each ? (unsigned)s * deal.each : (unsigned)place.run.first / POSITIONS + s));
    const int blocks = (place.run.slot + POSITIONS - 1) / POSITIONS;
    place.first = (blocks - 1 - block) * POSITIONS;
    place.exists = block < blocks;
}

/* Tile `at`. */
INLINE tile_place deal_tile(const attn__params &p, const attn__deal &deal, unsigned at) {
    const unsigned section = divide(at, deal.by_section) * deal.width;
    const bool last = section >= deal.even;
    const unsigned begin = last ? deal.even : section, rest = at - begin * deal.blocks;
    const unsigned width = last ? deal.lines - deal.even : deal.width;
    const unsigned block = last ? divide(rest, deal.by_rest) : divide(rest, deal.by_width);
    const unsigned line = begin + rest - block * width;
    tile_place place;
    place.inner = 0;
    place.column = (int)line;
    if (ROWS_Q == SEGMENTS) {
        place.exists = segment_block(p, block, POSITIONS, &place);
    } else if (ROWS_Q == PACKED) {
        deal_packed(p, deal, block, place);
    } else {
        const unsigned sequence = divide(line, deal.by_columns);
        place.run = side_run<ROWS_Q, USED_Q>(p.side_q, (int)sequence);
        place.first = (int)(deal.blocks - 1 - block) * POSITIONS;
        place.column = (int)(line - sequence * deal.columns);
        place.exists = true;
    }
    return place;
}
