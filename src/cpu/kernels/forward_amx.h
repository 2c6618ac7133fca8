/* SPDX-License-Identifier: Apache-2.0
 * Forward of bf16 on AMX tiles: forward.h's mathematics, with both products as streams of tile steps (tile_amx.h).
 *
 * A step keeps the tile unit busy for 64 cycles and the rest of the core for hardly any; the exponentials of one block
 * take the vector units longer than both its products take the tile unit at d = 64, and three quarters as long at
 * d = 128. So blocks (items: one row block x one key block) pass through a pipeline of three stages, and one turn runs
 *     S^T of the newest item,   P^T of the one before,   O^T += V^T P^T of the one before that,
 * in slots: two rows of exponentials between every few tile steps. What else a block needs goes into the same slots:
 * its running maximum, and transposing V once a key block, which all row blocks of the task share.
 *
 * Reads and writes that one turn mixes never meet: scores and probabilities are held twice, key blocks three times.
 * The reference m is raised only when a maximum exceeds it by more than SLACK, so O is rarely rescaled: p may reach
 * 2^SLACK, which costs float32 and bf16 no precision. Lanes are query rows as everywhere; what is unused of the last 32
 * rows, keys or dims of a block is 0 in one operand and finite in the other. Where a hidden pair meets NaN or inf in V,
 * panel_add_careful takes the place of the stream. */
#ifndef ATTN_CPU_FORWARD_AMX_H
#define ATTN_CPU_FORWARD_AMX_H

#include "forward.h"
#include "tile_amx.h"

#define AMX_SLACK 8.0f
#define AMX_MAGIC 12582912.0f /* 1.5 * 2^23: adding it leaves a whole number, in the low bits */
/* References up to which the fast exponential is exact enough. */
#define AMX_FAST_LIMIT 1048576.0f

/* One key block as the streams read it. */
typedef struct amx_keys {
    amx_operand k;
    amx_rows v;
    uint16_t *v_room;   /* V^T: [block of dims][block of keys][AMX_PACK] */
    int pieces, packed; /* of AMX_PACK in v_room; all, done */
    bool finite;        /* the packed ones */
} amx_keys;

/* One row block against keys j ... j + count - 1, the first of which is row `first` * 32 of its key block. */
typedef struct amx_item {
    bool live;
    int row_block;
    forward_block *block;
    amx_keys *keys;
    int64_t first, j;
    int count;
    bool edge, masked, fast, rescale;
    float *weights; /* of the row block */
    float *scores;  /* [key][lane] */
    float *pairs;   /* [vector of lanes][pair of keys][lane], pairs_vector floats a vector: P^T */
    float top[ATTN_LANES] __attribute__((aligned(64)));
    float alpha[ATTN_LANES] __attribute__((aligned(64)));
} amx_item;

typedef struct amx_pipe {
    const attn__forward_task *task;
    score_rule rule;
    int n_blocks;
    forward_block *blocks;          /* [ATTN__MAX_BLOCKS] */
    bool started[ATTN__MAX_BLOCKS]; /* o holds something */
    float *q;                       /* [blocks][vector of lanes][amx_blocks(dim_qk) * 16][lane]: pairs */
    float *state;                   /* [blocks][m, l] */
    float *weights;                 /* [blocks][64] */
    float *o;                       /* [blocks][amx_blocks(dim_v) * 32][64] */
    float *scores[2], *pairs[2];
    int64_t pairs_vector;
    float *extra;   /* [key][lane]; NULL unless bias or boolean mask */
    float *keep;    /* likewise; NULL unless dropout */
    float *careful; /* [key][lane] p, then [key] of one dim of V */
    uint16_t *k_room;
    amx_keys keys[3];
    int64_t keys_taken, turns;
    amx_item item[3];
    /* Of the item whose exponentials run: what is subtracted, and for the fast form the shifted reference and the
     * least score that counts; the sums of its p, exact and rounded. */
    float subtract[ATTN_LANES] __attribute__((aligned(64)));
    float shifted[ATTN_LANES] __attribute__((aligned(64)));
    float least[ATTN_LANES] __attribute__((aligned(64)));
    float sum[ATTN_LANES] __attribute__((aligned(64)));
    float weight[ATTN_LANES] __attribute__((aligned(64)));
} amx_pipe;

