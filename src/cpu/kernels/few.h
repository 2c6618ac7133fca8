/* SPDX-License-Identifier: Apache-2.0
 * Forward for few query rows (decode): lanes run along the head dimension, and all rows that share a kv head go
 * together, so that K and V stream through once, in place, row by row.
 *
 * Rows are cut into tiles of 4, 2 or 1; a tile of R rows takes W / R keys at a time. Scores: one vector of partial
 * sums for each (key, row), then one transposed addition gives all W sums, key-major: the compact block [key][row].
 * Values: the p of W / R keys stay in registers while the block's sums [row][dim] in L1 take them up; o gets the
 * block's sums at its end, so that a long sum is a sum of block sums. Where more than the scale applies, a block passes
 * through score.h's [key][lane] form and back. */
#ifndef ATTN_CPU_FEW_H
#define ATTN_CPU_FEW_H

#include "block.h"

typedef struct few_tile {
    int first, rows;  /* among the task's rows */
    float *scores;    /* [key][rows] */
    float *m, *l, *o; /* [rows], [rows], [rows][o_row] */
    float *sums;      /* [rows][o_row], of one block */
    const float *q;   /* [rows][q_row] */
} few_tile;

typedef struct few_scratch {
    score_rows *rows;
    float *q;      /* [ATTN__FEW][q_row] */
    float *state;  /* attn__few_state_floats */
    float *sums;   /* [ATTN__FEW][o_row] */
    float *scores; /* [ATTN__FEW][keys], a tile's part after another's */
    float *block;  /* [group][key][lane] */
    float *extra;  /* likewise */
    float *zeros;  /* a value row that adds nothing */
    key_room room;
    int64_t q_row, o_row, keys;
    size_t bytes;
} few_scratch;

/* Keys as this body reads them: any float type in place, or converted. */
typedef struct few_keys {
    attn_dtype k_dtype, v_dtype;
    const char *k, *v;
    int64_t k_row, v_row; /* bytes */
} few_keys;

static inline int64_t few_round(int64_t n) {
    return (n + 15) & ~(int64_t)15;
}

static few_scratch few_carve(const attn_plan *plan, void *base) {
    const attn_problem *p = &plan->problem;
    few_scratch s = {0};
    s.q_row = few_round(p->dim_qk);
    s.o_row = few_round(p->dim_v);
    s.keys = few_round(plan->choice.block_kv);
    const size_t lanes = (ATTN__FEW + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    s.rows = scratch_take(base, &s.bytes, sizeof(score_rows));
    s.q = scratch_take(base, &s.bytes, (size_t)(ATTN__FEW * s.q_row) * sizeof(float));
    s.state = scratch_take(base, &s.bytes, (size_t)attn__few_state_floats(p) * sizeof(float));
    s.sums = scratch_take(base, &s.bytes, (size_t)(ATTN__FEW * s.o_row) * sizeof(float));
    s.scores = scratch_take(base, &s.bytes, (size_t)(ATTN__FEW * s.keys) * sizeof(float));
    s.block = scratch_take(base, &s.bytes, (size_t)s.keys * lanes * sizeof(float));
    s.extra = scratch_take(base, &s.bytes, (size_t)s.keys * lanes * sizeof(float));
    s.zeros = scratch_take(base, &s.bytes, (size_t)s.o_row * sizeof(float));
    if (p->k.stride[3] != 1) {
        s.room.k = scratch_take(base, &s.bytes, (size_t)(s.keys * p->dim_qk) * sizeof(float));
    }
    if (p->v.stride[3] != 1) {
        s.room.v = scratch_take(base, &s.bytes, (size_t)(s.keys * p->dim_v) * sizeof(float));
    }
    return s;
}

static size_t few_scratch_bytes(const attn_plan *plan) {
    return few_carve(plan, NULL).bytes;
}

static few_keys few_keys_load(const attn__forward_task *task, const few_scratch *s, int64_t row, int64_t count) {
    const attn_problem *p = task->run->problem;
    const attn_args *args = task->run->args;
    const int64_t k_size = (int64_t)attn_dtype_size(p->k.dtype), v_size = (int64_t)attn_dtype_size(p->v.dtype);
    const int64_t sequence = task->rows.segment.sequence;
    few_keys keys = {p->k.dtype,
                     p->v.dtype,
                     (const char *)args->k + attn__row_offset(&p->k, sequence, task->head_kv, row) * k_size,
                     (const char *)args->v + attn__row_offset(&p->v, sequence, task->head_kv, row) * v_size,
                     p->k.stride[2] * k_size,
                     p->v.stride[2] * v_size};
    if (s->room.k) {
        rows_widen(p->k.dtype, keys.k, p->k.stride[2], p->k.stride[3], count, p->dim_qk, s->room.k, p->dim_qk);
        keys.k_dtype = ATTN_F32;
        keys.k = (const char *)s->room.k;
        keys.k_row = p->dim_qk * (int64_t)sizeof(float);
    }
    if (s->room.v) {
        rows_widen(p->v.dtype, keys.v, p->v.stride[2], p->v.stride[3], count, p->dim_v, s->room.v, p->dim_v);
        keys.v_dtype = ATTN_F32;
        keys.v = (const char *)s->room.v;
        keys.v_row = p->dim_v * (int64_t)sizeof(float);
    }
    return keys;
}

/* The last dim % W elements of a row, 0 behind them. */
static __attribute__((noinline)) void few_tail(attn_dtype dtype, const char *row, int64_t from, int64_t dim,
                                               float *tail) {
    vf_store(tail, vf_set(0.0f));
    for (int64_t d = from; d < dim; d++) {
        tail[d - from] = (float)attn__load(dtype, row, d);
    }
}

/* Memory runs ahead of the tiles: while K is read the block's V comes into L2, while V is read the next K. */
VEC_INLINE void few_prefetch(const char *row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(row + at, 0, 2);
    }
}

