/* SPDX-License-Identifier: Apache-2.0
 * Backward on the tensor cores: which tiles, how many stages, what the workspace holds, in which order kernels run.
 *
 *   DELTA    lse and delta of every row, zeroed sums of dQ          one block a slot of query rows and head
 *   KEYS     dK and dV; adds its part of dQ to float32 sums         one a tile of keys and kv head
 *   PARTS    where a group's query heads were shared out: their dK and dV are added up
 *   SUMS     the sums become dQ                                     as DELTA
 *   QUERIES  instead of the sums where bits must not depend on the order of additions: dQ of a tile of queries
 *   DSINK, CLEAR_DBIAS
 *
 * Worked numbers, bf16, d 128 on an H200: keys and values 128 rows, 68 KiB; two stages of 64 rows of q and dout, 68
 * KiB; P and dS 36 KiB: one block of 8 warps a processor, 128 registers of sums and 64 of scores a thread. */
#include "base/error.h"
#include "cuda/mma_backward.h"

/* As in backward_sums.cu. */
enum { WORK_SUMS_TO_DQ, WORK_SUM_DSINK, WORK_CLEAR_DBIAS, WORK_SUM_PARTS };
#define SMALL_THREADS  256
#define CLEARED_A_TILE 1024

/* With fewer tiles than processors times this some processors idle for long, since tiles differ in length. */
#define TILES_A_PROCESSOR 1.5

/* Tiles, best first: the first that fits the GPU's shared memory is taken. */
static const attn__mma_row tile_rows[] = {
    {2, 64, 128, 128, 8, 2, 2, 4}, {2, 64, 64, 64, 4, 2, 2, 2},   {2, 64, 64, 64, 4, 2, 1, 2},
    {2, 128, 64, 128, 8, 2, 2, 2}, {2, 128, 64, 128, 8, 2, 1, 2}, {2, 128, 64, 64, 4, 2, 1, 2},
    {2, 128, 32, 32, 4, 2, 1, 2},  {2, 256, 64, 64, 8, 4, 2, 2},  {2, 256, 64, 64, 8, 4, 1, 2},
    {2, 192, 32, 64, 8, 2, 1, 2},  {2, 256, 32, 32, 4, 2, 1, 2},  {4, 64, 64, 64, 4, 2, 2, 2},
    {4, 64, 32, 64, 4, 2, 1, 2},   {4, 128, 32, 64, 4, 2, 2, 2},  {4, 128, 32, 32, 4, 2, 1, 2},
    {4, 256, 32, 32, 4, 2, 1, 2},
};

static bool deterministic(const attn_problem *p) {
    return (p->flags & ATTN_DETERMINISTIC) != 0;
}

static int64_t round_up(int64_t a, int64_t b) {
    return (a + b - 1) / b * b;
}

/* As TILE_PITCH of mma.cuh, for whole steps. */
static size_t pitch_of(int64_t width, int size) {
    return (size_t)(width * size) + 16;
}

/* As in gradient_tile.cuh. */
#define TILE_RECORD 128

/* AT_END of gradient_tile.cuh. */
static size_t shared_of(const attn__mma_tiling *t, bool keys, bool with_dq) {
    const attn__mma_row *r = &t->row;
    size_t x = (size_t)(keys ? r->tile_kv : r->tile_q), y = (size_t)(keys ? r->tile_q : r->tile_kv);
    size_t rows = x + (size_t)r->stages * y;
    size_t scores = x * pitch_of((int64_t)y, r->element_size) * (keys ? (with_dq ? 3 : 2) : 1);
    size_t stats = keys ? (size_t)r->stages * 2 * (size_t)r->tile_q * sizeof(float) : 0;
    return rows * (pitch_of(t->width_qk, r->element_size) + pitch_of(t->width_v, r->element_size)) + scores + stats +
           TILE_RECORD;
}

void attn__mma_shared(attn__mma_tiling *t) {
    t->shared_keys = shared_of(t, true, !t->two_passes);
    t->shared_queries = shared_of(t, false, false);
}

