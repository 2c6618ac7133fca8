/* SPDX-License-Identifier: Apache-2.0
 * The two small kernels over query rows that `ffma` and `cuda_native` share backward: delta and dsink
 * (device/backward_rows.cu). */
#ifndef ATTN_CUDA_BACKWARD_ROWS_H
#define ATTN_CUDA_BACKWARD_ROWS_H

#include "cuda/cuda.h"

/* Adds both kernels, and delta's span to the workspace. */
void attn__backward_rows_prepare(attn_plan *plan, int role_delta, int role_dsink);
/* delta, unless the caller gives it. */
attn_status attn__backward_rows_delta(attn__cuda_run *run, int role);
/* dsink, if it is wanted. */
attn_status attn__backward_rows_dsink(attn__cuda_run *run, int role);

#endif
