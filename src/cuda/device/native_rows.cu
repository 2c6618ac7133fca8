/* SPDX-License-Identifier: Apache-2.0
 * Rows of scores of the unfused computation, softmax in float32, results rounded to q's type. By STEP:
 *   SOFTMAX    a block takes a query row of one head: P, with dropout, in place of the scores; lse; and lse of rows
 * past the used length GRADIENT   likewise: P, with dropout, in place of the scores; in place of <dout, v> the gradient
 * at scale * <q, k> DBIAS      a block takes THREADS elements of one row of dbias (all of the row, if it is summed over
 * keys) and adds up the gradients of all rows of scores that the bias row served, before GRADIENT overwrites them
 *
 * Constants: those of every kernel of the pass; STEP. */
#define SOFTMAX  0
#define GRADIENT 1
#define DBIAS    2

#include "dropout.cuh"
#include "native.cuh"
#include "score.cuh"

#define THREADS 128

typedef struct score_line {
    int s, head;
    int64_t i, at; /* position; the matrices' element of key position 0 */
    row_band band;
    score_row row;
} score_line;

INLINE score_line score_line_of(const attn__params &p, int s, int head, int64_t i) {
    const int64_t shifted = i + row_shift(p, s);
    score_line line = {s, head, i, matrix_at(p, s, head, i, 0)};
    line.band = band_of_row(p, shifted, side_length<ROWS_KV, USED_KV>(p.side_kv, s));
    line.row = score_row_of(p, s, head, i, shifted);
    return line;
}

/* Natural units; -inf where hidden. */
INLINE float score_at(const attn__params &p, const score_line &line, int64_t j, float *bent) {
    *bent = 1.0f;
    if (!band_sees(p, line.band, (int)j)) {
        return -INFINITY_F;
    }
    const float s = load_element<DTYPE>(p.scores, line.at + j);
    return SCORE_PLAIN ? s : score_of_scaled(p, line.row, s, (int)j, bent);
}

/* keep / (1 - rate) */
INLINE float keep_at(const attn__params &p, const score_line &line, int64_t j) {
    if (!HAS_DROPOUT) {
        return 1.0f;
    }
    const attn__u32x4 words = dropout_words(p, dropout_key(p), (int)(j >> 2), line.i, line.head, line.s);
    const uint32_t low = j & 1 ? words.word[1] : words.word[0], high = j & 1 ? words.word[3] : words.word[2];
    return (j & 2 ? high : low) >= p.threshold ? p.keep_scale : 0.0f;
}

/* Over the block; all threads get it. */
template <bool largest> INLINE float block_reduce(float x) {
    __shared__ float parts[THREADS / 32];
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) {
        const float other = __shfl_xor_sync(0xffffffffu, x, mask);
        x = largest ? fmaxf(x, other) : x + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int n = 1; n < THREADS / 32; n++) {
        x = largest ? fmaxf(x, parts[n]) : x + parts[n];
    }
    return x;
}

