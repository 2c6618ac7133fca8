/* SPDX-License-Identifier: Apache-2.0
 * What this machine has to test, and how hard: contexts by number of threads, implementations by name, and the knobs
 *   ATTN_TEST_INTENSITY  0 smoke ... 3 exhaustive; default 1
 *   ATTN_TEST_IMPL       only this implementation
 *   ATTN_TEST_SEED       only this random case
 *   ATTN_TEST_SHARD      "i/n": every n-th case from the i-th on, so that n programs share the work
 *   ATTN_TEST_DEVICE     "cuda", "cuda:1": the implementations of that device instead of the CPU's. Without such a
 *                        device programs end with status 77 and the reason. "gpu:a100" and the like: a rehearsal
 *                        without a device: every plan is made and compiled for that GPU, results are reference's
 *   ATTN_TEST_MAX_ISA    with a device: "sm_75", "sm_80": that older architecture's code, one step less intensely */
#ifndef TESTS_SUPPORT_MACHINE_H
#define TESTS_SUPPORT_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

/* The CPU's. Made on first use, kept for the life of the program; ends it if it cannot be had. */
attn_context *machine_context(int threads);
/* The device's; NULL if the CPU is tested. */
attn_context *machine_device(void);
/* Where an implementation runs. */
attn_context *machine_context_of(const char *implementation, int threads);
bool machine_is_device(const char *implementation);
bool machine_rehearses(void);
/* Is there no GPU to run on? Then it says that the test is skipped. */
bool machine_lacks_gpu(void);

/* Names of the implementations to test, best first; NULL-terminated. On the CPU `all` also brings native and
 * reference, which are what the others are judged by. */
const char *const *machine_implementations(bool all);
/* Is the n-th case this program's? And does it have a part of the cases alone? */
bool machine_shard(uint64_t n);
bool machine_sharded(void);

int machine_intensity(void);
bool machine_seed(uint64_t *seed);

/* Flags that let an implementation take the problem: tensor cores take float32 only as tf32. */
uint32_t machine_allowed(const char *implementation, const attn_problem *problem);
/* Does it round what it is given before it multiplies: float32 to tf32, a float32 dout to q's 16 bits? */
bool machine_rounds(const char *implementation, const attn_problem *problem);
/* The rules of refusals: the field that `implementation` must name if it has to refuse the problem (with the flags
 * above, and the layouts that are planned), or NULL if it has to accept it. */
const char *machine_expected_refusal(const char *implementation, const attn_problem *problem);
/* May it refuse backward by this field on this device, whose blocks have little shared memory? */
bool machine_may_refuse(const char *implementation, const attn_problem *problem, const char *field);
/* The widest head of q and k, or of v, that it takes. */
int64_t machine_widest(const char *implementation, attn_pass pass, bool values);

#endif
