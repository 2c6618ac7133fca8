/* SPDX-License-Identifier: Apache-2.0
 * Random cases. Numbers come from integers by exact steps, so that they are the same everywhere. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

/* Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014. */
static uint64_t next_bits(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Sum of four uniform 16-bit numbers, scaled to variance 1: near enough to normal, and bounded by 3.5. */
static double next_normal(uint64_t *state) {
    uint64_t bits = next_bits(state);
    int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) + (int)(bits >> 48);
    return (sum - 131070) * (1.7320508 / 65536);
}

double cli_alibi_slope(int64_t head, int64_t heads) {
    int64_t power = 1;
    while (2 * power <= heads) {
        power *= 2;
    }
    return head < power ? exp2(-8.0 * (double)(head + 1) / (double)power)
                        : exp2(-4.0 * (double)(2 * (head - power) + 1) / (double)power);
}

static void fill(cli_view *view, int slot, uint64_t seed) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + (uint64_t)(slot + 1) * 0xD1B54A32D192ED03u;
    for (int64_t b = 0; b < view->shape[0]; b++) {
        for (int64_t h = 0; h < view->shape[1]; h++) {
            for (int64_t t = 0; t < view->shape[2]; t++) {
                for (int64_t d = 0; d < view->shape[3]; d++) {
                    double value = slot == CLI_SLOT_MASK    ? (next_bits(&state) & 3) != 0
                                   : slot == CLI_SLOT_ALIBI ? cli_alibi_slope(h, view->shape[1])
                                                            : next_normal(&state);
                    cli_store(view->type, view->base, cli_view_offset(view, b, h, t, d), value);
                }
            }
        }
    }
}

/* Lengths from 0 to `longest` that together are at most `total`: the first as long as it may be, the others random. */
static cli_exit packed_lengths(cli_case *at, int32_t **cu, int64_t longest, int64_t total, uint64_t seed,
                               cli_error *error) {
    int64_t batch = at->problem.batch;
    void *block;
    cli_exit code = cli_memory_take(&at->memory, &block, 4.0 * (double)(batch + 1), "the sequence offsets", error);
    if (code) {
        return code;
    }
    *cu = block;
    uint64_t state = seed;
    for (int64_t s = 0; s < batch; s++) {
        int64_t left = total - (*cu)[s], most = longest < left ? longest : left;
        int64_t length = s == 0 ? most : (int64_t)(next_bits(&state) % (uint64_t)(most + 1));
        if (batch - s > 0 && left - longest * (batch - 1 - s) > length) { /* the rest could not fill the buffer */
            length = left - longest * (batch - 1 - s);
            length = length > most ? most : length;
        }
        (*cu)[s + 1] = (*cu)[s] + (int32_t)length;
    }
    return CLI_RIGHT;
}

static cli_exit used_lengths(cli_case *at, int32_t **used, const int32_t *cu, int64_t tokens, uint64_t seed,
                             cli_error *error) {
    void *block;
    cli_exit code = cli_memory_take(&at->memory, &block, 4.0 * (double)at->problem.batch, "the used lengths", error);
    if (code) {
        return code;
    }
    *used = block;
    uint64_t state = seed;
    for (int64_t s = 0; s < at->problem.batch; s++) {
        int64_t slot = cu ? cu[s + 1] - cu[s] : tokens;
        (*used)[s] = (int32_t)(slot - (int64_t)(next_bits(&state) % (uint64_t)(slot / 2 + 1)));
    }
    return CLI_RIGHT;
}

cli_exit cli_case_random(cli_case *at, uint64_t seed, cli_error *error) {
    const attn_problem *p = &at->problem;
    at->seed = seed;
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        if (at->present[s] && (cli_slot_roles[s] == CLI_ROLE_INPUT || cli_slot_roles[s] == CLI_ROLE_GRADIENT)) {
            fill(&at->view[s], s, seed);
        }
    }
    if (p->rows_q == ATTN_SEGMENTS || p->rows_kv == ATTN_SEGMENTS) {
        return cli_fail(error, CLI_USAGE, "problem: rows are segments, random lengths exist for dense and packed only");
    }
    cli_exit code = CLI_RIGHT;
    if (p->rows_q == ATTN_PACKED) {
        code = packed_lengths(at, &at->cu_q, p->tokens_q, p->total_q, seed + 1, error);
    }
    if (!code && p->rows_kv == ATTN_PACKED) { /* the same lengths where the sides are alike */
        code = packed_lengths(at, &at->cu_kv, p->tokens_kv, p->total_kv, seed + 1, error);
    }
    if (!code && (p->flags & ATTN_USED_Q)) {
        code = used_lengths(at, &at->used_q, at->cu_q, p->tokens_q, seed + 2, error);
    }
    if (!code && (p->flags & ATTN_USED_KV)) {
        code = used_lengths(at, &at->used_kv, at->cu_kv, p->tokens_kv, seed + 3, error);
    }
    return code;
}
