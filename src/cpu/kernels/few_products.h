/* SPDX-License-Identifier: Apache-2.0
 * Products of few query rows with a block of keys; lanes run along the head dimension.
 *
 * A head's rows are cut into tiles of 4, 2 or 1. Scores: one vector of partial sums for each (key, row), W of them at a
 * time, then one transposed addition gives the compact block [key][row]. Values: the p of some keys stay in registers
 * while the block's sums [row][dim] in L1 take them up.
 *
 * Keys are the outer loop and heads the inner one, so that rows are read in the order of memory, each once, with the
 * lines some KiB further on asked for meanwhile: reading goes on at the rate of memory under all the arithmetic. What a
 * block's end asks for is the next block's beginning, which L2 keeps while the other tensor is read.
 *
 * Rows of bf16 are read as words, the halves of which are the elements of even and of odd place: W of each make two
 * vectors with a shift and a mask. q and sums that meet such rows lie in the same order (few_place). */
#ifndef ATTN_CPU_FEW_PRODUCTS_H
#define ATTN_CPU_FEW_PRODUCTS_H

#include "block.h"

/* How far ahead of its use memory is asked for, into L2. 2 to 16 KiB were within 6 % of each other on Zen 3, the most
 * was best where heads go together. Into L1 costs a tenth on the Xeon, 4 KiB another few hundredths (2026-11-30). */
#define FEW_AHEAD 16384

typedef struct few_tile {
    int first, rows;  /* among the head's rows */
    float *scores;    /* [key][rows], whole vectors */
    float *m, *l, *o; /* [rows], [rows], [rows][o_row] */
    float *sums;      /* [rows][o_row], of one block */
    const float *q;   /* [rows][q_row] */
    float alpha[4];   /* what this block makes o worth */
} few_tile;

/* One kv head of a task. */
typedef struct few_head {
    score_rows rows;
    float *q;            /* [rows][q_row] */
    float *scores;       /* [rows][keys], a tile's part after another's */
    float *sums, *state; /* [rows][o_row], attn__few_state_floats */
    few_tile tiles[ATTN__FEW];
    int n_tiles;
    bool sees, takes; /* of this block: some key; its values in the usual way */
} few_head;

/* Rows of keys, or of values, of all heads, as this body reads them: any float type in place, or converted. */
typedef struct few_stream {
    attn_dtype dtype;
    const char *at;
    int64_t row, head; /* bytes from one key to the next, from one kv head to the next */
    int64_t dim;
    int64_t keys;  /* that are here, of this block and after it */
    int64_t ahead; /* keys; 0: nothing is asked for */
    bool solid;    /* no gaps between rows of the task's heads */
} few_stream;

/* What a step asks for: lines of some rows, in the order of memory within a page. Two neighbouring rows asked for in
 * turn gave 0.7 of the rate (Zen 3, 2026-11-30). */
typedef struct few_asking {
    const char *at;
    int64_t row, part; /* bytes from one asked row to the next; from the parts of one step of the loop to the next */
} few_asking;

/* Where element d of a row lies; words: rows of bf16, as far as 2 W elements at a time go. */
static inline int64_t few_place(bool words, int64_t dim, int64_t d) {
    const int64_t group = d / (2 * ATTN_W) * (2 * ATTN_W), in = d - group;
    return words && group + 2 * ATTN_W <= dim ? group + in % 2 * ATTN_W + in / 2 : d;
}
VEC_INLINE vf few_even(vf words) {
    return (vf)((vu)words << 16);
}
VEC_INLINE vf few_odd(vf words) {
    return (vf)((vi)words & vi_set((int32_t)0xffff0000u));
}

/* The last dim % W elements of a row, 0 behind them. */
static __attribute__((noinline)) void few_tail(attn_dtype dtype, const char *row, int64_t from, int64_t dim,
                                               float *tail) {
    vf_store(tail, vf_set(0.0f));
    for (int64_t d = from; d < dim; d++) {
        tail[d - from] = (float)attn__load(dtype, row, d);
    }
}

