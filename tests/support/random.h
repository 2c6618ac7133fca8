/* SPDX-License-Identifier: Apache-2.0
 * Numbers for tests: a seeded generator (SplitMix64, one word of state, so that a seed is a whole reproducer) and the
 * published element formula of the field cases. */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rng {
    uint64_t state;
} rng;

rng rng_seed(uint64_t seed);
uint64_t rng_next(rng *r);
/* Uniform in [low, high]. */
int64_t rng_range(rng *r, int64_t low, int64_t high);
/* Uniform in [0, 1). */
double rng_unit(rng *r);
double rng_normal(rng *r);
bool rng_chance(rng *r, double probability);
/* One of the first `count` entries. */
int64_t rng_pick(rng *r, const int64_t *from, int64_t count);

/* Element `index` of tensor number `tag`: a multiple of 1/64 in [-2, 2), exact in every float type. */
double case_x(uint32_t tag, int64_t index);

#endif
