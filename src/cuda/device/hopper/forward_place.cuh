/* SPDX-License-Identifier: Apache-2.0
 * Where the next tile's rows and keys are. Dense rows are placed by the producer, between two blocks. Packed rows and
 * segments take longer than a block of keys, for what has to be read first: a warp of their own, the placer, places the
 * next tile while the producer brings this one. */
#pragma once
#include "hopper/forward_deal.cuh"

#define PLACER (ROWS_Q != DENSE)
/* Named barriers of placer and producer: a tile is wanted; it is posted. */
#define TILE_WANTED (2 + 2 * GROUPS)
#define TILE_POSTED (3 + 2 * GROUPS)

INLINE int blocks_in(const key_walk &walk) {
    return walk.end > walk.at ? (walk.end - walk.at + TILE_KV - 1) / TILE_KV : 0;
}

/* Walks over the keys of a tile to its last stretch; returns the blocks. */
INLINE int walk_through(const attn__params &p, const forward_tile &tile, key_view &view, key_walk &walk) {
    view = view_keys(p, tile.sequence, tile.low, tile.rows < POSITIONS ? tile.rows : POSITIONS, 0, 1);
    walk.at = walk.end = walk.stretch = walk.whole = walk.far = 0;
    walk.shift = 0;
    int blocks = 0;
    for (int n = 0; n < view.runs * STRETCHES_A_RUN; n++) {
        walk_enter(p, view, walk);
        blocks += blocks_in(walk);
    }
    return blocks;
}

/* The first tile that exists from the drawn number on; blocks 0 if there is none. */
INLINE forward_tile place_forward(const attn__params &p, const attn__deal &deal, tile_draw &draw, key_view &view,
                                  key_walk &walk) {
    forward_tile tile;
    tile.blocks = 0;
    for (; draw.at < p.tiles; draw_again(p, draw)) {
        const tile_place place = deal_tile(p, deal, (unsigned)draw.at);
        if (!place.exists) {
            continue;
        }
        const rows_run &run = place.run;
        tile.head = place.column * PACK;
        tile.kv_head = (int)divide((unsigned)place.column, deal.by_group);
        tile.sequence = run.sequence;
        tile.row = (int)(run.first + place.first);
        tile.rows = run.rows - place.first;
        tile.slot = run.slot - place.first;
        tile.low = run.position + place.first + row_shift(p, run.sequence);
        const int blocks = walk_through(p, tile, view, walk);
        tile.position = walk.at;
        tile.end = blocks ? walk.end : walk.at;
        tile.blocks = blocks ? blocks : 1; /* of no key: a row of zeros takes its place */
        tile.first_key = ROWS_KV == PACKED ? p.side_kv.cu[run.sequence] : 0;
        break;
    }
    return tile;
}

/* Leaves tile n of this block to all, who read it after they have waited for the last keys of the tile before. Its
 * place is free: queries are brought for two tiles at most, so nobody is as far behind. */
INLINE void post_tile(const forward_tile &tile, int n) {
    if ((threadIdx.x & 31) == 0) {
        SHARED_TAIL.tiles[n % TILES_POSTED] = tile;
    }
    __syncwarp();
}

/* The placer. */
INLINE void place_tiles(const attn__params &p, const attn__deal &deal) {
    tile_draw draw;
    key_view view;
    key_walk walk;
    bool more = true;
    draw.at = blockIdx.x;
    draw.open = false;
#pragma unroll 1
    for (int n = 0; more; n++) {
        if (n > 0) {
            named_sync(TILE_WANTED, 64);
            draw_again(p, draw);
        }
        const forward_tile tile = place_forward(p, deal, draw, view, walk);
        post_tile(tile, n);
        named_arrive(TILE_POSTED, 64);
        more = tile.blocks != 0;
    }
}
