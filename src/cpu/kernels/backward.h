/* SPDX-License-Identifier: Apache-2.0
 * Backward of dq, dk and dv: one task is a chunk of the keys of one (sequence, kv head) against all its query rows.
 *
 * For each few blocks of 64 rows and each key block:
 *   P^T, dS^T (gradient_scores.h),   dV += P^T dO,   dK += dS^T Q,   dQ^T += K^T dS^T (gradient_products.h)
 * dK and dV of the whole chunk stay in the thread's scratch as column tiles [tile][key][ATTN_LANES], so the sum over
 * the query heads of a kv head costs nothing; they are complete, and stored, when the task ends. dQ is complete when
 * the chunk is the whole sequence; else each chunk leaves its part and backward_finish adds them in order. The scale is
 * applied once, at the end.
 *
 * Where ATTN_HAVE_DOT2 all of q, k, v and dout are bf16, P^T and dS^T are rounded to bf16 and the products go by pairs:
 * of dims for the scores, of rows for dV and dK, of keys for dQ; sums are float32.
 *
 * Where a block has hidden pairs and K, Q or dO hold NaN or inf, the product that reads them goes pair by pair, on
 * floats. */
#ifndef ATTN_CPU_BACKWARD_H
#define ATTN_CPU_BACKWARD_H

#include "gradient_products.h"

typedef struct backward_scratch {
    gradient_rows *blocks; /* [ATTN__MAX_BLOCKS at most] */
    gradient_scores scores;
    gradient_room room;
    float *ones;    /* [ATTN_LANES] */
    float *dk, *dv; /* [tile][chunk][ATTN_LANES] */
    int64_t chunk;  /* places */
    float *turn;    /* [dim_qk][ATTN_W]: dq as it was */
    size_t bytes;
} backward_scratch;

static inline int64_t row_blocks(const attn_plan *plan) {
    return (plan->choice.block_q + ATTN__BLOCK - 1) / ATTN__BLOCK;
}

static backward_scratch backward_carve(const attn_plan *plan, void *base) {
    const attn_problem *p = &plan->problem;
    backward_scratch s = {.chunk = chunk_places(plan)};
    s.blocks = scratch_take(base, &s.bytes, (size_t)row_blocks(plan) * sizeof(gradient_rows));
    for (int64_t n = 0; n < row_blocks(plan); n++) {
        gradient_rows block = gradient_rows_take(base, &s.bytes, plan, true);
        if (base) {
            s.blocks[n] = block;
        }
    }
    s.scores = gradient_scores_take(base, &s.bytes, p, plan->choice.block_kv);
    s.room = gradient_room_take(base, &s.bytes, plan);
    s.ones = scratch_take(base, &s.bytes, ATTN_LANES * sizeof(float));
    s.turn = scratch_take(base, &s.bytes, (size_t)p->dim_qk * ATTN_W * sizeof(float));
    s.dk = scratch_take(base, &s.bytes, (size_t)(tile_count(p->dim_qk) * s.chunk) * ATTN_LANES * sizeof(float));
    s.dv = scratch_take(base, &s.bytes, (size_t)(tile_count(p->dim_v) * s.chunk) * ATTN_LANES * sizeof(float));
    return s;
}

static size_t backward_scratch_bytes(const attn_plan *plan) {
    return backward_carve(plan, NULL).bytes;
}

/* One row block against keys j ... j + count - 1; `at` is the first one's place in the chunk. */
static void backward_step(const attn__backward_task *task, const score_rule *rule, const backward_scratch *s,
                          gradient_rows *block, gradient_keys keys, int64_t j, int64_t at, int count, bool edge) {
    const attn_problem *p = rule->problem;
    const attn_args *args = rule->args;
    const gradient_scores *g = &s->scores;
    const attn__lanes *lanes = &block->rows.lanes;
    const int64_t c_tile = s->chunk * ATTN_LANES;
    const float *q_tiles = block->q_tiles, *dout_tiles = block->dout_tiles;
    const bool careful = (edge || rule->has_extra) &&
                         (!block->q_finite || !block->dout_finite || !gradient_keys_finite(&keys, count, p->dim_qk));
    score_wish wish = {.edge = edge, .bend = true, .seen = careful, .half = ATTN_HAVE_DOT2 && !careful};
    gradient_scores_fill(g, block, task->run, rule, keys.rows, j, count, wish);
#if ATTN_HAVE_DOT2
    if (careful) {
        pairs_split_rows(keys.rows.k, keys.rows.k_row, count, p->dim_qk, s->room.k_rows);
        gradient_rows_tile(lanes, &p->q, args->q, p->dim_qk, s->room.q_tiles);
        gradient_rows_tile(lanes, &p->dout, args->dout, p->dim_v, s->room.dout_tiles);
        keys = (gradient_keys){{s->room.k_rows, NULL, p->dim_qk, 0}, NULL};
        q_tiles = s->room.q_tiles;
        dout_tiles = s->room.dout_tiles;
    }
#endif
    if (args->dv) {
        product_keys(careful, g->p, dout_tiles, lanes, p->dim_v, count, s->dv + at * ATTN_LANES, c_tile, s->ones,
                     g->seen);
    }
    if (args->dk) {
        product_keys(careful, g->ds, q_tiles, lanes, p->dim_qk, count, s->dk + at * ATTN_LANES, c_tile, s->ones,
                     g->seen);
    }
    if (args->dq) {
        product_rows(careful, &keys, g, &s->room, block, p->dim_qk, count, s->ones);
    }
}