/* Rows read in place must end with their tiles, and lie close enough not to crowd a few cache sets. */
static bool amx_keys_in_place(const attn_problem *p) {
    return p->k.stride[3] == 1 && p->dim_qk % AMX_BLOCK == 0 && p->k.stride[2] == p->dim_qk;
}

/* Lays the scratch out and returns its size; with base NULL it measures. */
static size_t amx_carve(const attn_plan *plan, void *base, amx_pipe *pipe) {
    const attn_problem *p = &plan->problem;
    const size_t blocks = (size_t)((plan->choice.block_q + ATTN__BLOCK - 1) / ATTN__BLOCK);
    const size_t keys = (size_t)amx_blocks(plan->choice.block_kv) * AMX_BLOCK;
    const size_t line = ATTN__BLOCK * sizeof(float);
    const size_t wide_qk = (size_t)amx_blocks(p->dim_qk), wide_v = (size_t)amx_blocks(p->dim_v);
    size_t bytes = 0;
    pipe->pairs_vector = (int64_t)keys / 2 * ATTN_W;
    pipe->blocks = scratch_take(base, &bytes, blocks * sizeof(forward_block));
    pipe->q = scratch_take(base, &bytes, blocks * wide_qk * (AMX_BLOCK / 2) * line);
    pipe->state = scratch_take(base, &bytes, blocks * 2 * line);
    pipe->weights = scratch_take(base, &bytes, blocks * line);
    pipe->o = scratch_take(base, &bytes, blocks * wide_v * AMX_BLOCK * line);
    for (int i = 0; i < 2; i++) {
        pipe->scores[i] = scratch_take(base, &bytes, keys * line);
        pipe->pairs[i] = scratch_take(base, &bytes, keys / 2 * line);
    }
    if (p->bias.dtype != ATTN_NONE || p->mask.dtype != ATTN_NONE) {
        pipe->extra = scratch_take(base, &bytes, keys * line);
    }
    if (p->dropout > 0) {
        pipe->keep = scratch_take(base, &bytes, keys * line);
    }
    pipe->careful = scratch_take(base, &bytes, keys * line + keys * sizeof(float));
    pipe->k_room = scratch_take(base, &bytes, keys * wide_qk * AMX_BLOCK * sizeof(uint16_t));
    for (int i = 0; i < 3; i++) {
        pipe->keys[i].v_room = scratch_take(base, &bytes, keys * wide_v * AMX_BLOCK * sizeof(uint16_t));
    }
    return bytes;
}

/* References are in log2 units where scores are raw products, and in natural ones otherwise, which hold the lowest
 * float: a usual bias for "nearly hidden". */
static score_rule amx_rule(const attn__run *run) {
    score_rule rule = score_rule_make(run->problem, run->args);
    rule.natural = rule.plain ? ATTN_LN2 : 1;
    return rule;
}
/* From a stored score to the reference's unit, and from there to log2. */
VEC_INLINE float amx_to_reference(const score_rule *rule) {
    return rule->plain ? rule->unit : 1.0f;
}
VEC_INLINE float amx_to_log2(const score_rule *rule) {
    return rule->plain ? 1.0f : rule->unit;
}

static size_t amx_scratch_bytes(const attn_plan *plan) {
    amx_pipe pipe;
    return amx_carve(plan, NULL, &pipe);
}

/* Blocks of 32 lanes in use. */
VEC_INLINE int amx_columns(const amx_item *item) {
    return (item->block->rows.lanes.count + AMX_BLOCK - 1) / AMX_BLOCK;
}
VEC_INLINE int amx_vectors(const amx_item *item) {
    return amx_columns(item) * AMX_BLOCK / ATTN_W;
}

/* --- Exponentials --- */

/* References, in log2 units whole numbers, and factors before the item's exponentials; see reference_raise. A NaN among
 * the scores leaves the reference. */
