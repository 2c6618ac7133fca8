/* SPDX-License-Identifier: Apache-2.0
 * Forward on the tensor cores: one block of threads takes TILE_Q query rows of one column (schedule.cuh) and walks the
 * key blocks that they see (keys.cuh). Each warp owns TILE_Q / WARPS rows: their scores, running reference, sum and
 * output stay in its registers; nothing is exchanged between warps.
 *
 * Shared memory: [queries TILE_Q][keys TILE_KV x STAGES][values TILE_KV x STAGES]and the tile_work.
 * With two stages and more the copies of coming blocks run beside the work on this one, a barrier a block; with one
 * stage the next keys are brought while the values are in use and the other way round.
 *
 * Constants beside those of the problem: TILE_Q, TILE_KV, STAGES, WARPS, BLOCKS (blocks of threads that share a
 * processor), PACK (query heads of one key head packed into the tile's rows), DIM_PART (columns of the values that one
 * tile takes), PARTS (tiles to a row's values), SPLIT (1: partial results for combine.cu), QUERIES_HELD (how many
 * steps of the queries stay in registers), LAZY (1: see below).
 *
 * Softmax. A row's reference need not be its maximum: it is raised only when a score passes it by more than 2^8, so
 * output and sum are rarely rescaled. LAZY: blocks that every row sees whole do not look for a maximum at all once
 * every row has a reference; a probability may then grow to the type's limit, and what passes it is found at the end.
 * That is 2^127 for bf16 and tf32. f16 has 2^16 only, so its references stand 2^8 above the maximum they are taken
 * from: 2^24, that is e^16 times the largest probability of the first keys; at the lower end the steps of 2^-24 are
 * still 2^-16 of the largest probability.
 *
 * Careful modes. A hidden key's NaN or infinity would pass through 0 * value. So, if a tile's result is not finite (or
 * a sum is out of range), the tile is computed again: 1, always with the maximum, and with values that are not finite
 * taken as 0; 2 and 3 count for each output how many visible values were +inf or NaN, -inf or NaN, and add that
 * infinity to what mode 1 stored. */
#include "barrier.cuh"
#include "copy.cuh"
#include "dropout.cuh"
#include "keys.cuh"
#include "schedule.cuh"
#include "score.cuh"
#include "softmax.cuh"

#define SIZE         ((int)sizeof(element_t<DTYPE>))
#define THREADS      (WARPS * 32)
#define TOKENS       (TILE_Q / PACK)
#define STRIPS       (TILE_Q / WARPS / 16) /* of 16 rows, a warp */
#define SCORES       (TILE_KV / 8)         /* sums of 8 keys */
#define OUTPUTS      ((DIM_PART + 7) / 8)  /* sums of 8 columns */
#define STEPS_QK     STEPS(DIM_QK, SIZE)
#define STEPS_PV     (TILE_KV * SIZE / STEP_BYTES)
#define KEYS_A_STEP  (STEP_BYTES / SIZE)
#define PITCH_QK     TILE_PITCH(DIM_QK, SIZE)
#define PITCH_V      TILE_PITCH(DIM_PART, SIZE)
#define BYTES_Q      (TILE_Q * PITCH_QK)
#define BYTES_K      (TILE_KV * PITCH_QK)
#define BYTES_V      (TILE_KV * PITCH_V)
#define FACTOR_PLAIN (p.scale * LOG2E)
#define RAISE        8.0f
#define HEADROOM     (DTYPE == F16 ? 8.0f : 0.0f) /* f16 ends at 2^16 */
#define SUM_LIMIT    1.0e30f
#define NO_REFERENCE (-3.0e38f) /* of a row that saw nothing yet: finite, so that -inf minus it stays -inf */

/* The tile, in shared memory: thread 0 finds it, all read it where they need it. */
/* Warps wait for data and for room in a stage, not for each other (where each block follows from its number). */
#define FREE_RUNNING (HAS_BARRIERS && !WALKED && STAGES > 1)
#define CAN_FEED_BLOCKS                                                                                                \
    (STAGES > 1 && CAN_FEED(DIM_QK, SIZE, TILE_KV, THREADS) && CAN_FEED(DIM_PART, SIZE, TILE_KV, THREADS))

typedef struct tile_work {
    key_view view;
    rows_run run;
    int first;    /* row of the run's slot that begins the tile */
    int rows;     /* tokens of the tile that count */
    int column;   /* its heads are column * PACK ... */
    int column_v; /* first column of the values */
    bool exists;
    const void *keys, *values; /* row 0 of the buffers (segments), of the run (else) */
    int mode;
    key_walk walk;
    uint64_t landed_keys[STAGES], landed_values[STAGES], free[STAGES]; /* barriers */
} tile_work;

