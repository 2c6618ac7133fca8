/* SPDX-License-Identifier: Apache-2.0
 * Contexts and the list of implementations as one context sees it. The environment is read here and nowhere else. */
#include "context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "base/error.h"
#include "base/text.h"
#include "cuda/open.h"
#include "plan/choose.h"
#include "problem/problem.h"

/* More threads than any machine has hint at a mistake, and each costs scratch. */
#define MOST_THREADS 4096

static void *allocate_default(void *user, size_t size) {
    (void)user;
    return malloc(size);
}

static void release_default(void *user, void *memory) {
    (void)user;
    free(memory);
}

void *attn__context_allocate(const attn_context *context, size_t size) {
    return context->config.allocate(context->config.allocator_user, size);
}

void attn__context_release(const attn_context *context, void *memory) {
    if (memory) {
        context->config.release(context->config.allocator_user, memory);
    }
}

void attn__context_log(const attn_context *context, attn__topic topic, const attn_problem *problem, const char *format,
                       ...) {
    char line[4096];
    const char *name = "?";
    if (!attn__context_logs(context, topic)) {
        return;
    }
    switch (topic) {
#define ATTN__CASE(id, bit, text)                                                                                      \
    case ATTN__TOPIC_##id: name = text; break;
        ATTN__TOPIC_LIST(ATTN__CASE)
#undef ATTN__CASE
    }
    attn__text text = attn__text_start(line, sizeof line);
    attn__text_add(&text, "attn,1,%s,", name);
    /* A text is at most about 2 KiB; see docs/problem-text.md. */
    text.length += attn_problem_format(problem, line + text.length, sizeof line - text.length);
    char rest[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rest, sizeof rest, format, arguments);
    va_end(arguments);
    attn__text_add(&text, ",%s", rest);
    context->config.log(context->config.log_user, line);
}

/* --- Creation --- */

static uint32_t read_topics(void) {
    const char *list = getenv("ATTN_VERBOSE");
    uint32_t topics = 0;
    while (list && *list) {
        size_t length = strcspn(list, ",");
#define ATTN__MATCH(id, bit, text)                                                                                     \
    if (length == sizeof text - 1 && memcmp(list, text, length) == 0) {                                                \
        topics |= ATTN__TOPIC_##id;                                                                                    \
    }
        ATTN__TOPIC_LIST(ATTN__MATCH)
#undef ATTN__MATCH
        list += length + (list[length] == ',');
    }
    return topics;
}

static attn_status resolve_threads(attn_context *context, attn_error *error) {
    long threads = context->config.threads;
    const char *field = "threads", *text = threads == 0 ? getenv("ATTN_THREADS") : NULL;
    if (text && *text) {
        char *end;
        field = "ATTN_THREADS";
        threads = strtol(text, &end, 10);
        if (*end || threads < 1) {
            return attn__fail(error, ATTN_ERR_INVALID, field, "is \"%.40s\", must be a number of at least 1", text);
        }
    }
    if (threads < 0 || threads > MOST_THREADS) {
        return attn__fail(error, ATTN_ERR_INVALID, field, "is %ld, must be at least 0 and at most %d", threads,
                          MOST_THREADS);
    }
    if (threads) {
        context->machine.threads = (int)threads;
    }
    context->config.threads = context->machine.threads;
    return ATTN_OK;
}

/* What the configuration says, else the environment; *field names which. */
static const char *max_isa_of(const attn_config *config, const char **field) {
    *field = config->max_isa ? "max_isa" : "ATTN_MAX_ISA";
    return config->max_isa ? config->max_isa : getenv("ATTN_MAX_ISA");
}

static attn_status resolve_limit(attn_context *context, attn_error *error) {
    const char *field, *name = max_isa_of(&context->config, &field);
    if (!name || !*name) {
        context->config.max_isa = NULL;
        return ATTN_OK;
    }
    attn_status status = attn__impl_find(attn__implementations, name, field, &context->limit, error);
    if (status) {
        return status;
    }
    uint32_t allowed = 0;
    bool reached = false;
    for (const attn__impl *const *impl = attn__implementations; *impl; impl++) {
        reached = reached || *impl == context->limit;
        allowed |= reached ? (*impl)->needs : 0;
    }
    context->machine.isa &= allowed;
    context->config.max_isa = context->limit->name;
    return ATTN_OK;
}

/* "sm_80" lowers a GPU's architecture; NULL: the text is of another kind. On the CPU it lowers nothing. */
static const char *take_arch(attn_config *config, const char **field) {
    const char *name = max_isa_of(config, field);
    if (!name || strncmp(name, "sm_", 3) != 0) {
        return NULL;
    }
    config->max_isa = "";
    return name;
}

/* ATTN_CACHE_DIR, else XDG_CACHE_HOME/attn, else HOME/.cache/attn, else none. */
static void cache_folder(const attn_config *config, char *folder, size_t size) {
    const char *own = config->cache ? config->cache : getenv("ATTN_CACHE_DIR");
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (own) {
        length = snprintf(folder, size, "%s", own);
    } else if (xdg && xdg[0] == '/') { /* its specification has relative paths ignored */
        length = snprintf(folder, size, "%s/attn", xdg);
    } else if (home && *home) {
        length = snprintf(folder, size, "%s/.cache/attn", home);
    } else {
        length = 0;
    }
    if (length <= 0 || (size_t)length >= size) {
        folder[0] = 0;
    }
}

