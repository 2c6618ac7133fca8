/* SPDX-License-Identifier: Apache-2.0
 * Every kind of kernel compiles for every architecture, and none spills registers or keeps anything in local memory,
 * but for a short list with reasons, nor has warp-group products that wait for one another. Needs NVRTC and no GPU:
 * contexts of known GPUs compile what plans on them would run.
 *
 * The list holds problem texts; "%s" is the 16-bit type, bf16 where the architecture has it. A kernel takes NVRTC one
 * to five seconds, so at the usual intensity a part of the list is compiled, each text for one architecture, in turn;
 * at intensity 2 the whole list in turn, from 3 on all for all. ATTN_TEST_SHARD shares it out, ATTN_TEST_IMPL picks one
 * implementation. */
#include "problem/unit.h"

#include <stdlib.h>
#include <time.h>

#include "attn/attn_device.h"
#include "cuda/device.h"
#include "support/machine.h"

static const struct gpu {
    const char *device;
    int arch;
} gpus[] = {{"gpu:t4", 75},   {"gpu:a100", 80},  {"gpu:a10", 86},     {"gpu:l4", 89},
            {"gpu:h100", 90}, {"gpu:b200", 100}, {"gpu:rtx5090", 120}};
enum { GPUS = sizeof gpus / sizeof gpus[0] };

/* FWD, BWD: passes to compile; their bit in USUAL: also at the usual intensity. */
enum { FWD = 1, BWD = 2, BOTH = 3 };
#define USUAL(passes) ((passes) << 2)
#define SIZES         "b2:hq8:hk2:sq300:skv400"
#define EVERYTHING                                                                                                     \
    "packed_q=500:packed_kv=700:window=64,0:globals=4:softcap=30:dropout=0.1:bias=f32:mask=u8:alibi=f32:sink=f32"
