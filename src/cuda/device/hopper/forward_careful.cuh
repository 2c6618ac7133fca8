/* SPDX-License-Identifier: Apache-2.0
 * Rows once more, key by key in float32 on the plain units: those whose outputs are not finite (0 times a hidden key's
 * NaN would reach them), and those whose scores pass FUSED_LIMIT. Hidden keys are left out; a visible value that is not
 * finite stays so, however small its weight. Slow and rare. Registers come out as the fast path leaves them. */
#pragma once
#include "hopper/forward_store.cuh"

/* A score before w.factor, to all four lanes of a row: each sums a quarter of the columns. */
INLINE float careful_score(const attn__params &p, int64_t query, int64_t key, int quarter) {
    float s = 0.0f;
#pragma unroll 1
    for (int c = quarter; c < DIM_QK; c += 4) {
        s = fmaf(load_element<DTYPE>(p.q.data, query + c), load_element<DTYPE>(p.k.data, key + c), s);
    }
    s = quad_sum(s);
    return HAS_SOFTCAP ? tanh_exact(s * p.scale / p.softcap) : s;
}

typedef struct careful_row {
    row_band band;
    int64_t query; /* element of q */
    int half;
    bool wanted;
    float reference, sum;
} careful_row;

/* One pass over the keys that some row of the tile may see: the largest score, or (adding) the sums. */
template <bool adding>
INLINE void careful_pass(const attn__params &p, const forward_tile &tile, const forward_place &at, forward_rows &w,
                         careful_row &row) {
    const int length = side_length<ROWS_KV, USED_KV>(p.side_kv, tile.sequence), head = tile.kv_head;
    const int rows = tile.rows < POSITIONS ? tile.rows : POSITIONS, quarter = at.lane & 3;
    int run, runs;
    side_range<ROWS_KV>(p.side_kv, tile.sequence, &run, &runs);
#pragma unroll 1
    for (; run < runs; run++) {
        const rows_run keys = side_run<ROWS_KV, USED_KV>(p.side_kv, run);
        int begin = (int)keys.position, end = begin + keys.rows;
        band_span(p, tile.low, tile.low + rows - 1, length, &begin, &end);
#pragma unroll 1
        for (int j = begin; j < end; j++) {
            const int64_t key = keys.first + j - keys.position;
            const float x = careful_score(p, row.query, row_offset(p.k, tile.sequence, head, key), quarter);
            if (!row.wanted || !band_sees(p, row.band, j)) {
                continue;
            }
            if (!adding) {
                row.reference = fmaxf(row.reference, x);
                continue;
            }
            const float weight = exp2_fast(__fmul_rn(__fsub_rn(x, row.reference), w.factor));
            const int64_t value = row_offset(p.v, tile.sequence, head, key);
            row.sum += quarter == 0 ? weight : 0.0f;
#pragma unroll
            for (int n = 0; n < SUMS; n++) {
                const int column = n / 4 * 8 + 2 * quarter + (n & 1);
                if ((n / 2 & 1) == row.half && column < DIM_V) {
                    const float v = load_element<DTYPE>(p.v.data, value + column);
                    w.o[n] += is_finite(v) ? weight * v : v;
                }
            }
        }
    }
}

template <int half>
INLINE void careful_half(const attn__params &p, const forward_tile &tile, const forward_place &at, forward_rows &w,
                         bool wanted, float &reference, float &sum) {
    const int r = at.row + 8 * half;
    careful_row row;
    row.half = half;
    row.wanted = wanted;
    row.band = band_of_row(p, tile.low + r, side_length<ROWS_KV, USED_KV>(p.side_kv, tile.sequence));
    row.query = row_offset(p.q, tile.sequence, tile.head + at.head, tile.row + (wanted ? r : 0));
    row.reference = -INFINITY_F;
    row.sum = 0.0f;
    if (wanted) {
#pragma unroll
        for (int n = 0; n < SUMS; n++) {
            w.o[n] = (n / 2 & 1) == half ? 0.0f : w.o[n];
        }
    }
    careful_pass<false>(p, tile, at, w, row);
    row.reference = row.reference == -INFINITY_F ? NO_REFERENCE : row.reference;
    careful_pass<true>(p, tile, at, w, row);
    if (wanted) {
        reference = row.reference == NO_REFERENCE ? NO_REFERENCE : row.reference * w.factor;
    }
    sum = wanted ? row.sum : sum;
}

typedef struct odd_rows {
    bool again[2], any; /* this thread's rows; some row of the warp */
} odd_rows;

/* Which rows need it. */
INLINE odd_rows find_odd_rows(const forward_tile &tile, const forward_place &at, const output_test &test,
                              const float (&reference)[2], const float (&sum)[2]) {
    odd_rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool sound = test.zero[half] == 0 && is_finite(sum[half]) && fabsf(reference[half]) < FUSED_LIMIT;
        const unsigned odd = __ballot_sync(0xffffffffu, !sound && at.row + 8 * half < tile.rows);
        rows.again[half] = (odd >> (at.lane & 28) & 15) != 0;
    }
    rows.any = __any_sync(0xffffffffu, rows.again[0] || rows.again[1]);
    return rows;
}

INLINE void redo_rows(const attn__params &p, const forward_tile &tile, const forward_place &at, forward_rows &w,
                      const odd_rows &rows, float (&reference)[2], float (&sum)[2]) {
    careful_half<0>(p, tile, at, w, rows.again[0], reference[0], sum[0]);
    careful_half<1>(p, tile, at, w, rows.again[1], reference[1], sum[1]);
}
