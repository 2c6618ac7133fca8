/* SPDX-License-Identifier: Apache-2.0
 * The part of NVIDIA's driver interface (libcuda) that the library uses, declared here so that nothing of CUDA is
 * needed to build, link or start. Names and values are the driver's own; the versioned symbols are those that every
 * driver since CUDA 11 has. */
#ifndef ATTN_CUDA_DRIVER_H
#define ATTN_CUDA_DRIVER_H

#include <stdint.h>

#include "attn/attn.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
};

enum { /* cuDeviceGetAttribute */
       CU_ATTRIBUTE_CLOCK_KHZ = 13,
       CU_ATTRIBUTE_PROCESSORS = 16,
       CU_ATTRIBUTE_MEMORY_CLOCK_KHZ = 36,
       CU_ATTRIBUTE_MEMORY_BUS_BITS = 37,
       CU_ATTRIBUTE_L2_BYTES = 38,
       CU_ATTRIBUTE_MAJOR = 75,
       CU_ATTRIBUTE_MINOR = 76,
       CU_ATTRIBUTE_SHARED_PROCESSOR = 81,
       CU_ATTRIBUTE_REGISTERS_PROCESSOR = 82,
       CU_ATTRIBUTE_SHARED_BLOCK_OPTIN = 97
};
enum { /* cuFuncGetAttribute, cuFuncSetAttribute */
       CU_FUNCTION_LOCAL_BYTES = 3,
       CU_FUNCTION_REGISTERS = 4,
       CU_FUNCTION_MAX_DYNAMIC_SHARED = 8
};
enum { CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { /* cuTensorMapEncodeTiled */
       CU_TENSOR_MAP_FLOAT16 = 6,
       CU_TENSOR_MAP_FLOAT32 = 7,
       CU_TENSOR_MAP_BFLOAT16 = 9,
       CU_TENSOR_MAP_INTERLEAVE_NONE = 0,
       CU_TENSOR_MAP_SWIZZLE_128B = 3,
       CU_TENSOR_MAP_L2_256B = 3,
       CU_TENSOR_MAP_FILL_ZERO = 0
};

/* CUlaunchConfig and its attributes. */
enum { CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
typedef struct attn__launch_attribute {
    int id;
    char unused[4];
    union {
        char bytes[64];
        int value;
    };
} attn__launch_attribute;
typedef struct attn__launch_config {
    unsigned grid[3], block[3], shared;
    attn_stream stream;
    attn__launch_attribute *attributes;
    unsigned n_attributes;
} attn__launch_config;

/* Member, symbol, parameters. */
#define ATTN__DRIVER_LIST(X)                                                                                           \
    X(Init, "cuInit", (unsigned flags))                                                                                \
    X(DriverGetVersion, "cuDriverGetVersion", (int *version))                                                          \
    X(GetErrorName, "cuGetErrorName", (CUresult result, const char **text))                                            \
    X(GetErrorString, "cuGetErrorString", (CUresult result, const char **text))                                        \
    X(DeviceGetCount, "cuDeviceGetCount", (int *count))                                                                \
    X(DeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                                      \
    X(DeviceGetName, "cuDeviceGetName", (char *name, int size, CUdevice device))                                       \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))                        \
    X(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t * bytes, CUdevice device))                                        \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                      \
    X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                      \
    X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                                         \
    X(CtxGetDevice, "cuCtxGetDevice", (CUdevice * device))                                                             \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                                      \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                                      \
    X(ModuleLoadDataEx, "cuModuleLoadDataEx",                                                                          \
      (CUmodule * module, const void *image, unsigned options, int *names, void **values))                             \
    X(ModuleUnload, "cuModuleUnload", (CUmodule module))                                                               \
    X(ModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char *name))            \
    X(FuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, CUfunction function))                        \
    X(FuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value))                         \
    X(LaunchKernel, "cuLaunchKernel",                                                                                  \
      (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
       unsigned block_z, unsigned shared, attn_stream stream, void **parameters, void **extra))                        \
    X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr * memory, size_t size))                                                  \
    X(MemFree, "cuMemFree_v2", (CUdeviceptr memory))                                                                   \
    X(MemGetInfo, "cuMemGetInfo_v2", (size_t * unused, size_t * total))                                                \
    X(MemcpyAsync, "cuMemcpyAsync", (CUdeviceptr to, CUdeviceptr from, size_t size, attn_stream stream))               \
    X(MemsetD8Async, "cuMemsetD8Async", (CUdeviceptr memory, unsigned char value, size_t size, attn_stream stream))    \
    X(StreamCreate, "cuStreamCreate", (attn_stream * stream, unsigned flags))                                          \
    X(StreamDestroy, "cuStreamDestroy_v2", (attn_stream stream))                                                       \
    X(StreamSynchronize, "cuStreamSynchronize", (attn_stream stream))                                                  \
    X(StreamGetCtx, "cuStreamGetCtx", (attn_stream stream, CUcontext * context))                                       \
    X(EventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                                 \
    X(EventDestroy, "cuEventDestroy_v2", (CUevent event))                                                              \
    X(EventRecord, "cuEventRecord", (CUevent event, attn_stream stream))                                               \
    X(EventSynchronize, "cuEventSynchronize", (CUevent event))                                                         \
    X(EventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CUevent start, CUevent end))

typedef struct attn__driver {
    void *library;
    int version; /* of CUDA that the driver speaks: 12040 for 12.4 */
#define ATTN__MEMBER(name, symbol, parameters) CUresult(*name) parameters;
    ATTN__DRIVER_LIST(ATTN__MEMBER)
#undef ATTN__MEMBER
    CUresult (*FuncLoad)(CUfunction function); /* NULL before CUDA 12.4 */
    /* NULL before CUDA 11.8 */
    CUresult (*LaunchKernelEx)(const attn__launch_config *config, CUfunction function, void **parameters, void **extra);
    /* NULL before CUDA 12.0. map: 128 bytes at a multiple of 64. */
    CUresult (*TensorMapEncodeTiled)(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                                     const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                     int interleave, int swizzle, int l2_promotion, int fill);
} attn__driver;

/* Loads and initialises the driver: `path`, or libcuda by its soname when path is NULL. ERR_DEVICE tells what is
 * missing. attn__driver_close is owed on success only. */
attn_status attn__driver_open(attn__driver *driver, const char *path, attn_error *error);
void attn__driver_close(attn__driver *driver);

/* Turns a result of the driver into a status and an error: "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (out of
 * memory)". Out of memory is ERR_MEMORY, anything else ERR_DEVICE. */
attn_status attn__driver_fail(const attn__driver *driver, CUresult result, const char *field, const char *call,
                              attn_error *error);

#endif
