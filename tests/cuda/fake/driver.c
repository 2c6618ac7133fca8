/* SPDX-License-Identifier: Apache-2.0 */
#include "fake/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device/lengths.h"

#define SEEN                                    __attribute__((visibility("default")))
#define FAKE__DECLARE(name, symbol, parameters) SEEN CUresult fake_##name parameters __asm__(symbol);
ATTN__DRIVER_LIST(FAKE__DECLARE)

SEEN extern fake_orders fake_orders_block __asm__("fake_orders");
fake_orders fake_orders_block = {.devices = 2, .arch = 90};
#define orders fake_orders_block

struct CUctx_st {
    CUdevice device;
};
struct CUmod_st {
    int unused;
};
struct CUfunc_st {
    char name[128];
};
static struct CUctx_st contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static CUcontext stack[8];
static int depth;

CUresult fake_Init(unsigned flags) {
    (void)flags;
    return orders.init;
}
CUresult fake_DriverGetVersion(int *version) {
    *version = orders.version ? orders.version : 13000;
    return CUDA_SUCCESS;
}
CUresult fake_GetErrorName(CUresult result, const char **text) {
    *text = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return CUDA_SUCCESS;
}
CUresult fake_GetErrorString(CUresult result, const char **text) {
    (void)result;
    *text = "as ordered";
    return CUDA_SUCCESS;
}

/* --- Devices and contexts --- */

CUresult fake_DeviceGetCount(int *count) {
    *count = orders.devices;
    return CUDA_SUCCESS;
}
CUresult fake_DeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult fake_DeviceGetName(char *name, int size, CUdevice device) {
    (void)device;
    snprintf(name, (size_t)size, "NVIDIA H200");
    return CUDA_SUCCESS;
}
CUresult fake_DeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case CU_ATTRIBUTE_MAJOR: *value = orders.arch / 10; break;
    case CU_ATTRIBUTE_MINOR: *value = orders.arch % 10; break;
    case CU_ATTRIBUTE_PROCESSORS: *value = 132; break;
    case CU_ATTRIBUTE_SHARED_BLOCK_OPTIN: *value = 232448; break;
    case CU_ATTRIBUTE_SHARED_PROCESSOR: *value = 233472; break;
    case CU_ATTRIBUTE_REGISTERS_PROCESSOR: *value = 65536; break;
    case CU_ATTRIBUTE_L2_BYTES: *value = 50 << 20; break;
    default: *value = 0; break;
    }
    return CUDA_SUCCESS;
}
CUresult fake_DeviceTotalMem(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}
CUresult fake_DevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    orders.retained++;
    *context = &contexts[device];
    return CUDA_SUCCESS;
}
CUresult fake_DevicePrimaryCtxRelease(CUdevice device) {
    (void)device;
    orders.retained--;
    return CUDA_SUCCESS;
}
CUresult fake_CtxGetCurrent(CUcontext *context) {
    *context = depth ? stack[depth - 1] : orders.current;
    return CUDA_SUCCESS;
}
CUresult fake_CtxGetDevice(CUdevice *device) {
    CUcontext current;
    fake_CtxGetCurrent(&current);
    *device = current->device;
    return CUDA_SUCCESS;
}
CUresult fake_CtxPushCurrent(CUcontext context) {
    if (orders.push) {
        return orders.push;
    }
    stack[depth++] = context;
    orders.pushed++;
    return CUDA_SUCCESS;
}
CUresult fake_CtxPopCurrent(CUcontext *context) {
    *context = stack[--depth];
    orders.pushed--;
    return CUDA_SUCCESS;
}

/* --- Modules --- */

CUresult fake_ModuleLoadDataEx(CUmodule *module, const void *image, unsigned options, int *names, void **values) {
    (void)image, (void)options, (void)names, (void)values;
    if (orders.load) {
        return orders.load;
    }
    orders.loads++;
    *module = calloc(1, sizeof(struct CUmod_st));
    return CUDA_SUCCESS;
}
CUresult fake_ModuleUnload(CUmodule module) {
    orders.unloads++;
    free(module);
    return CUDA_SUCCESS;
}
/* Functions outlive their module: a test ends before the few bytes matter. */
CUresult fake_ModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    static struct CUfunc_st functions[256];
    static int count;
    (void)module;
    *function = &functions[count++ % 256];
    snprintf((*function)->name, sizeof(*function)->name, "%s", name);
    return CUDA_SUCCESS;
}
CUresult fake_FuncGetAttribute(int *value, int attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNCTION_REGISTERS ? 32 : 0;
    return CUDA_SUCCESS;
}
CUresult fake_FuncSetAttribute(CUfunction function, int attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

CUresult fake_LaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                           unsigned block_y, unsigned block_z, unsigned shared, attn_stream stream, void **parameters,
                           void **extra) {
    (void)grid_y, (void)grid_z, (void)block_y, (void)block_z, (void)extra;
    if (orders.launch) {
        return orders.launch;
    }
    memcpy(orders.name, function->name, sizeof orders.name);
    orders.blocks = grid_x;
    orders.threads = block_x;
    orders.shared = shared;
    orders.stream = stream;
    orders.launches++;
    if (strncmp(function->name, "attn_upload", 11) == 0) {
        const attn__upload *box = parameters[0];
        orders.uploads++;
        memcpy(box->to, box->data, (size_t)box->words * sizeof(int));
    }
    return CUDA_SUCCESS;
}

/* --- Memory, streams, events --- */

CUresult fake_MemAlloc(CUdeviceptr *memory, size_t size) {
    if (orders.allocate) {
        return orders.allocate;
    }
    orders.allocated++;
    *memory = (CUdeviceptr)(uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
    return CUDA_SUCCESS;
}
CUresult fake_MemFree(CUdeviceptr memory) {
    orders.allocated--;
    free((void *)(uintptr_t)memory);
    return CUDA_SUCCESS;
}
CUresult fake_MemGetInfo(size_t *unused, size_t *total) {
    *unused = (size_t)1 << 29;
    *total = (size_t)1 << 30;
    return CUDA_SUCCESS;
}
CUresult fake_MemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, attn_stream stream) {
    (void)stream;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    return CUDA_SUCCESS;
}
CUresult fake_MemsetD8Async(CUdeviceptr memory, unsigned char value, size_t size, attn_stream stream) {
    (void)stream;
    memset((void *)(uintptr_t)memory, value, size);
    return CUDA_SUCCESS;
}
/* A stream is the address of its context's place in the list. */
CUresult fake_StreamCreate(attn_stream *stream, unsigned flags) {
    CUcontext current;
    (void)flags;
    fake_CtxGetCurrent(&current);
    *stream = (attn_stream)(void *)current;
    return CUDA_SUCCESS;
}
CUresult fake_StreamDestroy(attn_stream stream) {
    (void)stream;
    return CUDA_SUCCESS;
}
CUresult fake_StreamSynchronize(attn_stream stream) {
    (void)stream;
    orders.synchronised++;
    return CUDA_SUCCESS;
}
CUresult fake_StreamGetCtx(attn_stream stream, CUcontext *context) {
    *context = (CUcontext)(void *)stream;
    return CUDA_SUCCESS;
}
CUresult fake_EventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    *event = NULL;
    return CUDA_SUCCESS;
}
CUresult fake_EventDestroy(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}
CUresult fake_EventRecord(CUevent event, attn_stream stream) {
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}
CUresult fake_EventSynchronize(CUevent event) {
    (void)event;
    return CUDA_SUCCESS;
}
CUresult fake_EventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    (void)start, (void)end;
    *milliseconds = 1;
    return CUDA_SUCCESS;
}
