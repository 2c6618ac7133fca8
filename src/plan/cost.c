/* SPDX-License-Identifier: Apache-2.0
 * What a problem costs, and the roofline time on a machine or a GPU of given facts. */
#include "plan/cost.h"

#include <string.h>

#include "backend.h"
#include "problem/problem.h"
#include "problem/tensors.h"

/* Operations a cycle of one thread, multiply and add counted apart: lanes * 2 * FMA pipes. 512-bit rates are those of
 * cores with one such pipe (or two of 256 bits); servers with two pipes do twice that. Unlisted: unknown. */
static const struct peak {
    const char *name;
    double f32, bf16;
} peaks[] = {
    {"amx", 32, 1024}, {"avx512bf16", 32, 64}, {"avx512", 32, 32},
    {"avx2", 32, 32},  {"neon", 16, 16},       {"generic", 8, 8},
};

/* Of the units that the chosen kernels multiply on. */
static double peak_flops_gpu(const attn__gpu *gpu, const attn__gpu_choice *choice, attn_dtype dtype) {
    double cycle = gpu->fma_cycle;
    if (choice->tensor_cores) {
        cycle = choice->warp_groups ? gpu->wgmma_cycle : dtype == ATTN_F32 ? gpu->mma_tf32_cycle : gpu->mma_cycle;
    }
    return cycle * gpu->hertz * gpu->processors;
}

static double peak_flops(const attn_plan *plan) {
    if (plan->gpu) {
        return peak_flops_gpu(plan->gpu, &plan->gpu_choice, plan->problem.q.dtype);
    }
    for (size_t n = 0; n < sizeof peaks / sizeof peaks[0]; n++) {
        if (strcmp(peaks[n].name, plan->impl->name) == 0) {
            double cycle = plan->problem.q.dtype == ATTN_BF16 ? peaks[n].bf16 : peaks[n].f32;
            return cycle * plan->machine.hertz * plan->machine.threads;
        }
    }
    return 0;
}

/* Distinct elements: broadcast axes count once. */
static double tensor_bytes(const attn_problem *problem, const attn__tensor *tensor) {
    const attn_layout *layout = attn__tensor_layout_const(problem, tensor);
    double bytes = (double)attn_dtype_size(layout->dtype);
    int64_t extent[4];
    unsigned read;
    attn__tensor_extents(problem, tensor, extent, &read);
    for (int axis = 0; axis < 4; axis++) {
        bytes *= extent[axis] == 0 || layout->stride[axis] ? (double)extent[axis] : 1;
    }
    return bytes;
}

void attn__plan_cost(const attn_problem *p, attn_plan_info *info) {
    double pairs = attn__visible_pairs(p) * (double)p->heads_q, scores;
    bool backward = p->pass == ATTN_BACKWARD;
    /* Products along dim_qk and dim_v: s, o forward; s, dq, dk and dp, dv backward. */
    info->flop = 2 * pairs * (double)(backward ? 3 * p->dim_qk + 2 * p->dim_v : p->dim_qk + p->dim_v);
    info->bytes = 0;
    for (int n = 0; n < ATTN__TENSORS; n++) {
        const attn__tensor *tensor = &attn__tensors[n];
        bool optional = tensor->layout == offsetof(attn_problem, dlse);
        if ((!tensor->backward || backward) && !optional) {
            info->bytes += tensor_bytes(p, tensor);
        }
    }
    scores = (double)p->batch * (double)p->heads_q * (double)p->tokens_q * (double)p->tokens_kv;
    info->memory_native = scores * (double)attn_dtype_size(p->q.dtype) * (backward ? 2 : 1);
}

void attn__plan_info_fill(const attn_plan *plan, attn_plan_info *info) {
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->implementation = plan->impl->name;
    if (plan->gpu) {
        info->threads = plan->gpu_choice.n_kernels ? plan->gpu_choice.kernels[0].threads : 0;
        info->block_q = plan->gpu_choice.tile_q;
        info->block_kv = plan->gpu_choice.tile_kv;
        info->splits = plan->gpu_choice.splits;
    } else {
        info->threads = plan->choice.threads ? plan->choice.threads : 1;
        info->block_q = plan->choice.block_q;
        info->block_kv = plan->choice.block_kv;
        info->splits = plan->choice.splits;
    }
    attn__plan_cost(&plan->problem, info);
    info->memory_fused = (double)plan->workspace;
    info->peak_flops = peak_flops(plan);
    info->peak_bytes = plan->gpu ? plan->gpu->memory_rate : plan->machine.memory_rate;
    info->bound = "unknown";
    if (info->peak_flops > 0 && info->peak_bytes > 0) {
        double compute = info->flop / info->peak_flops, memory = info->bytes / info->peak_bytes;
        info->expected_seconds = compute > memory ? compute : memory;
        info->bound = compute > memory ? "compute" : "memory";
    }
}