typedef struct warp_rows {
    float o[STRIPS][OUTPUTS][4];
    float reference[STRIPS][2], sum[STRIPS][2];
    bool settled; /* every row has a reference */
    bool far;     /* some reference is past FUSED_LIMIT */
} warp_rows;

typedef float score_tile[STRIPS][SCORES][4];
typedef uint32_t held_queries[STRIPS][QUERIES_HELD ? QUERIES_HELD : 1][4];

/* Row of the tile of a lane's elements [2 half], [2 half + 1] in a strip. */
INLINE int row_of(int strip, int half, int thread = (int)threadIdx.x) {
    return (thread >> 5) * (STRIPS * 16) + strip * 16 + half * 8 + (thread % 32 >> 2);
}
INLINE int head_of(const tile_work &tile, int row) {
    return tile.column * PACK + row % PACK;
}

INLINE void find_tile(const attn__params &p, int64_t index, tile_work &tile) {
    const int splits = SPLIT ? p.splits : 1;
    tile_place place =
        place_tile(p, index, p.heads_q / PACK, p.group / PACK, splits * PARTS, TOKENS, (DIM_QK + DIM_V) * SIZE);
    tile.exists = place.exists && place.first < place.run.slot;
    if (!tile.exists) {
        return;
    }
    int left = place.run.rows - place.first, s = place.run.sequence, head = place.column * PACK / p.group;
    tile.run = place.run;
    tile.first = place.first;
    tile.rows = left < 0 ? 0 : left < TOKENS ? left : TOKENS;
    tile.column = place.column;
    tile.column_v = place.inner % PARTS ? DIM_V - DIM_PART : 0;
    tile.view =
        view_keys(p, s, place.run.position + place.first + row_shift(p, s), tile.rows, place.inner / PARTS, splits);
    int64_t row = ROWS_KV == PACKED ? p.side_kv.cu[s] : 0;
    tile.keys = (const element_t<DTYPE> *)p.k.data + row_offset(p.k, s, head, row);
    tile.values = (const element_t<DTYPE> *)p.v.data + row_offset(p.v, s, head, row) + tile.column_v * p.v.stride[3];
}

INLINE void copy_queries(const attn__params &p, const tile_work &tile, uint32_t to) {
    const int64_t row = tile.run.first + tile.first;
    bool aligned = p.aligned & ATTN__ALIGNED_Q;
    if constexpr (PACK == 1) {
        copy_rows<DTYPE, DIM_QK, TILE_Q, THREADS>(to, p.q.data, row_offset(p.q, tile.run.sequence, tile.column, row),
                                                  p.q.stride[2], p.q.stride[3], tile.rows, aligned);
    } else {
#pragma unroll 1
        for (int unit = (int)threadIdx.x; unit < TILE_Q * STEPS_QK * 2; unit += THREADS) {
            int line = unit / (STEPS_QK * 2), first = unit % (STEPS_QK * 2) * (16 / SIZE), token = line / PACK;
            int count = token < tile.rows ? DIM_QK - first : 0;
            count = count < 0 ? 0 : count < 16 / SIZE ? count : 16 / SIZE;
            const element_t<DTYPE> *from = (const element_t<DTYPE> *)p.q.data;
            if (count > 0) {
                from += row_offset(p.q, tile.run.sequence, head_of(tile, line), row + token) + first * p.q.stride[3];
            }
            uint32_t at = to + line * PITCH_QK + first * SIZE;
            if (aligned && count > 0) {
                copy_whole_16(at, from);
            } else {
                store_shared_16(at, gather_16<DTYPE>(from, p.q.stride[3], count));
            }
        }
    }
}

INLINE void copy_keys(const attn__params &p, const tile_work &tile, const key_block &block, uint32_t to) {
    copy_rows<DTYPE, DIM_QK, TILE_KV, THREADS>(to, tile.keys, block.row * p.k.stride[2], p.k.stride[2], p.k.stride[3],
                                               block.count, p.aligned & ATTN__ALIGNED_K);
}
INLINE void copy_values(const attn__params &p, const tile_work &tile, const key_block &block, uint32_t to) {
    bool aligned = (p.aligned & ATTN__ALIGNED_V) && (DIM_V - DIM_PART) * SIZE % 16 == 0;
    copy_rows<DTYPE, DIM_PART, TILE_KV, THREADS>(to, tile.values, block.row * p.v.stride[2], p.v.stride[2],
                                                 p.v.stride[3], block.count, aligned);
}

