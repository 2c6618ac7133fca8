/* SPDX-License-Identifier: Apache-2.0
 * Which tile is next, and where its rows are. Numbers are dealt out in turn, or (DYNAMIC) drawn from a counter in the
 * workspace as blocks come free.
 *
 * The counter needs no launch that clears it: the workspace may hold anything, so a mark beside the counter tells
 * whether it counts for this launch. Whoever finds no mark first claims the counter, clears it and sets the mark; who
 * draws the last number takes the mark away. A block draws as often as it has tiles, once at least, so the last number
 * is drawn after every block has looked.
 *
 * Dense rows are found in 32 bits and without divisions (attn__deal), which would cost as much as a block of keys. */
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

/* Tile `at` of dense rows. */
INLINE tile_place deal_tile(const attn__params &p, const attn__deal &deal, unsigned at) {
    const unsigned begin = divide(at, deal.by_section) * deal.width, rest = at - begin * deal.blocks;
    const bool last = deal.lines - begin < deal.width;
    const unsigned width = last ? deal.lines - begin : deal.width;
    const unsigned block = last ? divide(rest, deal.by_rest) : divide(rest, deal.by_width);
    const unsigned line = begin + rest - block * width, sequence = divide(line, deal.by_heads);
    tile_place place;
    place.run = side_run<ROWS_Q, USED_Q>(p.side_q, (int)sequence);
    place.first = (int)(deal.blocks - 1 - block) * TILE_Q;
    place.column = (int)(line - sequence * (unsigned)p.heads_q);
    place.inner = 0;
    place.exists = true;
    return place;
}
