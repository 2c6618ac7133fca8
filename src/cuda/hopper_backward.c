/* SPDX-License-Identifier: Apache-2.0
 * `hopper` backward: choices, workspace, launches.
 *
 *   DELTA     as mma's; also clears the counter and the lists of tiles
 *   HOPPER    dK and dV; adds dQ to float32 sums; one block a processor takes tiles (device/backward_hopper.cu), or for
 *             heads above 128 two blocks together, half a tile each (device/backward_hopper_wide.cu)
 *   SUMS      the sums become dQ; slots that are not finite go to a list
 *   KEYS, QUERIES   mma's products for the tiles on the lists: none, if nothing is NaN or inf and every key is seen
 *   PARTS, DSINK    as mma's
 *
 * ATTN_DETERMINISTIC: tiles add to a slot of dQ in the order of their slots (device/hopper/backward_order.cuh); DELTA
 * clears the counts of turns.
 *
 * The lists cost two launches of a block a processor that find nothing.
 *
 * Worked numbers, bf16, 227 KiB a block: d 128: keys 2 x 32 KiB, values 32 KiB, q 3 x 16, dout 2 x 16, dS 3 x 16: 224
 * KiB; a thread holds 128 sums, 32 scores, 32 of dP, 32 of dQ, 32 rounded of 240 registers. d 64, with steps of 128
 * queries, takes as much. d 256: keys 32 + 16, values 32, q 2 x 32, dout 3 x 16, P 8, dS 2 x 8 + 8: 224 KiB; of 160
 * registers two groups hold 128 sums, one 32 scores, 32 of dP, 64 of dQ. */
#include "base/error.h"
#include "cuda/mma_backward.h"
#include "cuda/tensor_map.h"

enum { TILE_KV = 128, THREADS = 384, LISTED_BY = 8 };
/* A warp adds 512 bytes of dQ at once: lines of 128 bytes that it shares with none, or memory does a quarter more. */
enum { SUMS_ALIGNMENT = 256 };
enum { Q_STAGES = 3, DO_STAGES = 2, K_STAGES = 2 };
enum { WIDE = 256, WIDE_THREADS = 512, WIDE_Q_STAGES = 2, WIDE_DO_STAGES = 3, WIDE_DS_STAGES = 2, WIDE_BARRIERS = 30 };
enum { TURNS = 2 }; /* as in gradient_blocks.cuh */
/* Of shared memory, as in backward_memory.cuh and wide_memory.cuh. */
enum { STEP_RECORD = 32, OUTPUT_RECORD = 32, PLACE_RECORD = 96, WORD = 4 };

/* Head size that products are cut for. */
static int width_of(const attn_problem *p) {
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    return dim <= 64 ? 64 : dim <= 128 ? 128 : WIDE;
}

static int tile_q_of(int width) {
    return width == 64 ? 128 : 64;
}

/* Keys of a block of threads, by which tiles are listed and parts of gradients lie. */
static int listed_of(int width) {
    return width == WIDE ? TILE_KV / 2 : TILE_KV;
}

/* What the order of additions takes beside (backward_order.cuh): barriers of two steps, of wide heads of one, less 4
 * bytes of each place's record. Heads up to 64 have 16 bytes left. */
static size_t shared_of_order(const attn_problem *p) {
    const size_t steps = width_of(p) == WIDE ? 1 : 2;
    return p->flags & ATTN_DETERMINISTIC ? steps * 2 * 8 - 2 * 4 : 0;
}

static size_t shared_of(int width) {
    const int tile_q = tile_q_of(width);
    int tiles = (K_STAGES + 1) * TILE_KV * width + (Q_STAGES + DO_STAGES) * tile_q * width + 3 * TILE_KV * tile_q;
    int barriers = 2 * (K_STAGES + Q_STAGES + DO_STAGES + 1) + 1;
    return (size_t)(2 * tiles + (Q_STAGES + DO_STAGES) * tile_q * 4 + Q_STAGES * STEP_RECORD +
                    K_STAGES * OUTPUT_RECORD + 2 * PLACE_RECORD + 8 * barriers);
}

/* K and V; half of the other block's K; Q; halves of DO; P, DS and DSX. */
static size_t shared_of_wide(void) {
    const int tile_q = tile_q_of(WIDE), half = listed_of(WIDE);
    int tiles = 2 * half * WIDE + half * WIDE / 2 + WIDE_Q_STAGES * tile_q * WIDE + WIDE_DO_STAGES * tile_q * WIDE / 2 +
                (1 + WIDE_DS_STAGES + 1) * half * tile_q;
    return (size_t)(2 * tiles + WIDE_Q_STAGES * 2 * tile_q * 4 + WIDE_Q_STAGES * STEP_RECORD + 2 * OUTPUT_RECORD +
                    2 * PLACE_RECORD + (WIDE_DO_STAGES + WIDE_DS_STAGES + 1) * WORD + 8 * WIDE_BARRIERS);
}

