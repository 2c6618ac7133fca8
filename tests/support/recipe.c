/* SPDX-License-Identifier: Apache-2.0 */
#include "support/recipe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SEQUENCES 40
#define MOST_SHARDS    4

/* ---------------------------------------------------------------------------------------- rows */

static void draw_lengths(rng *r, int64_t batch, int tokens, int32_t *lengths) {
    for (int64_t b = 0; b < batch; b++) {
        lengths[b] = rng_chance(r, 0.15) ? 0 : rng_chance(r, 0.3) ? tokens : (int32_t)rng_range(r, 0, tokens);
    }
}

/* Cuts every sequence into shards, shuffles them within the sequence, and lays them into one buffer in any order. */
static void draw_segments(trial *t, int side, rng *r, const int32_t *lengths) {
    attn_segment list[MOST_SEQUENCES * MOST_SHARDS];
    int count = 0;
    for (int64_t s = 0; s < t->problem.batch; s++) {
        int64_t position = 0;
        int first = count, shards = (int)rng_range(r, 1, MOST_SHARDS);
        for (int n = 0; n < shards; n++) {
            int64_t left = lengths[s] - position, rows = n == shards - 1 ? left : rng_range(r, 0, left);
            attn_segment one = {.rows = rows, .position = position, .sequence = s};
            int place = (int)rng_range(r, first, count);
            list[count++] = list[place];
            list[place] = one;
            position += rows;
        }
    }
    int order[MOST_SEQUENCES * MOST_SHARDS];
    int64_t total = 0;
    for (int n = 0; n < count; n++) {
        int place = (int)rng_range(r, 0, n);
        order[n] = order[place];
        order[place] = n;
    }
    for (int n = 0; n < count; n++) {
        total += rng_range(r, 0, 3);
        list[order[n]].first = total;
        total += list[order[n]].rows;
    }
    trial_segment(t, side, lengths, list, count, total + rng_range(r, 0, 2));
}

static void draw_rows(trial *t, int side, recipe_rows rows, rng *r) {
    int64_t batch = t->problem.batch;
    int tokens = (int)t->side[side].tokens;
    int32_t *lengths = calloc((size_t)batch + 1, sizeof *lengths), *slots = calloc((size_t)batch + 1, sizeof *slots);
    if (!lengths || !slots) {
        abort();
    }
    draw_lengths(r, batch, tokens, lengths);
    for (int64_t b = 0; b < batch; b++) {
        slots[b] = rows == ROWS_PACKED_USED ? (int32_t)rng_range(r, lengths[b], tokens) : lengths[b];
    }
    switch (rows) {
    case ROWS_USED: trial_use(t, side, lengths); break;
    case ROWS_PACKED:
    case ROWS_PACKED_USED:
        trial_pack(t, side, slots, rng_range(r, 0, 4));
        if (rows == ROWS_PACKED_USED) {
            trial_use(t, side, lengths);
        }
        break;
    case ROWS_SEGMENTS: draw_segments(t, side, r, lengths); break;
    default: break;
    }
    free(lengths);
    free(slots);
}

/* ---------------------------------------------------------------------------------------- forms */

static bool is_output(int id) {
    return id == T_O || id == T_LSE || id >= T_DQ;
}

static form make_form(recipe_form kind, int id, rng *r) {
    form f = {.order = ORDER_BSHD, .edge = rng_chance(r, 0.5) ? FENCE_START : FENCE_END};
    bool row = tensor_is_row(id) && id != T_LSE && id != T_DLSE && id != T_DELTA;
    f.order = row ? ORDER_BSHD : ORDER_BHSD;
    switch (kind) {
    case FORM_BHSD: f.order = ORDER_BHSD; break;
    case FORM_SLICE: f.pad = 24; break;
    case FORM_STEP: f.step = 2; break;
    case FORM_NEGATIVE: f.negative = 1u << AXIS_TOKEN | 1u << AXIS_HEAD | (id % 2 ? 1u << AXIS_DIM : 0); break;
    case FORM_ODD: f.offset = 1 + id % 3; break;
    case FORM_DIM_OUTER: f.order = row ? ORDER_BHDS : ORDER_SBHD; break;
    case FORM_BROADCAST:
        if (id == T_K || id == T_V) {
            f.zero = 1u << AXIS_BATCH | 1u << AXIS_HEAD;
        }
        break;
    case FORM_RANDOM:
        f.order = (form_order)rng_range(r, 0, ORDER_COUNT - 1);
        f.step = (int)rng_range(r, 1, 3);
        f.step = f.step == 2 && rng_chance(r, 0.5) ? 1 : f.step;
        f.pad = rng_chance(r, 0.5) ? (int)rng_range(r, 0, 40) : 0;
        f.negative = rng_chance(r, 0.25) ? (unsigned)rng_range(r, 0, 15) : 0;
        f.zero = !is_output(id) && rng_chance(r, 0.15) ? (unsigned)rng_range(r, 0, 15) : 0;
        f.offset = (int)rng_range(r, 0, 3);
        break;
    default: break;
    }
    return f;
}

