/* SPDX-License-Identifier: Apache-2.0
 * Turns of tiles of keys (device/turns.cuh), compiled for the host, against their walks: on each block of queries of
 * each head of the group the tiles that visit it, in the order of their slots, have turns 0, 1, 2 ... And tiles that
 * begin together follow each other a step apart: what two tiles of a run meet they meet in the same order, and the
 * later tile no sooner in its walk. And no tile waits for ever. Random lengths, positions, groups and bands; one
 * program for each kind of band and of rows (constants BAND, ROWS). */
#include "device_on_host.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utility>
#include <vector>

#define __CUDA_ARCH__ 900
#define ROWS_Q        ROWS
#define ROWS_KV       ROWS
#define USED_Q        0
#define USED_KV       0
#define HAS_MASK      0
#define BIAS_DTYPE    0
#define LISTS         1
#define DETERMINISTIC 1
#define STATS_BY_LANE 1
#define PASS_KEYS     1
#define SPLIT         0
#define TILE_Q        16
#define TILE_KV       32
#define DIM_QK        64
#define DIM_V         64
#include "turns.cuh"

static int draw(int least, int most) {
    return least + rand() % (most - least + 1);
}

/* A sequence as one run, or as segments of 0 to 90 rows with gaps, in any order of positions. */
static void draw_side(attn__side_ref &side, std::vector<attn__segment_ref> &segments, int *length) {
    segments.clear();
    side.tokens = draw(1, 200);
    side.total = ROWS == SEGMENTS ? 300 : side.tokens; /* rows of the buffer */
    for (int n = 0, at = 0; ROWS == SEGMENTS && n < 3; n++) {
        attn__segment_ref segment;
        memset(&segment, 0, sizeof segment);
        segment.first = 100 * n;
        segment.position = at + draw(0, 40);
        segment.rows = draw(0, 90);
        at = (int)(segment.position + segment.rows);
        segments.push_back(segment);
        side.tokens = at;
    }
    if (segments.size() > 1 && draw(0, 1)) {
        std::swap(segments[0], segments[draw(1, 2)]);
    }
    side.segments = segments.data();
    side.n_segments = (int)segments.size();
    *length = side.tokens;
    side.lengths = length;
}

static long checks, faults;

static void check(const attn__params &p) {
    const size_t slots = (size_t)(p.heads_q * query_slots(p));
    std::vector<int> visits(slots, 0), met(slots, -1); /* met: at which step of the tile before of the run */
    int run = -1;
    for (int64_t slot = 0; slot < key_slots(p); slot++) {
        tile_place tile;
        memset(&tile, 0, sizeof tile);
        walk w;
        memset(&w, 0, sizeof w);
        if (!slot_find<ROWS>(p.side_kv, 1, slot, TILE_KV, &tile.x_run, &tile.block) || !tile_describe(p, tile) ||
            tile.rows <= 0) {
            continue;
        }
        std::vector<int> meets(slots, -1);
        int step = 0, before = -1;
        for (bool more = walk_start(p, tile, w); more; more = walk_next(p, tile, w)) {
            const uint32_t at = walk_slot(p, tile, w);
            checks++;
            meets[at] = step++;
            /* A tile with fewer blocks in its window may come sooner to global rows, and through runs in any order. */
            const bool alike = !(BAND & GLOBALS) && ROWS != SEGMENTS && tile.x_run == run && met[at] >= 0;
            if (alike && (met[at] <= before || met[at] > meets[at]) && ++faults < 10) {
                printf("left %lld right %lld, tile %lld, slot %u: step %d, of the tile before %d after %d\n",
                       (long long)p.left, (long long)p.right, (long long)slot, at, meets[at], met[at], before);
            }
            before = alike ? met[at] : before;
            if (turn_of(p, tile, w) != visits[at]++ && ++faults < 10) {
                printf("left %lld right %lld globals %lld, tile %lld, slot %u: turn %d instead of %d\n",
                       (long long)p.left, (long long)p.right, (long long)p.globals, (long long)slot, at,
                       turn_of(p, tile, w), visits[at] - 1);
            }
        }
        met = meets;
        run = tile.x_run;
    }
}

/* A block of threads, which works on one tile of those it draws. */
typedef struct runner {
    bool busy;
    tile_place tile;
    walk w;
} runner;

/* Tiles drawn from a counter, by however many run at once: none waits for ever. */
static void check_waits(const attn__params &p, int64_t section, int running) {
    const int64_t tiles = p.heads_kv * key_slots(p);
    std::vector<int> counts((size_t)(p.heads_q * query_slots(p)), 0);
    std::vector<runner> runners((size_t)running);
    int64_t number = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (runner &r : runners) {
            if (r.busy) {
                int &count = counts[walk_slot(p, r.tile, r.w)];
                if (count == turn_of(p, r.tile, r.w)) {
                    count++;
                    moved = true;
                    r.busy = walk_next(p, r.tile, r.w);
                }
            } else if (number < tiles) {
                memset(&r, 0, sizeof r);
                r.busy = tile_find(p, number++, section, r.tile) && tile_describe(p, r.tile) && r.tile.rows > 0 &&
                         walk_start(p, r.tile, r.w);
                moved = true;
            }
        }
    }
    for (const runner &r : runners) {
        checks++;
        if (r.busy && ++faults < 10) {
            printf("left %lld right %lld globals %lld, section %lld, %d blocks: tile %d of head %d waits for ever\n",
                   (long long)p.left, (long long)p.right, (long long)p.globals, (long long)section, running,
                   r.tile.block, r.tile.head);
        }
    }
}

int main() {
    srand(1);
    for (int n = 0; n < 20000; n++) {
        std::vector<attn__segment_ref> segments_q, segments_kv;
        int length_q, length_kv;
        attn__params p;
        memset(&p, 0, sizeof p);
        p.batch = p.splits = 1;
        p.heads_kv = draw(1, 3);
        p.group = draw(1, 4);
        p.heads_q = p.heads_kv * p.group;
        p.top_left = draw(0, 1);
        p.left = BAND & WINDOW ? draw(-1, 150) : -1;
        p.right = BAND & WINDOW ? draw(-1, 150) : -1;
        p.globals = BAND & GLOBALS ? draw(1, 100) : 0;
        draw_side(p.side_q, segments_q, &length_q);
        draw_side(p.side_kv, segments_kv, &length_kv);
        check(p);
        check_waits(p, draw(1, 4), draw(1, 9));
    }
    printf("%ld checks, %ld faults\n", checks, faults);
    return checks == 0 || faults != 0;
}
