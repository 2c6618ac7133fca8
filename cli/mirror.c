/* SPDX-License-Identifier: Apache-2.0 */
#include "mirror.h"

#include <string.h>

/* Where the host has a tensor's bytes, and how many; false: none. */
static bool extent(const cli_case *at, int slot, unsigned char **low, size_t *bytes, size_t *base) {
    const cli_view *view = &at->view[slot];
    size_t each = cli_types[view->type].bytes;
    int64_t elements = 0, above = 0;
    if (!at->present[slot] || !view->base || !cli_view_extent(view, &elements, &above)) {
        return false;
    }
    *base = (size_t)above * each;
    *bytes = (size_t)elements * each;
    *low = (unsigned char *)view->base - *base;
    return *bytes > 0;
}

static cli_exit send(cli_mirror *mirror, void **memory, const void *from, size_t bytes, cli_error *error) {
    attn_error cause;
    if (attn_memory_create(memory, mirror->context, bytes, &cause) ||
        attn_memory_copy(mirror->context, *memory, from, bytes, NULL, &cause)) {
        return cli_fail_library(error, NULL, &cause);
    }
    return CLI_RIGHT;
}

static cli_exit send_lengths(cli_mirror *mirror, const cli_case *at, cli_error *error) {
    const int32_t *from[4] = {at->cu_q, at->cu_kv, at->used_q, at->used_kv};
    const int32_t unset = -1; /* so that a status that nobody writes is noticed */
    cli_exit code = send(mirror, &mirror->status, &unset, sizeof unset, error);
    for (int n = 0; n < 4 && !code; n++) {
        size_t count = (size_t)at->problem.batch + (n < 2);
        if (from[n] && count) {
            code = send(mirror, &mirror->lengths[n], from[n], count * sizeof *from[n], error);
        }
    }
    return code;
}

cli_exit cli_mirror_create(cli_mirror *mirror, const attn_context *context, const cli_case *at, cli_error *error) {
    const uint64_t words[2] = {at->seed, 0};
    cli_exit code = CLI_RIGHT;
    memset(mirror, 0, sizeof *mirror);
    mirror->context = context;
    for (int s = 0; s < CLI_SLOT_COUNT && !code; s++) {
        unsigned char *low;
        size_t bytes, base;
        if (extent(at, s, &low, &bytes, &base)) {
            code = send(mirror, &mirror->tensor[s], low, bytes, error);
        }
    }
    if (!code && at->problem.flags & ATTN_DEVICE_LENGTHS) {
        code = send_lengths(mirror, at, error);
    }
    if (!code && at->problem.flags & ATTN_DEVICE_SEED) {
        code = send(mirror, &mirror->seed, words, sizeof words, error);
    }
    return code;
}

attn_args cli_mirror_args(const cli_mirror *mirror, const cli_case *at, attn_pass pass) {
    cli_case there = *at;
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        unsigned char *low;
        size_t bytes, base;
        there.view[s].base = extent(at, s, &low, &bytes, &base) ? (unsigned char *)mirror->tensor[s] + base : NULL;
    }
    if (at->problem.flags & ATTN_DEVICE_LENGTHS) {
        there.cu_q = mirror->lengths[0];
        there.cu_kv = mirror->lengths[1];
        there.used_q = mirror->lengths[2];
        there.used_kv = mirror->lengths[3];
    }
    attn_args args = cli_case_args(&there, pass);
    args.status = mirror->status;
    args.device_seed = mirror->seed;
    return args;
}

cli_exit cli_mirror_fetch(const cli_mirror *mirror, const cli_case *at, cli_error *error) {
    attn_error cause;
    int32_t word = 0;
    if (attn_stream_wait(mirror->context, NULL, &cause) ||
        (mirror->status && attn_memory_copy(mirror->context, &word, mirror->status, sizeof word, NULL, &cause)) ||
        attn_status_word(word, &cause)) {
        return cli_fail_library(error, NULL, &cause);
    }
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        unsigned char *low;
        size_t bytes, base;
        bool output = cli_slot_roles[s] == CLI_ROLE_OUTPUT || cli_slot_roles[s] == CLI_ROLE_BACKWARD;
        if (output && extent(at, s, &low, &bytes, &base) &&
            attn_memory_copy(mirror->context, low, mirror->tensor[s], bytes, NULL, &cause)) {
            return cli_fail_library(error, NULL, &cause);
        }
    }
    return CLI_RIGHT;
}

void cli_mirror_release(cli_mirror *mirror) {
    void *const others[] = {mirror->lengths[0], mirror->lengths[1], mirror->lengths[2],
                            mirror->lengths[3], mirror->status,     mirror->seed};
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        attn_memory_destroy(mirror->context, mirror->tensor[s]);
    }
    for (size_t n = 0; n < sizeof others / sizeof others[0]; n++) {
        attn_memory_destroy(mirror->context, others[n]);
    }
    memset(mirror, 0, sizeof *mirror);
}
