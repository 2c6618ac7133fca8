/* SPDX-License-Identifier: Apache-2.0 */
#include "support/lengths.h"

#include <stdlib.h>
#include <string.h>

static fence *piece(device_lengths *d, const void *from, size_t size) {
    static const unsigned char pattern[4] = {0x81, 0x7f, 0xa5, 0x5a};
    fence *f = d->count < MOST_LENGTHS ? fence_create(size, FENCE_END, pattern, sizeof pattern) : NULL;
    if (!f) {
        abort();
    }
    d->piece[d->count++] = f;
    if (from) {
        memcpy(f->data, from, size);
    }
    fence_remember(f);
    device_push(f);
    return f;
}

static const void *moved(device_lengths *d, const void *from, int64_t count, size_t size) {
    if (!from) {
        return NULL;
    }
    fence *f = piece(d, from, (size_t)count * size);
    return device_address(f, f->data);
}

void lengths_push(device_lengths *d, const attn_problem *problem, attn_args *args) {
    int64_t batch = problem->batch;
    if (problem->flags & ATTN_DEVICE_SEED) {
        const uint64_t words[2] = {args->seed, args->offset};
        args->device_seed = moved(d, words, 2, sizeof *words);
        args->seed = args->offset = 0x5a5a5a5a5a5a5a5a;
    }
    if (problem->flags & ATTN_DEVICE_LENGTHS) {
        args->cu_seqlens_q = moved(d, args->cu_seqlens_q, batch + 1, sizeof(int32_t));
        args->cu_seqlens_kv = moved(d, args->cu_seqlens_kv, batch + 1, sizeof(int32_t));
        args->used_q = moved(d, args->used_q, batch, sizeof(int32_t));
        args->used_kv = moved(d, args->used_kv, batch, sizeof(int32_t));
        args->lengths_q = moved(d, args->lengths_q, batch, sizeof(int32_t));
        args->lengths_kv = moved(d, args->lengths_kv, batch, sizeof(int32_t));
        args->segments_q = moved(d, args->segments_q, args->n_segments_q, sizeof(attn_segment));
        args->segments_kv = moved(d, args->segments_kv, args->n_segments_kv, sizeof(attn_segment));
        d->status = piece(d, NULL, sizeof(int32_t));
        args->status = device_address(d->status, d->status->data);
    }
}

int32_t lengths_pull(device_lengths *d, bool *intact) {
    int32_t word = 0;
    *intact = true;
    for (int n = 0; n < d->count; n++) {
        *intact = device_pull(d->piece[n]) && *intact;
        if (d->piece[n] == d->status) {
            memcpy(&word, d->status->data, sizeof word);
            memcpy(d->status->data, d->status->pattern, sizeof word);
        }
        *intact = fence_unchanged(d->piece[n]) && *intact;
    }
    return word;
}

void lengths_free(device_lengths *d) {
    for (int n = 0; n < d->count; n++) {
        fence_destroy(d->piece[n]);
    }
    memset(d, 0, sizeof *d);
}