/* Raw scores of keys [0, count): compact, up to the next multiple of W / R keys (what is past count is -inf). */
VEC_INLINE void few_scores_as(const attn_dtype dtype, const int R, const few_tile *tile, const few_keys *keys,
                              int count, int64_t dim, int64_t q_row, int64_t v_bytes) {
    enum { SIZE_32 = 4 };
    const int64_t size = dtype == ATTN_F32 ? SIZE_32 : 2;
    const int step = ATTN_W / R;
    for (int n = 0; n < count; n += step) {
        const char *k[ATTN_W];
        vf acc[ATTN_W];
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            int key = n + i < count ? n + i : count - 1;
            k[i] = keys->k + key * keys->k_row;
            if (v_bytes > 0) {
                few_prefetch(keys->v + key * keys->v_row, v_bytes);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < ATTN_W; i++) {
            acc[i] = vf_set(0.0f);
        }
        int64_t d = 0;
        for (; d + ATTN_W <= dim; d += ATTN_W) {
            vf q[4];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                q[r] = vf_load(tile->q + r * q_row + d);
            }
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                vf x = vf_load_as(dtype, k[i] + d * size);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    acc[i * R + r] = vf_fma(x, q[r], acc[i * R + r]);
                }
            }
        }
        if (d < dim) {
            float tail[ATTN_W] __attribute__((aligned(64)));
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                few_tail(dtype, k[i], d, dim, tail);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    acc[i * R + r] = vf_fma(vf_load(tail), vf_load(tile->q + r * q_row + d), acc[i * R + r]);
                }
            }
        }
        vf sums = vf_sums(acc);
        for (int i = count - n; i < step; i++) {
            for (int r = 0; r < R; r++) {
                sums[i * R + r] = -INFINITY;
            }
        }
        vf_store(tile->scores + n * R, sums);
    }
}