/* Careful modes: values that are not finite become 0 (mode 1); else the count of what the mode looks for. */
INLINE void patch_values(uint32_t values, int mode) {
    typedef element_t<DTYPE> element;
    const uint32_t infinity = DTYPE == F32 ? 0x7f800000u : DTYPE == BF16 ? 0x7f80u : 0x7c00u;
    const uint32_t sign = DTYPE == F32 ? 0x80000000u : 0x8000u;
    const uint32_t one = DTYPE == F32 ? 0x3f800000u : DTYPE == BF16 ? 0x3f80u : 0x3c00u;
#pragma unroll 1
    for (int at = (int)threadIdx.x; at < BYTES_V / SIZE; at += THREADS) {
        uint32_t address = values + at * SIZE, x;
        if (SIZE == 4) {
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address));
        } else {
            asm volatile("{.reg .b16 y; ld.shared.b16 y, [%1]; cvt.u32.u16 %0, y;}" : "=r"(x) : "r"(address));
        }
        bool odd = (x & infinity) == infinity, nan = odd && (x & ~sign & ~infinity & (sign - 1));
        if (mode == 1) {
            x = odd ? 0 : x;
        } else {
            x = nan || x == (infinity | (mode == 3 ? sign : 0u)) ? one : 0;
        }
        if (SIZE == 4) {
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
        } else {
            asm volatile("{.reg .b16 y; cvt.u16.u32 y, %1; st.shared.b16 [%0], y;}" ::"r"(address), "r"(x) : "memory");
        }
    }
}

/* s = queries * keys. */
INLINE void multiply_keys(score_tile &s, const held_queries &held, uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int step = 0; step < STEPS_QK; step++) {
        uint32_t a[STRIPS][4];
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
            if (step < QUERIES_HELD) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    a[strip][n] = held[strip][step < QUERIES_HELD ? step : 0][n];
                }
            } else {
                load_a<DTYPE>(a[strip], queries + strip * 16 * PITCH_QK + step * STEP_BYTES);
            }
        }
#pragma unroll
        for (int pair = 0; pair < SCORES / 2; pair++) {
            uint32_t b[4];
            load_b<DTYPE>(b, keys + pair * 16 * PITCH_QK + step * STEP_BYTES);
#pragma unroll
            for (int strip = 0; strip < STRIPS; strip++) {
                if (step == 0) {
                    mma_set<DTYPE>(s[strip][2 * pair], a[strip], b[0], b[1]);
                    mma_set<DTYPE>(s[strip][2 * pair + 1], a[strip], b[2], b[3]);
                } else {
                    mma_add<DTYPE>(s[strip][2 * pair], a[strip], b[0], b[1]);
                    mma_add<DTYPE>(s[strip][2 * pair + 1], a[strip], b[2], b[3]);
                }
            }
        }
    }
}

/* Hides what the band and the lengths hide, and turns products into scores where they are more than that. */
template <bool boundary>
INLINE void hide_and_score(const attn__params &p, const tile_work &tile, const key_block &block, score_tile &s) {
    const rows_run &run = tile.run;
    const int thread = thread_index_again();
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row_of(strip, half, thread), token = row / PACK;
            if (!SCORE_PLAIN && token >= tile.rows) {
                token = tile.rows - 1; /* rows past the end read what the last one reads */
            }
            row_keys seen_keys = keys_of_row(p, tile.view, block, token, thread % 4 * 2);
            score_row score = {};
            if (!SCORE_PLAIN) {
                score = score_row_of(p, run.sequence, head_of(tile, row), run.position + tile.first + token,
                                     tile.view.low + token);
            }
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &x = s[strip][n][2 * half + c];
                    bool seen = !boundary || keys_show(seen_keys, n * 8 + c);
                    if (SCORE_PLAIN) {
                        x = seen ? x : -INFINITY_F;
                    } else {
                        int j = block.position + n * 8 + thread % 4 * 2 + c;
                        x = seen ? score_of(p, score, x, j, 0) : -INFINITY_F;
                    }
                }
            }
        }
    }
}

/* Raises references that the block passes too far, and rescales what was summed against the old ones. */
INLINE void raise_references(warp_rows &w, const score_tile &s, float factor) {
    float top[STRIPS][2];
    bool raise = false;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float x = fmaxf(s[strip][0][2 * half], s[strip][0][2 * half + 1]);
#pragma unroll
            for (int n = 1; n < SCORES; n++) {
                x = fmaxf(x, fmaxf(s[strip][n][2 * half], s[strip][n][2 * half + 1]));
            }
            top[strip][half] = quad_max(x) * factor + HEADROOM;
            raise = raise || top[strip][half] > w.reference[strip][half] + RAISE;
        }
    }
    if (!__any_sync(0xffffffffu, raise)) {
        return;
    }
    bool settled = true, far = false;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float before = w.reference[strip][half], now = fmaxf(before, top[strip][half]);
            float scale = now == before ? 1.0f : exp2_fast(before - now); /* equal infinities too */
            w.reference[strip][half] = now;
            w.sum[strip][half] *= scale;
