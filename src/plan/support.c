/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backend.h"

/* Blocks of this width still leave room for a block of queries and keys in the caches that kernels are sized for. */
enum { WIDEST = 576 };

static bool too_wide(int64_t dim, char *value, size_t size) {
    snprintf(value, size, "%" PRId64, dim);
    return dim > WIDEST;
}

static bool wide_qk(const attn_problem *problem, char *value, size_t size) {
    return too_wide(problem->dim_qk, value, size);
}

static bool wide_v(const attn_problem *problem, char *value, size_t size) {
    return too_wide(problem->dim_v, value, size);
}

static bool is_f64(const attn_problem *problem, char *value, size_t size) {
    snprintf(value, size, "%s", attn_dtype_name(problem->q.dtype));
    return problem->q.dtype == ATTN_F64;
}

static bool has_flag(const attn_problem *problem, uint32_t flag, const char *name, char *value, size_t size) {
    snprintf(value, size, "0x%" PRIx32 " with %s", problem->flags, name);
    return problem->flags & flag;
}

static bool device_lengths(const attn_problem *problem, char *value, size_t size) {
    return has_flag(problem, ATTN_DEVICE_LENGTHS, "ATTN_DEVICE_LENGTHS", value, size);
}

static bool device_seed(const attn_problem *problem, char *value, size_t size) {
    return has_flag(problem, ATTN_DEVICE_SEED, "ATTN_DEVICE_SEED", value, size);
}

#define NO_DEVICE_LENGTHS(room)                                                                                        \
    { room, "flags", "without ATTN_DEVICE_LENGTHS", "lengths are read on the host", device_lengths }
#define NO_DEVICE_SEED(room)                                                                                           \
    { room, "flags", "without ATTN_DEVICE_SEED", "the seed is read on the host", device_seed }

const attn__rule attn__rules[] = {
    {"cpu", "q.dtype", "f32, f16 or bf16", "fused kernels keep scores in float32; `reference` runs f64", is_f64},
    {"cpu", "dim_qk", "at most 576", "the widest head that blocks are laid out for", wide_qk},
    {"cpu", "dim_v", "at most 576", "the widest head that blocks are laid out for", wide_v},
    NO_DEVICE_LENGTHS("cpu"),
    NO_DEVICE_SEED("cpu"),
    {"native", "q.dtype", "f32, f16 or bf16", "softmax is in float32; `reference` runs f64", is_f64},
    NO_DEVICE_LENGTHS("native"),
    NO_DEVICE_SEED("native"),
    NO_DEVICE_LENGTHS("reference"),
    NO_DEVICE_SEED("reference"),
    {NULL, NULL, NULL, NULL, NULL},
};

bool attn__support_accepts(const attn__impl *impl, const attn_problem *problem, char *field, size_t field_size,
                           char *reason, size_t reason_size) {
    char value[32];
    for (const attn__rule *rule = attn__rules; rule->backend; rule++) {
        if (strcmp(rule->backend, impl->backend) == 0 && rule->broken(problem, value, sizeof value)) {
            snprintf(field, field_size, "%s", rule->field);
            snprintf(reason, reason_size, "is %s, must be %s", value, rule->limit);
            return false;
        }
    }
    field[0] = reason[0] = 0;
    return true;
}
