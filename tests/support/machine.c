/* SPDX-License-Identifier: Apache-2.0 */
#include "support/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn_device.h"
#include "context.h"
#include "plan/support.h"
#include "problem/problem.h"

#define MOST_THREADS 16
#define MOST_NAMES   16
#define SKIPPED      77

static void release_contexts(void);
static attn_context *contexts[MOST_THREADS + 1], *device;

static void give_up(const char *field, const char *message) {
    fprintf(stderr, "nothing can be tested: %s %s\n", field, message);
    exit(1);
}

static void release_at_exit(void) {
    static bool registered;
    if (!registered) {
        registered = true;
        atexit(release_contexts);
    }
}

attn_context *machine_context(int threads) {
    release_at_exit();
    if (threads < 1 || threads > MOST_THREADS) {
        give_up("threads", "out of range");
    }
    if (!contexts[threads]) {
        attn_config config = {.struct_size = sizeof config, .threads = threads};
        attn_error error;
        if (attn_context_create(&contexts[threads], &config, &error) != ATTN_OK) {
            give_up(error.field, error.message);
        }
    }
    return contexts[threads];
}

static const char *device_name(void) {
    const char *name = getenv("ATTN_TEST_DEVICE");
    return name && *name ? name : NULL;
}

attn_context *machine_device(void) {
    const char *limit = getenv("ATTN_TEST_MAX_ISA");
    attn_config config = {.struct_size = sizeof config, .device = device_name()};
    attn_error error;
    if (device || !config.device) {
        return device;
    }
    release_at_exit();
    config.max_isa = limit && *limit ? limit : NULL;
    config.options = machine_rehearses() ? ATTN_COMPILE : 0;
    if (attn_context_create(&device, &config, &error) != ATTN_OK) {
        if (error.status == ATTN_ERR_DEVICE) {
            printf("skipped: %s: %s %s\n", config.device, error.field, error.message);
            exit(SKIPPED);
        }
        give_up(error.field, error.message);
    }
    return device;
}

bool machine_rehearses(void) {
    return device_name() && !strncmp(device_name(), "gpu:", 4);
}

bool machine_lacks_gpu(void) {
    bool lacks = !machine_device() || machine_rehearses();
    if (lacks) {
        printf("skipped: ATTN_TEST_DEVICE names no device\n");
    }
    return lacks;
}

bool machine_is_device(const char *implementation) {
    if (!device_name()) {
        return false;
    }
    for (int i = 0; i < attn_implementation_count() && implementation; i++) {
        attn_implementation one = {.struct_size = sizeof one};
        attn_error error;
        if (attn_implementation_get(machine_device(), i, &one, &error) != ATTN_OK) {
            give_up(error.field, error.message);
        }
        if (!strcmp(one.name, implementation)) {
            return one.available;
        }
    }
    return !implementation;
}

attn_context *machine_context_of(const char *implementation, int threads) {
    return machine_is_device(implementation) ? machine_device() : machine_context(threads);
}

static void release_contexts(void) {
    for (int i = 0; i <= MOST_THREADS; i++) {
        attn_context_destroy(contexts[i]);
        contexts[i] = NULL;
    }
    attn_context_destroy(device);
    device = NULL;
}

static bool judge(const char *name) {
    return !strcmp(name, "native") || !strcmp(name, "reference");
}

const char *const *machine_implementations(bool all) {
    static const char *names[2][MOST_NAMES + 1];
    const char **list = names[all];
    const char *only = getenv("ATTN_TEST_IMPL");
    int found = 0;
    for (int i = 0; i < attn_implementation_count() && found < MOST_NAMES; i++) {
        attn_implementation one = {.struct_size = sizeof one};
        attn_error error;
        if (attn_implementation_get(device_name() ? machine_device() : machine_context(2), i, &one, &error) !=
            ATTN_OK) {
            give_up(error.field, error.message);
        }
        if (one.available && (all || !judge(one.name)) && (!only || !*only || !strcmp(only, one.name))) {
            list[found++] = one.name;
        }
    }
    list[found] = NULL;
    return list;
}

int machine_intensity(void) {
    const char *text = getenv("ATTN_TEST_INTENSITY"), *limit = getenv("ATTN_TEST_MAX_ISA");
    int level = text && *text ? atoi(text) : 1;
    return limit && *limit ? level - 1 : level;
}