#pragma unroll
            for (int n = 0; n < OUTPUTS; n++) {
                w.o[strip][n][2 * half] *= scale;
                w.o[strip][n][2 * half + 1] *= scale;
            }
            settled = settled && now != NO_REFERENCE;
            far = far || (now != NO_REFERENCE && fabsf(now) >= FUSED_LIMIT);
        }
    }
    w.settled = __all_sync(0xffffffffu, settled);
    w.far = __any_sync(0xffffffffu, far);
}

/* Scores [first, last) of step `step`, counted through strips, sums and elements, become probabilities. */
INLINE void exponentiate(warp_rows &w, score_tile &s, const float (&minus)[STRIPS][2], float factor, int step,
                         int first, int last) {
    const int sums = SUMS_A_STEP(DTYPE);
#pragma unroll
    for (int n = 0; n < STRIPS * sums * 4; n++) {
        if (n >= first && n < last) {
            int strip = n / (sums * 4), half = n % 4 / 2;
            float &x = s[strip][step * sums + n / 4 % sums][n % 4];
            x = exp2_fast(fmaf(x, factor, minus[strip][half]));
            w.sum[strip][half] += x;
        }
    }
}

/* Drops probabilities; the kept ones are scaled at the end. */
INLINE void drop(const attn__params &p, const tile_work &tile, const key_block &block, score_tile &s) {
    attn__dropout_key key = dropout_key(p);
    const rows_run &run = tile.run;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row_of(strip, half), head = head_of(tile, row);
            int64_t i = run.position + tile.first + row / PACK;
#pragma unroll
            for (int n = 0; n < SCORES; n++) {
                int j = block.position + n * 8 + lane_index() % 4 * 2;
                attn__u32x4 words = dropout_words(p, key, j >> 2, i, head, run.sequence);
                uint32_t left =
                    j & 2 ? (j & 1 ? words.word[3] : words.word[2]) : (j & 1 ? words.word[1] : words.word[0]);
                uint32_t right = j & 2 ? words.word[3] : (j & 1 ? words.word[2] : words.word[1]);
                if (ROWS_KV == SEGMENTS && (j & 3) == 3) { /* an odd first position: the pair spans two groups */
                    right = dropout_words(p, key, (j + 1) >> 2, i, head, run.sequence).word[0];
                }
                s[strip][n][2 * half] = left >= key.threshold ? s[strip][n][2 * half] : 0.0f;
                s[strip][n][2 * half + 1] = right >= key.threshold ? s[strip][n][2 * half + 1] : 0.0f;
            }
        }
    }
}

/* What is brought while the values are multiplied: the next block's keys and values. */
typedef struct block_feed {
    bool on;
    key_block block;
    uint32_t keys, values, landed; /* stage; barrier for the keys */
} block_feed;

/* Unit `slot` of `slots`: keys in the first half, values in the second. */
INLINE void feed_slot(const attn__params &p, const tile_work &tile, const block_feed &next, row_feed &feed, int slot,
                      int slots) {
    if constexpr (CAN_FEED_BLOCKS) {
        const int half = slots / 2, units_k = FEED_UNITS(DIM_QK, SIZE, TILE_KV, THREADS),
                  units_v = FEED_UNITS(DIM_PART, SIZE, TILE_KV, THREADS);
        if (slot == 0) {
            feed =
                feed_rows<DTYPE, DIM_QK, THREADS>(next.keys, tile.keys, next.block.row * p.k.stride[2], p.k.stride[2]);
        }
        if (slot == half) {
            if (FREE_RUNNING && next.on) {
                barrier_arrive_copies(next.landed);
            }
            feed = feed_rows<DTYPE, DIM_PART, THREADS>(next.values, tile.values, next.block.row * p.v.stride[2],
                                                       p.v.stride[2]);
        }
#pragma unroll
        for (int n = 0; n < units_k; n++) {
            if (n * half / units_k == slot) {
                feed_unit<DTYPE, DIM_QK, THREADS>(feed, p.k.stride[2], n, next.on);
            }
        }
#pragma unroll
        for (int n = 0; n < units_v; n++) {
            if (half + n * half / units_v == slot) {
                feed_unit<DTYPE, DIM_PART, THREADS>(feed, p.v.stride[2], n, next.on);
            }
        }
    }
}

/* o += probabilities * values. The probabilities of the next step are made between the products of this one, and the
 * copies of the next block are spread over all of them: in one piece they would stand before the warps' own reads. */