/* sums += p V for keys [0, count); p past count is 0 and meets the row of zeros. */
VEC_INLINE void few_values_as(const attn_dtype dtype, const int R, const few_tile *tile, const few_keys *keys,
                              const char *zeros, int count, int64_t dim, int64_t o_row, int64_t next_k) {
    const int64_t size = dtype == ATTN_F32 ? 4 : 2;
    const int step = ATTN_W / R;
    float *sums = tile->sums;
    for (int n = 0; n < count; n += step) {
        const char *v[ATTN_W];
        vf p[ATTN_W];
#pragma GCC unroll 16
        for (int i = 0; i < step; i++) {
            v[i] = n + i < count ? keys->v + (n + i) * keys->v_row : zeros;
            if (next_k > 0 && n + i < count) {
                few_prefetch(keys->k + (count + n + i) * keys->k_row, next_k);
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                p[i * R + r] = vf_set(tile->scores[(n + i) * R + r]);
            }
        }
        int64_t d = 0;
        for (; d + ATTN_W <= dim; d += ATTN_W) {
            vf o[4];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                o[r] = vf_load(sums + r * o_row + d);
            }
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                vf x = vf_load_as(dtype, v[i] + d * size);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    o[r] = vf_fma(x, p[i * R + r], o[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vf_store(sums + r * o_row + d, o[r]);
            }
        }
        if (d < dim) {
            float tail[ATTN_W] __attribute__((aligned(64)));
#pragma GCC unroll 16
            for (int i = 0; i < step; i++) {
                few_tail(dtype, v[i], d, dim, tail);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) {
                    float *o = sums + r * o_row + d;
                    vf_store(o, vf_fma(vf_load(tail), p[i * R + r], vf_load(o)));
                }
            }
        }
    }
}

#define ATTN__FEW_ROWS(rows, CALL)                                                                                     \
    switch (rows) {                                                                                                    \
    case 1: CALL(1); break;                                                                                            \
    case 2: CALL(2); break;                                                                                            \
    default: CALL(4); break;                                                                                           \
    }