static void amx_reference(amx_pipe *pipe, amx_item *item) {
    const bool whole = pipe->rule.plain;
    const vf unit = vf_set(amx_to_reference(&pipe->rule)), log2 = vf_set(amx_to_log2(&pipe->rule));
    const vf slack = vf_set(AMX_SLACK) / log2, one = vf_set(1.0f);
    vi raised = vi_set(0), slow = vi_set(0);
    for (int v = 0; v < amx_vectors(item); v++) {
        float *m = item->block->m + v * ATTN_W, *l = item->block->l + v * ATTN_W;
        float *weight = item->weights + v * ATTN_W;
        vf old = vf_load(m), score = vf_load(item->top + v * ATTN_W), top = score * unit;
        vi lost = (vf_abs(top) == vf_set(INFINITY)) & (vf_abs(score) < vf_set(INFINITY));
        top = vf_select(lost, vf_set(NAN), top);
        vi raise = (top > old + slack) | lost;
        vf new = vf_max(old, top);
        if (whole) {
            raise |= old != vf_ceil(old); /* a sink need not be whole */
            new = vf_ceil(new);
        }
        new = vf_select(raise, new, old);
        vf subtract = vf_select(new == vf_set(-INFINITY), vf_set(0.0f), new);
        vf factor = vf_select(raise, vf_exp2((old - subtract) * log2), one);
        vf_store(m, new);
        vf_store(l, vf_load(l) * factor);
        vf_store(weight, vf_load(weight) * factor);
        vf_store(item->alpha + v * ATTN_W, factor);
        vf_store(pipe->subtract + v * ATTN_W, subtract);
        vf_store(pipe->shifted + v * ATTN_W, vf_set(AMX_MAGIC) - subtract);
        vf_store(pipe->least + v * ATTN_W, (subtract - vf_set(125.0f)) / unit);
        vf_store(pipe->sum + v * ATTN_W, vf_set(0.0f));
        vf_store(pipe->weight + v * ATTN_W, vf_set(0.0f));
        raised |= raise;
        slow |= ~(vf_abs(new) < vf_set(AMX_FAST_LIMIT));
    }
    item->rescale = vi_any_set(raised);
    item->fast = pipe->rule.plain && !item->masked && !pipe->keep && !vi_any_set(slow);
}

/* 2^(s * unit - m), relative error 2.8e-6, far below the rounding to bf16: s * unit + (magic - m) rounds to a whole
 * number in one fma, and the constant term 1 keeps whole powers of two exact. */
VEC_INLINE vf amx_exp2(vf s, vf unit, vf shifted, vf least) {
    s = vf_max(least, s); /* NaN stays */
    vf t = vf_fma(s, unit, shifted), f = vf_fma(s, unit, -(t - shifted));
    vf p = vf_set(9.58285324e-3f);
    p = vf_fma(p, f, vf_set(5.59064259e-2f));
    p = vf_fma(p, f, vf_set(2.40240986e-1f));
    p = vf_fma(p, f, vf_set(6.93124193e-1f));
    p = vf_fma(p, f, vf_set(1.0f));
    return (vf)((vu)p + ((vu)t << 23));
}

/* The exact sum of p, and the sum of the pairs it was rounded to. Not by vdpbf16ps, which costs more. */
VEC_INLINE void amx_sums(amx_pipe *pipe, int v, vf sum, vf pair) {
    vf even = (vf)((vu)pair << 16), odd = (vf)((vi)pair & vi_set((int32_t)0xffff0000u));
    vf_store(pipe->sum + v * ATTN_W, sum);
    vf_store(pipe->weight + v * ATTN_W, vf_load(pipe->weight + v * ATTN_W) + (even + odd));
}

/* Keys 2n and 2n + 1 (with `whole`), `vectors` vectors of lanes. */
VEC_INLINE void amx_softmax_fast(const bool whole, const int vectors, amx_pipe *pipe, const amx_item *item, int n) {
    const vf unit = vf_set(pipe->rule.unit);
    const float *scores = item->scores + (int64_t)n * 2 * ATTN_LANES;
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        vf shifted = vf_load(pipe->shifted + v * ATTN_W), least = vf_load(pipe->least + v * ATTN_W);
        vf even = amx_exp2(vf_load(scores + v * ATTN_W), unit, shifted, least), odd = vf_set(0.0f);
        if (whole) {
            odd = amx_exp2(vf_load(scores + ATTN_LANES + v * ATTN_W), unit, shifted, least);
        }
        vf pair = amx_pair(even, odd);
        amx_sums(pipe, v, vf_load(pipe->sum + v * ATTN_W) + (even + odd), pair);
        vf_store(item->pairs + v * pipe->pairs_vector + n * ATTN_W, pair);
    }
}