INLINE void multiply_values(const attn__params &p, const tile_work &tile, const block_feed &next, warp_rows &w,
                            score_tile &s, const float (&minus)[STRIPS][2], float factor, bool made, uint32_t values) {
    const int sums = SUMS_A_STEP(DTYPE), elements = STRIPS * sums * 4, pairs = (OUTPUTS + 1) / 2;
    row_feed feed = {};
    if (!made) {
        exponentiate(w, s, minus, factor, 0, 0, elements);
    }
#pragma unroll
    for (int step = 0; step < STEPS_PV; step++) {
        uint32_t a[STRIPS][4];
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
            sum_as_a<DTYPE>(a[strip], s[strip][step * sums], s[strip][step * sums + sums - 1]);
        }
#pragma unroll
        for (int pair = 0; pair < pairs; pair++) {
            uint32_t b[4];
            load_b_columns<DTYPE>(b, values + step * KEYS_A_STEP * PITCH_V + pair * 16 * SIZE, PITCH_V);
            if (STAGES > 1) {
                feed_slot(p, tile, next, feed, step * pairs + pair, STEPS_PV * pairs);
            }
            if (!made && step + 1 < STEPS_PV) {
                exponentiate(w, s, minus, factor, step + 1, pair * elements / pairs, (pair + 1) * elements / pairs);
            }
#pragma unroll
            for (int strip = 0; strip < STRIPS; strip++) {
                mma_add<DTYPE>(w.o[strip][2 * pair], a[strip], b[0], b[1]);
                if (2 * pair + 1 < OUTPUTS) {
                    mma_add<DTYPE>(w.o[strip][2 * pair + 1], a[strip], b[2], b[3]);
                }
            }
        }
    }
}

/* Everything between the two products that needs the whole block's scores. */
INLINE void settle_scores(const attn__params &p, const tile_work &tile, const key_block &block, warp_rows &w,
                          score_tile &s, float (&minus)[STRIPS][2], float &factor) {
    const int mode = tile.mode;
    bool boundary = !block.whole;
    if (boundary) {
        hide_and_score<true>(p, tile, block, s);
    } else if (!SCORE_PLAIN) {
        hide_and_score<false>(p, tile, block, s);
    }
    if (mode >= 2) {
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
            for (int n = 0; n < SCORES * 4; n++) {
                float &x = s[strip][n / 4][n % 4];
                x = x == -INFINITY_F ? x : 0.0f;
            }
        }
    }
    factor = SCORE_PLAIN ? FACTOR_PLAIN : 1.0f;
    if (!LAZY || boundary || mode || HAS_MASK || BIAS_DTYPE || !w.settled) {
        raise_references(w, s, factor);
    }
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
        minus[strip][0] = -w.reference[strip][0];
        minus[strip][1] = -w.reference[strip][1];
    }
    if (SCORE_PLAIN && w.far) { /* softmax.cuh: past FUSED_LIMIT multiply first, subtract then */
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
            for (int n = 0; n < SCORES * 4; n++) {
                float &x = s[strip][n / 4][n % 4];
                x = __fadd_rn(__fmul_rn(x, factor), minus[strip][n % 4 / 2]);
            }
            minus[strip][0] = minus[strip][1] = 0.0f;
        }
        factor = 1.0f;
    }
    if (HAS_DROPOUT) {
#pragma unroll
        for (int step = 0; step < STEPS_PV; step++) {
            exponentiate(w, s, minus, factor, step, 0, STRIPS * SUMS_A_STEP(DTYPE) * 4);
        }
        if (mode < 2) {
            drop(p, tile, block, s);
        }
    }
}

/* --- The end of a tile: rows are scaled in registers, laid out row by row in shared memory, which is free by then, and
 * from there stored 16 bytes at a time, each warp its own 16 rows. --- */

#define STAGED       (SPLIT ? F32 : O_DTYPE)
#define SIZE_STAGED  ((int)sizeof(element_t<STAGED>))
#define PITCH_STAGED ((DIM_PART * SIZE_STAGED + 15) / 16 * 16 + 16)

/* Scales the rows by what is left to do; w.sum becomes their natural lse. True: something is not finite, or a sum is
 * out of range. */
