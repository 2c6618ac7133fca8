/* SPDX-License-Identifier: Apache-2.0
 * Everything a job owns: 64-byte aligned blocks and open input files, released together. A request that the machine
 * cannot hold is refused before it is made, since the system would grant it and kill the program later. */
#ifndef CLI_MEMORY_H
#define CLI_MEMORY_H

#include "tensor.h"

/* Pages of large blocks; CLI_PAGES_SYSTEM leaves it to the kernel. */
typedef enum cli_pages { CLI_PAGES_SYSTEM, CLI_PAGES_SMALL, CLI_PAGES_HUGE } cli_pages;

typedef struct cli_memory {
    void **blocks;
    int count, room;
    cli_file *files;
    int n_files, files_room;
    double held; /* bytes */
    cli_pages pages;
} cli_memory;

/* Bytes that the machine can give without swapping; 0 if unknown. */
double cli_memory_available(void);

/* Zeroed bytes. `what` names them in the message. */
cli_exit cli_memory_take(cli_memory *memory, void **block, double bytes, const char *what, cli_error *error);
/* Takes over an open file. */
cli_exit cli_memory_adopt(cli_memory *memory, cli_file *file, cli_error *error);
void cli_memory_release(cli_memory *memory);

#endif
