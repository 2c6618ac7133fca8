/* SPDX-License-Identifier: Apache-2.0
 * Turns of tiles of keys (device/turns.cuh), compiled for the host, against their walks: on each block of queries the
 * tiles that visit it, in the order of their slots, have turns 0, 1, 2 ... Random lengths, positions and bands; one
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
    std::vector<int> visits((size_t)query_slots(p), 0);
    for (int64_t slot = 0; slot < key_slots(p); slot++) {
        tile_place tile;
        memset(&tile, 0, sizeof tile);
        walk w;
        memset(&w, 0, sizeof w);
        if (!slot_find<ROWS>(p.side_kv, 1, slot, TILE_KV, &tile.x_run, &tile.block) || !tile_describe(p, tile) ||
            tile.rows <= 0) {
            continue;
        }
        for (bool more = walk_start(p, tile, w); more; more = walk_next(p, tile, w)) {
            const uint32_t at = walk_slot(p, tile, w);
            checks++;
            if (turn_of(p, tile, w) != visits[at]++ && ++faults < 10) {
                printf("left %lld right %lld globals %lld, tile %lld, slot %u: turn %d instead of %d\n",
                       (long long)p.left, (long long)p.right, (long long)p.globals, (long long)slot, at,
                       turn_of(p, tile, w), visits[at] - 1);
            }
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
        p.batch = p.heads_q = p.heads_kv = p.group = p.splits = 1;
        p.top_left = draw(0, 1);
        p.left = BAND & WINDOW ? draw(-1, 150) : -1;
        p.right = BAND & WINDOW ? draw(-1, 150) : -1;
        p.globals = BAND & GLOBALS ? draw(1, 100) : 0;
        draw_side(p.side_q, segments_q, &length_q);
        draw_side(p.side_kv, segments_kv, &length_kv);
        check(p);
    }
    printf("%ld checks, %ld faults\n", checks, faults);
    return checks == 0 || faults != 0;
}
