/* SPDX-License-Identifier: Apache-2.0
 * What this machine has to test, and how hard: contexts by number of threads, implementations by name, the knobs
 * ATTN_TEST_INTENSITY (0 smoke ... 3 exhaustive; default 1), ATTN_TEST_IMPL (only this implementation) and
 * ATTN_TEST_SEED (only this random case). */
#ifndef TESTS_SUPPORT_MACHINE_H
#define TESTS_SUPPORT_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/attn.h"

/* Made on first use, kept for the life of the program; ends it if it cannot be had. */
attn_context *machine_context(int threads);

/* Names of the implementations this machine can run, best first; NULL-terminated. `all` also brings native and
 * reference, which are what the others are judged by. */
const char *const *machine_implementations(bool all);

int machine_intensity(void);
bool machine_seed(uint64_t *seed);

/* The rule of refusals: the field that `implementation` must name if it has to refuse the problem, or NULL if it has
 * to accept it. */
const char *machine_expected_refusal(const char *implementation, const attn_problem *problem);

#endif