static bool wishes_met(const attn_hints *hints, const attn__mma_row *r) {
    return (!hints->block_q || hints->block_q == r->tile_q) && (!hints->block_kv || hints->block_kv == r->tile_kv) &&
           (!hints->stages || hints->stages == r->stages);
}

/* The first row of the table that has room for the heads; with `wishes` also one that the hints ask for. */
static bool choose_tiling(const attn_plan *plan, bool wishes, attn__mma_tiling *t) {
    const attn_problem *p = &plan->problem;
    int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    for (size_t n = 0; n < sizeof tile_rows / sizeof tile_rows[0]; n++) {
        t->row = tile_rows[n];
        t->width_qk = round_up(p->dim_qk, 16 * t->row.warps_y);
        t->width_v = round_up(p->dim_v, 16 * t->row.warps_y);
        while (t->width_qk % (16 * (t->row.warps / t->row.dq_warps_m))) {
            t->row.dq_warps_m *= 2;
        }
        t->two_passes = deterministic(p);
        t->listed = t->ordered = false;
        attn__mma_shared(t);
        size_t most = t->shared_keys > t->shared_queries ? t->shared_keys : t->shared_queries;
        if (t->row.element_size == (int)attn_dtype_size(p->q.dtype) && dim <= t->row.widest &&
            t->row.tile_q >= 16 * t->row.dq_warps_m && most <= (size_t)plan->gpu->shared_block &&
            (!wishes || wishes_met(&plan->hints, &t->row))) {
            return true;
        }
    }
    return false;
}

/* --- Kernels --- */

static attn__kernel *start(attn_plan *plan, const attn__mma_tiling *t, int role, const char *source, const char *stem) {
    attn__kernel *kernel = attn__kernel_start(plan, role, source, stem);
    attn__kernel_set(kernel, "TILE_Q", t->row.tile_q);
    attn__kernel_set(kernel, "WIDTH_QK", t->width_qk);
    attn__kernel_set(kernel, "TILE_KV", t->row.tile_kv);
    attn__kernel_set(kernel, "LISTS", t->listed);
    attn__kernel_set(kernel, "STATS_BY_LANE", t->listed);
    if (t->ordered) {
        attn__kernel_set(kernel, "DETERMINISTIC", 1);
    }
    return kernel;
}

/* What gradient_tile.cuh needs beyond that. */
static void set_tile(attn__kernel *kernel, const attn__mma_tiling *t, bool keys) {
    attn__kernel_set(kernel, "WIDTH_V", t->width_v);
    attn__kernel_set(kernel, "WARPS", t->row.warps);
    attn__kernel_set(kernel, "WARPS_Y", t->row.warps_y);
    attn__kernel_set(kernel, "STAGES", t->row.stages);
    attn__kernel_set(kernel, "DQ_WARPS_M", t->row.dq_warps_m);
    attn__kernel_set(kernel, "PASS_KEYS", keys);
    attn__kernel_set(kernel, "WITH_DQ", keys && !t->two_passes);
    attn__kernel_set(kernel, "SPLIT", keys && t->parts > 1);
}

attn__kernel *attn__mma_backward_kernel(attn_plan *plan, const attn__mma_tiling *t, int role, const char *source,
                                        const char *stem) {
    attn__kernel *kernel = start(plan, t, role, source, stem);
    set_tile(kernel, t, true);
    return kernel;
}

void attn__mma_add_product(attn_plan *plan, const attn__mma_tiling *t, bool keys) {
    attn__kernel *kernel =
        start(plan, t, keys ? ATTN__BACKWARD_KEYS : ATTN__BACKWARD_QUERIES, "backward_mma.cu", keys ? "bwd" : "bwd_dq");
    set_tile(kernel, t, keys);
    attn__kernel_set(kernel, "FLAGGED", t->listed);
    attn__kernel_name(kernel, "_m%dn%d_s%d", t->row.tile_q, t->row.tile_kv, t->row.stages);
    attn__kernel_finish(kernel, plan, 32 * t->row.warps, keys ? t->shared_keys : t->shared_queries);
}