VEC_INLINE vf amx_softmax_row(const amx_pipe *pipe, const float *scores, vf subtract, vf *sum) {
    const vf unit = vf_set(amx_to_reference(&pipe->rule)), log2 = vf_set(amx_to_log2(&pipe->rule));
    vf s = vf_load(scores), p = vf_exp2((s * unit - subtract) * log2);
    p = (vf)(~(s == vf_set(-INFINITY)) & (vi)p);
    *sum += p;
    return p;
}

/* Any scores. Dropout only takes pairs away here; amx_weigh scales what is left. */
VEC_INLINE void amx_softmax_any(const bool dropout, amx_pipe *pipe, const amx_item *item, int n) {
    const vf none = vf_set(0.0f);
    const bool whole = 2 * n + 1 < item->count;
    for (int v = 0; v < amx_vectors(item); v++) {
        int64_t at = (int64_t)n * 2 * ATTN_LANES + v * ATTN_W;
        vf subtract = vf_load(pipe->subtract + v * ATTN_W), sum = vf_load(pipe->sum + v * ATTN_W);
        vf even = amx_softmax_row(pipe, item->scores + at, subtract, &sum), odd = none;
        if (whole) {
            odd = amx_softmax_row(pipe, item->scores + at + ATTN_LANES, subtract, &sum);
        }
        vf pair = vf_pair(even, odd);
        amx_sums(pipe, v, sum, pair);
        if (dropout) {
            vi low = vf_load(pipe->keep + at) != none, high = low;
            if (whole) {
                high = vf_load(pipe->keep + at + ATTN_LANES) != none;
            }
            pair = (vf)((vi)pair & ((low & vi_set(0xffff)) | (high & vi_set((int32_t)0xffff0000u))));
        }
        vf_store(item->pairs + v * pipe->pairs_vector + n * ATTN_W, pair);
    }
}

static __attribute__((noinline)) void amx_softmax(amx_pipe *pipe, const amx_item *item, int n) {
    if (item->fast && 2 * n + 1 < item->count) {
        if (amx_columns(item) * AMX_BLOCK == ATTN_LANES) {
            amx_softmax_fast(true, ATTN_NV, pipe, item, n);
        } else {
            amx_softmax_fast(true, ATTN_NV / 2, pipe, item, n);
        }
    } else if (item->fast) {
        amx_softmax_fast(false, ATTN_NV, pipe, item, n);
    } else if (pipe->keep) {
        amx_softmax_any(true, pipe, item, n);
    } else {
        amx_softmax_any(false, pipe, item, n);
    }
}

/* The item's sums join l and the weights; pairs after its last key are 0 up to the end of their tile. */
static void amx_softmax_end(const amx_pipe *pipe, const amx_item *item) {
    const int64_t done = pairs_of(item->count), all = amx_blocks(item->count) * (AMX_BLOCK / 2);
    for (int v = 0; v < amx_vectors(item); v++) {
        float *l = item->block->l + v * ATTN_W, *weight = item->weights + v * ATTN_W;
        vf_store(l, vf_load(l) + vf_load(pipe->sum + v * ATTN_W));
        vf_store(weight, vf_load(weight) + vf_load(pipe->weight + v * ATTN_W));
        memset(item->pairs + v * pipe->pairs_vector + done * ATTN_W, 0,
               (size_t)((all - done) * ATTN_W) * sizeof(float));
    }
}

/* Running maximum over rows [begin, end). */
static void amx_top(amx_item *item, int begin, int end) {
    for (int v = 0; v < amx_vectors(item); v++) {
        vf top = vf_load(item->top + v * ATTN_W);
        for (int n = begin; n < end; n++) {
            top = vf_max(top, vf_load(item->scores + (int64_t)n * ATTN_LANES + v * ATTN_W));
        }
        vf_store(item->top + v * ATTN_W, top);
    }
}

/* --- Values --- */

static void amx_pack_piece(amx_keys *keys) {
    const int64_t blocks = amx_blocks(keys->v.count);
    bool finite = amx_pack_transposed(&keys->v, keys->packed % blocks * AMX_BLOCK, keys->packed / blocks * AMX_BLOCK,
                                      keys->v_room + (int64_t)keys->packed * AMX_PACK);
    keys->finite = keys->finite && finite;
    keys->packed++;
}

