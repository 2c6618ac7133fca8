/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver as tests use it themselves, as a caller of the library would: contexts, streams, graphs, memory.
 * Loaded at run time, so that test programs build and start on any machine. Handles are plain pointers here, device
 * addresses as the driver's 64-bit numbers; every function returns 0 on success. */
#ifndef TESTS_SUPPORT_DRIVER_H
#define TESTS_SUPPORT_DRIVER_H

#include <stddef.h>

/* member, symbol, parameters */
#define DRIVER_FUNCTIONS(X)                                                                                            \
    X(init, cuInit, (unsigned flags))                                                                                  \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                                             \
    X(primary_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                                          \
    X(context_create, cuCtxCreate_v2, (void **context, unsigned flags, int device))                                    \
    X(context_destroy, cuCtxDestroy_v2, (void *context))                                                               \
    X(context_current, cuCtxGetCurrent, (void **context))                                                              \
    X(context_pop, cuCtxPopCurrent_v2, (void **context))                                                               \
    X(context_set, cuCtxSetCurrent, (void *context))                                                                   \
    X(context_wait, cuCtxSynchronize, (void))                                                                          \
    X(memory_info, cuMemGetInfo_v2, (size_t * available, size_t * total))                                              \
    X(allocate, cuMemAlloc_v2, (unsigned long long *memory, size_t size))                                              \
    X(release, cuMemFree_v2, (unsigned long long memory))                                                              \
    X(upload, cuMemcpyHtoD_v2, (unsigned long long to, const void *from, size_t size))                                 \
    X(download, cuMemcpyDtoH_v2, (void *to, unsigned long long from, size_t size))                                     \
    X(fill, cuMemsetD8_v2, (unsigned long long to, unsigned char value, size_t size))                                  \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                                                  \
    X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                                              \
    X(stream_wait, cuStreamSynchronize, (void *stream))                                                                \
    X(capture_begin, cuStreamBeginCapture_v2, (void *stream, int mode))                                                \
    X(capture_end, cuStreamEndCapture, (void *stream, void **graph))                                                   \
    X(graph_instantiate, cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags))      \
    X(graph_launch, cuGraphLaunch, (void *executable, void *stream))                                                   \
    X(graph_executable_destroy, cuGraphExecDestroy, (void *executable))                                                \
    X(graph_destroy, cuGraphDestroy, (void *graph))                                                                    \
    X(error_name, cuGetErrorName, (int status, const char **name))

typedef struct driver {
#define DRIVER_MEMBER(member, symbol, parameters) int(*member) parameters;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
} driver;

/* NULL if there is no driver or it lacks one of these. */
const driver *driver_open(void);

#endif
