/* SPDX-License-Identifier: Apache-2.0
 * The plan as text for people: one decision a line. */
#include <inttypes.h>

#include "backend.h"
#include "base/text.h"
#include "plan/cost.h"
#include "plan/gpu.h"

static void add_amount(attn__text *text, double amount, double step, const char *unit) {
    static const char *const decimal[] = {"", "k", "M", "G", "T", "P", "E"};
    static const char *const binary[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    int power = 0;
    while (amount >= step && power < 6) {
        amount /= step;
        power++;
    }
    attn__text_add(text, "%.4g %s%s", amount, step == 1024 ? binary[power] : decimal[power], unit);
}

static void add_seconds(attn__text *text, double seconds) {
    if (seconds >= 1) {
        attn__text_add(text, "%.3g s", seconds);
    } else if (seconds >= 1e-3) {
        attn__text_add(text, "%.3g ms", seconds * 1e3);
    } else {
        attn__text_add(text, "%.3g us", seconds * 1e6);
    }
}

static void add_problem(attn__text *text, const attn_problem *problem) {
    size_t left = text->length < text->size ? text->size - text->length : 0;
    text->length += attn_problem_format(problem, left ? text->buffer + text->length : NULL, left);
}

static void add_device(attn__text *text, const attn__gpu *gpu) {
    attn__text_add(text, "device          %s: sm_%d, %d processors, ", gpu->name, gpu->arch, gpu->processors);
    add_amount(text, (double)gpu->shared_block, 1024, "B of shared memory a block at most\n");
}

static void add_kernels(attn__text *text, const attn_plan *plan) {
    const attn__gpu_choice *choice = &plan->gpu_choice;
    for (int n = 0; n < choice->n_kernels; n++) {
        const attn__kernel *kernel = &choice->kernels[n];
        attn__text_add(text, "kernel          %s: %d threads, ", kernel->name, kernel->threads);
        add_amount(text, (double)kernel->shared, 1024, "B of shared memory, ");
        int blocks = attn__gpu_blocks(plan->gpu, kernel->threads, kernel->shared);
        attn__text_add(text, "up to %d block%s a processor\n", blocks, blocks == 1 ? "" : "s");
    }
}

static void add_gpu_choice(attn__text *text, const attn_plan *plan) {
    const attn__gpu_choice *choice = &plan->gpu_choice;
    attn__text_add(text, "tile            %d queries x %d keys, %d %s, %d warps\n", choice->tile_q, choice->tile_kv,
                   choice->stages, choice->stages == 1 ? "stage" : "stages", choice->warps);
    attn__text_add(text, "form            %s, %" PRId64 " query head%s a tile, keys split in %" PRId64 "\n",
                   choice->tensor_cores ? "tensor cores" : "float32 units", choice->group > 1 ? choice->group : 1,
                   choice->group > 1 ? "s" : "", choice->splits > 0 ? choice->splits : 1);
    add_kernels(text, plan);
}

/* What the workspace of a GPU plan holds. */
static void add_spans(attn__text *text, const attn__gpu_choice *choice) {
    const struct {
        const char *name;
        attn__span span;
    } spans[] = {
        {"lengths", choice->lengths},         {"status", choice->status}, {"partial outputs", choice->partial_o},
        {"partial lse", choice->partial_lse}, {"delta", choice->delta},   {"dq sums", choice->dq},
        {"scores", choice->scores},           {"other", choice->extra}};
    const char *before = ": ";
    for (size_t n = 0; n < sizeof spans / sizeof spans[0]; n++) {
        if (spans[n].span.size) {
            attn__text_add(text, "%s%s ", before, spans[n].name);
            add_amount(text, (double)spans[n].span.size, 1024, "B");
            before = ", ";
        }
    }
}

static void add_choice(attn__text *text, const attn_plan *plan, const attn_plan_info *info) {
    attn__text_add(text, "implementation  %s (%s)\n", plan->impl->name,
                   plan->hints.implementation ? "asked for" : "the first that accepts");
    for (int n = 0; n < plan->n_refusals; n++) {
        attn__text_add(text, "passed over     %s: %s\n", plan->refusals[n].name, plan->refusals[n].reason);
    }
    if (plan->gpu) {
        add_gpu_choice(text, plan);
        return;
    }
    attn__text_add(text, "threads         %d\n", info->threads);
    if (plan->choice.block_q || plan->choice.block_kv) {
        attn__text_add(text, "blocks          %" PRId64 " queries x %" PRId64 " keys, keys split in %" PRId64 "\n",
                       info->block_q, info->block_kv, info->splits);
        const attn__choice *c = &plan->choice;
        attn__text_add(text, "form            %s, %" PRId64 " query heads a task\n",
                       c->few_rows ? "few rows: lanes along the head dimension" : "blocks of rows",
                       (c->group > 0 ? c->group : 1) * (c->few_rows ? c->few_heads : 1));
    }
}

size_t attn_plan_describe(const attn_plan *plan, char *buffer, size_t size) {
    attn_plan_info info;
    attn__text text = attn__text_start(buffer, size);
    if (!plan) {
        return 0;
    }
    attn__plan_info_fill(plan, &info);
    attn__text_add(&text, "problem         ");
    add_problem(&text, &plan->problem);
    attn__text_add(&text, "\n");
    if (plan->gpu) {
        add_device(&text, plan->gpu);
    }
    add_choice(&text, plan, &info);
    attn__text_add(&text, "workspace       %zu bytes", plan->workspace);
    if (plan->gpu) {
        add_spans(&text, &plan->gpu_choice);
    }
    attn__text_add(&text, "\n");
    attn__text_add(&text, "memory          ");
    add_amount(&text, info.memory_fused, 1024, "B beyond inputs and outputs; the unfused path stores ");
    add_amount(&text, info.memory_native, 1024, "B of scores\n");
    attn__text_add(&text, "work            ");
    add_amount(&text, info.flop, 1000, "FLOP, ");
    add_amount(&text, info.bytes, 1024, "B in and out\n");
    attn__text_add(&text, "expected        ");
    if (info.peak_flops > 0) {
        add_seconds(&text, info.expected_seconds);
        attn__text_add(&text, ", %s-bound, at ", info.bound);
        add_amount(&text, info.peak_flops, 1000, "FLOP/s and ");
        add_amount(&text, info.peak_bytes, 1000, "B/s\n");
    } else {
        attn__text_add(&text, "unknown: no rate is assumed for %s\n", plan->impl->name);
    }
    return text.length;
}