/* 2 W elements of a row as two vectors, in the order of few_place. */
VEC_INLINE void few_load(const attn_dtype dtype, const char *row, vf x[2]) {
    if (dtype == ATTN_BF16) {
        const vf words = vf_keep(vf_loadu(row));
        x[0] = few_even(words);
        x[1] = few_odd(words);
    } else {
        x[0] = vf_load_as(dtype, row);
        x[1] = vf_load_as(dtype, row + ATTN_W * (dtype == ATTN_F32 ? 4 : 2));
    }
    x[0] = vf_keep(x[0]);
    x[1] = vf_keep(x[1]);
}

/* Bytes that few_load reads. */
#define FEW_PART(dtype) (2 * ATTN_W * ((dtype) == ATTN_F32 ? 4 : 2))

/* Asks for as many bytes as a step of the loop over d reads of `rows` rows. */
VEC_INLINE void few_ask(const attn_dtype dtype, const int rows, const char *at, int64_t row) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        __builtin_prefetch(at + i * row, 0, 2);
        if (FEW_PART(dtype) > 64) {
            __builtin_prefetch(at + i * row + 64, 0, 2);
        }
    }
}
/* Bytes from one row to the next in the order in which rows are asked for. */
static inline int64_t few_asked_row(const few_stream *s) {
    return s->solid ? s->dim * (int64_t)attn_dtype_size(s->dtype) : s->row;
}
/* Of a step's `asked` rows, which lie from `at` on. */
VEC_INLINE few_asking few_asking_of(const attn_dtype dtype, const few_stream *s, const int asked, const char *at) {
    const int64_t part = FEW_PART(dtype);
    few_asking solid = {at, part, part * asked}, apart = {at, s->row, part};
    return s->solid ? solid : apart;
}

/* W elements, or the last ones and 0 behind them. */
VEC_INLINE vf few_load_end(const attn_dtype dtype, const char *row, int64_t d, int64_t dim) {
    float tail[ATTN_W] __attribute__((aligned(64)));
    if (d + ATTN_W <= dim) {
        return vf_load_as(dtype, row + d * (dtype == ATTN_F32 ? 4 : 2));
    }
    few_tail(dtype, row, d, dim, tail);
    return vf_load(tail);
}

/* Scores of W / R keys, key-major. What there are fewer of, keys or rows, stays in registers. */
VEC_INLINE vf few_scores_step(const attn_dtype dtype, const int R, const float *q, int64_t q_row, const char *const *k,
                              int64_t dim, few_asking ask) {
    const int step = ATTN_W / R;
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    vf acc[ATTN_W];
    int64_t d = 0;
#pragma GCC unroll 16
    for (int i = 0; i < ATTN_W; i++) {
        acc[i] = vf_set(0.0f);
    }
    for (; d + 2 * ATTN_W <= dim; d += 2 * ATTN_W) {
        vf x[ATTN_W][2], y[4][2];
        few_ask(dtype, step, ask.at, ask.row);
        ask.at += ask.part;
        if (R < step) {
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                y[r][0] = vf_load(q + r * q_row + d);
                y[r][1] = vf_load(q + r * q_row + d + ATTN_W);
            }
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                few_load(dtype, k[i] + d * size, x[i]);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    acc[i * R + r] = vf_fma(x[i][0], y[r][0], acc[i * R + r]);
                    acc[i * R + r] = vf_fma(x[i][1], y[r][1], acc[i * R + r]);
                }
            }
        } else {
#pragma GCC unroll 4
            for (int i = 0; i < step; i++) {
                few_load(dtype, k[i] + d * size, x[i]);
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                y[r][0] = vf_keep(vf_load(q + r * q_row + d));
                y[r][1] = vf_keep(vf_load(q + r * q_row + d + ATTN_W));
#pragma GCC unroll 4
                for (int i = 0; i < step; i++) {
                    acc[i * R + r] = vf_fma(x[i][0], y[r][0], acc[i * R + r]);
                    acc[i * R + r] = vf_fma(x[i][1], y[r][1], acc[i * R + r]);
                }
            }
        }
    }
    for (; d < dim; d += ATTN_W) {
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            const vf x = few_load_end(dtype, k[i], d, dim);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                acc[i * R + r] = vf_fma(x, vf_load(q + r * q_row + d), acc[i * R + r]);
            }
        }
    }
    return vf_sums(acc);
}