typedef struct mapped {
    const char *name;
    const attn_layout *layout;
    const attn__tensor_ref *ref;
    attn__map *map;
    bool queries, value;
} mapped;

/* The four tensors that are read by boxes. ref, map: of a run, or of nothing. */
static void list_maps(const attn_problem *p, const attn__params *params, attn__maps *maps, mapped list[4]) {
    const mapped all[4] = {{"q", &p->q, &params->q, &maps->q, true, false},
                           {"k", &p->k, &params->k, &maps->k, false, false},
                           {"v", &p->v, &params->v, &maps->v, false, true},
                           {"dout", &p->dout, &params->dout, &maps->dout, true, true}};
    for (int n = 0; n < 4; n++) {
        list[n] = all[n];
    }
}

static void add_products(attn_plan *plan, const attn__mma_tiling *t) {
    const bool wide = t->width_qk == WIDE;
    attn__mma_tiling walked = *t;
    walked.row.tile_kv = TILE_KV;
    attn__kernel *kernel = attn__mma_backward_kernel(
        plan, &walked, ATTN__BACKWARD_HOPPER, wide ? "backward_hopper_wide.cu" : "backward_hopper.cu", "bwd_hopper");
    attn__kernel_set(kernel, "LISTED_KV", t->row.tile_kv);
    if (!wide) {
        attn__kernel_set(kernel, "WIDTH", t->width_qk);
        attn__kernel_set(kernel, "Q_STAGES", Q_STAGES);
        attn__kernel_set(kernel, "DO_STAGES", DO_STAGES);
        attn__kernel_set(kernel, "K_STAGES", K_STAGES);
    }
    attn__kernel_name(kernel, "_m%dn%d", t->row.tile_q, TILE_KV);
    attn__kernel_finish(kernel, plan, wide ? WIDE_THREADS : THREADS,
                        (wide ? shared_of_wide() : shared_of((int)t->width_qk)) + shared_of_order(&plan->problem));
}

/* Short rows of narrow heads: `mma` has fewer launches (H200, d 64, 8 and 32 heads of 256 rows: 33 of 36 us). */
static bool wants_few_launches(const attn_plan *plan, int64_t tiles) {
    const attn_problem *p = &plan->problem;
    return !plan->hints.implementation && width_of(p) == 64 && p->tokens_q <= 256 && p->tokens_kv <= 256 &&
           tiles <= plan->gpu->processors;
}

static void add_kernels(attn_plan *plan, const attn__mma_tiling *t) {
    attn__mma_add_delta(plan, t);
    add_products(plan, t);
    attn__mma_add_product(plan, t, true);
    attn__mma_add_rest(plan, t);
}

attn_status attn__hopper_prepare_backward(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__gpu_choice *choice = &plan->gpu_choice;
    const int width = width_of(p), tile_q = tile_q_of(width), listed = listed_of(width);
    const int warps_y = width == WIDE ? 4 : 2, dq_warps_m = width == 64 ? 8 : width == 128 ? 4 : 2;
    const bool ordered = (p->flags & ATTN_DETERMINISTIC) != 0;
    attn__mma_tiling t = {.row = {2, width, tile_q, listed, 8, warps_y, 2, dq_warps_m},
                          .width_qk = width,
                          .width_v = width,
                          .parts = 1,
                          .two_passes = true,
                          .listed = true,
                          .ordered = ordered};
    if (wants_few_launches(plan, p->heads_kv * attn__mma_slots(p, false, p->segments_kv, TILE_KV))) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "tokens_kv", "is %lld: so few keys are faster by fewer launches",
                          (long long)p->tokens_kv);
    }
    attn__mma_shared(&t);
    t.parts = attn__mma_parts(plan, &t);
    const int64_t slots = attn__mma_slots(p, true, p->segments_q, tile_q);
    const int64_t key_slots = attn__mma_slots(p, false, p->segments_kv, listed);
    choice->tensor_cores = choice->warp_groups = true;
    choice->tile_q = tile_q;
    choice->tile_kv = TILE_KV;
    choice->stages = width == WIDE ? WIDE_Q_STAGES : DO_STAGES;
    choice->warps = (width == WIDE ? WIDE_THREADS : THREADS) / 32;
    choice->group = 1;
    choice->splits = t.parts;
    /* stats, dsink's parts, the list of queries and the turns; the list of keys; the counts */
    const size_t stats = attn__mma_floats(p->heads_q, slots, 2 * tile_q + 2 + (ordered ? TURNS : 0));
    const size_t list = attn__mma_floats(p->heads_kv * t.parts, key_slots, LISTED_BY);
    const size_t limit = SIZE_MAX / 4;
    choice->extra = attn__span_take(&plan->workspace, stats < limit && list < limit ? stats + list + 64 : SIZE_MAX);
    const size_t sums = attn__mma_floats(p->heads_q, slots, tile_q * width);
    choice->dq = attn__span_take(&plan->workspace, sums < limit ? sums + SUMS_ALIGNMENT : SIZE_MAX);
    if (t.parts > 1) {
        choice->partial_o = attn__span_take(
            &plan->workspace, attn__mma_floats(p->heads_kv, t.parts * key_slots * listed, p->dim_qk + p->dim_v));
    }
    add_kernels(plan, &t);
    return attn__succeed(error);
}