/* A run of keys that lie in one segment, cut from the chunk. */
typedef struct key_piece {
    attn_segment segment;
    int64_t row, count; /* of the segment */
    int64_t at;         /* place of the first in the chunk */
} key_piece;

/* Steps through the pieces of the chunk. */
typedef struct piece_walk {
    int64_t segment, last; /* the next one, and the end */
    int64_t before;        /* keys of segments before it */
    int64_t at;
} piece_walk;

static piece_walk walk_chunk(const attn__backward_task *task) {
    piece_walk walk = {0, 0, 0, 0};
    attn__side_range(&task->run->kv, task->sequence, &walk.segment, &walk.last);
    return walk;
}

static bool next_piece(const attn__backward_task *task, piece_walk *walk, key_piece *piece) {
    while (walk->segment < walk->last) {
        attn_segment segment = attn__side_segment(&task->run->kv, walk->segment++);
        int64_t begin = task->key_begin > walk->before ? task->key_begin - walk->before : 0;
        int64_t end = task->key_end - walk->before < segment.rows ? task->key_end - walk->before : segment.rows;
        walk->before += segment.rows;
        if (begin < end) {
            *piece = (key_piece){segment, begin, end - begin, (walk->at + 1) & ~(int64_t)1};
            walk->at = piece->at + piece->count;
            return true;
        }
    }
    return false;
}

/* Does the band let these rows see anything of the chunk? */
static bool chunk_seen(const attn__backward_task *task, const attn__lanes *lanes) {
    piece_walk walk = walk_chunk(task);
    key_piece piece;
    while (next_piece(task, &walk, &piece)) {
        int64_t begin = piece.segment.position + piece.row, end = begin + piece.count;
        if (score_band_span(&task->run->problem->band, lanes, &begin, &end) != SPAN_HIDDEN) {
            return true;
        }
    }
    return false;
}

/* All row blocks against `count` keys of a piece, from its key `from` on. */
static void backward_key_block(const attn__backward_task *task, const score_rule *rule, const backward_scratch *s,
                               gradient_rows *const *blocks, int n_blocks, const key_piece *piece, int64_t from,
                               int64_t count) {
    const attn_problem *p = rule->problem;
    const int64_t row = piece->row + from, base = piece->segment.position + row;
    bool loaded = false;
    gradient_keys keys = {{NULL, NULL, 0, 0}, NULL};
    for (int b = 0; b < n_blocks; b++) {
        gradient_rows *block = blocks[b];
        int64_t begin = base, end = base + count;
        score_span span = score_band_span(&p->band, &block->rows.lanes, &begin, &end);
        if (span == SPAN_HIDDEN) {
            continue;
        }
#if ATTN_HAVE_DOT2
        if (pairs_whole(base, count, &begin, &end)) {
            span = SPAN_EDGE; /* the band hides what a cut leaves over */
        }
#endif
        if (rule->has_extra &&
            !score_extra(rule, &block->rows, block->groups, begin, (int)(end - begin), s->scores.extra)) {
            continue;
        }
        if (!loaded) {
            gradient_room room = s->room.whole ? gradient_room_at(s->room, p, piece->at + from) : s->room;
            keys = gradient_keys_load(p, rule->args, &room, task->sequence, task->head_kv, piece->segment.first + row,
                                      room.whole ? 0 : count);
            loaded = true;
        }
        backward_step(task, rule, s, block, gradient_keys_cut(keys, begin - base, p->dim_qk), begin,
                      piece->at + from + begin - base, (int)(end - begin), span == SPAN_EDGE || block->closed);
    }
}

