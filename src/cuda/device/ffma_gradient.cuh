/* SPDX-License-Identifier: Apache-2.0
 * One tile of backward, queries against keys: from raw products <q, k> and <dout, v> to
 *     P    = exp(s - lse), with dropout P keep (its 1 / (1 - rate) is applied when sums are stored)
 *     dS   = P (keep <dout, v> / (1 - rate) - delta + dlse)
 *     dX   = dS * slope of the soft cap                         gradient at scale * <q, k>
 * as weights for tile_mix, hidden pairs marked. Where a score is nothing but scale * <q, k>, lse is subtracted in one
 * fused step before the exponential: large scores lose nothing.
 *
 * Constant: OUTER_QUERIES, 1: outer rows are queries; 0: keys. */
#pragma once
#include "ffma_walk.cuh"
#include "keep.cuh"
#include "score.cuh"

#define QUERIES (OUTER_QUERIES ? OUTER : INNER)
#define KEYS    (OUTER_QUERIES ? INNER : OUTER)

typedef struct gradient_tile {
    int s, head, length;
    int64_t i, j, shift;   /* positions of the first query and key; i' - i */
    int64_t row_q, row_kv; /* rows of the buffers that those are in */
    int i_begin, i_end;    /* queries and keys of the tile that count */
    int j_begin, j_end;
    bool full;               /* every pair is visible */
    float lse[QUERIES];      /* +inf in place of -inf: such a row has no weight */
    float shift_of[QUERIES]; /* delta - dlse */
} gradient_tile;

/* By all threads: the statistics of the tile's queries. */
INLINE void load_statistics(const attn__params &p, gradient_tile &tile) {
    const int n = threadIdx.x;
    const int64_t row = tile.row_q;
    if (n < QUERIES) {
        float lse = INFINITY_F, shift = 0.0f;
        if (n >= tile.i_begin && n < tile.i_end) {
            lse = ((const float *)p.lse.data)[row_offset(p.lse, tile.s, tile.head, row + n)];
            lse = lse == -INFINITY_F ? INFINITY_F : lse;
            if (p.delta.data) {
                shift = ((const float *)p.delta.data)[row_offset(p.delta, tile.s, tile.head, row + n)];
            }
            if (p.dlse.data) {
                shift -= ((const float *)p.dlse.data)[row_offset(p.dlse, tile.s, tile.head, row + n)];
            }
        }
        tile.lse[n] = lse;
        tile.shift_of[n] = shift;
    }
}

/* The tile's rows in the inputs, worked out where they are needed: registers are for sums. */
INLINE tile_rows query_rows(const gradient_tile &tile, const attn__tensor_ref &t, bool aligned) {
    return tile_rows_of(t, tile.s, tile.head, tile.row_q, tile.i_begin, tile.i_end, aligned);
}
INLINE tile_rows key_rows(const attn__params &p, const gradient_tile &tile, const attn__tensor_ref &t, bool aligned) {
    return tile_rows_of(t, tile.s, tile.head / p.group, tile.row_kv, tile.j_begin, tile.j_end, aligned);
}

/* Raw products <q, k> into weights. */
INLINE void put_scores(const attn__params &p, const gradient_tile &tile, tile_memory &memory) {
    const tile_rows q = query_rows(tile, p.q, p.aligned & ATTN__ALIGNED_Q);
    const tile_rows k = key_rows(p, tile, p.k, p.aligned & ATTN__ALIGNED_K);
    float t[ROWS][OWN];
    tile_clear(t);
    tile_dot<DTYPE, DTYPE, DIM_QK>(t, OUTER_QUERIES ? q : k, OUTER_QUERIES ? k : q, memory);
    tile_put(memory.weights, t);
}

/* <dout, v> into the memory of the chunks. */
INLINE float *put_products(const attn__params &p, const gradient_tile &tile, tile_memory &memory) {
    const tile_rows dout = query_rows(tile, p.dout, p.aligned & ATTN__ALIGNED_DOUT);
    const tile_rows v = key_rows(p, tile, p.v, p.aligned & ATTN__ALIGNED_V);
    float t[ROWS][OWN];
    tile_clear(t);
    if (OUTER_QUERIES) {
        tile_dot<DOUT_DTYPE, DTYPE, DIM_V>(t, dout, v, memory);
    } else {
        tile_dot<DTYPE, DOUT_DTYPE, DIM_V>(t, v, dout, memory);
    }
    __syncthreads(); /* the chunks' last readers are done */
    tile_put(memory.chunk[0], t);
    return memory.chunk[0];
}

INLINE uint32_t keep_of(const attn__params &p, const gradient_tile &tile) {
    return OUTER_QUERIES ? keep_queries(p, dropout_key(p), tile.i, tile.j, tile.head, tile.s)
                         : keep_keys(p, dropout_key(p), tile.i, tile.j, tile.head, tile.s);
}

/* A visible pair's value: never the mark of a hidden one. */
INLINE float visible(float x) {
    return x + 0.0f;
}

INLINE float plain_probability(const attn__params &p, float raw, float lse) {
    return exp2_fast(LOG2E * fmaf(raw, p.scale, -lse));
}

