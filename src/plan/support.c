/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/support.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "plan/boxes.h"

/* Blocks of this width still leave room for a block of queries and keys in the caches that kernels are sized for. */
enum { WIDEST = 576 };
/* A GPU's: what one block's registers and shared memory hold on the smallest of them. */
enum { WIDEST_GPU_V = 512, WIDEST_MMA_BACKWARD = 256, WIDEST_HOPPER = 256 };

static bool wider(int64_t dim, int64_t widest, char *value, size_t size) {
    snprintf(value, size, "%" PRId64, dim);
    return dim > widest;
}

#define WIDER(name, dim, widest)                                                                                       \
    static bool name(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {                    \
        (void)gpu;                                                                                                     \
        return wider(problem->dim, widest, value, size);                                                               \
    }
WIDER(wide_qk, dim_qk, WIDEST)
WIDER(wide_v, dim_v, WIDEST)
WIDER(wide_v_gpu, dim_v, WIDEST_GPU_V)

/* Backward keeps more of a tile in registers. */
#define WIDER_BACKWARD(name, dim, widest)                                                                              \
    static bool name(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {                    \
        (void)gpu;                                                                                                     \
        return wider(problem->dim, widest, value, size) && problem->pass == ATTN_BACKWARD;                             \
    }
WIDER_BACKWARD(wide_qk_backward, dim_qk, WIDEST_MMA_BACKWARD)
WIDER_BACKWARD(wide_v_backward, dim_v, WIDEST_MMA_BACKWARD)

static bool is_f64(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    snprintf(value, size, "%s", attn_dtype_name(problem->q.dtype));
    return problem->q.dtype == ATTN_F64;
}

static bool is_exact(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    bool exact = problem->q.dtype == ATTN_F32 && !(problem->flags & ATTN_ALLOW_TF32);
    (void)gpu;
    snprintf(value, size, "%s%s", attn_dtype_name(problem->q.dtype), exact ? " without ATTN_ALLOW_TF32" : "");
    return exact || problem->q.dtype == ATTN_F64;
}

static bool is_too_new(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    snprintf(value, size, "%s on sm_%d", attn_dtype_name(problem->q.dtype), gpu ? gpu->arch : 0);
    return gpu && gpu->arch < 80 && problem->q.dtype != ATTN_F16;
}

static bool has_flag(const attn_problem *problem, uint32_t flag, const char *name, char *value, size_t size) {
    snprintf(value, size, "0x%" PRIx32 " with %s", problem->flags, name);
    return problem->flags & flag;
}

static bool device_lengths(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    return has_flag(problem, ATTN_DEVICE_LENGTHS, "ATTN_DEVICE_LENGTHS", value, size);
}

static bool device_seed(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    return has_flag(problem, ATTN_DEVICE_SEED, "ATTN_DEVICE_SEED", value, size);
}

static bool lacks_groups(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)problem;
    snprintf(value, size, "sm_%d, or its driver older than CUDA 12", gpu ? gpu->arch : 0);
    return !gpu || gpu->wgmma_cycle == 0;
}

static bool is_no_half(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    snprintf(value, size, "%s", attn_dtype_name(problem->q.dtype));
    return problem->q.dtype != ATTN_F16 && problem->q.dtype != ATTN_BF16;
}

static bool other_output(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    snprintf(value, size, "%s", attn_dtype_name(problem->o.dtype));
    return problem->o.dtype != problem->q.dtype;
}

/* Bulk copies bring pieces of 16 bytes. */
static bool odd_dim(int64_t dim, char *value, size_t size) {
    return wider(dim, WIDEST_HOPPER, value, size) || dim % 8 != 0;
}
static bool odd_qk(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    return odd_dim(problem->dim_qk, value, size);
}
static bool odd_v(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    return odd_dim(problem->dim_v, value, size);
}

static bool has_scale(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    snprintf(value, size, "%g", (double)problem->scale);
    return !(problem->scale > 0);
}

static bool other_gradient(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    (void)gpu;
    snprintf(value, size, "%s", attn_dtype_name(problem->dout.dtype));
    return problem->dout.dtype != problem->q.dtype && problem->pass == ATTN_BACKWARD;
}

static bool no_tokens_backward(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {
    bool dense = problem->rows_q == ATTN_DENSE && problem->rows_kv == ATTN_DENSE;
    (void)gpu;
    snprintf(value, size, "%" PRId64 ", tokens_kv %" PRId64, problem->tokens_q, problem->tokens_kv);
    return dense && (problem->tokens_q == 0 || problem->tokens_kv == 0) && problem->pass == ATTN_BACKWARD;
}

static bool no_boxes(const attn_problem *problem, const attn_layout *layout, bool queries, bool values, char *value,
                     size_t size) {
    attn__map_shape shape = attn__tensor_map_shape(problem, layout, queries, values, 1);
    const int64_t *s = layout->stride;
    snprintf(value, size, "%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64, s[0], s[1], s[2], s[3]);
    return !attn__tensor_map_allows(layout, &shape);
}

#define NO_BOXES(name, tensor, queries, values, when)                                                                  \
    static bool name(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {                    \
        (void)gpu;                                                                                                     \
        return (when) && no_boxes(problem, &problem->tensor, queries, values, value, size);                            \
    }
NO_BOXES(no_boxes_q, q, true, false, true)
NO_BOXES(no_boxes_k, k, false, false, true)
NO_BOXES(no_boxes_v, v, false, true, true)
NO_BOXES(no_boxes_o, o, true, true, problem->pass == ATTN_FORWARD)
NO_BOXES(no_boxes_dout, dout, true, true, problem->pass == ATTN_BACKWARD)

#define GIVEN(name, given, text)                                                                                       \
    static bool name(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size) {                    \
        (void)gpu;                                                                                                     \
        snprintf(value, size, "%s", text);                                                                             \
        return given;                                                                                                  \
    }
GIVEN(has_bias, problem->bias.dtype != ATTN_NONE, "given")
GIVEN(has_mask, problem->mask.dtype != ATTN_NONE, "given")
GIVEN(has_alibi, problem->alibi.dtype != ATTN_NONE, "given")
GIVEN(has_dropout, problem->dropout > 0, "above 0")

#define NO_DEVICE_LENGTHS(room)                                                                                        \
    { room, "flags", "without ATTN_DEVICE_LENGTHS", "lengths are read on the host", device_lengths }
#define NO_DEVICE_SEED(room)                                                                                           \
    { room, "flags", "without ATTN_DEVICE_SEED", "the seed is read on the host", device_seed }
#define BOXES "dim close, other strides positive multiples of 8"

const attn__rule attn__rules[] = {
    {"cpu", "q.dtype", "f32, f16 or bf16", "fused kernels keep scores in float32; `reference` runs f64", is_f64},
    {"cpu", "dim_qk", "at most 576", "the widest head that blocks are laid out for", wide_qk},
    {"cpu", "dim_v", "at most 576", "the widest head that blocks are laid out for", wide_v},
    NO_DEVICE_LENGTHS("cpu"),
    NO_DEVICE_SEED("cpu"),
    {"native", "q.dtype", "f32, f16 or bf16", "softmax is in float32; `reference` runs f64", is_f64},
    NO_DEVICE_LENGTHS("native"),
    NO_DEVICE_SEED("native"),
    NO_DEVICE_LENGTHS("reference"),
    NO_DEVICE_SEED("reference"),
    {"hopper", "device", "sm_90 with a driver of CUDA 12", "warp-group products and tensor maps are sm_90's own",
     lacks_groups},
    {"hopper", "q.dtype", "f16 or bf16", "warp-group products take 16-bit factors", is_no_half},
    {"hopper", "o.dtype", "q's", "outputs are stored as tiles of the input's type", other_output},
    {"hopper", "dim_qk", "a multiple of 8, at most 256", "bulk copies bring 16 bytes; the widest head that fits",
     odd_qk},
    {"hopper", "dim_v", "a multiple of 8, at most 256", "bulk copies bring 16 bytes; the widest head that fits", odd_v},
    {"hopper", "scale", "above 0", "it is folded into the exponential", has_scale},
    {"hopper", "bias", "none", "scores stay in registers as products leave them", has_bias},
    {"hopper", "mask", "none", "scores stay in registers as products leave them", has_mask},
    {"hopper", "alibi", "none", "scores stay in registers as products leave them", has_alibi},
    {"hopper", "dropout", "0", "scores stay in registers as products leave them", has_dropout},
    {"hopper", "q.stride", BOXES, "bulk copies bring boxes of rows", no_boxes_q},
    {"hopper", "k.stride", BOXES, "bulk copies bring boxes of rows", no_boxes_k},
    {"hopper", "v.stride", BOXES, "bulk copies bring boxes of rows", no_boxes_v},
    {"hopper", "o.stride", BOXES " forward", "bulk copies take boxes of rows", no_boxes_o},
    {"hopper", "dout.dtype", "q's", "warp-group products take 16-bit factors", other_gradient},
    {"hopper", "dout.stride", BOXES, "bulk copies bring boxes of rows", no_boxes_dout},
    {"hopper", "tokens_q", "above 0 backward, as tokens_kv", "no box of no rows", no_tokens_backward},
    {"mma", "q.dtype", "f16, bf16, or f32 with ATTN_ALLOW_TF32", "tensor cores round factors; `ffma` runs f32 exactly",
     is_exact},
    {"mma", "q.dtype", "f16 before sm_80", "tensor cores take bf16 and tf32 from sm_80 on", is_too_new},
    {"mma", "dim_qk", "at most 576", "the widest head whose tiles fit a block", wide_qk},
    {"mma", "dim_v", "at most 512", "the widest head whose sums fit two blocks' registers", wide_v_gpu},
    {"mma", "dim_qk", "at most 256 backward", "the widest head whose tiles fit a block", wide_qk_backward},
    {"mma", "dim_v", "at most 256 backward", "the widest head whose sums fit a block's registers", wide_v_backward},
    {"ffma", "q.dtype", "f32, f16 or bf16", "products and softmax are in float32", is_f64},
    {"ffma", "dim_qk", "at most 576", "the widest head whose tiles fit a block", wide_qk},
    {"ffma", "dim_v", "at most 576", "the widest head whose sums fit a block's registers", wide_v},
    {"cuda_native", "q.dtype", "f32, f16 or bf16", "softmax is in float32", is_f64},
    {NULL, NULL, NULL, NULL, NULL},
};

bool attn__support_accepts(const attn__impl *impl, const attn_problem *problem, const attn__gpu *gpu, char *field,
                           size_t field_size, char *reason, size_t reason_size) {
    char value[48];
    for (const attn__rule *rule = attn__rules; rule->backend; rule++) {
        if (strcmp(rule->backend, impl->backend) == 0 && rule->broken(problem, gpu, value, sizeof value)) {
            snprintf(field, field_size, "%s", rule->field);
            snprintf(reason, reason_size, "is %s, must be %s", value, rule->limit);
            return false;
        }
    }
    field[0] = reason[0] = 0;
    return true;
}
