/* SPDX-License-Identifier: Apache-2.0
 * The table of known GPUs. Rates decide expected times only, never results.
 *
 * Where the figures come from
 *   - processors, L2, memory and its rate: the vendor's data sheets and architecture papers of each product.
 *   - hertz: the boost clock of the data sheet, since its peak rates are counted at that clock; h100, h200 and b200 at
 *     what they hold under matrix products, below their boost clock of 1.98 GHz.
 *   - shared memory and registers: the limits of the compute capability in the CUDA C++ programming guide; a block may
 *     ask for 1 KiB less than the processor has from sm_80 on.
 *   - FLOP a cycle and processor: published dense peak / (processors * hertz), products of f16 with float32 sums. On
 *     consumer boards (rtx4090, rtx5090) those run at half the rate of float16 sums. On sm_90 warp-wide mma.sync
 *     reaches 62 % of what warp-group instructions do (arXiv 2402.13499), so 2560 of 4096 stand here, and 4096 for
 *     those; on sm_100 it runs at the rate of sm_80, which no data sheet states. */
#include "plan/gpu.h"

#include <ctype.h>
#include <string.h>

#define KIB(n) ((int64_t)(n)*1024)
#define MIB(n) ((int64_t)(n)*1024 * 1024)
#define GB(n)  ((int64_t)(n)*1000000000)

const attn__gpu attn__gpus[ATTN__GPUS] = {
    /* name, arch, processors, shared a block and processor, registers, L2, memory, hertz, bytes/s, FLOP/cycle (4) */
    {"t4", 75, 40, KIB(64), KIB(64), 65536, MIB(4), GB(16), 1.59e9, 320e9, 128, 1024, 0, 0},
    {"rtx8000", 75, 72, KIB(64), KIB(64), 65536, MIB(6), GB(48), 1.77e9, 672e9, 128, 1024, 0, 0},
    {"a100", 80, 108, KIB(163), KIB(164), 65536, MIB(40), GB(80), 1.41e9, 2039e9, 128, 2048, 1024, 0}, /* SXM, 80 GB */
    {"a100-40gb", 80, 108, KIB(163), KIB(164), 65536, MIB(40), GB(40), 1.41e9, 1555e9, 128, 2048, 1024, 0},
    {"a10", 86, 72, KIB(99), KIB(100), 65536, MIB(6), GB(24), 1.695e9, 600e9, 256, 1024, 512, 0},
    {"l4", 89, 58, KIB(99), KIB(100), 65536, MIB(48), GB(24), 2.04e9, 300e9, 256, 1024, 512, 0},
    {"rtx4090", 89, 128, KIB(99), KIB(100), 65536, MIB(72), GB(24), 2.52e9, 1008e9, 256, 512, 256, 0},
    {"h100", 90, 132, KIB(227), KIB(228), 65536, MIB(50), GB(80), 1.755e9, 3350e9, 256, 2560, 1280, 4096}, /* SXM */
    {"h200", 90, 132, KIB(227), KIB(228), 65536, MIB(50), GB(141), 1.755e9, 4800e9, 256, 2560, 1280, 4096},
    {"b200", 100, 148, KIB(227), KIB(228), 65536, MIB(126), GB(180), 1.85e9, 8000e9, 256, 2048, 1024, 0},
    {"rtx5090", 120, 170, KIB(99), KIB(100), 65536, MIB(96), GB(32), 2.407e9, 1792e9, 256, 512, 256, 0},
};

/* Limits that the architecture alone sets: bytes of shared memory; threads and blocks of a processor; bytes of shared
 * memory that each block takes beside its own. */
static const struct limits {
    int arch;
    int64_t shared_block, shared_processor;
    int threads, blocks, reserved;
} limits[] = {
    {75, KIB(64), KIB(64), 1024, 16, 0},      {80, KIB(163), KIB(164), 2048, 32, 1024},
    {86, KIB(99), KIB(100), 1536, 16, 1024},  {89, KIB(99), KIB(100), 1536, 24, 1024},
    {90, KIB(227), KIB(228), 2048, 32, 1024}, {100, KIB(227), KIB(228), 2048, 32, 1024},
    {120, KIB(99), KIB(100), 1536, 24, 1024},
};
enum { LIMITS = sizeof limits / sizeof limits[0] };

