/* SPDX-License-Identifier: Apache-2.0
 * A run's arguments in device memory: lengths, segment lists, dropout's seed and the status word, each in a fence of
 * its own whose surroundings hold lengths that fit nothing. */
#ifndef TESTS_SUPPORT_LENGTHS_H
#define TESTS_SUPPORT_LENGTHS_H

#include "support/device.h"

#define MOST_LENGTHS 12

typedef struct device_lengths {
    fence *piece[MOST_LENGTHS];
    int count;
    fence *status; /* one of the pieces */
} device_lengths;

/* Replaces the host pointers of args that the problem's flags want on the device, and sets args->status. */
void lengths_push(device_lengths *d, const attn_problem *problem, attn_args *args);
/* The status word; *intact is false if anything else was written. */
int32_t lengths_pull(device_lengths *d, bool *intact);
void lengths_free(device_lengths *d);

#endif
