/* SPDX-License-Identifier: Apache-2.0
 * Where a result starts to differ, and why: the sentences of attn check. */
#ifndef CLI_DIAGNOSE_H
#define CLI_DIAGNOSE_H

#include "case.h"
#include "compare.h"
#include "report.h"

typedef struct cli_suspect {
    const cli_case *tested;    /* inputs and results of the implementation */
    const cli_case *reference; /* the same in float64 */
    const char *implementation;
    int64_t block_q, block_kv; /* of its plan; 0: unknown */
} cli_suspect;

/* Adds remarks on tensor `slot`, whose difference from the reference is `d` and whose bound is `bound`: where it starts
 * and the likely cause. */
void cli_diagnose(const cli_suspect *suspect, int slot, const cli_difference *d, double bound, cli_report *report);

/* Adds a remark for each input that holds NaN or inf (a bias of -inf is a mask and not told). */
void cli_diagnose_inputs(const cli_case *at, cli_report *report);

#endif