static void amx_rescale(const amx_item *item, int64_t dim_v) {
    for (int v = 0; v < amx_vectors(item); v++) {
        vf alpha = vf_load(item->alpha + v * ATTN_W);
        for (int64_t d = 0; d < dim_v; d++) {
            float *at = item->block->o + d * ATTN_LANES + v * ATTN_W;
            vf_store(at, vf_load(at) * alpha);
        }
    }
}

static __attribute__((noinline)) void amx_values_careful(const amx_pipe *pipe, const amx_item *item) {
    const amx_rows *v = &item->keys->v;
    float *p = pipe->careful, *column = p + amx_blocks(item->count) * AMX_BLOCK * ATTN_LANES;
    for (int64_t at = 0; at < (int64_t)item->count * ATTN_LANES; at++) {
        int64_t n = at / ATTN_LANES, lane = at % ATTN_LANES;
        uint32_t word =
            attn__f32_bits(item->pairs[lane / ATTN_W * pipe->pairs_vector + n / 2 * ATTN_W + lane % ATTN_W]);
        p[at] = attn__bits_f32(n % 2 ? word & 0xffff0000u : word << 16);
        item->scores[at] = item->masked && item->scores[at] == -INFINITY ? 0.0f : 1.0f;
    }
    for (int64_t d = 0; d < pipe->rule.problem->dim_v; d++) {
        for (int64_t n = 0; n < item->count; n++) {
            column[n] = attn__bf16_to_f32(v->at[(item->first * AMX_BLOCK + n) * v->row + d * v->step]);
        }
        panel_add_careful(1, (attn__operands){column, 0, 1, p, ATTN_LANES, item->count},
                          item->block->o + d * ATTN_LANES, ATTN_LANES, item->alpha,
                          (seen_pairs){item->scores, 0, ATTN_LANES, 1});
    }
}

/* What remains for tiles of o^T = o^T * alpha + V^T P^T; no steps if nothing does. */
static amx_stream amx_values(amx_pipe *pipe, const amx_item *item) {
    const int64_t dim_v = pipe->rule.problem->dim_v;
    const bool hidden = item->masked || item->count % AMX_BLOCK != 0, add = pipe->started[item->row_block];
    amx_operand a = amx_packed(item->keys->v_room, amx_blocks(item->keys->v.count));
    pipe->started[item->row_block] = true;
    if (hidden && !item->keys->finite) {
        amx_values_careful(pipe, item);
        return (amx_stream){.steps = 0};
    }
    if (add && item->rescale) {
        amx_rescale(item, dim_v);
    }
    a.at += item->first * 2 * AMX_TILE;
    return amx_stream_make(a, amx_blocks(dim_v), amx_blocks(item->count), amx_columns(item), item->pairs,
                           pipe->pairs_vector, item->block->o, add);
}

/* --- The pipeline --- */

static amx_stream amx_scores(const amx_pipe *pipe, const amx_item *item) {
    amx_operand a = item->keys->k;
    a.at += item->first * a.block;
    return amx_stream_make(a, amx_blocks(item->count), amx_blocks(pipe->rule.problem->dim_qk), amx_columns(item),
                           item->block->q, item->block->q_vector, item->scores, false);
}

/* The slots of one turn; items may be NULL. */
static void amx_slots(amx_pipe *pipe, amx_item *newest, amx_item *middle, amx_item *oldest) {
    amx_stream none = {.steps = 0};
    amx_stream scores = newest ? amx_scores(pipe, newest) : none;
    amx_stream values = oldest ? amx_values(pipe, oldest) : none;
    const int slots = middle ? (int)pairs_of(middle->count) : 1, steps = scores.steps + values.steps;
    const int pieces = middle ? middle->keys->pieces - middle->keys->packed : 0;
    const bool raw = newest && pipe->rule.plain && !newest->edge; /* scores stay as the tiles leave them */
    int steps_due = 0, pieces_due = 0, topped = 0;                /* an even share a slot, in units of 1 / slots */
    for (int slot = 0; slot < slots; slot++) {
        for (steps_due += steps; steps_due >= slots; steps_due -= slots) {
            amx_step(scores.steps > 0 ? &scores : &values);
        }
        if (middle) {
            amx_softmax(pipe, middle, slot);
        }
        for (pieces_due += pieces; pieces_due >= slots; pieces_due -= slots) {
            amx_pack_piece(middle->keys);
        }
        if (raw && scores.steps == 0 && topped < newest->count) {
            int until = topped + 4 < newest->count ? topped + 4 : newest->count;
            amx_top(newest, topped, until);
            topped = until;
        }
    }
    if (raw) {
        amx_top(newest, topped, newest->count);
    }
}