/* Every key position that sequence s holds, shared out among the threads. */
#define EACH_KEY(p, s, j)                                                                                              \
    for (int each_list = key_lists(p, s, false), each_end = key_lists(p, s, true); each_list < each_end; each_list++)  \
        for (int64_t j = key_run(p, each_list).position + threadIdx.x, j##_end = key_run_end(p, each_list);            \
             j < j##_end; j += THREADS)

INLINE int key_lists(const attn__params &p, int s, bool end) {
    int from, to;
    side_range<ROWS_KV>(p.side_kv, s, &from, &to);
    return end ? to : from;
}
INLINE rows_run key_run(const attn__params &p, int list) {
    return side_run<ROWS_KV, USED_KV>(p.side_kv, list);
}
INLINE int64_t key_run_end(const attn__params &p, int list) {
    const rows_run run = key_run(p, list);
    return run.position + run.rows;
}

INLINE float stat_at(const attn__tensor_ref &t, int s, int head, int64_t row) {
    return ((const float *)t.data)[row_offset(t, s, head, row)];
}

INLINE void softmax_row(const attn__params &p, int s, int head, int64_t row, int64_t i) {
    const score_line line = score_line_of(p, s, head, i);
    const float sink = HAS_SINK ? ((const float *)p.sink.data)[head * p.sink.stride[1]] : -INFINITY_F;
    float largest = sink, sum = 0.0f, bent;
    EACH_KEY(p, s, j) {
        largest = fmaxf(largest, score_at(p, line, j, &bent));
    }
    largest = block_reduce<true>(largest);
    const float shift = largest == -INFINITY_F ? 0.0f : largest;
    EACH_KEY(p, s, j) {
        sum += expf(score_at(p, line, j, &bent) - shift);
    }
    sum = block_reduce<false>(sum) + (sink != -INFINITY_F ? expf(sink - shift) : 0.0f);
    const float unit = sum == 0.0f ? 0.0f : 1.0f / sum;
    EACH_KEY(p, s, j) {
        const float score = score_at(p, line, j, &bent);
        ((element_t<DTYPE> *)p.scores)[line.at + j] =
            score == -INFINITY_F ? MATRIX_HIDDEN : matrix_value(expf(score - shift) * unit * keep_at(p, line, j));
    }
    if (p.lse.data && threadIdx.x == 0) {
        ((float *)p.lse.data)[row_offset(p.lse, s, head, row)] = sum == 0.0f ? -INFINITY_F : shift + logf(sum);
    }
}

/* delta - dlse */
INLINE float shift_of(const attn__params &p, int s, int head, int64_t row) {
    const float delta = stat_at(p.delta, s, head, row);
    return p.dlse.data ? delta - stat_at(p.dlse, s, head, row) : delta;
}

/* Gradient at the score; 0 where hidden. *probability takes P, -inf where hidden. */
INLINE float score_gradient(const attn__params &p, const score_line &line, int64_t j, float lse, float shift,
                            float keep, float *probability, float *bent) {
    const float score = score_at(p, line, j, bent);
    if (score == -INFINITY_F || lse == -INFINITY_F) {
        *probability = -INFINITY_F;
        return 0.0f;
    }
    *probability = expf(score - lse);
    return *probability * (keep * load_element<DTYPE>(p.extra, line.at + j) - shift);
}

INLINE void gradient_row(const attn__params &p, int s, int head, int64_t row, int64_t i) {
    const score_line line = score_line_of(p, s, head, i);
    const float lse = stat_at(p.lse, s, head, row), shift = shift_of(p, s, head, row);
    element_t<DTYPE> *weights = (element_t<DTYPE> *)p.scores, *gradients = (element_t<DTYPE> *)p.extra;
    EACH_KEY(p, s, j) {
        float probability, bent;
        const float keep = keep_at(p, line, j);
        const float gradient = score_gradient(p, line, j, lse, shift, keep, &probability, &bent);
        const bool hidden = probability == -INFINITY_F;
        weights[line.at + j] = hidden ? MATRIX_HIDDEN : matrix_value(probability * keep);
        gradients[line.at + j] = hidden ? MATRIX_HIDDEN : matrix_value(gradient * bent);
    }
}

/* A block of SOFTMAX and GRADIENT: one row of a run's slot. */
INLINE void make_row(const attn__params &p) {
    const int runs = side_runs<ROWS_Q>(p.side_q, p.batch);
    int64_t number = p.first_tile + blockIdx.x;
    const int head = (int)(number % p.heads_q);
    number /= p.heads_q;
    const rows_run run = side_run<ROWS_Q, USED_Q>(p.side_q, (int)(number % runs));
    const int64_t row = number / runs;
    if (row >= run.slot) {
        return;
    }
    if (row >= run.rows) {
        if (STEP == SOFTMAX && p.lse.data && threadIdx.x == 0) {
            ((float *)p.lse.data)[row_offset(p.lse, run.sequence, head, run.first + row)] = -INFINITY_F;
        }
    } else if (STEP == SOFTMAX) {
        softmax_row(p, run.sequence, head, run.first + row, run.position + row);
    } else {
        gradient_row(p, run.sequence, head, run.first + row, run.position + row);
    }
}

/* The gradients that one row of scores adds to key j, or, if keys are summed, to this thread's keys. */
INLINE float bias_of_row(const attn__params &p, int s, int head, int64_t row, int64_t i, int64_t only) {
    const score_line line = score_line_of(p, s, head, i);
    const float lse = stat_at(p.lse, s, head, row), shift = shift_of(p, s, head, row);
    float sum = 0.0f, probability, bent;
    if (p.dbias.stride[3]) {
        for (int list = key_lists(p, s, false), end = key_lists(p, s, true); list < end; list++) {
            if (only >= key_run(p, list).position && only < key_run_end(p, list)) {
                sum = score_gradient(p, line, only, lse, shift, keep_at(p, line, only), &probability, &bent);
            }
        }
        return sum;
    }
    EACH_KEY(p, s, j) {
        sum += score_gradient(p, line, j, lse, shift, keep_at(p, line, j), &probability, &bent);
    }
    return sum;
}

INLINE void make_dbias(const attn__params &p) {
    const int64_t *stride = p.dbias.stride;
    const int64_t parts = stride[3] ? ((int64_t)p.side_kv.tokens + THREADS - 1) / THREADS : 1;
    int64_t number = p.first_tile + blockIdx.x;
    const int64_t only = stride[3] ? number % parts * THREADS + threadIdx.x : 0;
    number /= parts;
    const int64_t i = stride[2] ? number % p.side_q.tokens : 0;
    number /= stride[2] ? p.side_q.tokens : 1;
    const int head = stride[1] ? (int)(number % p.heads_q) : 0;
    const int s = (int)(number / (stride[1] ? p.heads_q : 1));
    float sum = 0.0f;
    for (int sequence = s; sequence < (stride[0] ? s + 1 : p.batch); sequence++) {
        int begin, end;
        side_range<ROWS_Q>(p.side_q, sequence, &begin, &end);
        for (int h = head; h < (stride[1] ? head + 1 : p.heads_q); h++) {
            for (int list = begin; list < end; list++) {
                const rows_run run = side_run<ROWS_Q, USED_Q>(p.side_q, list);
                for (int64_t row = stride[2] ? larger(0, i - run.position) : 0;
                     row < (stride[2] ? smaller(run.rows, i - run.position + 1) : run.rows); row++) {
                    sum += bias_of_row(p, sequence, h, run.first + row, run.position + row, only);
                }
            }
        }
    }
    if (!stride[3]) {
        sum = block_reduce<false>(sum);
    }
    if (stride[3] ? only < p.side_kv.tokens : threadIdx.x == 0) {
        float *at = (float *)p.dbias.data + s * stride[0] + head * stride[1] + i * stride[2] + only * stride[3];
        *at = p.accumulate ? *at + sum : sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ATTN_KERNEL(const __grid_constant__ attn__params p) {
    if (p.status && *p.status) {
        return;
    }
    if (STEP == DBIAS) {
        make_dbias(p);
    } else {
        make_row(p);
    }
}