static bool same(const char *a, const char *b) {
    while (*a && tolower((unsigned char)*a) == tolower((unsigned char)*b)) {
        a++;
        b++;
    }
    return tolower((unsigned char)*a) == tolower((unsigned char)*b);
}

/* Does the driver's name ("NVIDIA GeForce RTX 4090") hold the row's ("rtx4090"), blanks aside? */
static bool holds(const char *name, const char *row) {
    for (; *name; name++) {
        const char *at = name, *want = row;
        while (*at && *want) {
            if (*at == ' ') {
                at++;
            } else if (tolower((unsigned char)*at) == *want) {
                at++;
                want++;
            } else {
                break;
            }
        }
        if (!*want && !isalnum((unsigned char)*at)) {
            return true;
        }
    }
    return false;
}

const attn__gpu *attn__gpu_find(const char *name) {
    for (int n = 0; n < ATTN__GPUS; n++) {
        if (same(name, attn__gpus[n].name)) {
            return &attn__gpus[n];
        }
    }
    return NULL;
}

static const attn__gpu *row_like(const attn__gpu *gpu) {
    const attn__gpu *older = &attn__gpus[0];
    for (int n = 0; n < ATTN__GPUS; n++) {
        if (holds(gpu->name, attn__gpus[n].name)) {
            return &attn__gpus[n];
        }
    }
    for (int n = 0; n < ATTN__GPUS; n++) {
        if (attn__gpus[n].arch == gpu->arch) {
            return &attn__gpus[n];
        }
        older = attn__gpus[n].arch < gpu->arch ? &attn__gpus[n] : older;
    }
    return older;
}

void attn__gpu_complete(attn__gpu *gpu) {
    const attn__gpu *row = row_like(gpu);
    gpu->fma_cycle = row->fma_cycle;
    gpu->mma_cycle = row->mma_cycle;
    gpu->mma_tf32_cycle = row->mma_tf32_cycle;
    gpu->wgmma_cycle = row->wgmma_cycle;
    gpu->hertz = gpu->hertz > 0 ? gpu->hertz : row->hertz;
    gpu->memory_rate = gpu->memory_rate > 0 ? gpu->memory_rate : row->memory_rate;
}

int attn__gpu_arch(int arch) {
    int known = 0;
    for (int n = 0; n < LIMITS; n++) {
        known = limits[n].arch <= arch ? limits[n].arch : known;
    }
    return known;
}

int attn__gpu_blocks(const attn__gpu *gpu, int threads, size_t shared) {
    int blocks = 0;
    for (int n = 0; n < LIMITS; n++) {
        if (limits[n].arch == gpu->arch) {
            int by_threads = threads > 0 ? limits[n].threads / threads : limits[n].blocks;
            size_t each = shared + (size_t)limits[n].reserved;
            blocks = by_threads < limits[n].blocks ? by_threads : limits[n].blocks;
            if (each > 0 && (size_t)gpu->shared_processor / each < (size_t)blocks) {
                blocks = (int)((size_t)gpu->shared_processor / each);
            }
        }
    }
    return blocks;
}

void attn__gpu_lower(attn__gpu *gpu, int arch) {
    for (int n = 0; n < LIMITS; n++) {
        if (limits[n].arch == arch) {
            gpu->arch = arch;
            gpu->shared_block = gpu->shared_block < limits[n].shared_block ? gpu->shared_block : limits[n].shared_block;
            gpu->shared_processor =
                gpu->shared_processor < limits[n].shared_processor ? gpu->shared_processor : limits[n].shared_processor;
            gpu->mma_tf32_cycle = arch < 80 ? 0 : gpu->mma_tf32_cycle;
            gpu->wgmma_cycle = arch == 90 ? gpu->wgmma_cycle : 0;
        }
    }
}
