/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/device.h"

attn_status attn__cuda_code(attn__cuda *cuda, const attn__kernel *kernel, attn__code *code, attn_error *error) {
    return attn__cuda_compile(cuda, kernel, code, error);
}
