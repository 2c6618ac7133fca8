/* SPDX-License-Identifier: Apache-2.0
 * Stands in for <stdint.h> where device code is compiled: NVRTC without a toolkit has none. */
#ifndef ATTN_CUDA_STDINT_H
#define ATTN_CUDA_STDINT_H
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#endif
