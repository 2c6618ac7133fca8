/* SPDX-License-Identifier: Apache-2.0
 * Key blocks as backward reads them, and the three sums of one block of rows against one block of keys:
 *   dV += P^T dO,   dK += dS^T Q,   dQ^T += K^T dS^T
 * dV and dK are column tiles [tile][key][ATTN_LANES].
 *
 * Where ATTN_HAVE_DOT2 (pairs.h) the sums of dV and dK go over pairs of rows, that of dQ over pairs of keys: for it K
 * and dS^T are interleaved by keys. Where hidden pairs meet NaN or inf, all three go pair by pair (panel_add_careful),
 * on floats: a block of pairs is widened first.
 *
 * A chunk of keys that is not too long is copied once, rows an odd number of cache lines apart; else key blocks are
 * read in place or converted one at a time. */
#ifndef ATTN_CPU_GRADIENT_PRODUCTS_H
#define ATTN_CPU_GRADIENT_PRODUCTS_H

#include "gradient_scores.h"

/* Elements of K and V that are copied at once: 4 MiB of floats, which the last cache has for each core. */
#define COPIED_CHUNK ((int64_t)1 << 20)

/* Room for the keys of one block, or of the chunk (`whole`). */
typedef struct gradient_room {
    bool whole;
    key_room floats;             /* K and V; NULL: read in place. Where ATTN_HAVE_DOT2 rows are words */
    float *k_pairs, *ds_pairs;   /* ATTN_HAVE_DOT2: [pair of keys][dim_qk]; of one block: [pair of keys][lanes] */
    float *k_rows;               /* likewise, of one block: [key][dim_qk] floats, for the careful path */
    float *q_tiles, *dout_tiles; /* likewise */
} gradient_room;

typedef struct gradient_keys {
    key_block rows;
    const float *k_pairs;
} gradient_keys;

/* The most keys that have a place in a chunk: each segment's begin at an even one. */
static inline int64_t chunk_places(const attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    return attn__chunk_keys(&plan->choice, p->tokens_kv) + (p->rows_kv == ATTN_SEGMENTS ? p->segments_kv : 0);
}

static gradient_room gradient_room_take(char *base, size_t *used, const attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    gradient_room room = {.whole = chunk_places(plan) * (p->dim_qk + p->dim_v) <= COPIED_CHUNK};
    const int64_t keys = room.whole ? chunk_places(plan) : plan->choice.block_kv;
#if ATTN_HAVE_DOT2
    const int64_t block = plan->choice.block_kv;
    if (room.whole || !pairs_in_place(&p->k, p->dim_qk)) {
        room.floats.k = scratch_take(base, used, (size_t)(keys * pairs_of(p->dim_qk)) * sizeof(float));
    }
    if (room.whole || !pairs_in_place(&p->v, p->dim_v)) {
        room.floats.v = scratch_take(base, used, (size_t)(keys * pairs_of(p->dim_v)) * sizeof(float));
    }
    room.k_pairs = scratch_take(base, used, (size_t)(pairs_of(keys) * p->dim_qk) * sizeof(float));
    room.ds_pairs = scratch_take(base, used, (size_t)(pairs_of(block) * ATTN__BLOCK) * sizeof(float));
    room.k_rows = scratch_take(base, used, (size_t)(block * p->dim_qk) * sizeof(float));
    room.q_tiles = scratch_take(base, used, (size_t)tile_floats(p->dim_qk) * sizeof(float));
    room.dout_tiles = scratch_take(base, used, (size_t)tile_floats(p->dim_v) * sizeof(float));
#else
    room.floats = key_room_take(base, used, p, keys, room.whole, room.whole);
#endif
    return room;
}

/* The room from place `place` of the chunk on; even. */
static gradient_room gradient_room_at(gradient_room room, const attn_problem *p, int64_t place) {
    room.floats.k += place * (ATTN_HAVE_DOT2 ? (p->dim_qk + 1) / 2 : room_step(p->dim_qk));
    room.floats.v += place * (ATTN_HAVE_DOT2 ? (p->dim_v + 1) / 2 : room_step(p->dim_v));
    room.k_pairs = ATTN_HAVE_DOT2 ? room.k_pairs + place / 2 * p->dim_qk : NULL;
    return room;
}

#if ATTN_HAVE_DOT2
/* Rows of words, in place or in their room. */
static const float *gradient_words_load(const attn_layout *layout, const uint16_t *from, int64_t count, int64_t dim,
                                        float *copy, int64_t *step) {
    if (!copy) {
        *step = layout->stride[2] / 2;
        return (const float *)(const void *)from;
    }
    pairs_copy_rows(from, layout->stride[2], layout->stride[3], count, dim, copy);
    *step = pairs_of(dim);
    return copy;
}
#endif