INLINE bool scale_rows(const attn__params &p, const tile_work &tile, warp_rows &w, int mode) {
    float odd = 0.0f; /* 0 times anything that is not finite is NaN */
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = quad_sum(w.sum[strip][half]), reference = w.reference[strip][half], scale = 1.0f;
            float row_odd = sum < SUM_LIMIT ? 0.0f : INFINITY_F;
            if (mode < 2) {
                if (HAS_SINK && !SPLIT) {
                    int head = head_of(tile, row_of(strip, half));
                    float sink = ((const float *)p.sink.data)[head * p.sink.stride[1]] * LOG2E;
                    if (sink != -INFINITY_F) {
                        float now = fmaxf(reference, sink);
                        scale = exp2_fast(reference - now);
                        sum = sum * scale + exp2_fast(sink - now);
                        reference = now;
                    }
                }
                scale = sum == 0.0f ? 0.0f : scale / sum;
                scale *= HAS_DROPOUT && !SPLIT ? p.keep_scale : 1.0f;
            }
            w.sum[strip][half] = natural_lse(reference, sum);
#pragma unroll
            for (int n = 0; n < OUTPUTS; n++) {
                w.o[strip][n][2 * half] *= scale;
                w.o[strip][n][2 * half + 1] *= scale;
                row_odd = fmaf(w.o[strip][n][2 * half], 0.0f, row_odd);
                row_odd = fmaf(w.o[strip][n][2 * half + 1], 0.0f, row_odd);
            }
            odd += row_of(strip, half) / PACK < tile.rows ? row_odd * 0.0f : 0.0f;
        }
    }
    return odd != 0.0f;
}

/* Lays out a strip of the warp's rows. */
INLINE void stage_strip(const warp_rows &w, int strip, uint32_t staged) {
    const uint32_t at = staged + (lane_index() >> 2) * PITCH_STAGED + lane_index() % 4 * 2 * SIZE_STAGED;
#pragma unroll
    for (int n = 0; n < OUTPUTS; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float left = w.o[strip][n][2 * half], right = w.o[strip][n][2 * half + 1];
            const uint32_t to = at + half * 8 * PITCH_STAGED + n * 8 * SIZE_STAGED;
            if (SIZE_STAGED == 4) {
                asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(left), "f"(right) : "memory");
            } else {
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(to),
                             "r"(narrow_pair < STAGED == F32 ? F16 : STAGED > (left, right))
                             : "memory");
            }
        }
    }
}

/* One staged element goes to its place; modes 2 and 3 add an infinity where it counts something. */
INLINE void store_staged(void *data, int64_t at, element_t<STAGED> x, int mode) {
    element_t<STAGED> *to = (element_t<STAGED> *)data + at;
    if (mode < 2) {
        *to = x;
    } else if (widen<STAGED>(x) > 0.0f) {
        *to = narrow<STAGED>(widen<STAGED>(*to) + (mode == 2 ? INFINITY_F : -INFINITY_F));
    }
}

/* Stores the strip's 16 rows, the first of which is row `row` of the tile. Rows of the slot past the used length are
 * zeros. */
INLINE void store_strip(const attn__params &p, const tile_work &tile, int row, const unsigned char *staged, int mode) {
    const rows_run &run = tile.run;
    const int units = PITCH_STAGED / 16 - 1, each = 16 / SIZE_STAGED;
    const int64_t stride = SPLIT ? 1 : p.o.stride[3];
    const bool aligned = (SPLIT ? DIM_V % 4 == 0 : (p.aligned & ATTN__ALIGNED_O) != 0) && DIM_PART % each == 0 &&
                         (DIM_V - DIM_PART) % each == 0 && mode < 2;
#pragma unroll 1
    for (int n = lane_index(); n < 16 * units; n += 32) {
        const int r = n / units, column = n % units * each, token = (row + r) / PACK, local = tile.first + token;
        if (token >= TOKENS || local >= run.slot || (SPLIT && token >= tile.rows)) {
            continue;
        }
        const int head = head_of(tile, row + r);
        const unsigned char *from = staged + r * PITCH_STAGED + column * SIZE_STAGED;
        void *data = SPLIT ? (void *)p.partial_o : p.o.data;
        int64_t at = SPLIT ? (tile.view.split * row_count(p) + row_number(p, run, head, local)) * DIM_V
                           : row_offset(p.o, run.sequence, head, run.first + local);
        at += (tile.column_v + column) * stride;
        if (aligned) {
            *(uint4 *)((element_t<STAGED> *)data + at) =
                token < tile.rows ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
            continue;
        }
        for (int c = 0; c < each && column + c < DIM_PART; c++) {
            const element_t<STAGED> x = ((const element_t<STAGED> *)from)[c];
            store_staged(data, at + c * stride, token < tile.rows ? x : (element_t<STAGED>)0, mode);
        }
    }
}