static void add_small(attn_plan *plan, const attn__mma_tiling *t, int role, int work, const char *stem) {
    attn__kernel *kernel = start(plan, t, role, "backward_sums.cu", stem);
    set_tile(kernel, t, true);
    attn__kernel_set(kernel, "WORK", work);
    attn__kernel_finish(kernel, plan, SMALL_THREADS, 0);
}

void attn__mma_add_delta(attn_plan *plan, const attn__mma_tiling *t) {
    attn__kernel *delta = start(plan, t, ATTN__BACKWARD_DELTA, "delta.cu", "delta");
    attn__kernel_set(delta, "CLEAR_DQ", t->listed || !t->two_passes);
    attn__kernel_finish(delta, plan, SMALL_THREADS, 0);
}

void attn__mma_add_rest(attn_plan *plan, const attn__mma_tiling *t) {
    if (t->parts > 1) {
        add_small(plan, t, ATTN__BACKWARD_PARTS, WORK_SUM_PARTS, "dkv");
    }
    if (t->listed || !t->two_passes) {
        add_small(plan, t, ATTN__BACKWARD_SUMS, WORK_SUMS_TO_DQ, "dq");
    }
    if (t->two_passes) {
        attn__mma_add_product(plan, t, false);
    }
    if (plan->problem.sink.dtype) {
        add_small(plan, t, ATTN__BACKWARD_DSINK, WORK_SUM_DSINK, "dsink");
    }
}

static void add_kernels(attn_plan *plan, const attn__mma_tiling *t) {
    attn__mma_add_delta(plan, t);
    if (plan->problem.dbias.dtype) {
        add_small(plan, t, ATTN__BACKWARD_CLEAR_DBIAS, WORK_CLEAR_DBIAS, "clear_dbias");
    }
    attn__mma_add_product(plan, t, true);
    attn__mma_add_rest(plan, t);
}

/* --- Workspace and launches --- */

/* Slots of a side, as side_slots() of gradient_blocks.cuh counts them. */
int64_t attn__mma_slots(const attn_problem *p, bool queries, int64_t segments, int tile) {
    attn_rows rows = queries ? p->rows_q : p->rows_kv;
    int64_t tokens = queries ? p->tokens_q : p->tokens_kv, total = queries ? p->total_q : p->total_kv;
    if (rows == ATTN_DENSE) {
        return p->batch * (round_up(tokens, tile) / tile);
    }
    bool apart = (queries ? p->q : p->k).stride[0] != 0;
    if (rows == ATTN_PACKED) {
        return p->batch ? total / tile + p->batch : 0;
    }
    return (apart ? p->batch : 1) * (total / tile) + segments;
}

size_t attn__mma_floats(int64_t heads, int64_t slots, int64_t each) {
    size_t product;
    bool over = __builtin_mul_overflow((size_t)heads, (size_t)slots, &product) ||
                __builtin_mul_overflow(product, (size_t)each * sizeof(float), &product);
    return over ? SIZE_MAX : product;
}

/* Where there are too few tiles of keys for the processors, each takes a part of the query heads. */
int64_t attn__mma_parts(const attn_plan *plan, const attn__mma_tiling *t) {
    const attn_problem *p = &plan->problem;
    int64_t group = p->heads_kv ? p->heads_q / p->heads_kv : 1, parts = 1;
    int64_t tiles = p->heads_kv * attn__mma_slots(p, false, p->segments_kv, t->row.tile_kv);
    while ((double)(tiles * parts) < TILES_A_PROCESSOR * plan->gpu->processors && parts < group) {
        do {
            parts++;
        } while (group % parts);
    }
    return parts;
}

/* Sums over broadcast axes are added in whatever order they come. */
static bool dbias_depends_on_order(const attn_problem *p) {
    const int64_t *stride = p->dbias.stride;
    return p->dbias.dtype && ((stride[0] == 0 && p->batch > 1) || (stride[1] == 0 && p->heads_q > 1) ||
                              (stride[2] == 0 && p->tokens_q > 1) || (stride[3] == 0 && p->tokens_kv > 1));
}

