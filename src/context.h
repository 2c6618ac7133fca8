/* SPDX-License-Identifier: Apache-2.0
 * Where to run: the caller's configuration with environment and defaults resolved, once. Immutable afterwards, so
 * threads share it without locks; kernels of a GPU are added under a lock of their own. Strings of the configuration
 * are replaced by the library's; nothing of the caller's memory is kept except the callbacks and their user
 * pointers. */
#ifndef ATTN_CONTEXT_H
#define ATTN_CONTEXT_H

#include <stdbool.h>

#include "attn/attn.h"
#include "plan/plan.h"

/* What ATTN_VERBOSE may list: bit, name. */
#define ATTN__TOPIC_LIST(X)                                                                                            \
    X(PLAN, 0, "plan")         /* the choice a plan holds */                                                           \
    X(DISPATCH, 1, "dispatch") /* each implementation refused or chosen, with its reason */                            \
    X(EXEC, 2, "exec")         /* each run, with its time */                                                           \
    X(JIT, 3, "jit")           /* each kernel that is not in memory yet: where it came from, with its time */
typedef enum attn__topic {
#define ATTN__ENUM(name, bit, text) ATTN__TOPIC_##name = 1u << bit,
    ATTN__TOPIC_LIST(ATTN__ENUM)
#undef ATTN__ENUM
} attn__topic;

struct attn_context {
    attn_config config;
    attn__machine machine;   /* threads resolved, isa lowered to what the limit allows */
    const attn__impl *limit; /* none better in the list is used; NULL: no limit */
    uint32_t topics;         /* 0 without a log */
    char cache[1024];        /* folder of compiled kernels; "": none */
    struct attn__cuda *cuda; /* "cuda" and "gpu:..." contexts; NULL on the CPU */
    const attn__gpu *gpu;    /* its facts; NULL on the CPU */
};

void *attn__context_allocate(const attn_context *context, size_t size);
void attn__context_release(const attn_context *context, void *memory); /* memory may be NULL */

static inline bool attn__context_logs(const attn_context *context, attn__topic topic) {
    return context->topics & topic;
}
/* One line to the log if the topic is listed: "attn,1,<topic>,<problem text>,<what format makes>". */
void attn__context_log(const attn_context *context, attn__topic topic, const attn_problem *problem, const char *format,
                       ...) __attribute__((format(printf, 4, 5)));

#endif
