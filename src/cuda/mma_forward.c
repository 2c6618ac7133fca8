/* SPDX-License-Identifier: Apache-2.0
 * Forward on the tensor cores: which tile, how many stages, how the heads are packed, into how many parts the keys are
 * split. All follow from the problem, the hints and the GPU's facts.
 *
 * Worked numbers, bf16 on an H200 (227 KiB a block, 228 KiB and 65536 registers a processor):
 *   d 128, 2048 rows     tile 128 x 64, 4 warps of 32 rows: each key and value read from shared memory serves two
 *                        strips of 16 rows. Registers a thread: 128 output + 64 scores. Shared memory: queries 34 KiB,
 *                        two stages of keys and values 68 KiB: two blocks a processor.
 *   d 64                 the same tile; 64 output + 64 scores + 32 queries, which are then read only once.
 *   d 256                32 rows of output would be 256 registers: 8 warps of 16 rows, 128 + 32 + 64 queries.
 *   d 576 x 512          values in two parts of 256 columns, each its own tile: the scores are computed twice.
 *   1 row, 32:8 heads    4 heads of a key head fill a tile of 16 rows: 1 warp, 51 KiB: four blocks a processor. 8 tiles
 *                        for 132 * 4 places: the keys are split into 32 parts of at least 256. */
#include "base/error.h"
#include "cuda/cuda.h"
#include "plan/gpu.h"

enum { ROLE_FORWARD = 0, ROLE_COMBINE = 1 };

/* Static shared memory of the kernel (tile_work), rounded up, and slack that the last row's reads may touch. */
#define SHARED_STATIC 512
#define SHARED_SLACK  64
/* Keys that a part must have to be worth its place in the sum. */
#define KEYS_A_PART 256
#define MOST_PARTS  128
#define FEW_TOKENS  64 /* from here on each head fills tiles of its own */
#define MOST_PACKED 64
#define PART_V      256 /* columns of the values whose sums fit a thread's registers */

/* 32-bit registers a thread that outputs, scores and queries may take; the rest is fragments and addresses. More of
 * them are needed where every score passes a rule, and before sm_80, where copies pass registers. */
#define REGISTERS      192
#define REGISTERS_RULE 160
#define STEP_BYTES     32 /* as in mma.cuh */

typedef struct tile_choice {
    int tile_q, tile_kv, stages, warps;
    int held; /* steps of the queries that stay in registers */
    int pack; /* query heads a tile */
    int dim_part, parts;
    size_t shared;
} tile_choice;

static int64_t round_up_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* As TILE_PITCH of mma.cuh. */
static size_t pitch_of(int64_t dim, size_t size) {
    return ((size_t)dim * size + 31) / 32 * 32 + 16;
}

/* Queries and stages; at the end 16 rows of output a warp lie in the same place. */
static size_t shared_of(const attn_problem *p, const tile_choice *c) {
    size_t size = attn_dtype_size(p->q.dtype), keys = pitch_of(p->dim_qk, size), values = pitch_of(c->dim_part, size);
    size_t tiles = (size_t)c->tile_q * keys + (size_t)c->stages * (size_t)c->tile_kv * (keys + values) + SHARED_SLACK;
    size_t staged = (size_t)c->warps * 16 * (((size_t)c->dim_part * sizeof(float) + 15) / 16 * 16 + 16);
    return tiles > staged ? tiles : staged;
}

/* Query heads that share a tile: all of a key head's where the rows are few, so that its keys are read once. */
static int pack_of(const attn_problem *p) {
    int64_t group = p->heads_kv ? p->heads_q / p->heads_kv : 1, pack = group;
    if (p->tokens_q >= FEW_TOKENS || group <= 1) {
        return 1;
    }
    while (pack > MOST_PACKED || group % pack) {
        pack--;
    }
    return (int)pack;
}

