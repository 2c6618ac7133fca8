/* SPDX-License-Identifier: Apache-2.0
 * `hopper` forward: which tile, how many stages and how registers are shared out, from the table below: rows are tried
 * in order, and the first whose heads are wide enough and whose operands fit a block is taken.
 *
 * Worked numbers, bf16, 227 KiB a block, 65536 registers a processor:
 *   d 64    4 groups x 64 keys: queries 2 x 32 KiB, 4 stages of keys and of values of 8 KiB: 128 KiB. Registers a
 *           thread: 32 scores, 32 outputs, 16 weights of 112. Long rows: 3 groups x 128 keys, 160 registers.
 *   d 128   2 groups x 128 keys: queries 2 x 32 KiB, 2 + 2 stages of 32 KiB: 192 KiB. 64 scores, 64 outputs, 32 weights
 *           and 32 queries of 232.
 *   d 256   2 groups x 64 keys: queries 64 KiB once, 3 + 2 stages of 32 KiB: 224 KiB. */
#include "base/error.h"
#include "cuda/cuda.h"
#include "cuda/tensor_map.h"
#include "problem/problem.h"

enum { ROLE_FORWARD = 0 };

/* Barriers, posted tiles and blocks behind the operands (forward_shared), rounded up. */
#define SHARED_TAIL   640
#define LONG_ROWS     6144                /* from here on wide blocks of keys pay at d 64 */
#define NARROW_WINDOW 2048                /* below it narrow blocks of keys pay at d 128 */
#define ALARM_BITS    0x41400000          /* 12 */
#define LOST_BITS     0x5d800000          /* 2^60 */
#define KEYS_A_TILE   256                 /* from here on splits pay */
#define COUNTER_SIZE  16                  /* a mark and a counter: forward_deal.cuh */
#define SECTION_BYTES ((int64_t)32 << 20) /* keys and values of heads whose tiles run together */
#define SHORT_LINE    8                   /* blocks of rows: up to here sections are of SECTION_TILES */
#define SECTION_TILES 32

enum { ALWAYS, LONG, NARROW }; /* LONG: rows of LONG_ROWS without a band alone */

typedef struct variant {
    int dim_qk, dim_v; /* at most */
    int when;
    int groups, tile_kv, stages_q, stages_k, stages_v, held;
    bool blind; /* blocks without masked keys look for no maximum */
} variant;

static const variant variants[] = {
    {64, 64, LONG, 3, 128, 2, 3, 3, 0, true},     {64, 64, ALWAYS, 4, 64, 2, 4, 4, 0, true},
    {128, 128, NARROW, 3, 64, 2, 4, 4, 0, true},  {128, 128, ALWAYS, 2, 128, 2, 2, 2, 1, true},
    {192, 128, ALWAYS, 2, 128, 1, 2, 2, 0, true}, {256, 256, ALWAYS, 2, 64, 1, 3, 2, 0, false},
};

static int64_t round_up_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Columns of the values' product: shapes that wgmma.cuh has and that waste little. */
static int width_of(int64_t dim_v) {
    static const int widths[] = {32, 64, 96, 128, 192, 256};
    int n = 0;
    while (widths[n] < dim_v) {
        n++;
    }
    return widths[n];
}

/* The last row takes all that the rules let through. */
static const variant *choose_variant(const attn_problem *p) {
    const attn_band *band = &p->band;
    const int64_t right = band->kind & ATTN_CAUSAL ? 0 : band->right;
    const bool fits[] = {
        [ALWAYS] = true,
        [LONG] = band->kind == 0 && p->tokens_q >= LONG_ROWS && p->tokens_kv >= LONG_ROWS,
        [NARROW] = band->kind & ATTN_WINDOW && band->left >= 0 && right >= 0 && band->left < NARROW_WINDOW &&
                   right < NARROW_WINDOW - band->left,
    };
    const variant *v = variants;
    while (p->dim_qk > v->dim_qk || p->dim_v > v->dim_v || !fits[v->when]) {
        v++;
    }
    return v;
}

/* Heads that share a tile, since they share keys: the more, the fewer positions, and so the fewer pairs that a window
 * hides and the fewer rows past a short sequence. A warp's 16 rows are of one head. */
static int pack_of(const attn_problem *p, const variant *v) {
    const int64_t shared = p->heads_kv ? p->heads_q / p->heads_kv : 1;
    const bool pays = p->rows_q != ATTN_DENSE || p->band.kind & ATTN_WINDOW;
    int pack = pays ? 8 : 1;
    while (pack > 1 && (shared % pack != 0 || 64 * v->groups % (16 * pack) != 0)) {
        pack /= 2;
    }
    return pack;
}

