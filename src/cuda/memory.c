/* SPDX-License-Identifier: Apache-2.0
 * attn_device.h: memory, streams and events of a context's device. The host stands in on a CPU context. */
#define _POSIX_C_SOURCE 200809L
#include "attn/attn_device.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "cuda/device.h"
#include "problem/problem.h"

enum { ALIGNMENT = 256 };

/* Enters the device, or fails where there is none to enter. *cuda is NULL on the CPU. */
static attn_status enter(const attn_context *context, const attn__cuda **cuda, bool *pushed, attn_error *error) {
    *cuda = NULL;
    *pushed = false;
    if (!context) {
        return attn__fail(error, ATTN_ERR_INVALID, "context", "is NULL");
    }
    if (!context->cuda) {
        return ATTN_OK;
    }
    if (!context->cuda->opened) {
        return attn__fail(error, ATTN_ERR_DEVICE, "device", "is %s: facts of a GPU without memory or streams",
                          context->cuda->name);
    }
    *cuda = context->cuda;
    return attn__cuda_enter(*cuda, pushed, error);
}

static attn_status leave(const attn__cuda *cuda, bool pushed, CUresult result, const char *field, const char *call,
                         attn_error *error) {
    attn_status status = ATTN_OK;
    if (result) {
        status = attn__driver_fail(&cuda->driver, result, field, call, error);
    }
    if (cuda) {
        attn__cuda_leave(cuda, pushed);
    }
    return status ? status : attn__succeed(error);
}

/* --- Facts --- */

static void fill_info(const attn_context *context, attn_device_info *info) {
    const attn__cuda *cuda;
    bool pushed;
    size_t available = 0, total = 0;
    info->device = context->config.device;
    info->name = info->nvrtc = info->nvrtc_path = info->nvrtc_missing = "";
    info->cache = context->cache;
    if (!context->cuda) {
        return;
    }
    info->name = context->cuda->gpu_name;
    info->arch = context->gpu->arch;
    info->device_arch = context->cuda->arch;
    info->processors = context->gpu->processors;
    info->memory_total = (uint64_t)context->gpu->memory_bytes;
    info->driver_version = context->cuda->driver.version;
    info->nvrtc = context->cuda->nvrtc.short_version;
    info->nvrtc_path = context->cuda->nvrtc.path;
    info->nvrtc_missing = context->cuda->nvrtc.why;
    if (context->cuda->opened && enter(context, &cuda, &pushed, NULL) == ATTN_OK) {
        if (cuda->driver.MemGetInfo(&available, &total) == CUDA_SUCCESS) {
            info->memory_free = available;
        }
        attn__cuda_leave(cuda, pushed);
    }
}

attn_status attn_device_query(const attn_context *context, attn_device_info *out, attn_error *error) {
    if (!context || !out) {
        return attn__fail(error, ATTN_ERR_INVALID, context ? "info" : "context", "is NULL");
    }
    attn_status status = attn__struct_minimum(out->struct_size, sizeof out->struct_size, error);
    if (status) {
        return status;
    }
    attn_device_info info;
    memset(&info, 0, sizeof info);
    fill_info(context, &info);
    attn__struct_write(out, &info, sizeof info);
    return attn__succeed(error);
}

/* --- Memory --- */

attn_status attn_memory_create(void **memory, const attn_context *context, size_t size, attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    CUdeviceptr device = 0;
    if (!memory) {
        return attn__fail(error, ATTN_ERR_INVALID, "memory", "is NULL");
    }
    *memory = NULL;
    attn_status status = enter(context, &cuda, &pushed, error);
    if (status) {
        return status;
    }
    if (!cuda) {
        /* aligned_alloc wants a multiple; a size near SIZE_MAX fails either way */
        size_t rounded = size > SIZE_MAX - ALIGNMENT ? size : (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        *memory = size ? aligned_alloc(ALIGNMENT, rounded) : NULL;
        return size && !*memory ? attn__fail(error, ATTN_ERR_MEMORY, "memory", "%zu bytes could not be allocated", size)
                                : attn__succeed(error);
    }
    CUresult result = size ? cuda->driver.MemAlloc(&device, size) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        attn__cuda_leave(cuda, pushed);
        return attn__fail(error, ATTN_ERR_MEMORY, "memory", "%zu bytes could not be allocated on %s", size, cuda->name);
    }
    *memory = (void *)(uintptr_t)device;
    return leave(cuda, pushed, result, "memory", "cuMemAlloc", error);
}

void attn_memory_destroy(const attn_context *context, void *memory) {
    const attn__cuda *cuda;
    bool pushed;
    if (!memory || enter(context, &cuda, &pushed, NULL)) {
        return;
    }
    if (cuda) {
        cuda->driver.MemFree((CUdeviceptr)(uintptr_t)memory);
        attn__cuda_leave(cuda, pushed);
    } else {
        free(memory);
    }
}

attn_status attn_memory_copy(const attn_context *context, void *to, const void *from, size_t size, attn_stream stream,
                             attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    attn_status status = enter(context, &cuda, &pushed, error);
    if (status) {
        return status;
    }
    if (!cuda) {
        if (size) {
            memcpy(to, from, size);
        }
        return attn__succeed(error);
    }
    CUresult result = CUDA_SUCCESS;
    if (size) {
        result = cuda->driver.MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, size, stream);
    }
    result = result ? result : cuda->driver.StreamSynchronize(stream);
    return leave(cuda, pushed, result, "memory", "copying", error);
}