static void draw_forms(trial *t, const recipe *p, rng *r) {
    for (int id = 0; id < T_COUNT; id++) {
        t->form[id] = make_form(p->form, id, r);
    }
    if (p->give_delta) {
        t->form[T_DLSE].zero = 0; /* delta lies as dlse does, and cannot be broadcast */
    }
    if (p->rows_q == p->rows_kv && p->tokens_q == p->tokens_kv && p->form == FORM_JOINT) {
        int64_t q[4], k[4];
        trial_extents(t, T_Q, q);
        trial_extents(t, T_K, k);
        t->joint = q[AXIS_TOKEN] == k[AXIS_TOKEN];
        t->joint_gradients = t->joint && !p->unset;
    }
    if (p->unset) {
        t->unset = 1u << T_LSE | 1u << T_DLSE | 1u << T_DOUT | 1u << T_DQ | 1u << T_DK | 1u << T_DV | 1u << T_DBIAS;
        form plain = {.order = ORDER_BHSD};
        t->form[T_LSE] = plain;
        t->form[T_Q].zero = t->form[T_K].zero = t->form[T_V].zero = 0;
        t->joint = false; /* gradients would follow q, k, v into one buffer */
        if (t->form[T_BIAS].zero) {
            t->form[T_BIAS].zero = 0;
        }
    }
}

/* Shards of all sequences in one run of rows: no batch axis. */
static void share_rows(trial *t, int side) {
    static const tensor_id rows[2][10] = {{T_Q, T_DOUT, T_DLSE, T_O, T_LSE, T_DELTA, T_DQ, T_COUNT},
                                          {T_K, T_V, T_DK, T_DV, T_COUNT}};
    for (int n = 0; rows[side][n] != T_COUNT; n++) {
        t->form[rows[side][n]].zero |= 1u << AXIS_BATCH;
    }
}

/* ---------------------------------------------------------------------------------------- building */

/* Keys 0, 3, 6 ... of the first sequences are hidden by the mask from every row; what they hold must not matter. */
static void poison_keys(trial *t) {
    static const double bad[4] = {NAN, INFINITY, -INFINITY, 1e30};
    const trial_side *kv = &t->side[SIDE_KV];
    int64_t n[4], keys = 0;
    trial_extents(t, T_MASK, n);
    for (int64_t s = 0; s < t->problem.batch; s++) {
        keys = kv->length[s] > keys ? kv->length[s] : keys;
    }
    for (int64_t j = 0; j < keys; j += 3) {
        for (int64_t x = 0; x < n[0] * n[1] * n[2]; x++) {
            t->value[T_MASK][x * n[3] + j] = 0;
        }
        for (int64_t s = 0; s < t->problem.batch; s++) {
            for (int64_t g = 0; j < kv->length[s] && g < t->problem.heads_kv; g++) {
                t->value[T_K][trial_index(t, T_K, s, g, j, 0)] = bad[j % 4];
                t->value[T_V][trial_index(t, T_V, s, g, j, 0)] = bad[(j + 1) % 4];
            }
        }
    }
}