INLINE void store_lse(const attn__params &p, const tile_work &tile, const warp_rows &w) {
    const rows_run &run = tile.run;
#pragma unroll
    for (int n = 0; n < STRIPS * 2; n++) {
        const int row = row_of(n / 2, n % 2), token = row / PACK, head = head_of(tile, row), local = tile.first + token;
        if (lane_index() % 4 || token >= TOKENS || local >= run.slot || (SPLIT && token >= tile.rows)) {
            continue;
        }
        const float lse = token < tile.rows ? w.sum[n / 2][n % 2] : -INFINITY_F;
        if (SPLIT) {
            p.partial_lse[tile.view.split * row_count(p) + row_number(p, run, head, local)] = lse;
        } else if (p.lse.data) {
            ((float *)p.lse.data)[row_offset(p.lse, run.sequence, head, run.first + local)] = lse;
        }
    }
}

/* True: the tile must be done again, in the next mode. */
INLINE bool finish_rows(const attn__params &p, tile_work &tile, warp_rows &w, unsigned char *memory) {
    const int mode = tile.mode;
    bool bad = scale_rows(p, tile, w, mode);
    bad = __syncthreads_or(bad); /* also: shared memory is free, and all threads have read the mode */
    if (threadIdx.x == 0) {
        tile.mode++;
    }
    if (mode == 0 && bad) {
        return true;
    }
    unsigned char *staged = memory + (threadIdx.x >> 5) * 16 * PITCH_STAGED;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
        stage_strip(w, strip, shared_address(staged));
        __syncwarp();
        store_strip(p, tile, (threadIdx.x >> 5) * STRIPS * 16 + strip * 16, staged, mode);
        __syncwarp();
    }
    if (mode < 2 && tile.column_v == 0) {
        store_lse(p, tile, w);
    }
    return mode > 0 && mode < 3;
}

/* The barriers of stage `stage`: its keys, its values have landed; it is free to be filled again. */
INLINE uint32_t keys_landed(const tile_work &tile, int stage) {
    return shared_address(&tile.landed_keys[stage]);
}
INLINE uint32_t values_landed(const tile_work &tile, int stage) {
    return shared_address(&tile.landed_values[stage]);
}
INLINE uint32_t stage_free(const tile_work &tile, int stage) {
    return shared_address(&tile.free[stage]);
}

/* This thread's copies (and stores) into a stage are done or on their way. */
INLINE void announce(uint32_t barrier, bool stores) {
    if (!FREE_RUNNING) {
        return;
    }
    if (stores) {
        copies_commit();
        copies_wait<0>();
        barrier_arrive(barrier);
    } else {
        barrier_arrive_copies(barrier);
    }
}

/* Does bringing this block store anything by plain stores: zeros, or elements one by one? */
INLINE bool needs_stores(const attn__params &p, const key_block &block) {
    return !CAN_FEED_BLOCKS || block.count < TILE_KV ||
           (p.aligned & (ATTN__ALIGNED_K | ATTN__ALIGNED_V)) != (ATTN__ALIGNED_K | ATTN__ALIGNED_V);
}

/* Makes ready for the copies of block n: whole blocks are fed while the values are multiplied, others are copied now.
 */
INLINE block_feed start_feed(const attn__params &p, const tile_work &tile, int n, uint32_t keys, uint32_t values) {
    const int stage = n % STAGES;
    block_feed feed = {false, block_of_walk(tile.walk, n), keys + stage * BYTES_K, values + stage * BYTES_V,
                       keys_landed(tile, stage)};
    if (feed.block.count > 0) {
        if (FREE_RUNNING && n >= STAGES) {
            barrier_wait(stage_free(tile, stage), (n / STAGES - 1) & 1);
        }
        feed.on = !needs_stores(p, feed.block);
        if (!feed.on) {
            copy_keys(p, tile, feed.block, feed.keys);
            copy_values(p, tile, feed.block, feed.values);
            announce(feed.landed, true);
        }
    }
    return feed;
}

/* The whole tile in one mode. True: it must be done again in the next one. */
INLINE bool run_tile(const attn__params &p, tile_work &tile, unsigned char *memory) {
    const uint32_t queries = shared_address(memory), keys = queries + BYTES_Q, values = keys + STAGES * BYTES_K;
    const int ahead = STAGES > 1 ? STAGES - 1 : 1; /* blocks brought before they are needed */
    warp_rows w;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int n = 0; n < OUTPUTS * 4; n++) {
            w.o[strip][n / 4][n % 4] = 0.0f;
        }
        w.reference[strip][0] = w.reference[strip][1] = NO_REFERENCE;
        w.sum[strip][0] = w.sum[strip][1] = 0.0f;
    }
    w.settled = w.far = false;
    copy_queries(p, tile, queries);
