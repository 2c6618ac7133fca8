/* SPDX-License-Identifier: Apache-2.0
 * What both passes of `cuda_native` have in common: matrices [batch, heads_q, tokens_q, tokens_kv] in the workspace and
 * the kernels of device/native_products.cu and device/native_rows.cu. */
#ifndef ATTN_CUDA_NATIVE_H
#define ATTN_CUDA_NATIVE_H

#include "cuda/cuda.h"

/* PRODUCT of native_products.cu. */
typedef enum attn__product {
    ATTN__SCORES = 0,
    ATTN__DPRODUCTS = 1,
    ATTN__OUTPUT = 2,
    ATTN__DQ = 3,
    ATTN__DK = 4,
    ATTN__DV = 5
} attn__product;

/* STEP of native_rows.cu. */
typedef enum attn__step { ATTN__SOFTMAX = 0, ATTN__GRADIENT = 1, ATTN__DBIAS = 2 } attn__step;

/* Tile and matrices: p.scores, and with `both` p.extra. */
attn_status attn__cuda_native_start(attn_plan *plan, bool both, attn_error *error);
void attn__cuda_native_add_product(attn_plan *plan, attn__product product);
void attn__cuda_native_add_step(attn_plan *plan, attn__step step);
attn_status attn__cuda_native_product(attn__cuda_run *run, attn__product product);
attn_status attn__cuda_native_step(attn__cuda_run *run, attn__step step);

#endif
