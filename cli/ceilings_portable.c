/* SPDX-License-Identifier: Apache-2.0
 * Ceiling kernels that every CPU has: 16-byte vectors of the baseline instruction set (SSE2, NEON, ...). */
#include "ceilings_parts.h"

#define WIDTH 16
#define TARGET
#define NAMED(x) x##_portable
#include "ceilings_body.h"

static bool always(void) {
    return true;
}

const cli_ceiling cli_ceilings_portable[] = {
    {"fma.portable", CLI_CEILING_FMA, 12 * 4 * 2, always, fma_portable},
    {"exp.portable", CLI_CEILING_EXP, EXP_ELEMENTS, always, exp_portable},
    {0},
};
