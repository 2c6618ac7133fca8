/* SPDX-License-Identifier: Apache-2.0
 * Opening and closing what a GPU context owns. */
#include "cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "plan/gpu.h"

static int64_t attribute(const attn__cuda *cuda, int which) {
    int value = 0;
    return cuda->driver.DeviceGetAttribute(&value, which, cuda->device) == CUDA_SUCCESS ? value : 0;
}

/* What the driver tells of the device; rates from the table. */
static attn_status read_facts(attn__cuda *cuda, attn_error *error) {
    attn__gpu *gpu = &cuda->gpu;
    size_t bytes = 0;
    CUresult result = cuda->driver.DeviceGetName(cuda->gpu_name, sizeof cuda->gpu_name, cuda->device);
    result = result ? result : cuda->driver.DeviceTotalMem(&bytes, cuda->device);
    if (result) {
        return attn__driver_fail(&cuda->driver, result, "device", "reading its name and memory", error);
    }
    cuda->arch = (int)(attribute(cuda, CU_ATTRIBUTE_MAJOR) * 10 + attribute(cuda, CU_ATTRIBUTE_MINOR));
    gpu->name = cuda->gpu_name;
    gpu->arch = attn__gpu_arch(cuda->arch);
    if (gpu->arch < 75) {
        return attn__fail(error, ATTN_ERR_DEVICE, "device", "is a %.60s of sm_%d, must be sm_75 (Turing) or later",
                          cuda->gpu_name, cuda->arch);
    }
    gpu->processors = (int)attribute(cuda, CU_ATTRIBUTE_PROCESSORS);
    gpu->shared_block = attribute(cuda, CU_ATTRIBUTE_SHARED_BLOCK_OPTIN);
    gpu->shared_processor = attribute(cuda, CU_ATTRIBUTE_SHARED_PROCESSOR);
    gpu->registers_processor = attribute(cuda, CU_ATTRIBUTE_REGISTERS_PROCESSOR);
    gpu->l2_bytes = attribute(cuda, CU_ATTRIBUTE_L2_BYTES);
    gpu->memory_bytes = (int64_t)bytes;
    attn__gpu_complete(gpu);
    if (cuda->arch != 90 || !cuda->driver.TensorMapEncodeTiled) {
        gpu->wgmma_cycle = 0;
    }
    return ATTN_OK;
}

/* The caller's current context if it is of this device, else the primary one. */
static attn_status take_context(attn__cuda *cuda, attn_error *error) {
    CUcontext current = NULL;
    CUdevice device;
    if (cuda->driver.CtxGetCurrent(&current) == CUDA_SUCCESS && current &&
        cuda->driver.CtxGetDevice(&device) == CUDA_SUCCESS && device == cuda->device) {
        cuda->handle = current;
        return ATTN_OK;
    }
    CUresult result = cuda->driver.DevicePrimaryCtxRetain(&cuda->handle, cuda->device);
    cuda->retained = result == CUDA_SUCCESS;
    return result ? attn__driver_fail(&cuda->driver, result, "device", "cuDevicePrimaryCtxRetain", error) : ATTN_OK;
}

static attn_status open_device(attn__cuda *cuda, int64_t ordinal, const attn__cuda_settings *settings,
                               attn_error *error) {
    int count = 0;
    attn_status status = attn__driver_open(&cuda->driver, settings->driver, error);
    if (status) {
        return status;
    }
    CUresult result = cuda->driver.DeviceGetCount(&count);
    if (result || count == 0) {
        return attn__fail(error, ATTN_ERR_DEVICE, "device", "no GPU is there: the driver counts none");
    }
    if (ordinal >= count) {
        return attn__fail(error, ATTN_ERR_DEVICE, "device", "is %s, must be below cuda:%d: the driver has %d",
                          cuda->name, count, count);
    }
    result = cuda->driver.DeviceGet(&cuda->device, (int)ordinal);
    if (result) {
        return attn__driver_fail(&cuda->driver, result, "device", "cuDeviceGet", error);
    }
    cuda->opened = cuda->compiles = true;
    status = read_facts(cuda, error);
    return status ? status : take_context(cuda, error);
}

/* "cuda", "cuda:N": *ordinal; "gpu:NAME": *known. */
static attn_status read_name(const char *device, int64_t *ordinal, const attn__gpu **known, attn_error *error) {
    char names[160];
    *ordinal = 0;
    *known = NULL;
    if (strcmp(device, "cuda") == 0 || (strncmp(device, "cuda:", 5) == 0 &&
                                        attn__int_read(device + 5, strlen(device + 5), ordinal) && *ordinal >= 0)) {
        return ATTN_OK;
    }
    if (strncmp(device, "gpu:", 4) != 0) {
        return attn__fail(error, ATTN_ERR_INVALID, "device",
                          "is \"%.40s\", must be \"cpu\", \"cuda\", \"cuda:N\" or \"gpu:NAME\"", device);
    }
    *known = attn__gpu_find(device + 4);
    if (*known) {
        return ATTN_OK;
    }
    attn__text text = attn__text_start(names, sizeof names);
    for (int n = 0; n < ATTN__GPUS; n++) {
        attn__text_add(&text, "%s%s", n ? ", " : "", attn__gpus[n].name);
    }
    return attn__fail(error, ATTN_ERR_INVALID, "device", "is \"%.40s\", known GPUs are %s", device, names);
}

