/* SPDX-License-Identifier: Apache-2.0
 * What the operating system says about this machine. Unknown numbers are 0, unknown texts empty. */
#ifndef CLI_MACHINE_H
#define CLI_MACHINE_H

#include <stdint.h>

typedef struct cli_machine {
    char model[128];
    char system[128]; /* kernel and architecture */
    char isa[256];    /* instruction sets that matter here, in words */
    int cores;        /* this process may use */
    int64_t l1, l2, l3, memory;
} cli_machine;

void cli_machine_read(cli_machine *machine);

#endif