/* A tile's scores of keys [n, end): whole vectors; what is past `count` repeats the last key. ask: the rows that are
 * asked for meanwhile, NULL: none. */
VEC_INLINE void few_scores_tile(const attn_dtype dtype, const int R, const few_tile *tile, const few_stream *k,
                                const char *rows, int n, int end, int count, int64_t q_row, const char *ask) {
    const int step = ATTN_W / R;
    for (; n < end; n += step) {
        const char *at[ATTN_W];
        few_asking asking = few_asking_of(dtype, k, step, ask);
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            at[i] = rows + (n + i < count ? n + i : count - 1) * k->row;
        }
        if (!ask) {
            asking = (few_asking){at[0], 0, 0};
        }
        vf_store(tile->scores + n * R, few_scores_step(dtype, R, tile->q, q_row, at, k->dim, asking));
        ask += ask ? step * few_asked_row(k) : 0;
    }
}

/* The fewest keys that are whole steps of every tile; of a tile of 4 rows: `of_four`. */
static inline int few_together(const few_head *head, int of_four) {
    const int fewest = head->tiles[head->n_tiles - 1].rows;
    return fewest == 1 ? ATTN_W : fewest == 2 ? ATTN_W / 2 : of_four;
}

/* The first row to ask for while keys from n on of head h are read, `together` of them; NULL at the end of all. */
static inline const char *few_ask_from(const few_stream *s, int64_t h, int n, int together) {
    const char *at = s->at + (n + s->ahead) * s->row;
    return s->ahead == 0 || n + s->ahead + together > s->keys ? NULL
           : s->solid                                         ? at + h * together * few_asked_row(s)
                                                              : at + h * s->head;
}

/* Raw scores of all heads and keys [0, count). Their rows are alike in all heads. */
VEC_INLINE void few_scores_as(const attn_dtype dtype, const few_head *heads, int64_t n_heads, const few_stream *k,
                              int count, int64_t q_row) {
    const int together = few_together(heads, ATTN_W / 4);
    for (int n = 0; n < count; n += together) {
        const int end = n + together < count ? n + together : count;
        for (int64_t h = 0; h < n_heads; h++) {
            const char *rows = k->at + h * k->head, *ask = few_ask_from(k, h, n, together);
            for (int t = 0; t < heads[h].n_tiles; t++, ask = NULL) {
                const few_tile *tile = &heads[h].tiles[t];
                switch (tile->rows) {
                case 1: few_scores_tile(dtype, 1, tile, k, rows, n, end, count, q_row, ask); break;
                case 2: few_scores_tile(dtype, 2, tile, k, rows, n, end, count, q_row, ask); break;
                default: few_scores_tile(dtype, 4, tile, k, rows, n, end, count, q_row, ask); break;
                }
            }
        }
    }
}

/* sums [R] += p V for `step` keys. */
VEC_INLINE void few_values_step(const attn_dtype dtype, const int R, const int step, const int asked, const float *p,
                                int p_row, const char *const *v, float *sums, int64_t dim, int64_t o_row,
                                few_asking ask) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    vf weight[ATTN_W];
    int64_t d = 0;
#pragma GCC unroll 16
    for (int i = 0; i < step; i++) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            weight[i * R + r] = vf_set(p[i * p_row + r]);
        }
    }
    for (; d + 2 * ATTN_W <= dim; d += 2 * ATTN_W) {
        vf o[4][2], x[2];
        few_ask(dtype, asked, ask.at, ask.row);
        ask.at += ask.part;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            o[r][0] = vf_load(sums + r * o_row + d);
            o[r][1] = vf_load(sums + r * o_row + d + ATTN_W);
        }
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            few_load(dtype, v[i] + d * size, x);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                o[r][0] = vf_fma(x[0], weight[i * R + r], o[r][0]);
                o[r][1] = vf_fma(x[1], weight[i * R + r], o[r][1]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            vf_store(sums + r * o_row + d, o[r][0]);
            vf_store(sums + r * o_row + d + ATTN_W, o[r][1]);
        }
    }
    for (; d < dim; d += ATTN_W) {
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            const vf x = few_load_end(dtype, v[i], d, dim);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                float *o = sums + r * o_row + d;
                vf_store(o, vf_fma(x, weight[i * R + r], vf_load(o)));
            }
        }
    }
}