/* The chunk's keys into their room, where it is wide enough. */
static void chunk_copy(const attn__backward_task *task, const backward_scratch *s) {
    const attn__run *run = task->run;
    piece_walk walk = walk_chunk(task);
    key_piece piece;
    while (s->room.whole && next_piece(task, &walk, &piece)) {
        gradient_room room = gradient_room_at(s->room, run->problem, piece.at);
        gradient_keys_load(run->problem, run->args, &room, task->sequence, task->head_kv,
                           piece.segment.first + piece.row, piece.count);
    }
}

/* dq of one block from dQ^T, times scale. */
static void store_dq(const attn__run *run, const attn__lanes *lanes, float *dq, float *turn) {
    const attn_problem *p = run->problem;
    const attn_layout *layout = &p->dq;
    const int64_t size = (int64_t)attn_dtype_size(layout->dtype);
    for (int first = 0; first < lanes->count; first += ATTN_W) {
        float *from = dq + (int64_t)(first / ATTN_LANES) * ATTN_LANES * p->dim_qk + first % ATTN_LANES;
        void *rows[ATTN_W];
        for (int i = 0; i < ATTN_W; i++) {
            rows[i] = (char *)run->args->dq + attn__lane_offset(layout, lanes, first + i) * size;
        }
        for (int64_t d = 0; d < p->dim_qk; d++) {
            vf_store(from + d * ATTN_LANES, vf_load(from + d * ATTN_LANES) * vf_set(p->scale));
        }
        if (p->flags & ATTN_ACCUMULATE) {
            rows_to_lanes(layout->dtype, (const void *const *)rows, p->dim_qk, layout->stride[3], turn, ATTN_W);
            for (int64_t d = 0; d < p->dim_qk; d++) {
                vf_store(from + d * ATTN_LANES, vf_load(from + d * ATTN_LANES) + vf_load(turn + d * ATTN_W));
            }
        }
        lanes_to_rows(layout->dtype, from, ATTN_LANES, p->dim_qk, layout->stride[3], rows,
                      lanes->count - first < ATTN_W ? lanes->count - first : ATTN_W);
    }
}

/* Rows of dk or dv of the chunk from their column tiles. */
static void store_keys(const attn__backward_task *task, const attn_layout *layout, void *base, int64_t dim,
                       const float *tiles, int64_t chunk, float factor) {
    const int64_t size = (int64_t)attn_dtype_size(layout->dtype);
    const bool add = task->run->problem->flags & ATTN_ACCUMULATE;
    piece_walk walk = walk_chunk(task);
    key_piece piece;
    while (base && next_piece(task, &walk, &piece)) {
        char *out = (char *)base +
                    attn__row_offset(layout, task->sequence, task->head_kv, piece.segment.first + piece.row) * size;
        for (int64_t tile = 0; tile < tile_count(dim); tile++) {
            int64_t d = tile * ATTN_LANES, width = dim - d < ATTN_LANES ? dim - d : ATTN_LANES;
            rows_narrow(layout->dtype, tiles + (tile * chunk + piece.at) * ATTN_LANES, ATTN_LANES, piece.count, width,
                        factor, add, out + d * layout->stride[3] * size, layout->stride[2], layout->stride[3]);
        }
    }
}

/* Rows of the next blocks that are fetched with each key block: done after a few, few enough not to queue. */
#define ROWS_AHEAD 16

/* The row blocks of `query` (at most row_blocks) against the chunk; the list goes on to `list_end`. Parts of dq go to
 * `partial`, where there is one, only for blocks of which chunk_seen holds. */