attn_status attn_memory_fill(const attn_context *context, void *memory, unsigned char byte, size_t size,
                             attn_stream stream, attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    attn_status status = enter(context, &cuda, &pushed, error);
    if (status) {
        return status;
    }
    if (!cuda) {
        if (size) {
            memset(memory, byte, size);
        }
        return attn__succeed(error);
    }
    CUresult result = CUDA_SUCCESS;
    if (size) {
        result = cuda->driver.MemsetD8Async((CUdeviceptr)(uintptr_t)memory, byte, size, stream);
    }
    return leave(cuda, pushed, result, "memory", "cuMemsetD8Async", error);
}

/* --- Streams --- */

attn_status attn_stream_create(attn_stream *stream, const attn_context *context, attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    if (!stream) {
        return attn__fail(error, ATTN_ERR_INVALID, "stream", "is NULL");
    }
    *stream = NULL;
    attn_status status = enter(context, &cuda, &pushed, error);
    if (status || !cuda) {
        return status ? status : attn__succeed(error);
    }
    CUresult result = cuda->driver.StreamCreate(stream, CU_STREAM_NON_BLOCKING);
    return leave(cuda, pushed, result, "stream", "cuStreamCreate", error);
}

void attn_stream_destroy(const attn_context *context, attn_stream stream) {
    const attn__cuda *cuda;
    bool pushed;
    if (stream && enter(context, &cuda, &pushed, NULL) == ATTN_OK && cuda) {
        cuda->driver.StreamDestroy(stream);
        attn__cuda_leave(cuda, pushed);
    }
}

attn_status attn_stream_wait(const attn_context *context, attn_stream stream, attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    attn_status status = enter(context, &cuda, &pushed, error);
    if (status || !cuda) {
        return status ? status : attn__succeed(error);
    }
    return leave(cuda, pushed, cuda->driver.StreamSynchronize(stream), "stream", "cuStreamSynchronize", error);
}

/* --- Events --- */

struct attn_event {
    const attn_context *context;
    bool recorded;
    CUevent event;
    struct timespec time; /* on the CPU */
};

attn_status attn_event_create(attn_event **out, const attn_context *context, attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    if (!out) {
        return attn__fail(error, ATTN_ERR_INVALID, "event", "is NULL");
    }
    *out = NULL;
    attn_status status = enter(context, &cuda, &pushed, error);
    if (status) {
        return status;
    }
    attn_event *event = attn__context_allocate(context, sizeof *event);
    if (!event) {
        if (cuda) {
            attn__cuda_leave(cuda, pushed);
        }
        return attn__fail(error, ATTN_ERR_MEMORY, "event", "%zu bytes could not be allocated", sizeof *event);
    }
    memset(event, 0, sizeof *event);
    event->context = context;
    CUresult result = cuda ? cuda->driver.EventCreate(&event->event, 0) : CUDA_SUCCESS;
    if (result) {
        attn__context_release(context, event);
    } else {
        *out = event;
    }
    return leave(cuda, pushed, result, "event", "cuEventCreate", error);
}

void attn_event_destroy(attn_event *event) {
    const attn__cuda *cuda;
    bool pushed;
    if (!event) {
        return;
    }
    if (enter(event->context, &cuda, &pushed, NULL) == ATTN_OK && cuda) {
        cuda->driver.EventDestroy(event->event);
        attn__cuda_leave(cuda, pushed);
    }
    attn__context_release(event->context, event);
}

attn_status attn_event_record(attn_event *event, attn_stream stream, attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    if (!event) {
        return attn__fail(error, ATTN_ERR_INVALID, "event", "is NULL");
    }
    attn_status status = enter(event->context, &cuda, &pushed, error);
    if (status) {
        return status;
    }
    event->recorded = true;
    if (!cuda) {
        clock_gettime(CLOCK_MONOTONIC, &event->time);
        return attn__succeed(error);
    }
    return leave(cuda, pushed, cuda->driver.EventRecord(event->event, stream), "event", "cuEventRecord", error);
}

attn_status attn_event_elapsed(const attn_event *start, const attn_event *end, double *milliseconds,
                               attn_error *error) {
    const attn__cuda *cuda;
    bool pushed;
    float elapsed = 0;
    if (!start || !end || !milliseconds) {
        return attn__fail(error, ATTN_ERR_INVALID, !start ? "start" : end ? "milliseconds" : "end", "is NULL");
    }
    if (!start->recorded || !end->recorded) {
        return attn__fail(error, ATTN_ERR_INVALID, start->recorded ? "end" : "start", "was never recorded");
    }
    attn_status status = enter(start->context, &cuda, &pushed, error);
    if (status) {
        return status;
    }
    if (!cuda) {
        *milliseconds = 1e3 * (double)(end->time.tv_sec - start->time.tv_sec) +
                        1e-6 * (double)(end->time.tv_nsec - start->time.tv_nsec);
        return attn__succeed(error);
    }
    CUresult result = cuda->driver.EventSynchronize(end->event);
    result = result ? result : cuda->driver.EventElapsedTime(&elapsed, start->event, end->event);
    *milliseconds = elapsed;
    return leave(cuda, pushed, result, "event", "cuEventElapsedTime", error);
}
