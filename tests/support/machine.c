/* SPDX-License-Identifier: Apache-2.0 */
#include "support/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_THREADS 16
#define MOST_NAMES   16

static void release_contexts(void);
static attn_context *contexts[MOST_THREADS + 1];

static void give_up(const char *field, const char *message) {
    fprintf(stderr, "nothing can be tested: %s %s\n", field, message);
    exit(1);
}

attn_context *machine_context(int threads) {
    static bool registered;
    if (!registered) {
        registered = true;
        atexit(release_contexts);
    }
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

static void release_contexts(void) {
    for (int i = 0; i <= MOST_THREADS; i++) {
        attn_context_destroy(contexts[i]);
        contexts[i] = NULL;
    }
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
        if (attn_implementation_get(machine_context(2), i, &one, &error) != ATTN_OK) {
            give_up(error.field, error.message);
        }
        if (one.available && (all || !judge(one.name)) && (!only || !strcmp(only, one.name))) {
            list[found++] = one.name;
        }
    }
    list[found] = NULL;
    return list;
}

int machine_intensity(void) {
    const char *text = getenv("ATTN_TEST_INTENSITY");
    return text && *text ? atoi(text) : 1;
}

bool machine_seed(uint64_t *seed) {
    const char *text = getenv("ATTN_TEST_SEED");
    if (text && *text) {
        *seed = strtoull(text, NULL, 0);
        return true;
    }
    return false;
}

const char *machine_expected_refusal(const char *implementation, const attn_problem *problem) {
    if (!strcmp(implementation, "reference")) {
        return NULL;
    }
    if (problem->q.dtype == ATTN_F64) {
        return "q.dtype";
    }
    if (!strcmp(implementation, "native")) {
        return NULL;
    }
    if (problem->dim_qk > 576) {
        return "dim_qk";
    }
    if (problem->dim_v > 576) {
        return "dim_v";
    }
    return NULL;
}