/* Tiles of tile_q rows, `pack` heads in each; segments: of the query side. */
static int64_t count_tiles(const attn_problem *p, int tile_q, int pack, int64_t segments) {
    return attn__cuda_query_blocks(p, segments, tile_q / pack) * (p->heads_q / pack);
}

static size_t shared_of(const variant *v, const attn_problem *p) {
    size_t qk = (size_t)round_up_div(p->dim_qk, 64) * 128, values = (size_t)round_up_div(width_of(p->dim_v), 64) * 128;
    return (size_t)(64 * v->groups * v->stages_q) * qk +
           (size_t)v->tile_kv * ((size_t)v->stages_k * qk + (size_t)v->stages_v * values) + SHARED_TAIL;
}

/* Are tiles of unequal work? Then they are drawn from a counter as blocks come free. */
static bool uneven(const attn_problem *p) {
    return p->band.kind != 0 || p->rows_q != ATTN_DENSE || p->rows_kv != ATTN_DENSE ||
           p->flags & (ATTN_USED_Q | ATTN_USED_KV);
}

/* Few tiles over many keys: `mma` splits the keys, which this does not. On an H200 both take as long with 16 tiles of
 * 128 rows over 4096 keys; this wins with 32. Few rows: `mma` packs a group's heads into its tile. */
static bool wants_splits(const attn_plan *plan, const variant *v) {
    const attn_problem *p = &plan->problem;
    int64_t tiles = count_tiles(p, 64 * v->groups, pack_of(p, v), p->segments_q);
    bool few = tiles * 2 <= plan->gpu->processors && p->tokens_kv > KEYS_A_TILE * tiles;
    return !plan->hints.implementation && (plan->hints.splits > 1 || few || p->tokens_q < 32);
}

attn_status attn__hopper_prepare_forward(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    const variant *v = choose_variant(p);
    if (wants_splits(plan, v)) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "tokens_q",
                          "is %lld: so few rows are faster with the keys in parts, which it does not do",
                          (long long)p->tokens_q);
    }
    if (attn__cuda_query_blocks(p, p->segments_q, 16) > INT32_MAX / (p->heads_q + 1)) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "batch", "is %lld: more than 2^31 tiles", (long long)p->batch);
    }
    const bool dynamic = uneven(p);
    const int consumer = v->groups == 4 ? 112 : v->groups == 3 ? 160 : dynamic ? 232 : 240;
    const int producer = v->groups >= 3 ? 32 : dynamic ? 40 : 24;
    choice->tensor_cores = choice->warp_groups = true;
    choice->tile_q = 64 * v->groups;
    choice->tile_kv = v->tile_kv;
    choice->stages = v->stages_k;
    choice->warps = 4 * (v->groups + 1);
    choice->group = pack_of(p, v);
    choice->splits = 1;
    attn__kernel *kernel = attn__kernel_start(plan, ROLE_FORWARD, "hopper/forward.cu", "fwd_hopper");
    attn__kernel_set(kernel, "GROUPS", v->groups);
    attn__kernel_set(kernel, "PACK", choice->group);
    attn__kernel_set(kernel, "TILE_KV", v->tile_kv);
    attn__kernel_set(kernel, "STAGES_Q", v->stages_q);
    attn__kernel_set(kernel, "STAGES_K", v->stages_k);
    attn__kernel_set(kernel, "STAGES_V", v->stages_v);
    attn__kernel_set(kernel, "WIDTH_V", width_of(p->dim_v));
    attn__kernel_set(kernel, "QUERIES_HELD", v->held);
    attn__kernel_set(kernel, "NO_MAX", v->blind);
    attn__kernel_set(kernel, "ALARM", ALARM_BITS);
    attn__kernel_set(kernel, "LOST", LOST_BITS);
    attn__kernel_set(kernel, "DYNAMIC", dynamic);
    attn__kernel_set(kernel, "REGISTERS_PRODUCER", producer);
    attn__kernel_set(kernel, "REGISTERS_CONSUMER", consumer);
    attn__kernel_set(kernel, "SHARED", (int64_t)shared_of(v, p));
    attn__kernel_name(kernel, "_m%dn%d_s%d_h%d", choice->tile_q, choice->tile_kv, choice->stages, (int)choice->group);
    attn__kernel_finish(kernel, plan, 128 * (v->groups + 1), shared_of(v, p));
    if (dynamic) {
        choice->extra = attn__span_take(&plan->workspace, COUNTER_SIZE);
    }
    return ATTN_OK;
}