/* Moves every item on by one stage. */
static void amx_turn(amx_pipe *pipe, bool live) {
    amx_item *newest = &pipe->item[pipe->turns % 3], *middle = &pipe->item[(pipe->turns + 2) % 3];
    amx_item *oldest = &pipe->item[(pipe->turns + 1) % 3];
    newest->live = live;
    if (middle->live) {
        if (pipe->keep) {
            score_keep(pipe->task->run, &middle->block->rows, 0, middle->j, middle->count, pipe->keep);
        }
        amx_reference(pipe, middle);
    }
    amx_slots(pipe, live ? newest : NULL, middle->live ? middle : NULL, oldest->live ? oldest : NULL);
    if (middle->live) {
        amx_softmax_end(pipe, middle);
    }
    if (live && (newest->edge || !pipe->rule.plain)) {
        score_apply(&pipe->rule, &newest->block->rows, 0, newest->edge, pipe->rule.has_extra ? pipe->extra : NULL,
                    newest->j, newest->count, newest->scores, newest->top, NULL);
    }
    oldest->live = false;
    pipe->turns++;
}

/* Keys [row, row + count) of a segment. K is needed in the turn that follows alone, V in the two after it as well. */
static amx_keys *amx_load_keys(amx_pipe *pipe, const attn_segment *segment, int64_t row, int64_t count) {
    const attn_problem *p = pipe->rule.problem;
    const attn_args *args = pipe->rule.args;
    const int64_t sequence = segment->sequence, head = pipe->task->head_kv, first = segment->first + row;
    amx_keys *keys = &pipe->keys[pipe->keys_taken++ % 3];
    amx_rows k = {(const uint16_t *)args->k + attn__row_offset(&p->k, sequence, head, first), p->k.stride[2],
                  p->k.stride[3], count, p->dim_qk};
    keys->v = (amx_rows){(const uint16_t *)args->v + attn__row_offset(&p->v, sequence, head, first), p->v.stride[2],
                         p->v.stride[3], count, p->dim_v};
    keys->pieces = (int)(amx_blocks(count) * amx_blocks(p->dim_v));
    keys->packed = 0;
    keys->finite = true;
    if (amx_keys_in_place(p) && row + amx_blocks(count) * AMX_BLOCK <= segment->rows) {
        const int64_t bytes = 2 * k.row;
        keys->k = (amx_operand){(const char *)k.at, bytes, 16 * bytes, 2 * AMX_BLOCK, AMX_BLOCK * bytes};
    } else {
        amx_pack_rows(&k, pipe->k_room);
        keys->k = amx_packed(pipe->k_room, amx_blocks(p->dim_qk));
    }
    return keys;
}

/* All row blocks against rows [row, row + count) of one key segment. */
static void amx_key_block(void *context, const attn_segment *segment, int64_t row, int64_t count) {
    amx_pipe *pipe = context;
    const score_rule *rule = &pipe->rule;
    const int64_t base = segment->position + row;
    amx_keys *keys = NULL;
    for (int b = 0; b < pipe->n_blocks; b++) {
        forward_block *block = &pipe->blocks[b];
        int64_t begin = base, end = base + count;
        score_span span = score_band_span(&rule->problem->band, &block->rows.lanes, &begin, &end);
        if (span == SPAN_HIDDEN) {
            continue;
        }
        const int64_t before = (begin - base) % AMX_BLOCK; /* whole tiles: the band hides what comes before */
        begin -= before;
        if (rule->has_extra &&
            !score_extra(rule, &block->rows, block->groups, begin, (int)(end - begin), pipe->extra)) {
            continue;
        }
        keys = keys ? keys : amx_load_keys(pipe, segment, row, count);
        amx_item *item = &pipe->item[pipe->turns % 3];
        item->row_block = b;
        item->block = block;
        item->keys = keys;
        item->first = (begin - base) / AMX_BLOCK;
        item->j = begin;
        item->count = (int)(end - begin);
        item->edge = span == SPAN_EDGE || before != 0;
        item->masked = item->edge || rule->has_extra;
        item->weights = pipe->weights + (int64_t)b * ATTN_LANES;
        item->scores = pipe->scores[pipe->turns % 2];
        item->pairs = pipe->pairs[pipe->turns % 2];
        for (int lane = 0; lane < ATTN_LANES; lane++) {
            item->top[lane] = -INFINITY;
        }
        amx_turn(pipe, true);
    }
}

