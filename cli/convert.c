/* SPDX-License-Identifier: Apache-2.0
 * Element types. The 16-bit floats are one rule with two sets of widths: e exponent bits, m mantissa bits. */
#include "convert.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct widths {
    int e, m;
} widths;
static const widths half = {5, 10}, brain = {8, 7};

static double widen(widths w, uint16_t bits) {
    int bias = (1 << (w.e - 1)) - 1, exponent = bits >> w.m & ((1 << w.e) - 1), mantissa = bits & ((1 << w.m) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << w.e) - 1) {
        return mantissa ? NAN : sign * INFINITY;
    }
    return sign * (exponent ? ldexp(mantissa + (1 << w.m), exponent - bias - w.m) : ldexp(mantissa, 1 - bias - w.m));
}

static uint16_t narrow(widths w, double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    int bias = (1 << (w.e - 1)) - 1, infinity = ((1 << w.e) - 1) << w.m;
    int sign = (int)(bits >> 63) << 15, exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    if (isnan(value)) {
        return (uint16_t)(sign | infinity | 1 << (w.m - 1));
    }
    if (exponent > bias || exponent < -bias - w.m) { /* zero and float64 subnormals have the lowest exponent */
        return (uint16_t)(sign | (exponent > bias ? infinity : 0));
    }
    bool normal = exponent >= 1 - bias;
    int cut = 52 - w.m + (normal ? 0 : 1 - bias - exponent); /* low bits that go */
    uint64_t hidden = (uint64_t)1 << 52, significand = (bits & (hidden - 1)) | hidden;
    uint64_t kept = significand >> cut, rest = significand & (((uint64_t)1 << cut) - 1), tie = (uint64_t)1 << (cut - 1);
    kept += rest > tie || (rest == tie && (kept & 1));
    /* A carry moves into the exponent field by itself, up to infinity. */
    return (uint16_t)(sign | ((normal ? (exponent + bias - 1) << w.m : 0) + (int)kept));
}

double cli_load(cli_type type, const void *base, int64_t index) {
    switch (type) {
    case CLI_F16: return widen(half, ((const uint16_t *)base)[index]);
    case CLI_BF16: return widen(brain, ((const uint16_t *)base)[index]);
    case CLI_F32: return ((const float *)base)[index];
    case CLI_F64: return ((const double *)base)[index];
    case CLI_I32: return ((const int32_t *)base)[index];
    case CLI_I64: return (double)((const int64_t *)base)[index];
    default: return ((const uint8_t *)base)[index];
    }
}

void cli_store(cli_type type, void *base, int64_t index, double value) {
    switch (type) {
    case CLI_F16: ((uint16_t *)base)[index] = narrow(half, value); break;
    case CLI_BF16: ((uint16_t *)base)[index] = narrow(brain, value); break;
    case CLI_F32: ((float *)base)[index] = (float)value; break;
    case CLI_F64: ((double *)base)[index] = value; break;
    case CLI_I32: ((int32_t *)base)[index] = (int32_t)value; break;
    case CLI_I64: ((int64_t *)base)[index] = (int64_t)value; break;
    default: ((uint8_t *)base)[index] = value != 0; break;
    }
}

void cli_convert(const cli_view *to, const cli_view *from, cli_overflow *overflow) {
    double largest = cli_largest(to->type);
    for (int64_t b = 0; b < to->shape[0]; b++) {
        for (int64_t h = 0; h < to->shape[1]; h++) {
            for (int64_t t = 0; t < to->shape[2]; t++) {
                int64_t out = cli_view_offset(to, b, h, t, 0), in = cli_view_offset(from, b, h, t, 0);
                for (int64_t d = 0; d < to->shape[3]; d++) {
                    double value = cli_load(from->type, from->base, in + d * from->stride[3]);
                    cli_store(to->type, to->base, out + d * to->stride[3], value);
                    if (overflow && fabs(value) > largest && isfinite(value) &&
                        isinf(cli_load(to->type, to->base, out + d * to->stride[3]))) {
                        if (overflow->count++ == 0) {
                            memcpy(overflow->first, (int64_t[4]){b, h, t, d}, sizeof overflow->first);
                            overflow->value = value;
                        }
                    }
                }
            }
        }
    }
}

attn_dtype cli_type_dtype(cli_type type) {
    switch (type) {
    case CLI_F16: return ATTN_F16;
    case CLI_BF16: return ATTN_BF16;
    case CLI_F32: return ATTN_F32;
    case CLI_F64: return ATTN_F64;
    case CLI_BOOL:
    case CLI_U8: return ATTN_U8;
    default: return ATTN_NONE;
    }
}

cli_type cli_dtype_type(attn_dtype dtype) {
    switch (dtype) {
    case ATTN_F16: return CLI_F16;
    case ATTN_BF16: return CLI_BF16;
    case ATTN_F64: return CLI_F64;
    case ATTN_U8: return CLI_U8;
    default: return CLI_F32;
    }
}

double cli_ulp(cli_type type, double value) {
    int digits = type == CLI_F16 ? 10 : type == CLI_BF16 ? 7 : type == CLI_F64 ? 52 : 23;
    int smallest = type == CLI_F16 ? -14 : type == CLI_F64 ? -1022 : -126, exponent;
    if (value == 0 || !isfinite(value)) {
        return ldexp(1, smallest - digits);
    }
    frexp(value, &exponent); /* value = f * 2^exponent, 1/2 <= f < 1 */
    return ldexp(1, (exponent - 1 < smallest ? smallest : exponent - 1) - digits);
}

double cli_largest(cli_type type) {
    return type == CLI_F16 ? 65504 : type == CLI_BF16 ? 0x1.fep127 : type == CLI_F32 ? FLT_MAX : DBL_MAX;
}