/* Warps and registers of a tile of that size. False: it would spill. */
static bool spread(const attn_plan *plan, tile_choice *c) {
    const attn_problem *p = &plan->problem;
    int64_t size = (int64_t)attn_dtype_size(p->q.dtype), steps = round_up_div(p->dim_qk * size, STEP_BYTES);
    bool plain = attn__score_plain(p) && p->dropout == 0 && plan->gpu->arch >= 80;
    int64_t registers = plain ? REGISTERS : REGISTERS_RULE;
    c->warps = c->tile_q / (c->tile_q >= 128 && c->dim_part <= 128 ? 32 : 16);
    int64_t strips = c->tile_q / 16 / c->warps, sums = strips * (c->dim_part / 2 + c->tile_kv / 2);
    c->held = (int)larger(0, smaller(steps, (registers - sums - (strips - 1) * 16) / (strips * 4)));
    return sums <= registers;
}

/* Keys a tile. Narrow heads leave registers for twice as many, which halves what is done once a block. */
static int64_t keys_wanted(const attn_problem *p, int64_t rows) {
    if (p->q.dtype == ATTN_F32) {
        return 32;
    }
    return p->dim_qk <= 64 && p->dim_v <= 64 && rows > 64 ? 128 : 64;
}

/* The largest tile that the GPU has room for: rows first, then stages, then keys. */
static bool choose_tile(const attn_plan *plan, tile_choice *c) {
    const attn_problem *p = &plan->problem;
    int64_t rows = plan->hints.block_q > 0 ? plan->hints.block_q : p->tokens_q * c->pack;
    int64_t keys = plan->hints.block_kv > 0 ? plan->hints.block_kv : keys_wanted(p, rows);
    int stages = plan->hints.stages > 0 ? (int)smaller(plan->hints.stages, 2) : 2;
    int tile_q = 16, tile_kv = keys >= 128 ? 128 : keys >= 64 ? 64 : keys >= 32 ? 32 : 16;
    while (tile_q < 128 && tile_q < rows) {
        tile_q *= 2;
    }
    if (plan->hints.block_q > 0 && tile_q > plan->hints.block_q) {
        tile_q = (int)larger(16, tile_q / 2);
    }
    for (c->tile_q = tile_q; c->tile_q >= larger(16, c->pack); c->tile_q /= 2) {
        for (c->stages = stages; c->stages >= 1; c->stages--) {
            for (c->tile_kv = tile_kv; c->tile_kv >= 16; c->tile_kv /= 2) {
                bool narrow = c->tile_kv < 32 && c->tile_kv < tile_kv && c->tile_q > 16, spills = !spread(plan, c);
                c->shared = shared_of(p, c);
                if (!narrow && !spills && (int64_t)c->shared + SHARED_STATIC <= plan->gpu->shared_block) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* Blocks that share a processor. */
static int blocks_of(const attn__gpu *gpu, const tile_choice *c) {
    int64_t by_registers = gpu->registers_processor / (256 * 32 * c->warps);
    return (int)larger(1, smaller(by_registers, attn__gpu_blocks(gpu, 32 * c->warps, c->shared + SHARED_STATIC)));
}

/* Parts of the keys: as many as fill the processors where the tiles alone do not. */
static int64_t splits_of(const attn_plan *plan, const tile_choice *c) {
    const attn_problem *p = &plan->problem;
    int64_t tiles = attn__cuda_query_blocks(p, p->segments_q, c->tile_q / c->pack) * (p->heads_q / c->pack) * c->parts;
    int64_t places = (int64_t)plan->gpu->processors * blocks_of(plan->gpu, c), splits;
    if (plan->hints.splits > 0) {
        splits = smaller(plan->hints.splits, round_up_div(p->tokens_kv, c->tile_kv));
    } else {
        splits = tiles > 0 ? smaller(places / tiles, p->tokens_kv / KEYS_A_PART) : 1;
    }
    return larger(1, smaller(splits, MOST_PARTS));
}

static void add_forward(attn_plan *plan, const tile_choice *c) {
    attn__kernel *kernel = attn__kernel_start(plan, ROLE_FORWARD, "forward_mma.cu", "fwd");
    attn__kernel_set(kernel, "TILE_Q", c->tile_q);
    attn__kernel_set(kernel, "TILE_KV", c->tile_kv);
    attn__kernel_set(kernel, "STAGES", c->stages);
    attn__kernel_set(kernel, "WARPS", c->warps);
    attn__kernel_set(kernel, "BLOCKS", blocks_of(plan->gpu, c));
    attn__kernel_set(kernel, "PACK", c->pack);
    attn__kernel_set(kernel, "DIM_PART", c->dim_part);
    attn__kernel_set(kernel, "PARTS", c->parts);
    attn__kernel_set(kernel, "SPLIT", plan->gpu_choice.splits > 1);
    attn__kernel_set(kernel, "QUERIES_HELD", c->held);
    attn__kernel_set(kernel, "LAZY", 1);
    attn__kernel_name(kernel, "_m%dn%d_s%d", c->tile_q, c->tile_kv, c->stages);
    attn__kernel_finish(kernel, plan, 32 * c->warps, c->shared);
}

#define MOST_COMBINE_THREADS 256
static int combine_tokens(const attn_problem *p) {
    return p->tokens_q < 8 ? 1 : 8;
}
static void add_combine(attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    attn__kernel *kernel = attn__kernel_start(plan, ROLE_COMBINE, "combine.cu", "combine");
    int threads = (int)smaller(MOST_COMBINE_THREADS, round_up_div(p->dim_v, 32) * 32);
    attn__kernel_set(kernel, "TOKENS", combine_tokens(p));
    attn__kernel_set(kernel, "THREADS", threads);
    attn__kernel_finish(kernel, plan, threads, 0);
}

static size_t bytes_of(int64_t a, int64_t b, int64_t c) {
    size_t product;
    bool over = __builtin_mul_overflow((size_t)a, (size_t)b, &product) ||
                __builtin_mul_overflow(product, (size_t)c * sizeof(float), &product);
    return over ? SIZE_MAX : product;
}

/* Appends partial results to the workspace. */
static void lay_out(attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    if (choice->splits > 1) {
        bool apart = p->rows_q == ATTN_DENSE || (p->rows_q == ATTN_SEGMENTS && p->o.stride[0] != 0);
        int64_t rows = (apart ? p->batch : 1) * p->heads_q * (p->rows_q == ATTN_DENSE ? p->tokens_q : p->total_q);
        choice->partial_o = attn__span_take(&plan->workspace, bytes_of(choice->splits, rows, p->dim_v));
        choice->partial_lse = attn__span_take(&plan->workspace, bytes_of(choice->splits, rows, 1));
    }
}

attn_status attn__mma_prepare_forward(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    tile_choice c = {.pack = pack_of(p), .parts = p->dim_v > PART_V ? 2 : 1};
    c.dim_part = c.parts == 1 ? (int)p->dim_v : (int)(round_up_div(p->dim_v, 32) * 16);
    if (!choose_tile(plan, &c)) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "dim_qk",
                          "is %lld (dim_v %lld): no tile of it fits %lld bytes of shared memory a block",
                          (long long)p->dim_qk, (long long)p->dim_v, (long long)plan->gpu->shared_block);
    }
    choice->tensor_cores = true;
    choice->tile_q = c.tile_q;
    choice->tile_kv = c.tile_kv;
    choice->stages = c.stages;
    choice->warps = c.warps;
    choice->group = c.pack;
    choice->splits = splits_of(plan, &c);
    add_forward(plan, &c);
    if (choice->splits > 1) {
        add_combine(plan);
    }
    lay_out(plan);
    return ATTN_OK;
}

attn_status attn__mma_run_forward(attn__cuda_run *run) {
    const attn_plan *plan = run->plan;
    const attn_problem *p = &plan->problem;
    const attn__gpu_choice *choice = &plan->gpu_choice;
    int64_t segments = run->args->n_segments_q, parts = p->dim_v > PART_V ? 2 : 1;
    int64_t blocks = attn__cuda_query_blocks(p, segments, choice->tile_q / choice->group);
    attn_status status =
        attn__cuda_launch(run, ROLE_FORWARD, blocks * (p->heads_q / choice->group) * parts * choice->splits);
    if (!status && choice->splits > 1) {
        status =
            attn__cuda_launch(run, ROLE_COMBINE, attn__cuda_query_blocks(p, segments, combine_tokens(p)) * p->heads_q);
    }
    return status;
}
