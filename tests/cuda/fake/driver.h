/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for NVIDIA's driver: device memory is the host's, the launches that move lengths are carried out, all
 * others are counted. Faults are ordered through this block, which a test finds by dlsym as `fake_orders`; it lasts as
 * long as the process. */
#ifndef TESTS_CUDA_FAKE_DRIVER_H
#define TESTS_CUDA_FAKE_DRIVER_H

#include "cuda/driver.h"

typedef struct fake_orders {
    int version;                                 /* 0: 13000 */
    int devices;                                 /* as the driver counts */
    int arch;                                    /* of each: 90 */
    CUresult init, allocate, load, launch, push; /* what these calls return */
    /* What happened. */
    int launches, uploads, loads, unloads, retained, pushed, synchronised, allocated;
    char name[128]; /* of the last kernel launched */
    unsigned blocks, threads, shared;
    void *stream;
    CUcontext current;
} fake_orders;

#endif
