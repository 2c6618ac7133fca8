/* SPDX-License-Identifier: Apache-2.0
 * A kernel's constants and its name, from the problem. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "cuda/cuda.h"
#include "problem/problem.h"

bool attn__score_plain(const attn_problem *problem) {
    return problem->softcap == 0 && problem->bias.dtype == ATTN_NONE && problem->mask.dtype == ATTN_NONE &&
           problem->alibi.dtype == ATTN_NONE && problem->scale > 1e-30f; /* below, sinks in its unit pass the range */
}

void attn__kernel_set(attn__kernel *kernel, const char *constant, int64_t value) {
    if (kernel->n_constants < ATTN__MAX_CONSTANTS) {
        kernel->constants[kernel->n_constants].name = constant;
        kernel->constants[kernel->n_constants].value = value;
    }
    kernel->n_constants++; /* past the limit: refused when it is built */
}

void attn__kernel_name(attn__kernel *kernel, const char *format, ...) {
    size_t length = strlen(kernel->name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(kernel->name + length, sizeof kernel->name - length, format, arguments);
    va_end(arguments);
}

static void set_forward(attn__kernel *kernel, const attn_problem *p) {
    attn__kernel_set(kernel, "DTYPE", p->q.dtype);
    attn__kernel_set(kernel, "O_DTYPE", p->o.dtype);
    attn__kernel_set(kernel, "BIAS_DTYPE", p->bias.dtype);
    attn__kernel_set(kernel, "DIM_QK", p->dim_qk);
    attn__kernel_set(kernel, "DIM_V", p->dim_v);
    attn__kernel_set(kernel, "ROWS_Q", p->rows_q);
    attn__kernel_set(kernel, "ROWS_KV", p->rows_kv);
    attn__kernel_set(kernel, "USED_Q", (p->flags & ATTN_USED_Q) != 0);
    attn__kernel_set(kernel, "USED_KV", (p->flags & ATTN_USED_KV) != 0);
    attn__kernel_set(kernel, "BAND", p->band.kind);
    attn__kernel_set(kernel, "HAS_MASK", p->mask.dtype != ATTN_NONE);
    attn__kernel_set(kernel, "HAS_ALIBI", p->alibi.dtype != ATTN_NONE);
    attn__kernel_set(kernel, "HAS_SINK", p->sink.dtype != ATTN_NONE);
    attn__kernel_set(kernel, "HAS_SOFTCAP", p->softcap > 0);
    attn__kernel_set(kernel, "HAS_DROPOUT", p->dropout > 0);
    attn__kernel_set(kernel, "SCORE_PLAIN", attn__score_plain(p));
}

static void set_backward(attn__kernel *kernel, const attn_problem *p) {
    attn__kernel_set(kernel, "DOUT_DTYPE", p->dout.dtype);
    attn__kernel_set(kernel, "DQ_DTYPE", p->dq.dtype);
    attn__kernel_set(kernel, "DK_DTYPE", p->dk.dtype);
    attn__kernel_set(kernel, "DV_DTYPE", p->dv.dtype);
    attn__kernel_set(kernel, "HAS_DLSE", 1); /* whether it is given is known at each run: params.dlse.data */
    attn__kernel_set(kernel, "HAS_DBIAS", p->dbias.dtype != ATTN_NONE);
}

attn__kernel *attn__kernel_start(attn_plan *plan, int role, const char *source, const char *stem) {
    attn__gpu_choice *choice = &plan->gpu_choice;
    const attn_problem *p = &plan->problem;
    int at = choice->n_kernels++;
    if (at >= ATTN__MAX_KERNELS) { /* refused when it is built */
        at = ATTN__MAX_KERNELS - 1;
    }
    attn__kernel *kernel = &choice->kernels[at];
    choice->roles[at] = role;
    memset(kernel, 0, sizeof *kernel);
    kernel->source = source;
    snprintf(kernel->name, sizeof kernel->name, "attn_%s_%s_d%" PRId64, stem, attn_dtype_name(p->q.dtype), p->dim_qk);
    if (p->dim_v != p->dim_qk) {
        attn__kernel_name(kernel, "x%" PRId64, p->dim_v);
    }
    set_forward(kernel, p);
    if (p->pass == ATTN_BACKWARD) {
        set_backward(kernel, p);
    }
    return kernel;
}

static void name_features(attn__kernel *kernel, const attn_problem *p) {
    static const char *const rows[] = {"", "_packed", "_segments"};
    attn__kernel_name(kernel, "%s", rows[p->rows_q > p->rows_kv ? p->rows_q : p->rows_kv]);
    attn__kernel_name(kernel, "%s", p->band.kind & ATTN_CAUSAL ? "_causal" : "");
    attn__kernel_name(kernel, "%s", p->band.kind & ATTN_WINDOW ? "_window" : "");
    attn__kernel_name(kernel, "%s", p->bias.dtype ? "_bias" : "");
    attn__kernel_name(kernel, "%s", p->mask.dtype ? "_mask" : "");
    attn__kernel_name(kernel, "%s", p->dropout > 0 ? "_dropout" : "");
}

/* Ten hexadecimal digits over source and every constant: the readable part leaves much out, and it may be cut. */
void attn__kernel_finish(attn__kernel *kernel, const attn_plan *plan, int threads, size_t shared) {
    attn__hash hash = attn__hash_start();
    int count = kernel->n_constants < ATTN__MAX_CONSTANTS ? kernel->n_constants : ATTN__MAX_CONSTANTS;
    attn__hash_text(&hash, kernel->source);
    for (int n = 0; n < count; n++) {
        attn__hash_text(&hash, kernel->constants[n].name);
        attn__hash_add(&hash, &kernel->constants[n].value, sizeof kernel->constants[n].value);
    }
    kernel->threads = threads;
    kernel->shared = shared;
    name_features(kernel, &plan->problem);
    kernel->name[sizeof kernel->name - 24] = 0;
    attn__kernel_name(kernel, "__sm%d_%010llx", plan->gpu->arch, (unsigned long long)(hash.low >> 24));
}
