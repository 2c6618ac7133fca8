/* SPDX-License-Identifier: Apache-2.0
 * Times of runs on a device, taken by events in its stream, so that only the device's own work counts. */
#ifndef CLI_GPU_TIMES_H
#define CLI_GPU_TIMES_H

#include "execute.h"

typedef struct cli_gpu_times {
    double *of_run;  /* seconds on the device */
    double *of_host; /* seconds that the call took on the host */
    int count, most; /* most: room of both */
} cli_gpu_times;

/* Runs the problem's own pass over the twin that cli_runner_run_all left on the device: `least` times, until `budget`
 * seconds are over, but not past `patience` once a round is done. Before each run the device's caches are filled with
 * other data. */
cli_exit cli_gpu_measure(const cli_runner *runner, const cli_case *at, int least, double budget, double patience,
                         cli_gpu_times *times, cli_error *error);

/* What the device's units do at most, measured now. */
cli_exit cli_gpu_rates(const attn_context *context, attn_device_rates *rates, cli_error *error);
/* The rate of the units that an implementation multiplies on, and their name; NULL where it is not measured. */
const char *cli_gpu_ceiling(const attn_device_rates *rates, const char *implementation, attn_dtype type, double *rate);

#endif