/* As many p stay in registers as leave room for sums and values: half of 16. */
#define FEW_ROWS_AT_ONCE(R) ((R) > 2 && ATTN_W == 8 ? 2 : (R))

VEC_INLINE void few_values_tile(const attn_dtype dtype, const int R, const few_tile *tile, const few_stream *v,
                                const char *rows, const char *zeros, int n, int end, int count, int64_t o_row,
                                const char *ask) {
    const int at_once = FEW_ROWS_AT_ONCE(R), step = ATTN_W / at_once, asked = step * at_once / R;
    for (; n < end; n += step) {
        const char *at[ATTN_W];
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            at[i] = n + i < count ? rows + (n + i) * v->row : zeros;
        }
#pragma GCC unroll 2
        for (int r = 0; r < R; r += at_once) {
            few_asking asking = few_asking_of(dtype, v, asked, ask);
            if (!ask) {
                asking = (few_asking){at[0], 0, 0};
            }
            few_values_step(dtype, at_once, step, asked, tile->scores + n * R + r, R, at, tile->sums + r * o_row,
                            v->dim, o_row, asking);
            ask += ask ? asked * few_asked_row(v) : 0;
        }
    }
}

/* sums += p V for keys [0, count) of the heads that take them; p past count is 0 and meets the row of zeros. */
VEC_INLINE void few_values_as(const attn_dtype dtype, const few_head *heads, int64_t n_heads, const few_stream *v,
                              const char *zeros, int count, int64_t o_row) {
    const int together = few_together(heads, ATTN_W / FEW_ROWS_AT_ONCE(4));
    for (int n = 0; n < count; n += together) {
        const int end = n + together < count ? n + together : count;
        for (int64_t h = 0; h < n_heads; h++) {
            const char *rows = v->at + h * v->head, *ask = few_ask_from(v, h, n, together);
            for (int t = 0; t < heads[h].n_tiles && heads[h].takes; t++, ask = NULL) {
                const few_tile *tile = &heads[h].tiles[t];
                switch (tile->rows) {
                case 1: few_values_tile(dtype, 1, tile, v, rows, zeros, n, end, count, o_row, ask); break;
                case 2: few_values_tile(dtype, 2, tile, v, rows, zeros, n, end, count, o_row, ask); break;
                default: few_values_tile(dtype, 4, tile, v, rows, zeros, n, end, count, o_row, ask); break;
                }
            }
        }
    }
}

#define FEW_BODIES(dtype, name)                                                                                        \
    static __attribute__((noinline)) void few_scores_##name(const few_head *heads, int64_t n_heads,                    \
                                                            const few_stream *k, int count, int64_t q_row) {           \
        few_scores_as(dtype, heads, n_heads, k, count, q_row);                                                         \
    }                                                                                                                  \
    static __attribute__((noinline)) void few_values_##name(                                                           \
        const few_head *heads, int64_t n_heads, const few_stream *v, const char *zeros, int count, int64_t o_row) {    \
        few_values_as(dtype, heads, n_heads, v, zeros, count, o_row);                                                  \
    }
FEW_BODIES(ATTN_F32, f32)
FEW_BODIES(ATTN_F16, f16)
FEW_BODIES(ATTN_BF16, bf16)

static inline void few_scores(const few_head *heads, int64_t n_heads, const few_stream *k, int count, int64_t q_row) {
    switch (k->dtype) {
    case ATTN_F32: few_scores_f32(heads, n_heads, k, count, q_row); break;
    case ATTN_F16: few_scores_f16(heads, n_heads, k, count, q_row); break;
    default: few_scores_bf16(heads, n_heads, k, count, q_row); break;
    }
}
static inline void few_values(const few_head *heads, int64_t n_heads, const few_stream *v, const char *zeros, int count,
                              int64_t o_row) {
    switch (v->dtype) {
    case ATTN_F32: few_values_f32(heads, n_heads, v, zeros, count, o_row); break;
    case ATTN_F16: few_values_f16(heads, n_heads, v, zeros, count, o_row); break;
    default: few_values_bf16(heads, n_heads, v, zeros, count, o_row); break;
    }
}

#endif