trial *recipe_trial(const recipe *p) {
    rng r = rng_seed(p->seed);
    int dim_v = p->dim_v ? p->dim_v : p->dim_qk;
    trial *t = trial_create(p->dtype, p->batch, (int64_t)p->heads_kv * p->group, p->heads_kv, p->tokens_q, p->tokens_kv,
                            p->dim_qk, dim_v);
    attn_problem *q = &t->problem;
    attn_dtype out = p->f32_out ? ATTN_F32 : p->dtype;
    q->o.dtype = out;
    q->dout.dtype = q->dq.dtype = q->dk.dtype = q->dv.dtype = p->unset ? ATTN_NONE : out;
    if (p->f32_out && p->seed % 2) {
        q->dout.dtype = p->unset ? ATTN_NONE : p->dtype;
    }
    q->band = p->band;
    q->scale = p->scale;
    q->flags |= p->has_scale ? ATTN_HAS_SCALE : 0;
    q->flags |= p->accumulate ? ATTN_ACCUMULATE : 0;
    q->softcap = p->softcap;
    q->dropout = p->dropout;
    t->give_delta = p->give_delta;
    t->skip = p->skip;
    t->seed = p->seed * 77;
    t->offset = p->seed % 5;
    t->head_first = (int64_t)(p->seed % 3) * 2;
    t->batch_first = (int64_t)(p->seed % 2) * 7;
    t->threads = 1 + (int)(p->seed % 3);
    t->hints.block_q = p->block_q;
    t->hints.block_kv = p->block_kv;
    t->hints.splits = p->splits;
    draw_rows(t, SIDE_Q, p->rows_q, &r);
    draw_rows(t, SIDE_KV, p->rows_kv, &r);
    draw_forms(t, p, &r);
    for (int side = 0; side < 2; side++) {
        if (t->side[side].rows == ATTN_SEGMENTS && (p->unset || rng_chance(&r, 0.5))) {
            share_rows(t, side);
        }
    }
    if (p->bias) {
        trial_add(t, T_BIAS, p->bias_low ? p->dtype : ATTN_F32, p->bias & 15u);
        trial_add(t, T_DBIAS, p->unset ? ATTN_NONE : ATTN_F32, (p->dbias && !p->unset ? p->dbias : p->bias) & 15u);
    }
    if (p->mask) {
        trial_add(t, T_MASK, ATTN_U8, p->mask & 15u);
    }
    if (p->alibi) {
        trial_add(t, T_ALIBI, ATTN_F32, p->alibi & 15u);
    }
    if (p->sink) {
        trial_add(t, T_SINK, ATTN_F32, 0);
        t->form[T_SINK].zero = 0; /* dsink lies as the sink does, and cannot be broadcast */
    }
    if (p->dlse) {
        trial_add(t, T_DLSE, p->unset ? ATTN_NONE : ATTN_F32, 0);
    }
    trial_draw(t, &r);
    if (p->poison && p->mask && !(p->mask & OVER_KEYS) && !t->form[T_MASK].zero && !t->form[T_K].zero &&
        !t->form[T_V].zero) {
        poison_keys(t);
        trial_settle(t);
    }
    return t;
}

/* ---------------------------------------------------------------------------------------- drawing */

static const int64_t telling_lengths[] = {0,  1,  2,  3,  5,  7,   8,   15,  16,  17,  31,  32,  33,  63,
                                          64, 65, 95, 96, 97, 127, 128, 129, 160, 191, 200, 255, 257, 300};
static const int64_t telling_dims[] = {1,  2,  3,  5,  7,   8,   15,  16,  17,  24,  31,  32,  33,  40,  48,  63,  64,
                                       65, 72, 80, 96, 100, 112, 127, 128, 129, 160, 192, 256, 257, 320, 512, 575, 576};
#define COUNT(list) ((int64_t)(sizeof(list) / sizeof *(list)))

static unsigned draw_broadcast(rng *r, double probability, bool keys) {
    if (!rng_chance(r, probability)) {
        return 0;
    }
    return PRESENT | (unsigned)rng_range(r, 0, keys ? 15 : 7);
}

/* Sizes, until pairs times dims are within the budget. */
static void draw_sizes(recipe *p, rng *r, double budget) {
    p->batch = (int)rng_range(r, 1, 4);
    p->heads_kv = (int)rng_range(r, 1, 3);
    p->group = rng_chance(r, 0.4) ? 1 : (int)rng_range(r, 2, 8);
    p->tokens_q = rng_chance(r, 0.2) ? 1 : (int)rng_pick(r, telling_lengths, COUNT(telling_lengths));
    p->tokens_kv = rng_chance(r, 0.3) ? p->tokens_q : (int)rng_pick(r, telling_lengths, COUNT(telling_lengths));
    p->dim_qk = rng_chance(r, 0.3) ? (int)rng_range(r, 1, 160) : (int)rng_pick(r, telling_dims, COUNT(telling_dims));
    p->dim_v = rng_chance(r, 0.6) ? p->dim_qk : (int)rng_pick(r, telling_dims, COUNT(telling_dims));
    for (;;) {
        double pairs = (double)p->batch * p->heads_kv * p->group * (p->tokens_q + 4) * (p->tokens_kv + 4);
        if (pairs * (p->dim_qk + p->dim_v) <= budget) {
            return;
        }
        switch (rng_range(r, 0, 4)) {
        case 0: p->batch = (p->batch + 1) / 2; break;
        case 1: p->heads_kv = (p->heads_kv + 1) / 2; break;
        case 2: p->group = (p->group + 1) / 2; break;
        case 3: p->tokens_q = rng_chance(r, 0.5) ? p->tokens_q * 2 / 3 : p->tokens_q; break;
        default:
            p->dim_qk = p->dim_qk > 16 ? p->dim_qk * 2 / 3 : p->dim_qk;
            p->dim_v = p->dim_v > 16 ? p->dim_v * 2 / 3 : p->dim_v;
            break;
        }
    }
}