static attn_status resolve_gpu(attn_context *context, const char *arch, const char *arch_field, attn_error *error) {
    attn_config *own = &context->config;
    attn__cuda_settings settings = {
        .device = own->device,
        .arch = arch,
        .arch_field = arch_field,
        .driver = getenv("ATTN_LIBCUDA"),
        .nvrtc = own->nvrtc ? own->nvrtc : getenv("ATTN_NVRTC"),
        .cache = context->cache,
        .kernels = own->kernels ? own->kernels : getenv("ATTN_KERNELS"),
        .kernels_field = own->kernels ? "kernels" : "ATTN_KERNELS",
        .places = {getenv("CUDA_HOME"), getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"), getenv("HOME")},
        .compile = own->options & ATTN_COMPILE,
    };
    attn_status status = attn__cuda_open(&context->cuda, context, &settings, error);
    if (status) {
        return status;
    }
    own->device = attn__cuda_name(context->cuda);
    context->gpu = attn__cuda_gpu(context->cuda);
    return ATTN_OK;
}

static attn_status resolve(attn_context *context, const attn_config *config, attn_error *error) {
    attn_status status = ATTN_OK;
    memset(context, 0, sizeof *context);
    if (config) {
        status = attn__struct_read(&context->config, sizeof context->config, config, config->struct_size, error);
        if (status) {
            return status;
        }
    }
    attn_config *own = &context->config;
    const char *arch_field, *arch = take_arch(own, &arch_field);
    own->device = own->device ? own->device : "cpu";
    cache_folder(own, context->cache, sizeof context->cache);
    if (own->options & ~(uint32_t)ATTN_COMPILE) {
        return attn__fail(error, ATTN_ERR_INVALID, "options", "is 0x%x, the only known option is ATTN_COMPILE",
                          (unsigned)own->options);
    }
    if (!own->allocate != !own->release) {
        return attn__fail(error, ATTN_ERR_INVALID, own->allocate ? "release" : "allocate",
                          "is NULL, must be set together with %s", own->allocate ? "allocate" : "release");
    }
    if (!own->allocate) {
        own->allocate = allocate_default;
        own->release = release_default;
    }
    attn__machine_detect(&context->machine);
    status = resolve_threads(context, error);
    context->topics = own->log ? read_topics() : 0;
    status = status ? status : resolve_limit(context, error);
    if (!status && strcmp(own->device, "cpu") != 0) {
        status = resolve_gpu(context, arch, arch_field, error);
    } else {
        own->device = "cpu";
    }
    own->cache = own->kernels = own->nvrtc = NULL; /* the caller's memory, read by now */
    return status;
}

attn_status attn_context_create(attn_context **out, const attn_config *config, attn_error *error) {
    attn_context draft;
    if (!out) {
        return attn__fail(error, ATTN_ERR_INVALID, "context", "is NULL");
    }
    *out = NULL;
    attn_status status = resolve(&draft, config, error);
    if (status) {
        return status;
    }
    attn_context *context = attn__context_allocate(&draft, sizeof *context);
    if (!context) {
        if (draft.cuda) {
            attn__cuda_close(draft.cuda, &draft);
        }
        return attn__fail(error, ATTN_ERR_MEMORY, "context", "%zu bytes could not be allocated", sizeof *context);
    }
    *context = draft;
    if (context->cuda) {
        attn__cuda_own(context->cuda, context);
    }
    *out = context;
    return attn__succeed(error);
}

void attn_context_destroy(attn_context *context) {
    if (context) {
        if (context->cuda) {
            attn__cuda_close(context->cuda, context);
        }
        attn__context_release(context, context);
    }
}

int attn_context_threads(const attn_context *context) {
    return context ? context->machine.threads : 0;
}

/* --- Implementations --- */

int attn_implementation_count(void) {
    int count = 0;
    while (attn__implementations[count]) {
        count++;
    }
    return count;
}

/* Static sentences, since the caller may keep them. */
static const char *reason_of(const attn_context *context, const attn__impl *impl) {
    uint32_t missing = impl->needs & ~context->machine.isa;
    if (attn__impl_limited(attn__implementations, context->limit, impl)) {
        return "better than max_isa allows";
    }
#define ATTN__REASON(id, bit, text)                                                                                    \
    if (missing & ATTN__ISA_##id) {                                                                                    \
        return "this machine lacks " text;                                                                             \
    }
    ATTN__ISA_LIST(ATTN__REASON)
#undef ATTN__REASON
    if (impl->device == ATTN__CUDA && !context->gpu) {
        return "runs on a GPU, the context is of the CPU";
    }
    if (impl->device == ATTN__CPU && context->gpu) {
        return "runs on the CPU, the context is of a GPU";
    }
    if (context->gpu && context->gpu->arch < impl->least_arch) {
        return "needs a later architecture than the device's";
    }
    return "";
}

attn_status attn_implementation_get(const attn_context *context, int index, attn_implementation *out,
                                    attn_error *error) {
    if (!context || !out) {
        return attn__fail(error, ATTN_ERR_INVALID, context ? "out" : "context", "is NULL");
    }
    int count = attn_implementation_count();
    if (index < 0 || index >= count) {
        return attn__fail(error, ATTN_ERR_INVALID, "index", "is %d, must be at least 0 and below %d", index, count);
    }
    attn_status status = attn__struct_minimum(out->struct_size, sizeof out->struct_size, error);
    if (status) {
        return status;
    }
    const attn__impl *impl = attn__implementations[index];
    attn_implementation value;
    memset(&value, 0, sizeof value); /* padding too, as it is copied out */
    value.name = impl->name;
    value.reason = reason_of(context, impl);
    value.available = value.reason[0] == 0;
    attn__struct_write(out, &value, sizeof value);
    return attn__succeed(error);
}
