/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cuda/driver.h"

#include <dlfcn.h>
#include <string.h>

#include "base/error.h"

/* The library stays mapped once loaded (RTLD_NODELETE): the driver leaves threads and exit handlers behind. */

/* CUDA 11.2: the oldest driver whose interface has everything above. */
enum { LEAST_VERSION = 11020 };

static attn_status load_symbols(attn__driver *driver, attn_error *error) {
    void *address;
    /* ISO C has no conversion between object and function pointers; POSIX promises that the bytes fit. */
#define ATTN__LOAD(name, symbol, parameters)                                                                           \
    address = dlsym(driver->library, symbol);                                                                          \
    if (!address) {                                                                                                    \
        return attn__fail(error, ATTN_ERR_DEVICE, "driver", "is too old: libcuda has no %s; install a newer driver",   \
                          symbol);                                                                                     \
    }                                                                                                                  \
    memcpy(&driver->name, &address, sizeof address);
    ATTN__DRIVER_LIST(ATTN__LOAD)
#undef ATTN__LOAD
    address = dlsym(driver->library, "cuFuncLoad");
    memcpy(&driver->FuncLoad, &address, sizeof address);
    address = dlsym(driver->library, "cuLaunchKernelEx");
    memcpy(&driver->LaunchKernelEx, &address, sizeof address);
    address = dlsym(driver->library, "cuTensorMapEncodeTiled");
    memcpy(&driver->TensorMapEncodeTiled, &address, sizeof address);
    return ATTN_OK;
}

static attn_status initialise(attn__driver *driver, attn_error *error) {
    attn_status status = load_symbols(driver, error);
    if (status) {
        return status;
    }
    if (driver->DriverGetVersion(&driver->version) == CUDA_SUCCESS && driver->version < LEAST_VERSION) {
        return attn__fail(error, ATTN_ERR_DEVICE, "driver",
                          "is too old: it speaks CUDA %d.%d, must be at least %d.%d; install a newer driver",
                          driver->version / 1000, driver->version % 1000 / 10, LEAST_VERSION / 1000,
                          LEAST_VERSION % 1000 / 10);
    }
    CUresult result = driver->Init(0);
    if (result == CUDA_ERROR_NO_DEVICE) {
        return attn__fail(error, ATTN_ERR_DEVICE, "device",
                          "the driver is there but sees no GPU; nvidia-smi -L lists what it sees (CUDA_VISIBLE_DEVICES "
                          "may hide them)");
    }
    if (result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) {
        return attn__fail(error, ATTN_ERR_DEVICE, "driver",
                          "libcuda and the kernel's driver are of different versions; reboot, or install one version");
    }
    return result ? attn__driver_fail(driver, result, "driver", "cuInit", error) : ATTN_OK;
}

attn_status attn__driver_open(attn__driver *driver, const char *path, attn_error *error) {
    const char *name = path ? path : "libcuda.so.1";
    memset(driver, 0, sizeof *driver);
    driver->library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!driver->library) {
        const char *why = dlerror();
        return attn__fail(error, ATTN_ERR_DEVICE, "driver",
                          "%.60s cannot be loaded: install NVIDIA's driver; nvidia-smi shows whether it works (%.90s)",
                          name, why ? why : "");
    }
    attn_status status = initialise(driver, error);
    if (status) {
        attn__driver_close(driver);
    }
    return status;
}

void attn__driver_close(attn__driver *driver) {
    if (driver->library) {
        dlclose(driver->library);
    }
    memset(driver, 0, sizeof *driver);
}

attn_status attn__driver_fail(const attn__driver *driver, CUresult result, const char *field, const char *call,
                              attn_error *error) {
    const char *name = NULL, *text = NULL;
    driver->GetErrorName(result, &name);
    driver->GetErrorString(result, &text);
    return attn__fail(error, result == CUDA_ERROR_OUT_OF_MEMORY ? ATTN_ERR_MEMORY : ATTN_ERR_DEVICE, field,
                      "%s failed: %s %d (%s)", call, name ? name : "error", result, text ? text : "no text");
}