bool machine_seed(uint64_t *seed) {
    const char *text = getenv("ATTN_TEST_SEED");
    if (text && *text) {
        *seed = strtoull(text, NULL, 0);
        return true;
    }
    return false;
}

bool machine_shard(uint64_t n) {
    const char *text = getenv("ATTN_TEST_SHARD");
    unsigned long long mine = 0, of = 1;
    if (text && *text && (sscanf(text, "%llu/%llu", &mine, &of) != 2 || of == 0)) {
        give_up("ATTN_TEST_SHARD", text);
    }
    return n % of == mine;
}

bool machine_sharded(void) {
    const char *text = getenv("ATTN_TEST_SHARD");
    return text && *text;
}

static bool tensor_cores(const char *implementation) {
    return implementation && !strcmp(implementation, "mma");
}

uint32_t machine_allowed(const char *implementation, const attn_problem *problem) {
    return tensor_cores(implementation) && problem->q.dtype == ATTN_F32 ? ATTN_ALLOW_TF32 : 0;
}

bool machine_rounds(const char *implementation, const attn_problem *problem) {
    attn_dtype dout = problem->dout.dtype ? problem->dout.dtype
                      : problem->o.dtype  ? problem->o.dtype
                                          : problem->q.dtype;
    bool chosen = !implementation && machine_device(); /* may be the tensor cores' */
    uint32_t flags = problem->flags | machine_allowed(implementation, problem);
    return problem->q.dtype == ATTN_F32 ? flags & ATTN_ALLOW_TF32
                                        : dout == ATTN_F32 && (chosen || tensor_cores(implementation));
}

static int device_arch(void) {
    attn_device_info info = {.struct_size = sizeof info};
    attn_error error;
    if (attn_device_query(machine_device(), &info, &error) != ATTN_OK) {
        give_up(error.field, error.message);
    }
    return info.arch;
}

int64_t machine_widest(const char *implementation, attn_pass pass, bool values) {
    static const struct {
        const char *name;
        int64_t qk, v;
    } widest[] = {{"ffma", 576, 576},
                  {"hopper", 256, 256},
                  {"native", INT64_MAX, INT64_MAX},
                  {"cuda_native", INT64_MAX, INT64_MAX}};
    if (tensor_cores(implementation)) {
        return pass == ATTN_BACKWARD ? 256 : values ? 512 : 576;
    }
    for (size_t n = 0; n < sizeof widest / sizeof *widest; n++) {
        if (!strcmp(implementation, widest[n].name)) {
            return values ? widest[n].v : widest[n].qk;
        }
    }
    return 576; /* of the CPU's */
}

bool machine_may_refuse(const char *implementation, const attn_problem *problem, const char *field) {
    bool mma = implementation && !strcmp(implementation, "mma"), wide = problem->dim_qk > 160 || problem->dim_v > 160;
    int arch = mma && wide ? device_arch() : 0;
    return arch && arch != 80 && arch != 90 && arch != 100 && !strcmp(field, "dim_qk");
}

/* By the library's own table of rules, which tests/plan/test_support.c holds to what it says: they are many, and of
 * layouts too. What refuses beyond the table fails. An unsound problem is for the library to find out. */
static const char *refusal_of_hopper(const attn_problem *problem) {
    attn_problem p;
    attn_error error;
    char value[64];
    if (attn__problem_canonical(problem, &p, &error) != ATTN_OK) {
        return NULL;
    }
    for (const attn__rule *rule = attn__rules; rule->backend; rule++) {
        if (!strcmp(rule->backend, "hopper") && rule->broken(&p, machine_device()->gpu, value, sizeof value)) {
            return rule->field;
        }
    }
    return NULL;
}

const char *machine_expected_refusal(const char *implementation, const attn_problem *problem) {
    bool mma = !strcmp(implementation, "mma");
    if (!strcmp(implementation, "reference")) {
        return NULL;
    }
    if (!strcmp(implementation, "hopper")) {
        return refusal_of_hopper(problem);
    }
    if (problem->q.dtype == ATTN_F64 || (mma && problem->q.dtype != ATTN_F16 && device_arch() < 80)) {
        return "q.dtype";
    }
    return problem->dim_qk > machine_widest(implementation, problem->pass, false) ? "dim_qk"
           : problem->dim_v > machine_widest(implementation, problem->pass, true) ? "dim_v"
                                                                                  : NULL;
}
