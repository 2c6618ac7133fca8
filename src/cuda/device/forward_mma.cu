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
 * tile takes), PARTS (tiles to a row's values), SPLIT (1: partial results for combine.cu), QUERIES_HELD (1: queries
 * stay in registers), LAZY (1: see below).
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
} tile_work;

typedef struct warp_rows {
    float o[STRIPS][OUTPUTS][4];
    float reference[STRIPS][2], sum[STRIPS][2];
    bool settled; /* every row has a reference */
    bool far;     /* some reference is past FUSED_LIMIT */
} warp_rows;

typedef float score_tile[STRIPS][SCORES][4];

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
INLINE void multiply_keys(score_tile &s,
                          const uint32_t (&held)[QUERIES_HELD ? STRIPS : 1][QUERIES_HELD ? STEPS_QK : 1][4],
                          uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int step = 0; step < STEPS_QK; step++) {
        uint32_t a[STRIPS][4];
#pragma unroll
        for (int strip = 0; strip < STRIPS; strip++) {
            if (QUERIES_HELD) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    a[strip][n] = held[strip][QUERIES_HELD ? step : 0][n];
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

/* o += probabilities * values. The probabilities of the next step are made between the products of this one. */
INLINE void multiply_values(warp_rows &w, score_tile &s, const float (&minus)[STRIPS][2], float factor, bool made,
                            uint32_t values) {
    const int sums = SUMS_A_STEP(DTYPE), elements = STRIPS * sums * 4, pairs = (OUTPUTS + 1) / 2;
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

/* Two neighbouring columns of the output, or one. */
template <int dtype>
INLINE void store_columns(void *data, int64_t at, int64_t stride, float left, float right, bool both, bool aligned) {
    if (aligned && both) {
        if (dtype == F32) {
            *(float2 *)((float *)data + at) = make_float2(left, right);
        } else {
            *(uint32_t *)((uint16_t *)data + at) = narrow_pair < dtype == F32 ? F16 : dtype > (left, right);
        }
    } else {
        store_element<dtype>(data, at, left);
        if (both) {
            store_element<dtype>(data, at + stride, right);
        }
    }
}

/* Adds an infinity where the count is not 0. */
INLINE void add_infinity(void *data, int64_t at, float count, float infinity) {
    if (count > 0.0f) {
        if (SPLIT) {
            store_element<F32>(data, at, load_element<F32>(data, at) + infinity);
        } else {
            store_element<O_DTYPE>(data, at, load_element<O_DTYPE>(data, at) + infinity);
        }
    }
}

/* Scales the rows, and stores them unless mode 0 finds a result that is not finite: then true. */
INLINE bool finish_rows(const attn__params &p, tile_work &tile, warp_rows &w) {
    const int mode = tile.mode;
    const rows_run &run = tile.run;
    bool bad = false;
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = quad_sum(w.sum[strip][half]), reference = w.reference[strip][half], scale = 1.0f;
            bool counts = row_of(strip, half) / PACK < tile.rows;
            if (mode < 2) {
                bad = bad || (counts && !(sum < SUM_LIMIT));
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
            w.reference[strip][half] = reference;
            w.sum[strip][half] = sum;
#pragma unroll
            for (int n = 0; n < OUTPUTS; n++) {
                w.o[strip][n][2 * half] *= scale;
                w.o[strip][n][2 * half + 1] *= scale;
                bad =
                    bad || (counts && !(is_finite(w.o[strip][n][2 * half]) && is_finite(w.o[strip][n][2 * half + 1])));
            }
        }
    }
    bad = __syncthreads_or(bad); /* also: all threads have read the mode */
    if (threadIdx.x == 0) {
        tile.mode++;
    }
    if (mode == 0 && bad) {
        return true;
    }
    const bool aligned = SPLIT ? DIM_V % 2 == 0 : (p.aligned & ATTN__ALIGNED_O) != 0;
    const int64_t stride = SPLIT ? 1 : p.o.stride[3];
#pragma unroll
    for (int strip = 0; strip < STRIPS; strip++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row_of(strip, half), token = row / PACK, head = head_of(tile, row), local = tile.first + token;
            if (token >= TOKENS || local >= run.slot || (SPLIT && token >= tile.rows)) {
                continue;
            }
            bool counts = token < tile.rows;
            int64_t part = 0, at;
            void *data;
            if (SPLIT) {
                part = (tile.view.split * row_count(p)) + row_number(p, run, head, local);
                data = p.partial_o;
                at = part * DIM_V;
            } else {
                data = p.o.data;
                at = row_offset(p.o, run.sequence, head, run.first + local);
            }
#pragma unroll
            for (int n = 0; n < OUTPUTS; n++) {
                int column = n * 8 + lane_index() % 4 * 2;
                int64_t to = at + (tile.column_v + column) * stride;
                float left = counts ? w.o[strip][n][2 * half] : 0.0f,
                      right = counts ? w.o[strip][n][2 * half + 1] : 0.0f;
                bool both = column + 1 < DIM_PART;
                if (DIM_PART % 8 == 0 || column < DIM_PART) {
                    if (mode >= 2) {
                        float infinity = mode == 2 ? INFINITY_F : -INFINITY_F;
                        add_infinity(data, to, left, infinity);
                        add_infinity(data, to + stride, both ? right : 0.0f, infinity);
                    } else if (SPLIT) {
                        store_columns<F32>(data, to, 1, left, right, both, aligned);
                    } else {
                        store_columns<O_DTYPE>(data, to, stride, left, right, both, aligned && tile.column_v % 2 == 0);
                    }
                }
            }
            if (mode < 2 && lane_index() % 4 == 0 && tile.column_v == 0) {
                float lse = counts ? natural_lse(w.reference[strip][half], w.sum[strip][half]) : -INFINITY_F;
                if (SPLIT) {
                    p.partial_lse[part] = lse;
                } else if (p.lse.data) {
                    ((float *)p.lse.data)[row_offset(p.lse, run.sequence, head, run.first + local)] = lse;
                }
            }
        }
    }
    return mode > 0 && mode < 3;
}

/* The whole tile in one mode. True: it must be done again in the next one. */
INLINE bool run_tile(const attn__params &p, tile_work &tile, uint32_t queries) {
    const uint32_t keys = queries + BYTES_Q, values = keys + STAGES * BYTES_K;
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
        if (STAGES == 1) {
            copies_commit();
        }
        copy_values(p, tile, block, values + n * BYTES_V);
        copies_commit();
    }
    uint32_t held[QUERIES_HELD ? STRIPS : 1][QUERIES_HELD ? STEPS_QK : 1][4];
    if (QUERIES_HELD) {
        copies_wait<STAGES == 1 ? 1 : STAGES - 2>();
        __syncthreads();
        const uint32_t lane_q = queries + (threadIdx.x >> 5) * (STRIPS * 16 * PITCH_QK) + lane_of_rows(PITCH_QK);
#pragma unroll
        for (int n = 0; n < STRIPS * STEPS_QK; n++) {
            load_a<DTYPE>(held[QUERIES_HELD ? n / STEPS_QK : 0][QUERIES_HELD ? n % STEPS_QK : 0],
                          lane_q + n / STEPS_QK * 16 * PITCH_QK + n % STEPS_QK * STEP_BYTES);
        }
    }
#pragma unroll 1
    for (int n = 0;; n++) {
        score_tile s;
        float minus[STRIPS][2], factor;
        const int stage = n % STAGES;
        copies_wait<STAGES == 1 ? 1 : STAGES - 2>();
        __syncthreads();
        if (block_of_walk(tile.walk, n).count <= 0) {
            break;
        }
        if (STAGES > 1) {
            const key_block next = block_of_walk(tile.walk, n + ahead);
            if (next.count > 0) {
                copy_keys(p, tile, next, keys + (n + ahead) % STAGES * BYTES_K);
                copy_values(p, tile, next, values + (n + ahead) % STAGES * BYTES_V);
            }
            copies_commit();
        }
        if (WALKED && threadIdx.x == 0) {
            walk_next(p, tile.view, tile.walk, n + ahead + 1);
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
        if (STAGES == 1) {
            copies_wait<1>();
            __syncthreads();
        }
        if (tile.mode) {
            patch_values(values + stage * BYTES_V, tile.mode);
            __syncthreads();
        }
        multiply_values(w, s, minus, factor, HAS_DROPOUT,
                        values + stage * BYTES_V + lane_of_summed_rows<DTYPE>(PITCH_V, thread_index_again() & 31));
        if (STAGES == 1) {
            __syncthreads();
            const key_block next = block_of_walk(tile.walk, n + 1);
            if (next.count > 0) {
                copy_values(p, tile, next, values);
            }
            copies_commit();
        }
    }
    copies_wait<0>();
    return finish_rows(p, tile, w);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ tile_work tile;
    if (p.status && *p.status) {
        return;
    }
    if (threadIdx.x == 0) {
        find_tile(p, p.first_tile + blockIdx.x, tile);
        tile.mode = 0;
    }
    do {
        __syncthreads();
        if (threadIdx.x == 0 && tile.exists) {
            walk_start(p, tile.view, tile.walk, STAGES > 1 ? STAGES : 2);
        }
        __syncthreads();
    } while (tile.exists && run_tile(p, tile, shared_address(memory)));
}
