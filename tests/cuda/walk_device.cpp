/* SPDX-License-Identifier: Apache-2.0
 * The walk of backward's device code, compiled for the host, against the definition: tiles are found once each; every
 * block with a visible pair is visited, once a head, and none without; a block that counts as full hides nothing. One
 * program for each kind of band (constant BAND) and side (PASS_KEYS). */
#include "device_on_host.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define __CUDA_ARCH__ 800
#define ROWS_Q        0
#define ROWS_KV       0
#define USED_Q        0
#define USED_KV       0
#define HAS_MASK      0
#define BIAS_DTYPE    0
#define SPLIT         0
#define LISTS         0
#define STATS_BY_LANE 0
#define DIM_QK        8
#define DIM_V         8
enum { BATCH = 2, HEADS = 2, GROUP = 2, TILE_Q = 4, TILE_KV = 6, LONGEST = 33 };
#include "gradient_walk.cuh"

#include "problem/problem.h"

static long checks, faults;

static void fault(const attn__params &p, const tile_place &tile, const char *what) {
    if (++faults < 10) {
        printf("%s: left %lld right %lld globals %lld, %d queries, %d keys, tile %d of head %d\n", what,
               (long long)p.left, (long long)p.right, (long long)p.globals, p.side_q.tokens, p.side_kv.tokens,
               tile.block, tile.head);
    }
}

/* Pairs of block `y` and the tile. */
static void count_pairs(const attn__params &p, const attn_band &band, const tile_place &tile, int y, int *pairs,
                        int *visible) {
    const int x_end = tile.block * TILE_X + tile.rows, rows = PASS_KEYS ? p.side_q.tokens : p.side_kv.tokens;
    *pairs = *visible = 0;
    for (int a = tile.block * TILE_X; a < x_end; a++) {
        for (int b = y * TILE_Y; b < (y + 1) * TILE_Y && b < rows; b++) {
            const int query = PASS_KEYS ? b : a, key = PASS_KEYS ? a : b;
            *pairs += 1;
            *visible += attn__band_visible(&band, query + tile.shift, key);
        }
    }
}

static void check_tile(const attn__params &p, const attn_band &band, const tile_place &tile) {
    const int blocks = (int)blocks_of(PASS_KEYS ? p.side_q.tokens : p.side_kv.tokens, TILE_Y);
    int visits[BATCH * HEADS * GROUP][LONGEST] = {}, full[LONGEST] = {};
    walk w;
    int before = -1;
    for (bool more = walk_start(p, tile, w); more; more = walk_next(p, tile, w)) {
        if (w.head < tile.head_begin || w.head >= tile.head_end || w.block < 0 || w.block >= blocks) {
            fault(p, tile, "a block outside");
            return;
        }
        /* Upwards head by head, or downwards with all heads of a block together. */
        const int at = DETERMINISTIC ? (blocks - w.block) * HEADS * GROUP + w.head : w.head * blocks + w.block;
        if (at <= before) {
            fault(p, tile, "order");
        }
        before = at;
        visits[w.head][w.block]++;
        full[w.block] = walk_full(tile, w);
    }
    for (int y = 0; y < blocks; y++) {
        int pairs, visible;
        count_pairs(p, band, tile, y, &pairs, &visible);
        for (int head = tile.head_begin; head < tile.head_end; head++) {
            checks++;
            /* Rows past the end count as positions, so a block at the end may be visited for them alone. */
            const bool last = y == blocks - 1;
            if (visits[head][y] > 1 || (visible > 0 && visits[head][y] == 0) ||
                (visible == 0 && visits[head][y] && !last)) {
                fault(p, tile, "visits");
            }
            if (full[y] && visible < pairs) {
                fault(p, tile, "not full");
            }
        }
    }
}

static void check_band(const attn_band &band, int queries, int keys, bool top_left) {
    static const int64_t sections[2] = {1, 3};
    attn__params p;
    memset(&p, 0, sizeof p);
    p.left = band.left;
    p.right = band.right;
    p.globals = band.globals;
    p.top_left = top_left;
    p.batch = BATCH;
    p.heads_kv = HEADS;
    p.heads_q = HEADS * GROUP;
    p.group = GROUP;
    p.splits = 1;
    p.side_q.tokens = queries;
    p.side_kv.tokens = keys;
    const int heads = PASS_KEYS ? HEADS : HEADS * GROUP;
    const int blocks = (int)blocks_of(PASS_KEYS ? keys : queries, TILE_X);
    for (int64_t section : sections) {
        int found[BATCH][HEADS * GROUP][LONGEST] = {};
        for (int64_t number = 0; number < (int64_t)BATCH * heads * blocks; number++) {
            tile_place tile;
            if (!tile_find(p, number, section, tile) || !tile_describe(p, tile) || tile.block >= blocks ||
                found[tile.x_run][tile.head][tile.block]++) {
                fault(p, tile, "tiles");
                return;
            }
            check_tile(p, band, tile);
        }
    }
}

int main(void) {
    static const int lengths[] = {1, 4, 11, 24, LONGEST}, limits[] = {-1, 0, 1, 5, 13}, globals[] = {0, 1, 5, 8, 40};
    const bool window = BAND & WINDOW, global = BAND & GLOBALS;
    for (int queries : lengths) {
        for (int keys : lengths) {
            for (int left = 0; left < (window ? 5 : 1); left++) {
                for (int right = 0; right < (window ? 5 : 1); right++) {
                    for (int n = 0; n < (global ? 5 : 1); n++) {
                        attn_band band;
                        memset(&band, 0, sizeof band);
                        band.kind = BAND;
                        band.left = window ? limits[left] : -1;
                        band.right = window ? limits[right] : -1;
                        band.globals = global ? globals[n] : ATTN__NO_GLOBALS;
                        check_band(band, queries, keys, false);
                        check_band(band, queries, keys, true);
                    }
                }
            }
        }
    }
    printf("%ld blocks, %ld faults\n", checks, faults);
    return faults != 0 || checks == 0;
}
