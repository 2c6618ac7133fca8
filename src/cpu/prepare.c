/* SPDX-License-Identifier: Apache-2.0
 * Choices of the CPU backend, from problem, hints and machine alone. They change speed and the order of sums, so they
 * may depend on sizes but never on the number of threads (only the scratch's size does). */
#include <stdlib.h>

#include "backend.h"
#include "base/error.h"
#include "cpu/cpu.h"

/* Enough tasks for many cores to end together; more parts cost a merge each. */
#define WANTED_TASKS 64
/* Keys a part must have to be worth its merge. */
#define KEYS_A_PART 512
/* 96 keys x 64 rows of scores and the keys themselves stay in the caches next to the core; 96 to 192 were within 2 %
 * of each other, 48 lost 3 to 5 %, 288 lost 5 to 10 % when causal (Zen 4, 2026-11-29). A multiple of the tile's 6. */
#define BLOCK_KV 96
/* Few rows: at each change from K to V the stream of reads breaks off. 512 keys a block gave 5 to 10 % more than 128 on
 * one core of Zen 3, but 8 % less for bf16 in [B, S, H, D] on the Xeon (2026-11-30). More queries than one are bound by
 * arithmetic, and sums of shorter blocks are more exact: 160 keys in one sum missed the bound of error by 3 %. */
#define BLOCK_KV_FEW 256
/* Few rows: more parts, since the layout must not decide on them, tasks that must be left where kv heads go together,
 * and floats of q, as of sums, that L1 has room for. */
#define WANTED_FEW 256
#define FEW_TASKS  32
#define FEW_FLOATS 4096
/* Backward: chunks of a head's keys. Each packs its rows anew and leaves a part of dq: 256 keys a chunk cost 6 %
 * against one chunk, 512 cost 3 %. */
#define WANTED_CHUNKS 32
#define FEW_CHUNKS    8
#define MOST_CHUNKS   16
#define KEYS_A_CHUNK  512

static int64_t round_up_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Query segments and tasks (of one part) at most, whatever the lengths turn out to be. */
static int64_t segment_bound(const attn_problem *p) {
    return p->rows_q == ATTN_SEGMENTS ? p->segments_q : p->batch;
}
/* together: head groups of one task. */
static int64_t task_bound(const attn_problem *p, int64_t group, int64_t together, int64_t block_q) {
    int64_t segments = segment_bound(p), groups = p->heads_q / group / together;
    int64_t blocks = segments * round_up_div(group * p->tokens_q, block_q);
    if (p->rows_q == ATTN_PACKED) {
        blocks = smaller(blocks, round_up_div(group * p->total_q, block_q) + segments);
    }
    return groups * blocks;
}

/* vdpbf16ps does twice the work of a float fma a cycle on AMD, but half of it on Intel's cores (85 against 178
 * GFLOP/s, Sapphire Rapids generation, 2026-11-29), where converting to float is faster. Asked for by name it is
 * taken. */
static bool chooses_pairs(const attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    const attn__kernels *kernels = plan->impl->kernels;
    const bool forward = p->pass == ATTN_FORWARD;
    if ((forward && !kernels->forward_pairs) || (!forward && !kernels->backward_pairs)) {
        return false;
    }
    return p->q.dtype == ATTN_BF16 && p->k.dtype == ATTN_BF16 && p->v.dtype == ATTN_BF16 &&
           (forward || p->dout.dtype == ATTN_BF16) &&
           (kernels->pairs_first || plan->machine.fast_bf16_pairs || plan->hints.implementation);
}

/* kv heads whose rows lie side by side, as [B, S, H, D] has them, go together as far as tasks stay plenty and q and
 * sums stay in L1: read one by one, each would touch every page of the buffer for a row's length. tasks: of one head
 * each. */
static int64_t few_heads(const attn_problem *p, int64_t tasks) {
    const attn_layout *k = &p->k, *v = &p->v;
    int64_t heads = 1, dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    if (llabs(k->stride[1]) >= llabs(k->stride[2]) || llabs(v->stride[1]) >= llabs(v->stride[2]) || k->stride[3] != 1 ||
        v->stride[3] != 1 || p->heads_kv == 0) {
        return 1;
    }
    while (p->heads_kv % (2 * heads) == 0 && tasks / (2 * heads) >= FEW_TASKS &&
           2 * heads * (p->heads_q / p->heads_kv) * p->tokens_q * dim <= FEW_FLOATS) {
        heads *= 2;
    }
    return heads;
}

