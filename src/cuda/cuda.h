/* SPDX-License-Identifier: Apache-2.0
 * The CUDA room's own contracts. Flow of a run: attn_forward -> impl->forward -> attn__cuda_begin (parameters from plan
 * and arguments, the device's context made current, lengths brought to the device and checked there) -> launches of the
 * plan's kernels -> attn__cuda_end. Nothing on this way allocates, compiles, waits for the device or reads the
 * environment, so that a stream under capture takes all of it.
 *
 * Choices (tiles, stages, constants, workspace) are taken in impl->prepare, a pure function of problem, hints and
 * attn__gpu; kernels are compiled and loaded in impl->build. */
#ifndef ATTN_CUDA_CUDA_H
#define ATTN_CUDA_CUDA_H

#include "backend.h"
#include "cuda/device/params.h"

/* --- Choosing: what all kernels' constants have in common (constants.c) --- */

/* Starts a kernel: source, and constants that follow from the problem: DTYPE, O_DTYPE, BIAS_DTYPE, DIM_QK, DIM_V,
 * ROWS_Q, ROWS_KV, USED_Q, USED_KV, BAND, HAS_MASK, HAS_ALIBI, HAS_SINK, HAS_SOFTCAP, HAS_DROPOUT, SCORE_PLAIN;
 * backward also DOUT_DTYPE, DQ_DTYPE, DK_DTYPE, DV_DTYPE, HAS_DLSE, HAS_DBIAS. `stem` begins the name: "fwd", "bwd";
 * dtype, head sizes and features are appended to it. */
attn__kernel *attn__kernel_start(attn_plan *plan, int role, const char *source, const char *stem);
void attn__kernel_set(attn__kernel *kernel, const char *constant, int64_t value);
/* Appends to the name: tile, stages, and at last the target ("__sm80"), which names its code's architecture. */
void attn__kernel_name(attn__kernel *kernel, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Ends the name with "__sm<arch>" and a short hash of those constants that the readable part leaves out. */
void attn__kernel_finish(attn__kernel *kernel, const attn_plan *plan, int threads, size_t shared);

/* Is the score nothing but scale * <q, k> with a positive scale (SCORE_PLAIN)? */
bool attn__score_plain(const attn_problem *problem);

/* Bytes of a delta of our own: float32, [batch, heads_q, rows]; params.delta tells its strides. */
size_t attn__cuda_delta_size(const attn_problem *problem);

/* --- Building and running --- */

attn_status attn__cuda_build(attn_plan *plan, attn_error *error);
void attn__cuda_unbuild(attn_plan *plan);

typedef struct attn__cuda_run {
    const attn_plan *plan;
    const attn_args *args;
    attn_stream stream;
    void *workspace;
    attn__params params;
    const void *maps; /* attn__maps, the second parameter of kernels that have one; else NULL */
    bool pushed;      /* the device's context was made current */
    attn_error *error;
} attn__cuda_run;

/* Fills run->params: tensors, strides, band, scale, dropout, alignment bits, lengths (uploaded into the workspace when
 * they are the host's), status word; spans of gpu_choice as pointers (partial_o, partial_lse, dq_sum, scores, extra;
 * delta as a tensor when the caller gives none). */
attn_status attn__cuda_begin(attn__cuda_run *run, const attn_plan *plan, const attn_args *args, void *workspace,
                             attn_stream stream, attn_error *error);
/* Launches the plan's kernel of that role over `tiles` blocks, in several launches where the grid's limit is passed
 * (params.first_tile); none for 0 tiles. */
attn_status attn__cuda_launch(attn__cuda_run *run, int role, int64_t tiles);
/* Restores the caller's context. Returns `status`. */
attn_status attn__cuda_end(attn__cuda_run *run, attn_status status);

/* Blocks of rows on one side: runs (sequences, or segments of the list) times the blocks of the longest run, so that a
 * kernel finds its run by division. Dense and packed runs, and segments in device memory, count by the bounds. */
int64_t attn__cuda_blocks(const attn_problem *problem, const attn_args *args, bool queries, int64_t rows_a_block);
/* Blocks of query rows, as query_blocks() of device/schedule.cuh counts them; segments: of the list, or its bound. */
int64_t attn__cuda_query_blocks(const attn_problem *problem, int64_t segments, int64_t rows_a_block);

/* --- Implementations: prepare and run of each (implementations.c holds the rows) --- */

#define ATTN__CUDA_PASSES(name)                                                                                        \
    attn_status attn__##name##_prepare_forward(attn_plan *plan, attn_error *error);                                    \
    attn_status attn__##name##_prepare_backward(attn_plan *plan, attn_error *error);                                   \
    attn_status attn__##name##_run_forward(attn__cuda_run *run);                                                       \
    attn_status attn__##name##_run_backward(attn__cuda_run *run);
ATTN__CUDA_PASSES(mma)
ATTN__CUDA_PASSES(ffma)
ATTN__CUDA_PASSES(cuda_native)
ATTN__CUDA_PASSES(hopper)

#endif