/* Rows [row, row + count) of a segment; count 0: they are in the room already. */
static gradient_keys gradient_keys_load(const attn_problem *p, const attn_args *args, const gradient_room *room,
                                        int64_t sequence, int64_t head_kv, int64_t row, int64_t count) {
    gradient_keys keys = {{NULL, NULL, 0, 0}, NULL};
#if ATTN_HAVE_DOT2
    const uint16_t *k = (const uint16_t *)args->k + attn__row_offset(&p->k, sequence, head_kv, row);
    const uint16_t *v = (const uint16_t *)args->v + attn__row_offset(&p->v, sequence, head_kv, row);
    keys.rows.k = gradient_words_load(&p->k, k, count, p->dim_qk, room->floats.k, &keys.rows.k_row);
    keys.rows.v = gradient_words_load(&p->v, v, count, p->dim_v, room->floats.v, &keys.rows.v_row);
    pairs_interleave_rows(k, p->k.stride[2], p->k.stride[3], count, p->dim_qk, room->k_pairs);
    keys.k_pairs = room->k_pairs;
#else
    keys.rows = key_block_load(p, args, &room->floats, sequence, head_kv, row, count);
#endif
    return keys;
}

/* The block's keys from number `skip` on, an even one where they are pairs. */
static gradient_keys gradient_keys_cut(gradient_keys keys, int64_t skip, int64_t dim_qk) {
    keys.rows.k += skip * keys.rows.k_row;
    keys.rows.v += skip * keys.rows.v_row;
    keys.k_pairs = ATTN_HAVE_DOT2 ? keys.k_pairs + skip / 2 * dim_qk : NULL;
    return keys;
}

/* Are all elements of these keys numbers? */
static bool gradient_keys_finite(const gradient_keys *keys, int count, int64_t dim_qk) {
#if ATTN_HAVE_DOT2
    return pairs_finite(keys->k_pairs, pairs_of(count) * dim_qk);
#else
    return rows_finite(keys->rows.k, keys->rows.k_row, count, dim_qk);
#endif
}

static void product_add(bool careful, int64_t rows, attn__operands o, float *c, const float *ones, seen_pairs seen) {
    if (careful) {
        panel_add_careful(rows, o, c, ATTN_LANES, ones, seen);
    } else {
        panel_add(rows, o, c, ATTN_LANES, ones);
    }
}

/* dK or dV of `count` keys from the scores' rows b and the block's tiles; c: column tiles, c_tile floats apart. */
static void product_keys(bool careful, const float *b, const float *tiles, const attn__lanes *lanes, int64_t dim,
                         int count, float *c, int64_t c_tile, const float *ones, const float *seen) {
    const int64_t share = ATTN_HAVE_DOT2 && !careful ? 2 : 1;
    for (int64_t tile = 0; tile < tile_count(dim); tile++) {
        attn__operands o = {b,          SCORE_ROW / share,
                            1,          tiles + tile * (ATTN__BLOCK / share) * ATTN_LANES,
                            ATTN_LANES, (lanes->count + share - 1) / share};
        product_add(careful, count, o, c + tile * c_tile, ones, (seen_pairs){seen, SCORE_ROW, 1, 0});
    }
}

/* dQ^T of the block. */
static void product_rows(bool careful, const gradient_keys *keys, const gradient_scores *g, const gradient_room *room,
                         gradient_rows *block, int64_t dim_qk, int count, const float *ones) {
    const int64_t lanes = (int64_t)block->groups * ATTN_LANES;
    attn__operands o = {keys->rows.k, 1, keys->rows.k_row, g->ds, SCORE_ROW, count};
#if ATTN_HAVE_DOT2
    if (!careful) {
        pairs_interleave_rows((const uint16_t *)(const void *)g->ds, SCORE_ROW, 1, count, lanes, room->ds_pairs);
        o = (attn__operands){keys->k_pairs, 1, dim_qk, room->ds_pairs, lanes, pairs_of(count)};
    }
#endif
    (void)room;
    for (int64_t lane = 0; lane < lanes; lane += ATTN_LANES) {
        attn__operands of_group = o;
        of_group.x += lane;
        product_add(careful, dim_qk, of_group, block->dq + lane * dim_qk, ones,
                    (seen_pairs){g->seen + lane, 0, SCORE_ROW, 1});
    }
}

#endif