static void choose_forward(attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    attn__choice *c = &plan->choice;
    int64_t share = p->heads_kv > 0 ? p->heads_q / p->heads_kv : 1;
    c->group = share > 1 && p->tokens_q < ATTN__BLOCK ? share : 1;
    c->few_rows = share * p->tokens_q <= ATTN__FEW;
    c->pairs = !c->few_rows && chooses_pairs(plan);
    c->block_kv = plan->hints.block_kv > 0          ? plan->hints.block_kv
                  : c->few_rows && p->tokens_q == 1 ? BLOCK_KV_FEW
                                                    : BLOCK_KV;
    if (c->few_rows) {
        c->group = share;
        c->block_q = ATTN__FEW;
    } else if (plan->hints.block_q > 0) {
        c->block_q = smaller(plan->hints.block_q, ATTN__BLOCK * ATTN__MAX_BLOCKS);
    } else {
        c->block_q = ATTN__BLOCK;
        /* More rows share one copied key block, as long as tasks stay plenty. */
        while (c->block_q < ATTN__BLOCK * ATTN__MAX_BLOCKS &&
               task_bound(p, c->group, 1, 2 * c->block_q) >= WANTED_TASKS / 2) {
            c->block_q *= 2;
        }
    }
    int64_t tasks = task_bound(p, c->group, 1, c->block_q), wanted = c->few_rows ? WANTED_FEW : WANTED_TASKS;
    c->splits = 1;
    if (plan->hints.splits > 0) {
        c->splits = smaller(plan->hints.splits, p->tokens_kv > 0 ? p->tokens_kv : 1);
    } else if (tasks > 0 && tasks < wanted) {
        c->splits = smaller(round_up_div(wanted, tasks), round_up_div(p->tokens_kv, KEYS_A_PART));
        c->splits = c->splits < 1 ? 1 : c->splits;
    }
    c->few_heads = c->few_rows ? few_heads(p, tasks * c->splits) : 1;
}

/* Chunks of keys: as many tasks as cores are likely, but each chunk costs a part of dq. */
static void choose_backward(attn_plan *plan) {
    const attn_problem *p = &plan->problem;
    attn__choice *c = &plan->choice;
    int64_t keys = p->tokens_kv > 0 ? p->tokens_kv : 1, tasks = p->batch * p->heads_kv;
    c->group = p->tokens_q < ATTN__BLOCK && p->heads_kv > 0 ? p->heads_q / p->heads_kv : 1;
    c->pairs = chooses_pairs(plan);
    c->block_kv = plan->hints.block_kv > 0 ? smaller(plan->hints.block_kv, keys) : BLOCK_KV;
    c->block_kv += c->pairs && c->block_kv % 2; /* whole pairs */
    c->block_q = plan->hints.block_q > 0 ? smaller(plan->hints.block_q, ATTN__BLOCK * ATTN__MAX_BLOCKS) : ATTN__BLOCK;
    c->splits = 1;
    if (plan->hints.splits > 0) {
        c->splits = smaller(plan->hints.splits, keys);
    } else if (tasks > 0 && tasks < WANTED_CHUNKS) {
        int64_t whole = round_up_div(keys, KEYS_A_CHUNK), half = smaller(2 * whole, round_up_div(FEW_CHUNKS, tasks));
        c->splits = smaller(smaller(round_up_div(WANTED_CHUNKS, tasks), MOST_CHUNKS), whole > half ? whole : half);
    }
}

/* Overflow-safe: products of sizes that a caller may choose freely. */
static size_t bytes_of(size_t a, size_t b) {
    size_t product;
    return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

attn_status attn__cpu_prepare(attn_plan *plan, attn_error *error) {
    const attn_problem *p = &plan->problem;
    attn__choice *c = &plan->choice;
    const attn__kernels *kernels = plan->impl->kernels;
    size_t total = 0;
    c->threads = plan->machine.threads;
    if (p->pass == ATTN_FORWARD) {
        choose_forward(plan);
        c->scratch_each = attn__forward_body_of(kernels, c)->scratch(plan);
    } else {
        choose_backward(plan);
        size_t rows = attn__backward_body_of(kernels, c)->scratch(plan), sums = kernels->sums->scratch(plan);
        c->scratch_each = rows > sums ? rows : sums;
    }
    c->scratch_each = (c->scratch_each + 4095) & ~(size_t)4095;
    c->prefix = attn__span_take(&total, (size_t)(segment_bound(p) + 1) * sizeof(int64_t));
    if (c->splits > 1) {
        bool forward = p->pass == ATTN_FORWARD;
        int64_t tasks = task_bound(p, c->group, c->few_rows ? c->few_heads : 1, forward ? c->block_q : ATTN__BLOCK);
        int64_t floats = forward ? attn__task_state_floats(plan) : ATTN__BLOCK * p->dim_qk;
        size_t parts = bytes_of((size_t)tasks, (size_t)c->splits);
        c->partials = attn__span_take(&total, bytes_of(parts, (size_t)floats * sizeof(float)));
    }
    c->scratch = attn__span_take(&total, (size_t)c->threads * c->scratch_each);
    if (total == SIZE_MAX) {
        return attn__fail(error, ATTN_ERR_UNSUPPORTED, "workspace", "would be larger than the address space");
    }
    plan->workspace = total;
    return ATTN_OK;
}
