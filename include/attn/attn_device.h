/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory, copies, streams and timing on a context's device, for programs that have no toolkit of the vendor: tests,
 * benchmarks, small tools. A program that has one keeps using it; attn_forward takes its pointers and streams as
 * they are. On a CPU context all of this works on host memory, so that one program serves both. On a context that
 * stands for a GPU without one ("gpu:...") everything but attn_device_query is ERR_DEVICE.
 *
 * The context must outlive what is made from it. */
#ifndef ATTN_ATTN_DEVICE_H
#define ATTN_ATTN_DEVICE_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strings live as long as the context. */
typedef struct attn_device_info {
    size_t struct_size;
    const char *device;                 /* "cpu", "cuda:0", "gpu:a100" */
    const char *name;                   /* "NVIDIA H200"; "" on the CPU */
    int arch;                           /* architecture that code is made for: 90 for sm_90; 0 on the CPU */
    int device_arch;                    /* the device's own, which max_isa may lie below */
    int processors;                     /* streaming multiprocessors; 0 on the CPU */
    int driver_version;                 /* of CUDA that the driver speaks: 13000 for 13.0; 0: none */
    uint64_t memory_total, memory_free; /* bytes; 0: unknown */
    const char *nvrtc;                  /* "13.0"; "": none */
    const char *nvrtc_path;             /* "" if none */
    const char *nvrtc_missing;          /* why there is none, or "" */
    const char *cache;                  /* folder of compiled kernels; "": none */
} attn_device_info;
ATTN_API attn_status attn_device_query(const attn_context *context, attn_device_info *info, attn_error *error);

/* What the device's units do at most, measured by kernels that do nothing else; takes a second. 0: the architecture has
 * no such unit. Kernels are compiled and kept as those of plans are. ERR_DEVICE on the CPU. */
typedef struct attn_device_rates {
    size_t struct_size;
    double fma;                         /* FLOP a second: float32 multiply-adds */
    double mma_f16, mma_bf16, mma_tf32; /* FLOP a second: warp-wide tensor-core products with float32 sums */
    double exp;                         /* exponentials a second */
    double read, copy;                  /* bytes a second of device memory; copy counts both ways */
} attn_device_rates;
ATTN_API attn_status attn_device_measure(const attn_context *context, attn_device_rates *rates, attn_error *error);

/* At least 256-byte aligned. A size of 0 gives NULL. */
ATTN_API attn_status attn_memory_create(void **memory, const attn_context *context, size_t size, attn_error *error);
ATTN_API void attn_memory_destroy(const attn_context *context, void *memory);

/* Either address may be the host's or the device's. Done when the call returns, after everything before it in the
 * stream. */
ATTN_API attn_status attn_memory_copy(const attn_context *context, void *to, const void *from, size_t size,
                                      attn_stream stream, attn_error *error);
/* Sets every byte of device memory, in the stream. */
ATTN_API attn_status attn_memory_fill(const attn_context *context, void *memory, unsigned char byte, size_t size,
                                      attn_stream stream, attn_error *error);

/* A stream of the context's device that does not wait for the default one; NULL on the CPU. NULL is the default stream
 * wherever a stream is taken. */
ATTN_API attn_status attn_stream_create(attn_stream *stream, const attn_context *context, attn_error *error);
ATTN_API void attn_stream_destroy(const attn_context *context, attn_stream stream);
/* Waits until all work in the stream is done, and returns what went wrong on the device. */
ATTN_API attn_status attn_stream_wait(const attn_context *context, attn_stream stream, attn_error *error);

/* Moments in a stream. */
typedef struct attn_event attn_event;
ATTN_API attn_status attn_event_create(attn_event **event, const attn_context *context, attn_error *error);
ATTN_API void attn_event_destroy(attn_event *event);
ATTN_API attn_status attn_event_record(attn_event *event, attn_stream stream, attn_error *error);
/* Waits for `end`. Both must have been recorded. */
ATTN_API attn_status attn_event_elapsed(const attn_event *start, const attn_event *end, double *milliseconds,
                                        attn_error *error);

#ifdef __cplusplus
}
#endif

#endif
