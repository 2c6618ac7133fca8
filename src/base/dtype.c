/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

size_t attn_dtype_size(attn_dtype dtype) {
    switch (dtype) {
    case ATTN_F64: return 8;
    case ATTN_F32: return 4;
    case ATTN_F16:
    case ATTN_BF16: return 2;
    case ATTN_U8: return 1;
    default: return 0;
    }
}

const char *attn_dtype_name(attn_dtype dtype) {
    switch (dtype) {
    case ATTN_NONE: return "none";
    case ATTN_F64: return "f64";
    case ATTN_F32: return "f32";
    case ATTN_F16: return "f16";
    case ATTN_BF16: return "bf16";
    case ATTN_U8: return "u8";
    }
    return "?";
}