static void backward_rows(const attn__backward_task *task, const score_rule *rule, const backward_scratch *s,
                          attn__query_rows query, int64_t list_end, float *partial) {
    const attn__run *run = task->run;
    const attn_problem *p = run->problem;
    const size_t dq_floats = (size_t)(ATTN__BLOCK * p->dim_qk);
    gradient_rows *blocks[ATTN__MAX_BLOCKS];
    bool seen[ATTN__MAX_BLOCKS];
    piece_walk walk = walk_chunk(task);
    int n_all = 0, n_blocks = 0;
    int64_t ahead = query.row_end, ahead_end = 2 * query.row_end - query.row_begin;
    ahead_end = ahead_end < list_end ? ahead_end : list_end;
    key_piece piece;
    for (int64_t row = query.row_begin; row < query.row_end; row += ATTN__BLOCK, n_all++) {
        gradient_rows *block = &s->blocks[n_all];
        memset(block->dq, 0, dq_floats * sizeof(float));
        gradient_rows_place(block, rule, &query, row);
        seen[n_all] = chunk_seen(task, &block->rows.lanes);
        if (seen[n_all] && gradient_rows_load(block, run, rule)) {
            blocks[n_blocks++] = block;
        }
    }
    while (n_blocks > 0 && next_piece(task, &walk, &piece)) {
        for (int64_t from = 0; from < piece.count; from += run->plan->choice.block_kv) {
            int64_t left = piece.count - from;
            int64_t fetched = ahead + ROWS_AHEAD < ahead_end ? ahead + ROWS_AHEAD : ahead_end;
            gradient_rows_fetch(run, &query, ahead, fetched);
            ahead = fetched;
            backward_key_block(task, rule, s, blocks, n_blocks, &piece, from,
                               left < run->plan->choice.block_kv ? left : run->plan->choice.block_kv);
        }
    }
    for (int b = 0; run->args->dq && b < n_all; b++) {
        if (!partial) {
            store_dq(run, &s->blocks[b].rows.lanes, s->blocks[b].dq, s->turn);
        } else if (seen[b]) {
            memcpy(partial + (size_t)b * dq_floats, s->blocks[b].dq, dq_floats * sizeof(float));
        }
    }
}

static void backward(const attn__backward_task *task, void *scratch) {
    const attn__run *run = task->run;
    const attn_problem *p = run->problem;
    const score_rule rule = score_rule_make(p, run->args);
    const backward_scratch s = backward_carve(run->plan, scratch);
    const int64_t step = row_blocks(run->plan) * ATTN__BLOCK, lists = attn__kv_head_lists(run->plan);
    int64_t n, last;
    for (int lane = 0; lane < ATTN_LANES; lane++) {
        s.ones[lane] = 1.0f;
    }
    memset(s.dk, 0, (size_t)(tile_count(p->dim_qk) * s.chunk) * ATTN_LANES * sizeof(float));
    memset(s.dv, 0, (size_t)(tile_count(p->dim_v) * s.chunk) * ATTN_LANES * sizeof(float));
    chunk_copy(task, &s);
    attn__side_range(&run->q, task->sequence, &n, &last);
    for (; n < last; n++) {
        for (int64_t list = task->head_kv * lists; list < (task->head_kv + 1) * lists; list++) {
            attn__query_rows query = attn__query_list(run, n, list);
            int64_t end = query.row_end, first = task->prefix[n] + list * attn__block_count(end);
            for (int64_t row = 0; row < end; row += step) {
                query.row_begin = row;
                query.row_end = row + step < end ? row + step : end;
                backward_rows(task, &rule, &s, query, end,
                              task->partials ? task->partials + (first + row / ATTN__BLOCK) * ATTN__BLOCK * p->dim_qk
                                             : NULL);
            }
        }
    }
    store_keys(task, &p->dk, run->args->dk, p->dim_qk, s.dk, s.chunk, p->scale);
    store_keys(task, &p->dv, run->args->dv, p->dim_v, s.dv, s.chunk, 1.0f);
}

/* dq of the block of rows that `query` begins with, from the parts of all chunks in their order. */
static void backward_finish(attn__backward_task task, const attn__query_rows *query, int64_t block,
                            int64_t partial_stride, void *scratch) {
    const attn__run *run = task.run;
    const int64_t floats = ATTN__BLOCK * run->problem->dim_qk;
    const backward_scratch s = backward_carve(run->plan, scratch);
    float *sum = s.blocks[0].dq;
    attn__lanes lanes;
    attn__lanes_fill(&lanes, query, query->row_begin);
    memset(sum, 0, (size_t)floats * sizeof(float));
    for (int64_t chunk = 0; chunk < run->plan->choice.splits; chunk++) {
        const float *part = task.partials + chunk * partial_stride + block * floats;
        attn__backward_chunk(&task, chunk);
        const bool seen = chunk_seen(&task, &lanes);
        for (int64_t at = 0; seen && at < floats; at += ATTN_W) {
            vf_store(sum + at, vf_load(sum + at) + vf_load(part + at));
        }
    }
    store_dq(run, &lanes, sum, s.turn);
}

#endif