static attn_status make_maps(attn__cuda_run *run, attn__maps *maps) {
    const attn_plan *plan = run->plan;
    const attn_problem *p = &plan->problem;
    attn_status status = ATTN_OK;
    mapped list[4];
    list_maps(p, &run->params, maps, list);
    for (int n = 0; n < 4 && !status; n++) {
        attn__map_shape shape =
            attn__tensor_map_shape(p, list[n].layout, list[n].queries, list[n].value,
                                   list[n].queries ? plan->gpu_choice.tile_q : listed_of(width_of(p)));
        /* As rows_shared() of backward_bring.cuh. */
        shape.sequences = p->flags & ATTN_DETERMINISTIC && list[n].layout->stride[0] == 0 &&
                          (list[n].queries ? p->rows_q : p->rows_kv) != ATTN_DENSE;
        status = attn__tensor_map_make(run, list[n].map, list[n].ref, &shape, run->params.extra, list[n].name);
    }
    return status;
}

/* A kernel that begins before those ahead of it have ended, and waits for them itself (gradient_blocks.cuh). */
static attn_status launch_early(attn__cuda_run *run, int role, int64_t tiles) {
    if (tiles <= 0 || tiles > INT32_MAX) {
        return attn__cuda_launch(run, role, tiles);
    }
    run->params.tiles = tiles;
    run->params.first_tile = 0;
    return attn__cuda_launch_early(run, role, (unsigned)tiles, &run->params);
}

/* tiles: as the kernel walks them, by as many blocks as share one. */
static attn_status launch_products(attn__cuda_run *run, int64_t tiles) {
    const int64_t sharing = TILE_KV / listed_of(width_of(&run->plan->problem));
    const int64_t most = run->plan->gpu->processors / sharing, groups = tiles < most ? tiles : most;
    attn__maps maps = {0};
    if (tiles == 0) {
        return ATTN_OK;
    }
    attn_status status = make_maps(run, &maps);
    if (!status) {
        run->maps = &maps;
        run->params.tiles = tiles;
        run->params.first_tile = 0;
        status = sharing == 1
                     ? attn__cuda_launch_early(run, ATTN__BACKWARD_HOPPER, (unsigned)groups, &run->params)
                     : attn__cuda_launch_raw(run, ATTN__BACKWARD_HOPPER, (unsigned)(groups * sharing), &run->params);
        run->maps = NULL;
    }
    return status;
}

/* A block a processor, which finds its tiles on a list. */
static attn_status launch_listed(attn__cuda_run *run, int role, int64_t tiles) {
    const int64_t processors = run->plan->gpu->processors;
    return tiles ? launch_early(run, role, tiles < processors ? tiles : processors) : ATTN_OK;
}

attn_status attn__hopper_run_backward(attn__cuda_run *run) {
    const attn_problem *p = &run->plan->problem;
    const attn_args *args = run->args;
    const attn__gpu_choice *choice = &run->plan->gpu_choice;
    const int64_t queries = p->heads_q * attn__mma_slots(p, true, args->n_segments_q, choice->tile_q);
    const int64_t keys = p->heads_kv * attn__mma_slots(p, false, args->n_segments_kv, listed_of(width_of(p)));
    const int64_t tiles = p->heads_kv * attn__mma_slots(p, false, args->n_segments_kv, TILE_KV);
    const bool pairs = args->dk || args->dv || args->dq;
    run->params.dq_sum =
        (float *)(((uintptr_t)run->params.dq_sum + SUMS_ALIGNMENT - 1) & ~(uintptr_t)(SUMS_ALIGNMENT - 1));
    if (p->heads_q == 0) {
        return ATTN_OK; /* no elements; the launch below wants a head even where there are no rows */
    }
    attn_status status = launch_early(run, ATTN__BACKWARD_DELTA, queries ? queries : 1);
    if (!status && pairs) {
        status = launch_products(run, tiles * choice->splits);
    }
    if (!status && (args->dk || args->dv)) {
        status = launch_listed(run, ATTN__BACKWARD_KEYS, keys * choice->splits);
    }
    if (!status && choice->splits > 1 && (args->dk || args->dv)) {
        status = launch_early(run, ATTN__BACKWARD_PARTS, keys);
    }
    if (!status && args->dq) {
        status = launch_early(run, ATTN__BACKWARD_SUMS, queries);
    }
    if (!status && args->dq) {
        status = launch_listed(run, ATTN__BACKWARD_QUERIES, queries);
    }
    if (!status && args->dsink) {
        status = launch_early(run, ATTN__BACKWARD_DSINK, p->heads_q);
    }
    return status;
}
