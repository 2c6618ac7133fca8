/* SPDX-License-Identifier: Apache-2.0
 * A case's twin in the memory of a context's device: each tensor's bytes from its lowest to its highest element, gaps
 * included, and the lengths and the seed where the problem wants them there. On a CPU context the device is the host,
 * so that all of this can be tested without another one. */
#ifndef CLI_MIRROR_H
#define CLI_MIRROR_H

#include "attn/attn_device.h"
#include "case.h"

typedef struct cli_mirror {
    const attn_context *context;
    void *tensor[CLI_SLOT_COUNT]; /* lowest byte; NULL: absent or empty */
    void *lengths[4];             /* cu_q, cu_kv, used_q, used_kv: with ATTN_DEVICE_LENGTHS */
    void *status, *seed;
} cli_mirror;

/* Takes memory and copies everything there, outputs too: poisoned ones are poisoned there. Release it also when this
 * failed. */
cli_exit cli_mirror_create(cli_mirror *mirror, const attn_context *context, const cli_case *at, cli_error *error);
/* The arguments of one pass over the twin. */
attn_args cli_mirror_args(const cli_mirror *mirror, const cli_case *at, attn_pass pass);
/* Waits for the device, asks what became of lengths that were checked there, and copies the outputs back. */
cli_exit cli_mirror_fetch(const cli_mirror *mirror, const cli_case *at, cli_error *error);
void cli_mirror_release(cli_mirror *mirror);

#endif