static attn_status make_maps(attn__cuda_run *run, attn__maps *maps) {
    const attn_plan *plan = run->plan;
    const attn_problem *p = &plan->problem;
    const int pack = plan->gpu_choice.group, tile_q = plan->gpu_choice.tile_q, tile_kv = plan->gpu_choice.tile_kv;
    const struct {
        const char *name;
        const attn_layout *layout;
        const attn__tensor_ref *ref;
        attn__map *map;
        bool queries, value;
        int rows, heads;
    } tensors[] = {{"q", &p->q, &run->params.q, &maps->q, true, false, tile_q / pack, pack},
                   {"k", &p->k, &run->params.k, &maps->k, false, false, tile_kv, 1},
                   {"v", &p->v, &run->params.v, &maps->v, false, true, tile_kv, 1},
                   {"o", &p->o, &run->params.o, &maps->o, true, true, 16, 1}};
    attn_status status = ATTN_OK;
    for (size_t n = 0; n < sizeof tensors / sizeof tensors[0] && !status; n++) {
        attn__map_shape shape =
            attn__tensor_map_shape(p, tensors[n].layout, tensors[n].queries, tensors[n].value, tensors[n].rows);
        shape.box_heads = tensors[n].heads;
        status =
            attn__tensor_map_make(run, tensors[n].map, tensors[n].ref, &shape, run->params.o.data, tensors[n].name);
    }
    run->maps = maps;
    return status;
}

/* n / d for n < 2^31: with 2^(l - 1) < d <= 2^l the multiplier 2^(31 + l) / d, rounded up, has 32 bits. */
static attn__divisor divisor_of(int64_t d) {
    attn__divisor divisor = {0, 0};
    if (d > 1) {
        int l = 1;
        while (((int64_t)1 << l) < d) {
            l++;
        }
        divisor.multiplier = (unsigned)((((uint64_t)1 << (31 + l)) + (uint64_t)d - 1) / (uint64_t)d);
        divisor.shift = (unsigned)(l - 1);
    }
    return divisor;
}

/* Tiles of equal work: a head's tiles run together, its keys and values are read once. Else the longest of a section
 * come first, and a section is what shares the second-level cache; but where lines are short its longest tiles would
 * all wait for memory at once, so that sections are small there, and the last one, whose tiles fill the end, is two
 * tiles a processor. */
static attn__deal deal_of(const attn_plan *plan, int64_t segments) {
    const attn_problem *p = &plan->problem;
    const attn__gpu_choice *choice = &plan->gpu_choice;
    const int64_t pack = choice->group, positions = choice->tile_q / pack, columns = p->heads_q / pack;
    const int64_t shared = p->heads_q / p->heads_kv / pack; /* columns of the same keys */
    const bool dense = p->rows_q == ATTN_DENSE;
    const int64_t lines = dense ? p->batch * columns : columns, each = round_up_div(p->tokens_q, positions);
    const int64_t blocks = dense ? each : attn__cuda_query_blocks(p, segments, positions);
    int64_t bytes = p->tokens_kv * (p->dim_qk + p->dim_v) * 2, width = 1, last = 0;
    attn__deal deal = {.by_group = divisor_of(shared)};
    if (uneven(p)) {
        width = shared * (bytes > 0 && bytes < SECTION_BYTES ? SECTION_BYTES / bytes : 1);
        if (dense && blocks <= SHORT_LINE) {
            const int64_t few = shared * round_up_div(SECTION_TILES, shared * blocks);
            width = few < width ? few : width;
            last = 2 * plan->gpu->processors / blocks;
        }
        width = width < lines ? width : lines;
    }
    const int64_t even = lines > last ? (lines - last) / width * width : 0;
    if (p->rows_q == ATTN_PACKED && p->batch * each <= blocks) {
        deal.each = (unsigned)each;
        deal.by_each = divisor_of(each);
    }
    deal.lines = (unsigned)lines;
    deal.even = (unsigned)even;
    deal.width = (unsigned)width;
    deal.blocks = (unsigned)blocks;
    deal.by_section = divisor_of(width * blocks);
    deal.by_width = divisor_of(width);
    deal.by_rest = divisor_of(lines - even);
    deal.columns = (unsigned)columns;
    deal.by_columns = divisor_of(columns);
    return deal;
}

attn_status attn__hopper_run_forward(attn__cuda_run *run) {
    const attn_plan *plan = run->plan;
    const attn_problem *p = &plan->problem;
    const attn__gpu_choice *choice = &plan->gpu_choice;
    attn__maps maps = {0};
    int64_t tiles = count_tiles(p, choice->tile_q, (int)choice->group, run->args->n_segments_q);
    if (tiles == 0 || (p->rows_q != ATTN_DENSE && p->total_q == 0)) {
        return ATTN_OK;
    }
    attn_status status = make_maps(run, &maps);
    maps.deal = deal_of(plan, run->args->n_segments_q);
    run->params.tiles = tiles;
    run->params.first_tile = 0;
    int64_t blocks = tiles < plan->gpu->processors ? tiles : plan->gpu->processors;
    return status ? status : attn__cuda_launch_early(run, ROLE_FORWARD, (unsigned)blocks, &run->params);
}
