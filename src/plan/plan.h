/* SPDX-License-Identifier: Apache-2.0
 * The plan: every choice, taken once, from plain data. Nothing here knows OpenMP, CUDA, a clock or the environment;
 * a plan for another machine is made by passing that machine's facts. */
#ifndef ATTN_PLAN_PLAN_H
#define ATTN_PLAN_PLAN_H

#include <stdbool.h>

#include "attn/attn.h"

/* Instruction sets, one bit each, from one list: bit, name. */
#define ATTN__ISA_LIST(X)                                                                                              \
    X(AVX2, 0, "avx2")     /* with FMA and F16C */                                                                     \
    X(AVX512, 1, "avx512") /* F, BW, DQ, VL */                                                                         \
    X(AVX512BF16, 2, "avx512bf16")                                                                                     \
    X(AMX, 3, "amx") /* TILE and BF16 */                                                                               \
    X(NEON, 4, "neon")
typedef enum attn__isa {
#define ATTN__ENUM(name, bit, text) ATTN__ISA_##name = 1u << bit,
    ATTN__ISA_LIST(ATTN__ENUM)
#undef ATTN__ENUM
} attn__isa;

/* Facts of the machine that a plan may depend on. */
typedef struct attn__machine {
    uint32_t isa; /* attn__isa, or-ed */
    int threads;
    bool fast_bf16_pairs; /* a product of bf16 pairs takes no longer than a float multiply-add of the same width */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* a core, a core, in all */
    double hertz;                         /* assumed clock, for expected times only */
    double memory_rate;                   /* assumed bytes a second, for expected times only */
} attn__machine;

/* Facts of a GPU: everything that a GPU plan may depend on. Read from the driver or taken from the table of known GPUs
 * (gpu.c), so a plan for any GPU can be made without one. */
typedef struct attn__gpu {
    const char *name; /* "a100" in the table; the driver's name otherwise, in the context's memory */
    int arch;         /* code is compiled for it: 75, 80, 86, 89, 90, 100, 120 */
    int processors;   /* streaming multiprocessors */
    int64_t shared_block, shared_processor; /* bytes of shared memory: most a block may ask for, in all */
    int64_t registers_processor;            /* 32-bit registers */
    int64_t l2_bytes, memory_bytes;
    double hertz;       /* clock under load, for expected times only */
    double memory_rate; /* bytes a second, likewise */
    /* FLOP a cycle and processor: float32 FMA; dense tensor-core products of f16/bf16 and of tf32 (0: none) that
     * warp-wide mma.sync reaches. */
    double fma_cycle, mma_cycle, mma_tf32_cycle;
    double wgmma_cycle; /* f16/bf16 by sm_90's warp-group instructions; 0: code with them, or tensor maps, cannot run */
} attn__gpu;

typedef struct attn__impl attn__impl; /* src/backend.h */

/* Bytes [offset, offset + size) of the workspace. One function lays a workspace out: run once to measure, once to
 * carve, so the two cannot disagree. */
typedef struct attn__span {
    size_t offset, size;
} attn__span;
/* Appends size bytes, 64-byte aligned, to the layout whose length so far is *total. Saturates at SIZE_MAX. */
attn__span attn__span_take(size_t *total, size_t size);
static inline void *attn__span_at(void *workspace, attn__span span) {
    return (char *)workspace + span.offset;
}

/* ERR_UNSUPPORTED if plan->workspace, which stores all scores, passes the address space. */
attn_status attn__plan_scores_fit(const attn_plan *plan, attn_error *error);

/* What the CPU backend decides; results never depend on it beyond rounding, and never on `threads`. */
typedef struct attn__choice {
    int threads;
    int64_t block_q;    /* query rows a task walks the keys with */
    int64_t block_kv;   /* keys a block */
    int64_t splits;     /* forward: parts of the keys; backward: parts of the keys of a head, each with its own dq */
    bool few_rows;      /* decode form: lanes along the head dimension */
    int64_t few_heads;  /* few_rows: neighbouring kv heads that a task carries along the keys */
    bool pairs;         /* bf16 by pairs; else converted to float */
    int64_t group;      /* query heads that share one task's lanes */
    attn__span scratch; /* threads pieces of scratch_each bytes */
    size_t scratch_each;
    attn__span prefix;   /* int64: tasks before each segment */
    attn__span partials; /* partial results of splits */
    attn__span delta;    /* backward: float, one a query row and head */
} attn__choice;

/* One device kernel, fully specialised: what is compiled, under which name, with which constants. The name is unique
 * for its constants and is what a profiler shows:
 * attn_fwd_bf16_d128_m128n64_s2_causal__sm80. Constants reach the source as #define NAME VALUE. */
#define ATTN__MAX_CONSTANTS 48
typedef struct attn__kernel {
    char name[128];
    const char *source; /* entry file in src/cuda/device: "forward_mma.cu" */
    struct {
        const char *name;
        int64_t value;
    } constants[ATTN__MAX_CONSTANTS];
    int n_constants;
    int threads;   /* a block */
    size_t shared; /* dynamic shared memory, bytes a block */
} attn__kernel;

/* What the CUDA backend decides. Kernels are listed in the order of their first launch; `role` is the backend's. */
#define ATTN__MAX_KERNELS 12
typedef struct attn__gpu_choice {
    int tile_q, tile_kv, stages, warps;
    int64_t group;                  /* query heads packed into one tile's rows */
    int64_t splits;                 /* parts of the keys */
    bool tensor_cores, warp_groups; /* the latter: by sm_90's own instructions */
    attn__kernel kernels[ATTN__MAX_KERNELS];
    int roles[ATTN__MAX_KERNELS];
    int n_kernels;
    attn__span lengths;                /* host lengths and segments, brought to the device at each run */
    attn__span status;                 /* int32, when the caller gives none */
    attn__span partial_o, partial_lse; /* splits: float32 parts */
    attn__span delta, dq, scores;      /* backward's delta and float32 dq; native: scores */
    attn__span extra;                  /* what one implementation alone needs */
} attn__gpu_choice;

#define ATTN__MAX_REFUSALS 12
typedef struct attn__refusal {
    const char *name;
    char reason[160];
} attn__refusal;

struct attn_plan {
    const attn_context *context;
    attn_problem problem; /* canonical */
    attn_hints hints;     /* strings resolved: implementation is NULL or the impl's own name */
    attn__machine machine;
    const attn__gpu *gpu; /* NULL on the CPU; the context's */
    const attn__impl *impl;
    attn__choice choice;
    attn__gpu_choice gpu_choice;
    void *built; /* what impl->build made: compiled kernels; released by impl->release */
    size_t workspace;
    attn__refusal refusals[ATTN__MAX_REFUSALS];
    int n_refusals;
};

/* FLOP, bytes and memory of a canonical problem (cost.c); fields of attn_plan_info that need no choice. */
void attn__plan_cost(const attn_problem *problem, attn_plan_info *info);

/* One table of refusals (support.c): every (implementation, rule) pair that can refuse a sound problem. The support
 * query, plan creation's message and docs/support.md all read it. Returns true and leaves reason empty if the
 * implementation accepts the problem. gpu: facts of the context's GPU, NULL on the CPU. */
bool attn__support_accepts(const attn__impl *impl, const attn_problem *problem, const attn__gpu *gpu, char *field,
                           size_t field_size, char *reason, size_t reason_size);

#endif