#pragma unroll 1
    for (int n = 0; n < ahead; n++) {
        key_block block = block_of_walk(tile.walk, n);
        copy_keys(p, tile, block, keys + n * BYTES_K);
        announce(keys_landed(tile, n), needs_stores(p, block));
        if (FREE_RUNNING || STAGES == 1) {
            copies_commit();
        }
        copy_values(p, tile, block, values + n * BYTES_V);
        announce(values_landed(tile, n), needs_stores(p, block));
        copies_commit();
    }
    copies_wait<STAGES == 1 || FREE_RUNNING ? 1 : 0>(); /* the queries are there */
    __syncthreads();
    held_queries held;
    if (QUERIES_HELD) {
        const uint32_t lane_q = queries + (threadIdx.x >> 5) * (STRIPS * 16 * PITCH_QK) + lane_of_rows(PITCH_QK);
#pragma unroll
        for (int n = 0; n < STRIPS * QUERIES_HELD; n++) {
            const int strip = n / (QUERIES_HELD ? QUERIES_HELD : 1), step = n % (QUERIES_HELD ? QUERIES_HELD : 1);
            load_a<DTYPE>(held[strip][step], lane_q + strip * 16 * PITCH_QK + step * STEP_BYTES);
        }
    }
#pragma unroll 1
    for (int n = 0;; n++) {
        score_tile s;
        float minus[STRIPS][2], factor;
        const int stage = n % STAGES, parity = n / STAGES & 1;
        if (!FREE_RUNNING) {
            copies_wait<STAGES == 1 ? 1 : STAGES - 2>();
            __syncthreads();
        }
        if (block_of_walk(tile.walk, n).count <= 0) {
            break;
        }
        if (WALKED && threadIdx.x == 0) {
            walk_next(p, tile.view, tile.walk, n + ahead + 1);
        }
        if (FREE_RUNNING) {
            barrier_wait(keys_landed(tile, stage), parity);
        }
        int thread = thread_index_again();
        multiply_keys(s, held, queries + (thread >> 5) * (STRIPS * 16 * PITCH_QK) + lane_of_rows(PITCH_QK, thread & 31),
                      keys + stage * BYTES_K + lane_of_columns(PITCH_QK, thread & 31));
        if (STAGES == 1) {
            __syncthreads();
            const key_block next = block_of_walk(tile.walk, n + 1);
            if (next.count > 0) {
                copy_keys(p, tile, next, keys);
            }
            copies_commit();
        }
        settle_scores(p, tile, block_of_walk(tile.walk, n), w, s, minus, factor);
        block_feed feed = {};
        if (STAGES > 1) {
            feed = start_feed(p, tile, n + ahead, keys, values);
        } else {
            copies_wait<1>();
            __syncthreads();
        }
        if (FREE_RUNNING) {
            barrier_wait(values_landed(tile, stage), parity);
        }
        if (tile.mode) {
            __syncthreads();
            patch_values(values + stage * BYTES_V, tile.mode);
            __syncthreads();
        }
        multiply_values(p, tile, feed, w, s, minus, factor, HAS_DROPOUT,
                        values + stage * BYTES_V + lane_of_summed_rows<DTYPE>(PITCH_V, thread_index_again() & 31));
        if (STAGES == 1) {
            __syncthreads();
            const key_block next = block_of_walk(tile.walk, n + 1);
            if (next.count > 0) {
                copy_values(p, tile, next, values);
            }
        }
        if (FREE_RUNNING) {
            if (feed.block.count > 0) {
                announce(values_landed(tile, (n + ahead) % STAGES), !feed.on);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) {
                barrier_arrive(stage_free(tile, stage));
            }
        } else {
            copies_commit();
        }
    }
    copies_wait<0>();
    return finish_rows(p, tile, w, memory);
}

INLINE void start_barriers(tile_work &tile, bool again) {
    for (int stage = 0; FREE_RUNNING && stage < STAGES; stage++) {
        if (again) {
            barrier_end(keys_landed(tile, stage));
            barrier_end(values_landed(tile, stage));
            barrier_end(stage_free(tile, stage));
        }
        barrier_init(keys_landed(tile, stage), THREADS);
        barrier_init(values_landed(tile, stage), THREADS);
        barrier_init(stage_free(tile, stage), WARPS);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ tile_work tile;
    if (p.status && *p.status) {
        return;
    }
    bool again = false;
    do {
        if (threadIdx.x == 0) {
            if (!again) {
                find_tile(p, p.first_tile + blockIdx.x, tile);
                tile.mode = 0;
            }
            if (tile.exists) {
                walk_start(p, tile.view, tile.walk, STAGES > 1 ? STAGES : 2);
                start_barriers(tile, again);
            }
        }
        __syncthreads();
        again = tile.exists && run_tile(p, tile, memory);
        __syncthreads();
    } while (again);
}