static const struct variant {
    const char *impl, *text; /* behind the pass */
    int kind;
} variants[] = {
    /* Head sizes. */
    {"mma", "%s:" SIZES ":d64", BOTH},
    {"mma", "%s:" SIZES ":d64:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d128", BOTH | USUAL(BWD)},
    {"mma", "%s:" SIZES ":d128:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d256", BOTH | USUAL(BWD)},
    {"mma", "%s:" SIZES ":d256:causal", BOTH},
    {"mma", "%s:" SIZES ":d80:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":dqk192:dv128:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d1", BOTH},
    {"mma", "f16:" SIZES ":d128:causal", BOTH},
    {"mma", "f16:" SIZES ":d256", BOTH},
    /* tf32 */
    {"mma", "f32:" SIZES ":d64:causal:tf32", BOTH | USUAL(BWD)},
    {"mma", "f32:" SIZES ":d128:tf32", BOTH | USUAL(FWD)},
    {"mma", "f32:" SIZES ":d256:tf32", BOTH},
    /* Few rows and many keys. */
    {"mma", "%s:b1:hq32:hk8:sq1:skv32768:d128", FWD | USUAL(FWD)},
    {"mma", "%s:b1:hq32:hk8:sq1:skv32768:d64:used_kv", FWD},
    /* Features, one by one and together. */
    {"mma", "%s:" SIZES ":d128:window=100,0:globals=4", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d128:packed_q=500:packed_kv=700:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d128:segments_q=600,4:segments_kv=800,4:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d128:used_q:used_kv", BOTH},
    {"mma", "%s:" SIZES ":d128:softcap=30:causal", BOTH},
    {"mma", "%s:" SIZES ":d128:alibi=f32:causal", BOTH},
    {"mma", "%s:" SIZES ":d128:bias=f32", BOTH | USUAL(BWD)},
    {"mma", "%s:" SIZES ":d64:bias=%s", BOTH},
    {"mma", "%s:" SIZES ":d128:mask=u8", BOTH},
    {"mma", "%s:" SIZES ":d128:sink=f32", BOTH},
    {"mma", "%s:" SIZES ":d128:dropout=0.1:causal", BOTH | USUAL(FWD)},
    {"mma", "%s:" SIZES ":d128:scale=-0.5", BOTH},
    {"mma", "%s:" SIZES ":d128:o=f32", FWD},
    {"mma", "%s:" SIZES ":d128:causal:deterministic", BWD | USUAL(BWD)},
    {"mma", "%s:" SIZES ":d128:dq=f32:dk=f32:dv=f32", BWD},
    {"mma", "%s:" SIZES ":d128:" EVERYTHING, BOTH | USUAL(BOTH)},
    /* Hopper's own, for sm_90 alone. */
    {"hopper", "%s:" SIZES ":d64", BWD},
    {"hopper", "%s:" SIZES ":d64:causal", BWD},
    {"hopper", "%s:" SIZES ":d128", BWD},
    {"hopper", "%s:" SIZES ":d128:causal", BWD | USUAL(BWD)},
    {"hopper", "f16:" SIZES ":d80:causal", BWD},
    {"hopper", "%s:" SIZES ":d128:window=100,50:globals=4:packed_q=500:packed_kv=700:sink=f32", BWD},
    {"hopper", "%s:" SIZES ":d64:segments_q=600,4:segments_kv=800,4:causal:dq=f32:dk=f32:dv=f32", BWD},
    {"hopper", "%s:" SIZES ":d256", BWD},
    {"hopper", "%s:" SIZES ":d256:causal", BWD | USUAL(BWD)},
    {"hopper", "f16:" SIZES ":dqk192:dv128:causal", BWD},
    {"hopper", "%s:" SIZES ":d136:window=100,50:globals=4:packed_q=500:packed_kv=700:sink=f32", BWD},
    {"hopper", "%s:" SIZES ":d256:segments_q=600,4:segments_kv=800,4:causal:dq=f32:dk=f32:dv=f32", BWD},
    {"hopper", "%s:" SIZES ":d64:deterministic", BWD | USUAL(BWD)},
    {"hopper", "%s:" SIZES ":d128:causal:deterministic", BWD},
    {"hopper", "f16:" SIZES ":d128:window=100,50:globals=4:packed_q=500:packed_kv=700:deterministic", BWD},
    {"hopper", "%s:" SIZES ":d64:segments_q=600,4:segments_kv=800,4:causal:deterministic", BWD},
    {"hopper", "%s:" SIZES ":d256:causal:deterministic", BWD},
    {"hopper", "%s:" SIZES ":d64:causal", FWD | USUAL(FWD)},
    {"hopper", "%s:" SIZES ":d128", FWD},
    {"hopper", "%s:" SIZES ":d128:causal", FWD},
    {"hopper", "%s:" SIZES ":d256:causal", FWD},
    {"hopper", "f16:" SIZES ":dqk192:dv128", FWD},
    {"hopper", "%s:" SIZES ":d128:packed_q=500:packed_kv=700:window=64,0:globals=4:softcap=30:sink=f32", FWD},
    /* Float32 products. */
    {"ffma", "f32:" SIZES ":d64:causal", BOTH | USUAL(BOTH)},
    {"ffma", "f32:" SIZES ":d128", BOTH | USUAL(BWD)},
    {"ffma", "f32:" SIZES ":d80", BOTH},
    {"ffma", "f32:" SIZES ":dqk192:dv128", BOTH},
    {"ffma", "f32:" SIZES ":d256", BOTH},
    {"ffma", "f32:" SIZES ":dqk576:dv512", BOTH},
    {"ffma", "%s:" SIZES ":d128:causal", BOTH},
    {"ffma", "f16:" SIZES ":d64", BOTH},
    {"ffma", "f32:b1:hq32:hk8:sq1:skv32768:d128", FWD},
    {"ffma", "f32:" SIZES ":d128:" EVERYTHING, BOTH | USUAL(BOTH)},
    {"cuda_native", "f32:" SIZES ":d128:causal", BOTH},
    {"cuda_native", "%s:" SIZES ":d64", BOTH | USUAL(BOTH)},
    {"cuda_native", "f16:" SIZES ":d128:" EVERYTHING, BOTH | USUAL(BWD)},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* Kernels that may keep something in local memory: parts of the name, most bytes of a thread's stack. The first row
 * that fits counts. */
static const struct allowance {
    const char *part, *other;
    int bytes;
    const char *why;
} allowances[] = {
    {"attn_bwd_hopper_", "", 256, "the loading warp, which waits most of the time, has 24 registers"},
    {"attn_bwd_", "_segments", 144, "a walk over lists of runs holds both sides' places beside a full tile"},
    {"attn_fwd_hopper_", "", 256, "outside the loop over blocks: places of tiles, and rows that are computed again"},
    {"attn_fwd_", "", 64, "tiles are as large as registers allow: a few addresses wait in local memory"},
    {"attn_bwd_", "", 96, "tiles are as large as registers allow: a few addresses wait in local memory"},
    {"attn_native_", "", 24, "a wide product keeps addresses in local memory"},
    {"attn_dq_", "", 16, "a division, or a list of runs that is walked, to find where a slot lies"},
    {NULL, NULL, 0, NULL},
};

static int allowed_bytes(const char *name) {
    for (const struct allowance *a = allowances; a->part; a++) {
        if (strstr(name, a->part) && strstr(name, a->other)) {
            return a->bytes;
        }
    }
    return 0;
}

typedef struct tally {
    int plans, refused, kernels, bad, most_registers;
} tally;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Kernels that the context has compiled since `before` was its first. */
static void look(const attn_context *context, const attn__cuda_kernel *before, int arch, const char *text, tally *t) {
    for (const attn__cuda_kernel *k = context->cuda->kernels; k && k != before; k = k->next) {
        const attn__code *code = &k->code;
        t->kernels++;
        t->most_registers = code->registers > t->most_registers ? code->registers : t->most_registers;
        bool told = code->registers > 0 && code->stack_bytes >= 0 && code->spill_bytes >= 0;
        if (!told || code->stack_bytes > allowed_bytes(k->kernel.name)) {
            printf("sm_%d %s: %d registers, %d bytes of stack, %d of spills (%s)\n", arch, k->kernel.name,
                   code->registers, code->stack_bytes, code->spill_bytes, text);
            t->bad++;
        }
        if (code->serialized) {
            printf("sm_%d %s: its warp-group products are serialized (%s)\n", arch, k->kernel.name, text);
            t->bad++;
        }
    }
}

static void compile(const attn_context *context, const struct variant *v, const char *pass, int arch, tally *t) {
    const char *half = arch < 80 ? "f16" : "bf16";
    char tail[256], text[300];
    attn_problem p;
    attn_plan *plan;
    attn_error error;
    const attn_hints hints = {.struct_size = sizeof hints, .implementation = v->impl};
    const attn__cuda_kernel *before = context->cuda->kernels;
    snprintf(tail, sizeof tail, v->text, half, half);
    snprintf(text, sizeof text, "%s:%s", pass, tail);
    attn_status status = attn_problem_parse(&p, text, &error);
    status = status ? status : attn_plan_create(&plan, context, &p, &hints, &error);
    t->plans++;
    if (status == ATTN_ERR_UNSUPPORTED && strstr(text, ":d256") && strstr(error.message, "shared memory a block")) {
        t->refused++; /* docs/support.md says so; ffma runs it */
        return;
    }
    if (status) {
        printf("sm_%d %s: %s: %s %s\n", arch, text, attn_status_name(status), error.field, error.message);
        t->bad++;
        return;
    }
    look(context, before, arch, text, t);
    attn_plan_destroy(plan);
}

/* The kernels that measure a device; without one they are compiled, and that is all. */
static void compile_ceilings(const attn_context *context, int arch, tally *t) {
    attn_device_rates rates = {.struct_size = sizeof rates};
    attn_error error;
    const attn__cuda_kernel *before = context->cuda->kernels;
    attn_status status = attn_device_measure(context, &rates, &error);
    if (status != ATTN_ERR_DEVICE || !strstr(error.message, "cannot be measured")) {
        printf("sm_%d ceilings: %s: %s %s\n", arch, attn_status_name(status), error.field, error.message);
        t->bad++;
    }
    look(context, before, arch, "ceilings", t);
}

/* The one GPU of a variant's pass at the usual intensity; tf32 begins with sm_80, hopper is sm_90's. */
static bool exists(const struct variant *v, int gpu) {
    return (gpus[gpu].arch >= 80 || !strstr(v->text, ":tf32")) &&
           (gpus[gpu].arch == 90 || strcmp(v->impl, "hopper") != 0);
}

static int turn_of(int variant, int pass) {
    int turn = (2 * variant + pass) % GPUS;
    while (!exists(&variants[variant], turn)) {
        turn = (turn + 1) % GPUS;
    }
    return turn;
}

static void test_compile(void **state) {
    (void)state;
    tally t = {0};
    const int intensity = machine_intensity();
    uint64_t at = 0;
    const char *wish = getenv("ATTN_TEST_IMPL"), *only = wish && *wish ? wish : NULL;
    double start = now();
    for (int g = 0; g < GPUS; g++) {
        attn_context *context;
        attn_error error;
        const attn_config config = {
            .struct_size = sizeof config, .device = gpus[g].device, .cache = "", .options = ATTN_COMPILE};
        expect_success(attn_context_create(&context, &config, &error), &error);
        if (!context->cuda->nvrtc.library) {
            printf("skipped: NVRTC %s (scripts/setup.sh test brings it)\n", context->cuda->nvrtc.why);
            attn_context_destroy(context);
            skip();
        }
        for (int n = 0; n < VARIANTS; n++) {
            for (int pass = 0; pass < 2; pass++) {
                const struct variant *v = &variants[n];
                const int bit = pass ? BWD : FWD;
                bool wanted = (!only || strcmp(only, v->impl) == 0) && v->kind & (intensity < 2 ? USUAL(bit) : bit) &&
                              exists(v, g);
                wanted = wanted && (intensity >= 3 || turn_of(n, pass) == g);
                if (wanted && machine_shard(at++)) {
                    compile(context, v, pass ? "bwd" : "fwd", gpus[g].arch, &t);
                }
            }
        }
        if (!only && (g == 0 || intensity > 1)) {
            compile_ceilings(context, gpus[g].arch, &t);
        }
        attn_context_destroy(context);
    }
    printf("%d plans (%d refused), %d kernels in %.0f s, at most %d registers, %d bad\n", t.plans, t.refused, t.kernels,
           now() - start, t.most_registers, t.bad);
    assert_int_equal(t.bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
