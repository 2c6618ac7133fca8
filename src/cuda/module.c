/* SPDX-License-Identifier: Apache-2.0
 * From machine code to a function that can be launched, in the device's context. Everything that the driver might
 * otherwise put off to the first launch happens here, so that a first run may be under capture. */
#include <string.h>

#include "base/error.h"
#include "cuda/device.h"

attn_status attn__cuda_enter(const attn__cuda *cuda, bool *pushed, attn_error *error) {
    CUcontext current = NULL;
    *pushed = false;
    CUresult result = cuda->driver.CtxGetCurrent(&current);
    if (result == CUDA_SUCCESS && current != cuda->handle) {
        result = cuda->driver.CtxPushCurrent(cuda->handle);
        *pushed = result == CUDA_SUCCESS;
    }
    return result ? attn__driver_fail(&cuda->driver, result, "device", "making its context current", error) : ATTN_OK;
}

void attn__cuda_leave(const attn__cuda *cuda, bool pushed) {
    CUcontext popped;
    if (pushed) {
        cuda->driver.CtxPopCurrent(&popped);
    }
}

static attn_status load_failed(const attn__cuda *cuda, CUresult result, const char *name, const char *log,
                               attn_error *error) {
    const attn__driver *driver = &cuda->driver;
    if (result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || result == CUDA_ERROR_INVALID_IMAGE ||
        result == CUDA_ERROR_NO_BINARY_FOR_GPU) {
        return attn__fail(
            error, ATTN_ERR_DEVICE, "driver",
            "speaks CUDA %d.%d and takes no code of NVRTC %d.%d: install a newer driver, or set ATTN_NVRTC "
            "to an older libnvrtc (error %d)",
            driver->version / 1000, driver->version % 1000 / 10, cuda->nvrtc.major, cuda->nvrtc.minor, result);
    }
    if (log[0]) {
        return attn__fail(error, ATTN_ERR_DEVICE, "kernel", "%.70s: the driver's compiler says: %.110s", name, log);
    }
    return attn__driver_fail(driver, result, "kernel", "cuModuleLoadDataEx", error);
}

static CUresult find_function(const attn__cuda *cuda, attn__cuda_kernel *entry, const char **call) {
    const attn__driver *driver = &cuda->driver;
    *call = "cuModuleGetFunction";
    CUresult result = driver->ModuleGetFunction(&entry->function, entry->module, entry->kernel.name);
    if (result == CUDA_SUCCESS && driver->FuncLoad) {
        *call = "cuFuncLoad";
        result = driver->FuncLoad(entry->function);
    }
    if (result == CUDA_SUCCESS) {
        *call = "cuFuncSetAttribute (dynamic shared memory)";
        result = driver->FuncSetAttribute(entry->function, CU_FUNCTION_MAX_DYNAMIC_SHARED, (int)entry->kernel.shared);
    }
    if (result == CUDA_SUCCESS) {
        *call = "cuFuncGetAttribute";
        result = driver->FuncGetAttribute(&entry->code.registers, CU_FUNCTION_REGISTERS, entry->function);
    }
    if (result == CUDA_SUCCESS) {
        result = driver->FuncGetAttribute(&entry->code.stack_bytes, CU_FUNCTION_LOCAL_BYTES, entry->function);
    }
    return result;
}

attn_status attn__cuda_load(attn__cuda *cuda, attn__cuda_kernel *entry, attn_error *error) {
    bool pushed;
    char log[1024] = "";
    int names[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    attn_status status = attn__cuda_enter(cuda, &pushed, error);
    if (status) {
        return status;
    }
    const char *call = "";
    CUresult result = cuda->driver.ModuleLoadDataEx(&entry->module, entry->code.data, 2, names, values);
    if (result) {
        entry->module = NULL;
        status = load_failed(cuda, result, entry->kernel.name, log, error);
    } else {
        result = find_function(cuda, entry, &call);
    }
    if (!status && result) {
        cuda->driver.ModuleUnload(entry->module);
        entry->module = NULL;
        status = attn__driver_fail(&cuda->driver, result, "kernel", call, error);
    }
    attn__cuda_leave(cuda, pushed);
    return status;
}