#define ATTN__FEW_BODIES(dtype, name)                                                                                  \
    static __attribute__((noinline)) void few_scores_##name(const few_tile *tile, const few_keys *keys, int count,     \
                                                            int64_t dim, int64_t q_row, int64_t v_bytes) {             \
        ATTN__FEW_ROWS(tile->rows, ATTN__FEW_SCORES_##name)                                                            \
    }                                                                                                                  \
    static __attribute__((noinline)) void few_values_##name(const few_tile *tile, const few_keys *keys,                \
                                                            const char *zeros, int count, int64_t dim, int64_t o_row,  \
                                                            int64_t next_k) {                                          \
        ATTN__FEW_ROWS(tile->rows, ATTN__FEW_VALUES_##name)                                                            \
    }
#define ATTN__FEW_SCORES_f32(R)  few_scores_as(ATTN_F32, R, tile, keys, count, dim, q_row, v_bytes)
#define ATTN__FEW_SCORES_f16(R)  few_scores_as(ATTN_F16, R, tile, keys, count, dim, q_row, v_bytes)
#define ATTN__FEW_SCORES_bf16(R) few_scores_as(ATTN_BF16, R, tile, keys, count, dim, q_row, v_bytes)
#define ATTN__FEW_VALUES_f32(R)  few_values_as(ATTN_F32, R, tile, keys, zeros, count, dim, o_row, next_k)
#define ATTN__FEW_VALUES_f16(R)  few_values_as(ATTN_F16, R, tile, keys, zeros, count, dim, o_row, next_k)
#define ATTN__FEW_VALUES_bf16(R) few_values_as(ATTN_BF16, R, tile, keys, zeros, count, dim, o_row, next_k)
ATTN__FEW_BODIES(ATTN_F32, f32)
ATTN__FEW_BODIES(ATTN_F16, f16)
ATTN__FEW_BODIES(ATTN_BF16, bf16)

typedef void (*few_scores_fn)(const few_tile *, const few_keys *, int, int64_t, int64_t, int64_t);
typedef void (*few_values_fn)(const few_tile *, const few_keys *, const char *, int, int64_t, int64_t, int64_t);

static inline few_scores_fn few_scores_of(attn_dtype dtype) {
    return dtype == ATTN_F32 ? few_scores_f32 : dtype == ATTN_F16 ? few_scores_f16 : few_scores_bf16;
}
static inline few_values_fn few_values_of(attn_dtype dtype) {
    return dtype == ATTN_F32 ? few_values_f32 : dtype == ATTN_F16 ? few_values_f16 : few_values_bf16;
}

/* p in place of the compact scores; m and l follow, alpha says what o is worth. Lane i of a vector belongs to row
 * i % rows. */
static void few_softmax(const few_tile *tile, int count, float unit, bool masked, float alpha[4]) {
    const int rows = tile->rows, total = (count * rows + ATTN_W - 1) / ATTN_W * ATTN_W;
    float lane[ATTN_W] __attribute__((aligned(64))), top[4], reference[4] = {0};
    vf best = vf_set(-INFINITY), sum = vf_set(0.0f), scale = vf_set(unit);
    for (int at = 0; at < total; at += ATTN_W) {
        best = vf_max(best, vf_load(tile->scores + at));
    }
    vf_store(lane, best);
    for (int r = 0; r < rows; r++) {
        top[r] = -INFINITY;
        for (int i = r; i < ATTN_W; i += rows) {
            top[r] = lane[i] > top[r] ? lane[i] : top[r];
        }
        float raised = top[r] * unit;
        float m = raised > tile->m[r] ? raised : tile->m[r];
        reference[r] = m == -INFINITY ? 0.0f : m;
        alpha[r] = tile->m[r] == m ? 1.0f : exp2f(tile->m[r] - reference[r]);
        tile->m[r] = m;
    }
    for (int i = 0; i < ATTN_W; i++) {
        lane[i] = reference[i % rows];
    }
    const vf subtract = vf_load(lane);
    for (int at = 0; at < total; at += ATTN_W) {
        vf s = vf_load(tile->scores + at), p = vf_exp2(s * scale - subtract);
        if (masked || at + ATTN_W > count * rows) {
            p = (vf)(~(s == vf_set(-INFINITY)) & (vi)p);
        }
        sum += p;
        vf_store(tile->scores + at, p);
    }
    vf_store(lane, sum);
    for (int r = 0; r < rows; r++) {
        float added = 0.0f;
        for (int i = r; i < ATTN_W; i += rows) {
            added += lane[i];
        }
        tile->l[r] = tile->l[r] * alpha[r] + added;
    }
}

/* o = o * alpha + the block's sums, which start again from 0. */
static void few_fold(const few_tile *tile, const float alpha[4], int64_t o_row) {
    for (int r = 0; r < tile->rows; r++) {
        const vf factor = vf_set(alpha[r]);
        for (int64_t d = r * o_row; d < (r + 1) * o_row; d += ATTN_W) {
            vf_store(tile->o + d, vf_fma(vf_load(tile->o + d), factor, vf_load(tile->sums + d)));
            vf_store(tile->sums + d, vf_set(0.0f));
        }
    }
}

/* Scores of all tiles through score.h; n keys from position j. */
static void few_apply(const few_scratch *s, const score_rule *rule, const few_tile *tiles, int n_tiles, bool edge,
                      int64_t j, int count) {
    const int groups = (s->rows->lanes.count + ATTN_LANES - 1) / ATTN_LANES;
    for (int back = 0; back < 2; back++) {
        for (int t = 0; t < n_tiles; t++) {
            for (int r = 0; r < tiles[t].rows; r++) {
                int lane = tiles[t].first + r;
                float *in = s->block + (int64_t)(lane / ATTN_LANES) * count * ATTN_LANES + lane % ATTN_LANES;
                for (int n = 0; n < count; n++) {
                    float *compact = &tiles[t].scores[n * tiles[t].rows + r];
                    *(back ? compact : in + (int64_t)n * ATTN_LANES) = *(back ? in + (int64_t)n * ATTN_LANES : compact);
                }
            }
        }
        for (int group = 0; group < groups && !back; group++) {
            float top[ATTN_LANES] __attribute__((aligned(64)));
            int64_t at = (int64_t)group * count * ATTN_LANES;
            score_apply(rule, s->rows, group, edge, rule->has_extra ? s->extra + at : NULL, j, count, s->block + at,
                        top, NULL);
        }
    }
}

static void few_drop(const attn__run *run, const score_rows *rows, const few_tile *tile, int64_t j, int count) {
    const float kept = (float)(1.0 / (1.0 - (double)run->problem->dropout));
    for (int n = 0; n < count; n++) {
        for (int r = 0; r < tile->rows; r++) {
            int lane = tile->first + r;
            float *p = &tile->scores[n * tile->rows + r];
            if (attn__f32_bits(*p) == 0) {
                continue;
            }
            int keep = attn__dropout_keep(run->dropout, rows->lanes.position[lane], j + n,
                                          rows->lanes.head[lane] + run->args->head_first,
                                          rows->lanes.sequence + run->args->batch_first);
            *p *= keep ? kept : -0.0f;
        }
    }
}

static bool few_finite(const few_keys *keys, int count, int64_t dim) {
    for (int n = 0; n < count; n++) {
        for (int64_t d = 0; d < dim; d++) {
            if (!isfinite(attn__load(keys->v_dtype, keys->v + n * keys->v_row, d))) {
                return false;
            }
        }
    }
    return true;
}

/* Hidden pairs (p is +0) left out one by one. */
static void few_values_careful(const few_tile *tile, const few_keys *keys, int count, int64_t dim, int64_t o_row) {
    for (int n = 0; n < count; n++) {
        for (int r = 0; r < tile->rows; r++) {
            float p = tile->scores[n * tile->rows + r];
            for (int64_t d = 0; d < dim && attn__f32_bits(p) != 0; d++) {
                tile->sums[r * o_row + d] += p * (float)attn__load(keys->v_dtype, keys->v + n * keys->v_row, d);
            }
        }
    }
}

static void few_block(const attn__forward_task *task, const score_rule *rule, const few_scratch *s,
                      const few_tile *tiles, int n_tiles, const few_keys *keys, int64_t j, int count, bool edge,
                      bool more) {
    const attn_problem *p = rule->problem;
    const bool masked = edge || rule->has_extra;
    const bool careful = masked && !few_finite(keys, count, p->dim_v);
    const int64_t v_bytes = s->room.v ? 0 : p->dim_v * (int64_t)attn_dtype_size(keys->v_dtype);
    const int64_t k_bytes = s->room.k || !more ? 0 : p->dim_qk * (int64_t)attn_dtype_size(keys->k_dtype);
    for (int t = 0; t < n_tiles; t++) {
        few_scores_of(keys->k_dtype)(&tiles[t], keys, count, p->dim_qk, s->q_row, t == 0 ? v_bytes : 0);
    }
    if (edge || !rule->plain) {
        few_apply(s, rule, tiles, n_tiles, edge, j, count);
    }
    for (int t = 0; t < n_tiles; t++) {
        float alpha[4];
        few_softmax(&tiles[t], count, rule->unit, masked, alpha);
        if (p->dropout > 0) {
            few_drop(task->run, s->rows, &tiles[t], j, count);
        }
        if (careful) {
            few_values_careful(&tiles[t], keys, count, p->dim_v, s->o_row);
        } else {
            few_values_of(keys->v_dtype)(&tiles[t], keys, (const char *)s->zeros, count, p->dim_v, s->o_row,
                                         t == 0 ? k_bytes : 0);
        }
        few_fold(&tiles[t], alpha, s->o_row);
    }
}

static int few_tiles(const few_scratch *s, float *state, int rows, few_tile *tiles) {
    int n_tiles = 0;
    for (int first = 0; first < rows;) {
        int left = rows - first, size = left >= 4 && ATTN_W >= 4 ? 4 : left >= 2 ? 2 : 1;
        tiles[n_tiles++] = (few_tile){first,
                                      size,
                                      s->scores + first * s->keys,
                                      state + first,
                                      state + ATTN__FEW + first,
                                      state + 2 * ATTN__FEW + first * s->o_row,
                                      s->sums + first * s->o_row,
                                      s->q + first * s->q_row};
        first += size;
    }
    return n_tiles;
}

static void few_start(const attn__forward_task *task, const score_rule *rule, const few_scratch *s, float *state) {
    const attn_problem *p = rule->problem;
    const attn__lanes *lanes = &s->rows->lanes;
    const int64_t size = (int64_t)attn_dtype_size(p->q.dtype);
    memset(state, 0, (size_t)attn__few_state_floats(p) * sizeof(float));
    memset(s->q, 0, (size_t)(ATTN__FEW * s->q_row) * sizeof(float));
    memset(s->sums, 0, (size_t)(ATTN__FEW * s->o_row) * sizeof(float));
    memset(s->zeros, 0, (size_t)s->o_row * sizeof(float));
    for (int lane = 0; lane < lanes->count; lane++) {
        float *q = s->q + lane * s->q_row;
        const char *row = (const char *)rule->args->q + attn__lane_offset(&p->q, lanes, lane) * size;
        rows_widen(p->q.dtype, row, 0, p->q.stride[3], 1, p->dim_qk, q, s->q_row);
        for (int64_t d = 0; d < p->dim_qk && rule->negative; d++) {
            q[d] = -q[d];
        }
        score_sink_start(rule, lanes, lane, task->with_sink, &state[lane], &state[ATTN__FEW + lane]);
    }
}

static void few_finish_rows(const attn__forward_task *task, const attn__lanes *lanes, const float *state) {
    const attn_problem *p = task->run->problem;
    const int64_t size = (int64_t)attn_dtype_size(p->o.dtype), o_row = few_round(p->dim_v);
    for (int lane = 0; lane < lanes->count; lane++) {
        float m = state[lane], l = state[ATTN__FEW + lane], inverse = l == 0 ? 0.0f : 1.0f / l;
        const float *o = state + 2 * ATTN__FEW + lane * o_row;
        char *row = (char *)task->run->args->o + attn__lane_offset(&p->o, lanes, lane) * size;
        for (int64_t d = 0; d < p->dim_v; d++) {
            attn__store(p->o.dtype, row, d * p->o.stride[3], o[d] * inverse);
        }
        score_lse_store(task->run, lanes, lane, m, l);
    }
}

static void few_forward(const attn__forward_task *task, void *scratch) {
    const attn__run *run = task->run;
    const attn_problem *p = run->problem;
    const score_rule rule = score_rule_make(p, run->args);
    const few_scratch s = few_carve(run->plan, scratch);
    float *state = task->partial ? task->partial : s.state;
    few_tile tiles[ATTN__FEW];
    score_rows_fill(s.rows, &rule, &task->rows, task->rows.row_begin);
    few_start(task, &rule, &s, state);
    const int n_tiles = few_tiles(&s, state, s.rows->lanes.count, tiles);
    const int groups = (s.rows->lanes.count + ATTN_LANES - 1) / ATTN_LANES;
    int64_t first, last, before = 0;
    attn__side_range(&run->kv, task->rows.segment.sequence, &first, &last);
    for (int64_t n = first; n < last; n++) {
        attn_segment segment = attn__side_segment(&run->kv, n);
        int64_t row = task->key_begin > before ? task->key_begin - before : 0;
        int64_t stop = task->key_end - before < segment.rows ? task->key_end - before : segment.rows;
        for (; row < stop; row += run->plan->choice.block_kv) {
            int64_t count = stop - row < run->plan->choice.block_kv ? stop - row : run->plan->choice.block_kv;
            int64_t base = segment.position + row, begin = base, end = base + count;
            score_span span = score_band_span(&p->band, &s.rows->lanes, &begin, &end);
            if (span == SPAN_HIDDEN ||
                (rule.has_extra && !score_extra(&rule, s.rows, groups, begin, (int)(end - begin), s.extra))) {
                continue;
            }
            few_keys keys = few_keys_load(task, &s, segment.first + row + (begin - base), end - begin);
            bool more = row + 2 * run->plan->choice.block_kv <= stop;
            few_block(task, &rule, &s, tiles, n_tiles, &keys, begin, (int)(end - begin), span == SPAN_EDGE, more);
        }
        before += segment.rows;
    }
    if (!task->partial) {
        few_finish_rows(task, &s.rows->lanes, state);
    }
}

static void few_finish(const attn__forward_task *task, float *states, int64_t part_stride, int64_t parts) {
    const int64_t o_row = few_round(task->run->problem->dim_v);
    attn__lanes lanes;
    attn__lanes_fill(&lanes, &task->rows, task->rows.row_begin);
    for (int64_t part = 1; part < parts; part++) {
        const float *from = states + part * part_stride;
        for (int lane = 0; lane < lanes.count; lane++) {
            float old = states[lane], other = from[lane], m = old > other ? old : other;
            float reference = m == -INFINITY ? 0.0f : m;
            float a = exp2f(old - reference), b = exp2f(other - reference);
            float *o = states + 2 * ATTN__FEW + lane * o_row;
            const float *add = from + 2 * ATTN__FEW + lane * o_row;
            states[lane] = m;
            states[ATTN__FEW + lane] = states[ATTN__FEW + lane] * a + from[ATTN__FEW + lane] * b;
            for (int64_t d = 0; d < o_row; d++) {
                o[d] = o[d] * a + add[d] * b;
            }
        }
    }
    few_finish_rows(task, &lanes, states);
}

#endif
