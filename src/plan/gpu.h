/* SPDX-License-Identifier: Apache-2.0
 * Known GPUs: facts for plans without a device, and the rates that no driver tells for plans with one. */
#ifndef ATTN_PLAN_GPU_H
#define ATTN_PLAN_GPU_H

#include "plan/plan.h"

/* All known GPUs, oldest architecture first. */
enum { ATTN__GPUS = 11 };
extern const attn__gpu attn__gpus[ATTN__GPUS];

/* The row of that name ("a100", any case); NULL if unknown. */
const attn__gpu *attn__gpu_find(const char *name);

/* Fills in what the driver does not tell (fma_cycle, mma_cycle, mma_tf32_cycle, wgmma_cycle, and hertz and
 * memory_rate where they are 0): from the row whose name occurs in gpu->name, else from the first row of the same
 * architecture, else from the last row of an older one. */
void attn__gpu_complete(attn__gpu *gpu);

/* The architecture whose code and limits stand for `arch` (compute capability * 10): the newest known one that is not
 * newer; 0 below 75. */
int attn__gpu_arch(int arch);

/* Blocks of that many threads and bytes of shared memory that a processor holds at once, as far as these two and the
 * architecture's own limit decide; registers, known only once code is compiled, may leave room for fewer. */
int attn__gpu_blocks(const attn__gpu *gpu, int threads, size_t shared);

/* Lowers the architecture to an older one: what a block may use shrinks to its limits, rates stay. */
void attn__gpu_lower(attn__gpu *gpu, int arch);

#endif