/* Queries as pairs, missing dims 0; state and o. */
static void amx_block_start(amx_pipe *pipe, int b, int64_t row) {
    const attn_problem *p = pipe->rule.problem;
    const int64_t q_rows = amx_blocks(p->dim_qk) * (AMX_BLOCK / 2), o_rows = amx_blocks(p->dim_v) * AMX_BLOCK;
    float *partial = pipe->task->partial ? pipe->task->partial + b * attn__state_floats(p) : NULL;
    forward_block *block = &pipe->blocks[b];
    block->m = partial ? partial : pipe->state + (int64_t)b * 2 * ATTN__BLOCK;
    block->l = block->m + ATTN__BLOCK;
    block->o = pipe->o + b * o_rows * ATTN__BLOCK;
    block->q = pipe->q + b * q_rows * ATTN__BLOCK;
    block->q_steps = q_rows;
    block->q_vector = q_rows * ATTN_W;
    block->q_step = ATTN_W;
    forward_block_start(block, &pipe->rule, pipe->task, row);
    for (int v = 0; v < ATTN_NV; v++) {
        const int64_t done = pairs_of(p->dim_qk);
        memset(block->q + v * block->q_vector + done * ATTN_W, 0, (size_t)((q_rows - done) * ATTN_W) * sizeof(float));
    }
    memcpy(pipe->weights + (int64_t)b * ATTN_LANES, block->l, ATTN_LANES * sizeof(float)); /* the sink's */
    memset(block->o + p->dim_v * ATTN_LANES, 0, (size_t)((o_rows - p->dim_v) * ATTN_LANES) * sizeof(float));
}

/* Makes o what l has to divide: a sum of rounded p belongs over the sum of the same rounded p, so that a row in which
 * one key counts gives that key's value. Dropout's 1 / (1 - rate) is applied here. */
static void amx_weigh(const amx_pipe *pipe, int b) {
    const attn_problem *p = pipe->rule.problem;
    const forward_block *block = &pipe->blocks[b];
    const vf kept = vf_set((float)(1.0 / (1.0 - (double)p->dropout))), zero = vf_set(0.0f);
    for (int v = 0; v < ATTN_NV; v++) {
        vf l = vf_load(block->l + v * ATTN_W), weight = vf_load(pipe->weights + (int64_t)b * ATTN_LANES + v * ATTN_W);
        vf factor = vf_select(weight == zero, zero, l / weight * kept);
        for (int64_t d = 0; d < p->dim_v; d++) {
            float *at = block->o + d * ATTN_LANES + v * ATTN_W;
            vf_store(at, vf_load(at) * factor);
        }
    }
}

static void amx_forward(const attn__forward_task *task, void *scratch) {
    const attn__run *run = task->run;
    const attn_problem *p = run->problem;
    _Static_assert(ATTN_LANES == ATTN__BLOCK, "one group of lanes a row block");
    amx_pipe pipe = {.task = task, .rule = amx_rule(run)};
    amx_carve(run->plan, scratch, &pipe);
    for (int64_t row = task->rows.row_begin; row < task->rows.row_end; row += ATTN__BLOCK) {
        amx_block_start(&pipe, pipe.n_blocks++, row);
    }
    amx_configure();
    forward_walk(task, amx_key_block, &pipe);
    amx_turn(&pipe, false);
    amx_turn(&pipe, false);
    amx_release();
    for (int b = 0; b < pipe.n_blocks; b++) {
        amx_weigh(&pipe, b);
        if (task->partial) {
            memcpy(pipe.blocks[b].l + ATTN__BLOCK, pipe.blocks[b].o, (size_t)(p->dim_v * ATTN_LANES) * sizeof(float));
        } else {
            forward_finish(&pipe.rule, &pipe.blocks[b]);
        }
    }
}

static void amx_finish(const attn__forward_task *task, float *states, int64_t part_stride, int64_t parts) {
    const score_rule rule = amx_rule(task->run);
    merge_parts(task, &rule, amx_to_log2(&rule), states, part_stride, parts);
}

#endif