attn_status attn__mma_prepare_backward(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    attn__mma_tiling t;
    if (deterministic(p) && dbias_depends_on_order(p)) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "dbias.stride",
                          "sums over an axis with ATTN_DETERMINISTIC, must not: mma adds in no fixed order");
    }
    if (!choose_tiling(plan, true, &t) && !choose_tiling(plan, false, &t)) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "dim_qk",
                          "is %lld (dim_v %lld): no tile of it fits %lld bytes of shared memory a block",
                          (long long)p->dim_qk, (long long)p->dim_v, (long long)plan->gpu->shared_block);
    }
    int64_t slots = attn__mma_slots(p, true, p->segments_q, t.row.tile_q);
    t.parts = attn__mma_parts(plan, &t);
    choice->tensor_cores = true;
    choice->tile_q = t.row.tile_q;
    choice->tile_kv = t.row.tile_kv;
    choice->stages = t.row.stages;
    choice->warps = t.row.warps;
    choice->group = 1;
    choice->splits = t.parts;
    choice->extra = attn__span_take(&plan->workspace, attn__mma_floats(p->heads_q, slots, 2 * t.row.tile_q + 1));
    if (!deterministic(p)) {
        choice->dq = attn__span_take(&plan->workspace, attn__mma_floats(p->heads_q, slots, t.row.tile_q * t.width_qk));
    }
    if (t.parts > 1) {
        int64_t rows = t.parts * attn__mma_slots(p, false, p->segments_kv, t.row.tile_kv) * t.row.tile_kv;
        choice->partial_o =
            attn__span_take(&plan->workspace, attn__mma_floats(p->heads_kv, rows, p->dim_qk + p->dim_v));
    }
    add_kernels(plan, &t);
    return attn__succeed(error);
}

static attn_status clear_dbias(attn__cuda_run *run) {
    const attn_problem *p = &run->plan->problem;
    const int64_t *stride = p->dbias.stride;
    int64_t elements = (stride[0] ? p->batch : 1) * (stride[1] ? p->heads_q : 1) * (stride[2] ? p->tokens_q : 1) *
                       (stride[3] ? p->tokens_kv : 1);
    return attn__cuda_launch(run, ATTN__BACKWARD_CLEAR_DBIAS, round_up(elements, CLEARED_A_TILE) / CLEARED_A_TILE);
}

attn_status attn__mma_run_backward(attn__cuda_run *run) {
    const attn_problem *p = &run->plan->problem;
    const attn_args *args = run->args;
    const attn__gpu_choice *choice = &run->plan->gpu_choice;
    int64_t queries = p->heads_q * attn__mma_slots(p, true, args->n_segments_q, choice->tile_q);
    int64_t keys = p->heads_kv * attn__mma_slots(p, false, args->n_segments_kv, choice->tile_kv);
    bool pairs = args->dk || args->dv || args->dbias || (args->dq && !deterministic(p));
    attn_status status = attn__cuda_launch(run, ATTN__BACKWARD_DELTA, queries);
    if (!status && args->dbias && !(p->flags & ATTN_ACCUMULATE)) {
        status = clear_dbias(run);
    }
    if (!status && pairs) {
        status = attn__cuda_launch(run, ATTN__BACKWARD_KEYS, keys * choice->splits);
    }
    if (!status && choice->splits > 1 && (args->dk || args->dv)) {
        status = attn__cuda_launch(run, ATTN__BACKWARD_PARTS, keys);
    }
    if (!status && args->dq) {
        status = attn__cuda_launch(run, deterministic(p) ? ATTN__BACKWARD_QUERIES : ATTN__BACKWARD_SUMS, queries);
    }
    if (!status && args->dsink) {
        status = attn__cuda_launch(run, ATTN__BACKWARD_DSINK, p->heads_q);
    }
    return status;
}