static void draw_band(recipe *p, rng *r) {
    p->band.kind = rng_chance(r, 0.5) ? ATTN_CAUSAL : 0;
    p->band.corner = rng_chance(r, 0.25) ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
    if (rng_chance(r, 0.35)) {
        p->band.kind |= ATTN_WINDOW;
        p->band.left = rng_chance(r, 0.15) ? -1 : rng_range(r, 0, rng_chance(r, 0.5) ? 8 : 150);
        p->band.right = rng_chance(r, 0.25) ? -1 : rng_range(r, 0, rng_chance(r, 0.5) ? 8 : 150);
        if (rng_chance(r, 0.4)) {
            p->band.kind |= ATTN_GLOBALS;
            p->band.globals = rng_range(r, 0, rng_chance(r, 0.5) ? 5 : 80);
        }
    }
}

recipe recipe_random(uint64_t seed) {
    static const attn_dtype dtypes[3] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    rng draw = rng_seed(seed ^ 0xA77E17), *r = &draw;
    recipe p = {.name = "random", .seed = seed, .dtype = dtypes[rng_range(r, 0, 2)]};
    draw_sizes(&p, r, rng_chance(r, 0.05) ? 4e6 : rng_chance(r, 0.3) ? 1e6 : 2e5);
    draw_band(&p, r);
    p.f32_out = rng_chance(r, 0.25);
    if (rng_chance(r, 0.3)) {
        p.has_scale = true;
        p.scale = rng_chance(r, 0.15) ? 0 : (float)(rng_normal(r) / sqrt((double)p.dim_qk));
    }
    p.softcap = rng_chance(r, 0.25) ? (float)(0.5 + 5 * rng_unit(r)) : 0;
    p.dropout = rng_chance(r, 0.25) ? (float)(0.6 * rng_unit(r)) : 0;
    p.alibi = rng_chance(r, 0.25) ? PRESENT | (rng_chance(r, 0.5) ? OVER_BATCH : 0) : 0;
    p.bias = draw_broadcast(r, 0.3, true);
    p.dbias = rng_chance(r, 0.25) ? PRESENT | (unsigned)rng_range(r, 0, 15) : 0;
    p.bias_low = rng_chance(r, 0.5);
    p.mask = draw_broadcast(r, 0.3, false);
    p.poison = rng_chance(r, 0.5);
    p.sink = rng_chance(r, 0.25);
    p.dlse = rng_chance(r, 0.25);
    p.accumulate = rng_chance(r, 0.2);
    p.give_delta = rng_chance(r, 0.15);
    p.unset = rng_chance(r, 0.2);
    p.rows_q = rng_chance(r, 0.4) ? ROWS_FULL : (recipe_rows)rng_range(r, 0, ROWS_COUNT - 1);
    p.rows_kv = rng_chance(r, 0.6) ? p.rows_q : (recipe_rows)rng_range(r, 0, ROWS_COUNT - 1);
    p.form = rng_chance(r, 0.5) ? FORM_RANDOM : (recipe_form)rng_range(r, 0, FORM_COUNT - 1);
    if (rng_chance(r, 0.2)) {
        p.skip = (unsigned)rng_next(r) & (1u << T_DQ | 1u << T_DV | 1u << T_DBIAS | 1u << T_DSINK);
    }
    p.block_q = rng_chance(r, 0.3) ? rng_range(r, 1, 100) : 0;
    p.block_kv = rng_chance(r, 0.3) ? rng_range(r, 1, 200) : 0;
    p.splits = rng_chance(r, 0.3) ? rng_range(r, 1, 9) : 0;
    return p;
}

