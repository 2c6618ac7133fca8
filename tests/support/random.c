/* SPDX-License-Identifier: Apache-2.0 */
#include "support/random.h"

#include <math.h>

rng rng_seed(uint64_t seed) {
    rng r = {seed * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du};
    return r;
}

uint64_t rng_next(rng *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

int64_t rng_range(rng *r, int64_t low, int64_t high) {
    return low + (int64_t)(rng_next(r) % (uint64_t)(high - low + 1));
}

double rng_unit(rng *r) {
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

double rng_normal(rng *r) {
    double radius = sqrt(-2 * log(1 - rng_unit(r)));
    return radius * cos(6.283185307179586 * rng_unit(r));
}

bool rng_chance(rng *r, double probability) {
    return rng_unit(r) < probability;
}

int64_t rng_pick(rng *r, const int64_t *from, int64_t count) {
    return from[rng_range(r, 0, count - 1)];
}

double case_x(uint32_t tag, int64_t index) {
    uint32_t h = (uint32_t)index * 0x9E3779B1u + tag * 0x85EBCA77u + 0x165667B1u;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    h ^= h >> 12;
    h *= 0x297A2D39u;
    h ^= h >> 15;
    return ((double)(h >> 24) - 128) / 64;
}