/* Code of an older architecture: max_isa "sm_75". */
static attn_status lower(attn__cuda *cuda, const attn__cuda_settings *settings, attn_error *error) {
    int64_t arch = 0;
    const char *text = settings->arch;
    if (!text) {
        return ATTN_OK;
    }
    if (!attn__int_read(text + 3, strlen(text + 3), &arch) || arch < 75 || arch > 999 ||
        attn__gpu_arch((int)arch) != arch) {
        return attn__fail(error, ATTN_ERR_INVALID, settings->arch_field,
                          "is \"%.20s\", must be sm_75, sm_80, sm_86, sm_89, sm_90, sm_100 or sm_120", text);
    }
    if (arch < cuda->gpu.arch) {
        attn__gpu_lower(&cuda->gpu, (int)arch);
    }
    return ATTN_OK;
}

static attn_status fill(attn__cuda *cuda, const attn__cuda_settings *settings, attn_error *error) {
    int64_t ordinal;
    const attn__gpu *known;
    attn_status status = read_name(settings->device, &ordinal, &known, error);
    if (status) {
        return status;
    }
    if (known) {
        snprintf(cuda->name, sizeof cuda->name, "gpu:%s", known->name);
        cuda->gpu = *known;
        cuda->arch = known->arch;
        snprintf(cuda->gpu_name, sizeof cuda->gpu_name, "%s", known->name);
        cuda->compiles = settings->compile;
    } else {
        snprintf(cuda->name, sizeof cuda->name, "cuda:%lld", (long long)ordinal);
        status = open_device(cuda, ordinal, settings, error);
    }
    snprintf(cuda->folder, sizeof cuda->folder, "%s", settings->cache);
    status = status ? status : lower(cuda, settings, error);
    if (!status && cuda->compiles && settings->kernels && *settings->kernels) {
        status = attn__cuda_open_pack(cuda, settings->kernels, settings->kernels_field, error);
    }
    if (!status && cuda->compiles) {
        attn__nvrtc_open(&cuda->nvrtc, settings->nvrtc, &settings->places);
    }
    return status;
}

attn_status attn__cuda_open(attn__cuda **out, const attn_context *context, const attn__cuda_settings *settings,
                            attn_error *error) {
    attn__cuda *cuda = attn__context_allocate(context, sizeof *cuda);
    *out = NULL;
    if (!cuda) {
        return attn__fail(error, ATTN_ERR_MEMORY, "context", "%zu bytes could not be allocated", sizeof *cuda);
    }
    memset(cuda, 0, sizeof *cuda);
    cuda->context = context;
    pthread_mutex_init(&cuda->lock, NULL);
    pthread_cond_init(&cuda->changed, NULL);
    attn_status status = fill(cuda, settings, error);
    if (status) {
        attn__cuda_close(cuda, context);
        return status;
    }
    *out = cuda;
    return ATTN_OK;
}

void attn__cuda_own(attn__cuda *cuda, const attn_context *context) {
    cuda->context = context;
}

const attn__gpu *attn__cuda_gpu(const attn__cuda *cuda) {
    return &cuda->gpu;
}

const char *attn__cuda_name(const attn__cuda *cuda) {
    return cuda->name;
}

void attn__cuda_close(attn__cuda *cuda, const attn_context *context) {
    bool pushed = false;
    if (cuda->handle && cuda->kernels) {
        attn__cuda_enter(cuda, &pushed, NULL);
    }
    while (cuda->kernels) {
        attn__cuda_kernel *entry = cuda->kernels;
        cuda->kernels = entry->next;
        if (entry->module) {
            cuda->driver.ModuleUnload(entry->module);
        }
        attn__context_release(context, entry->code.data);
        attn__context_release(context, entry);
    }
    attn__cuda_leave(cuda, pushed);
    if (cuda->retained) {
        cuda->driver.DevicePrimaryCtxRelease(cuda->device);
    }
    attn__context_release(context, cuda->pack);
    attn__driver_close(&cuda->driver);
    attn__nvrtc_close(&cuda->nvrtc);
    pthread_cond_destroy(&cuda->changed);
    pthread_mutex_destroy(&cuda->lock);
    attn__context_release(context, cuda);
}