recipe recipe_random_half(uint64_t seed) {
    static const recipe_form forms[] = {FORM_BSHD, FORM_BHSD, FORM_JOINT, FORM_SLICE, FORM_ODD};
    static const int64_t dims[] = {8, 16, 24, 40, 64, 64, 72, 96, 128, 128, 128, 192, 256};
    recipe p = recipe_random(seed);
    rng draw = rng_seed(seed ^ 0x90A), *r = &draw;
    p.name = "random half";
    p.dtype = rng_chance(r, 0.5) ? ATTN_F16 : ATTN_BF16;
    p.f32_out = false;
    p.bias = p.dbias = p.mask = p.alibi = 0;
    p.dropout = 0;
    p.softcap = rng_chance(r, 0.15) ? p.softcap : 0;
    p.scale = p.scale < 0 ? -p.scale : p.scale > 0 ? p.scale : 0.5f;
    p.form = forms[rng_range(r, 0, COUNT(forms) - 1)];
    p.batch = (int)rng_range(r, 1, 3);
    p.heads_kv = (int)rng_range(r, 1, 2);
    p.group = (int)rng_range(r, 1, 3);
    p.tokens_q =
        (int)(rng_chance(r, 0.5) ? rng_range(r, 1, 700) : rng_pick(r, telling_lengths, COUNT(telling_lengths)));
    p.tokens_kv = rng_chance(r, 0.3) ? p.tokens_q : (int)rng_range(r, 1, 700);
    p.dim_qk = (int)rng_pick(r, dims, COUNT(dims));
    p.dim_v = rng_chance(r, 0.7) ? p.dim_qk : (int)rng_pick(r, dims, COUNT(dims));
    for (double most = 4e7; (double)p.batch * p.heads_kv * p.group * p.tokens_q * p.tokens_kv * p.dim_qk > most;) {
        int *less = p.batch > 1 ? &p.batch : p.group > 2 ? &p.group : p.heads_kv > 1 ? &p.heads_kv : &p.tokens_q;
        *less = (*less + 1) / 2;
    }
    return p;
}

/* ---------------------------------------------------------------------------------------- printing */

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...) {
    size_t length = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + length, size - length, format, list);
    va_end(list);
}

void recipe_text(const recipe *p, char *text, size_t size) {
    static const char *const rows[ROWS_COUNT] = {"full", "used", "packed", "packed-used", "segments"};
    static const char *const forms[FORM_COUNT] = {"bshd",     "bhsd", "joint",     "slice",     "step",
                                                  "negative", "odd",  "dim-outer", "broadcast", "random"};
    snprintf(text, size, "%s seed %llu: %s%s b%d hkv%d x%d sq%d(%s) skv%d(%s) d%d dv%d, %s", p->name,
             (unsigned long long)p->seed, attn_dtype_name(p->dtype), p->f32_out ? "->f32" : "", p->batch, p->heads_kv,
             p->group, p->tokens_q, rows[p->rows_q], p->tokens_kv, rows[p->rows_kv], p->dim_qk,
             p->dim_v ? p->dim_v : p->dim_qk, forms[p->form]);
    if (p->band.kind & ATTN_CAUSAL) {
        append(text, size, " causal");
    }
    if (p->band.kind & ATTN_WINDOW) {
        append(text, size, " window(%lld,%lld)", (long long)p->band.left, (long long)p->band.right);
    }
    if (p->band.kind & ATTN_GLOBALS) {
        append(text, size, " globals%lld", (long long)p->band.globals);
    }
    if (p->has_scale) {
        append(text, size, " scale%g", (double)p->scale);
    }
    if (p->softcap > 0) {
        append(text, size, " softcap%g", (double)p->softcap);
    }
    if (p->dropout > 0) {
        append(text, size, " dropout%g", (double)p->dropout);
    }
    append(text, size, "%s", p->band.corner == ATTN_TOP_LEFT ? " top-left" : "");
    append(text, size, "%s%s%s%s", p->alibi ? " alibi" : "", p->bias ? " bias" : "", p->mask ? " mask" : "",
           p->mask && p->poison ? " poison" : "");
    append(text, size, "%s%s%s%s%s", p->sink ? " sink" : "", p->dlse ? " dlse" : "", p->accumulate ? " accumulate" : "",
           p->give_delta ? " delta" : "", p->unset ? " unset" : "");
    if (p->skip) {
        append(text, size, " skip%x", p->skip);
    }
    append(text, size, " hints(%lld,%lld,%lld)", (long long)p->block_q, (long long)p->block_kv, (long long)p->splits);
}