/* What becomes of a pair: from its probability, the product <dout, v> (dS, dX), its place r * OWN + n. */
INLINE float dropped(float probability, uint32_t keep, int place) {
    return !HAS_DROPOUT || (keep >> place & 1u) ? probability : 0.0f;
}
INLINE float score_gradient(const attn__params &p, float probability, float product, float shift, uint32_t keep,
                            int place) {
    float kept = product;
    if (HAS_DROPOUT) {
        kept = product * (keep >> place & 1u ? p.keep_scale : 0.0f); /* 0 * inf: NaN */
    }
    return probability * (kept - shift);
}

/* What tile_weights makes of the raw products <q, k> in `weights`. */
#define WEIGHT_P  0 /* P keep */
#define WEIGHT_DX 1 /* dX, from <dout, v> in `products` */
#define WEIGHT_DS 2 /* dS, likewise */

/* One pair whose visibility is yet to be seen. */
template <int what>
INLINE float pair_weight(const attn__params &p, const gradient_tile &tile, const row_band &band, const score_row &row,
                         int i, int j, float raw, float product, uint32_t keep, int place) {
    const int64_t at = tile.j + j;
    if (i < tile.i_begin || i >= tile.i_end || j < tile.j_begin || j >= tile.j_end || !band_sees(p, band, (int)at)) {
        return HIDDEN_WEIGHT;
    }
    float bent = 1.0f, probability;
    if (SCORE_PLAIN) {
        probability = plain_probability(p, raw, tile.lse[i]);
    } else {
        const float score = score_of(p, row, raw, (int)at, &bent);
        if (score == -INFINITY_F) {
            return HIDDEN_WEIGHT;
        }
        probability = exp2_fast((score - tile.lse[i]) * LOG2E);
    }
    if (what == WEIGHT_P) {
        return visible(dropped(probability, keep, place));
    }
    const float gradient = score_gradient(p, probability, product, tile.shift_of[i], keep, place);
    return visible(what == WEIGHT_DX ? gradient * bent : gradient);
}

/* Tiles that the band cuts, and scores of more than a scale: query by query. */
template <int what>
INLINE void tile_weights_by_pair(const attn__params &p, const gradient_tile &tile, float *weights, float *products,
                                 uint32_t keep) {
    constexpr int lines = OUTER_QUERIES ? ROWS : OWN, pairs = OUTER_QUERIES ? OWN : ROWS;
#pragma unroll 1
    for (int line = 0; line < lines; line++) {
        const int i = OUTER_QUERIES ? tile_y() * ROWS + line : tile_x() + 16 * line;
        const int64_t shifted = tile.i + i + tile.shift;
        const row_band band = band_of_row(p, shifted, tile.length);
        score_row row = {0.0f, 0, 0, 0};
        if (!SCORE_PLAIN) {
            row = score_row_of(p, tile.s, tile.head, tile.i + i, shifted);
        }
#pragma unroll 2
        for (int pair = 0; pair < pairs; pair++) {
            const int r = OUTER_QUERIES ? line : pair, n = OUTER_QUERIES ? pair : line;
            const int j = OUTER_QUERIES ? tile_x() + 16 * n : tile_y() * ROWS + r;
            float *place = tile_place(weights, r, n);
            const float product = what == WEIGHT_P ? 0.0f : *tile_place(products, r, n);
            *place = pair_weight<what>(p, tile, band, row, i, j, *place, product, keep, r * OWN + n);
        }
    }
}

template <int what>
INLINE void tile_weights(const attn__params &p, const gradient_tile &tile, float *weights, float *products) {
    uint32_t keep = 0;
    if (HAS_DROPOUT) {
        keep = keep_of(p, tile);
    }
    const bool by_pair = !SCORE_PLAIN || !tile.full;
    if (by_pair) {
        tile_weights_by_pair<what>(p, tile, weights, products, keep);
    }
#pragma unroll 1
    for (int group = by_pair ? ROWS : 0; group < ROWS; group += 4) {
        float x[OWN][4], y[OWN][4];
        group_get(weights, group, x);
        if (what != WEIGHT_P) {
            group_get(products, group, y);
        }
#pragma unroll
        for (int n = 0; n < OWN; n++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int i = OUTER_QUERIES ? tile_y() * ROWS + group + r : tile_x() + 16 * n;
                const int place = (group + r) * OWN + n;
                const float probability = plain_probability(p, x[n][r], tile.lse[i]);
                x[n][r] = what == WEIGHT_P
                              ? dropped(probability, keep, place)
                              : visible(score_gradient(p, probability, y[n][r], tile.shift_of[i], keep, place));
            }
        }
        group_put(weights, group, x);
    }
}

/* From P in `weights`, without dropout and soft cap, to dX. */
INLINE void tile_gradients_of(const gradient_tile &tile, float *weights, float *products) {
#pragma unroll 1
    for (int group = 0; group < ROWS; group += 4) {
        float x[OWN][4], y[OWN][4];
        group_get(weights, group, x);
        group_get(products, group, y);
#pragma unroll
        for (int n = 0; n < OWN; n++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const int i = OUTER_QUERIES ? tile_y() * ROWS + group + r : tile_x() + 16 * n;
                if (__float_as_uint(x[n][r]) != 0x80000000u) {
                    x[n][r] = visible(x[n][r] * (y[n][r] - tile.shift_of[i]));
                }
            }
        }
        group_put(weights, group, x);
    }
}
