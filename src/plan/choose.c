/* SPDX-License-Identifier: Apache-2.0
 * Walks the implementations best first; the first that neither limit, machine, rules nor its own preparation refuse
 * is the plan's. Every refusal is kept as a sentence. */
#include "plan/choose.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "problem/problem.h"

/* Implementations that some builds have, others not: one for each instruction set, by its name. */
#define ATTN__NAME(name, bit, text) text,
static const char *const cpu_names[] = {ATTN__ISA_LIST(ATTN__NAME) NULL};
#undef ATTN__NAME

attn_status attn__impl_find(const attn__impl *const *list, const char *name, const char *field, const attn__impl **impl,
                            attn_error *error) {
    char known[160];
    attn__text text = attn__text_start(known, sizeof known);
    for (int n = 0; list[n]; n++) {
        if (strcmp(list[n]->name, name) == 0) {
            *impl = list[n];
            return ATTN_OK;
        }
        attn__text_add(&text, "%s%s", n ? ", " : "", list[n]->name);
    }
    for (int n = 0; cpu_names[n]; n++) {
        if (strcmp(cpu_names[n], name) == 0) {
            return attn__fail(error, ATTN_ERR_DEVICE, field, "is %s, which is not in this build; it has %s", name,
                              known);
        }
    }
    return attn__fail(error, ATTN_ERR_INVALID, field, "is \"%.40s\", must be one of %s", name, known);
}

bool attn__impl_limited(const attn__impl *const *list, const attn__impl *limit, const attn__impl *impl) {
    for (int n = 0; limit && list[n] && list[n] != limit; n++) {
        if (list[n] == impl) {
            return true;
        }
    }
    return false;
}

attn_status attn__hints_read(const attn_hints *hints, attn_hints *out, attn_error *error) {
    memset(out, 0, sizeof *out);
    if (!hints) {
        return ATTN_OK;
    }
    attn_status status = attn__struct_read(out, sizeof *out, hints, hints->struct_size, error);
    if (status) {
        return status;
    }
    const char *names[4] = {"hints.block_q", "hints.block_kv", "hints.splits", "hints.stages"};
    int64_t values[4] = {out->block_q, out->block_kv, out->splits, out->stages};
    for (int n = 0; n < 4; n++) {
        if (values[n] < 0 || values[n] > ATTN__MAX_TOKENS) {
            return attn__fail(error, ATTN_ERR_INVALID, names[n],
                              "is %" PRId64 ", must be at least 0 (chosen) and at most %" PRId64, values[n],
                              ATTN__MAX_TOKENS);
        }
    }
    if ((uint32_t)out->tensor_cores > ATTN_TENSOR_CORES_ON) {
        return attn__fail(error, ATTN_ERR_INVALID, "hints.tensor_cores", "is %d, must be 0 (chosen), 1 (off) or 2 (on)",
                          (int)out->tensor_cores);
    }
    return ATTN_OK;
}

/* A refusal before it becomes text: `of_problem` tells those that another problem would not meet, `of_machine` those
 * that another CPU would not. */
typedef struct verdict {
    bool refused, of_problem, of_machine;
    char field[28], reason[128];
} verdict;

static const char *isa_name(uint32_t bits) {
#define ATTN__NAME(name, bit, text)                                                                                    \
    if (bits & ATTN__ISA_##name) {                                                                                     \
        return text;                                                                                                   \
    }
    ATTN__ISA_LIST(ATTN__NAME)
#undef ATTN__NAME
    return "?";
}

static bool runs_by_itself(const attn__impl *impl, const attn_problem *problem) {
    return impl->automatic == ATTN__AUTOMATIC || (impl->automatic == ATTN__FOR_F64 && problem->q.dtype == ATTN_F64);
}

static void refuse(verdict *v, bool of_problem, const char *field, const char *reason) {
    v->refused = true;
    v->of_problem = of_problem;
    snprintf(v->field, sizeof v->field, "%s", field);
    snprintf(v->reason, sizeof v->reason, "%s", reason);
}

/* Everything but preparation. */
static void judge(const attn_plan *plan, const attn__impl *const *list, const attn__impl *limit,
                  const attn__impl *named, const attn__impl *impl, verdict *v) {
    uint32_t missing = impl->needs & ~plan->machine.isa;
    char text[128];
    if (named && impl != named) {
        snprintf(text, sizeof text, "hints.implementation is %s", named->name);
        refuse(v, false, "", text);
    } else if (impl->device != (plan->gpu ? ATTN__CUDA : ATTN__CPU)) {
        refuse(v, false, "",
               plan->gpu ? "runs on the CPU, the context is of a GPU" : "runs on a GPU, the context is of the CPU");
    } else if (plan->gpu && plan->gpu->arch < impl->least_arch) {
        snprintf(text, sizeof text, "needs sm_%d, the device is sm_%d", impl->least_arch, plan->gpu->arch);
        refuse(v, false, "", text);
    } else if (plan->gpu && impl->tensor_cores && plan->hints.tensor_cores == ATTN_TENSOR_CORES_OFF) {
        refuse(v, false, "", "hints.tensor_cores is off");
    } else if (plan->gpu && !impl->tensor_cores && plan->hints.tensor_cores == ATTN_TENSOR_CORES_ON) {
        refuse(v, false, "", "hints.tensor_cores is on, it uses none");
    } else if (attn__impl_limited(list, limit, impl)) {
        snprintf(text, sizeof text, "max_isa is %s", limit->name);
        refuse(v, false, "", text);
    } else if (missing) {
        snprintf(text, sizeof text, "this machine lacks %s", isa_name(missing));
        refuse(v, false, "", text);
        v->of_machine = true;
    } else if (!named && !runs_by_itself(impl, &plan->problem)) {
        refuse(v, false, "", "runs only when hints.implementation names it");
    } else if (!(plan->problem.pass == ATTN_BACKWARD ? impl->backward : impl->forward)) {
        refuse(v, true, "pass",
               plan->problem.pass == ATTN_BACKWARD ? "is backward, must be forward" : "is forward, must be backward");
    } else {
        v->of_problem = true;
        v->refused = !attn__support_accepts(impl, &plan->problem, plan->gpu, v->field, sizeof v->field, v->reason,
                                            sizeof v->reason);
    }
}

static attn_status prepare(attn_plan *plan, const attn__impl *impl, verdict *v, attn_error *error) {
    attn_error own;
    memset(&plan->choice, 0, sizeof plan->choice);
    memset(&plan->gpu_choice, 0, sizeof plan->gpu_choice);
    plan->workspace = 0;
    plan->impl = impl;
    attn_status status = impl->prepare(plan, &own);
    if (status == ATTN_OK) {
        return ATTN_OK;
    }
    plan->impl = NULL;
    if (status != ATTN_ERR_UNSUPPORTED) {
        return attn__fail(error, status, own.field, "%s", own.message);
    }
    v->of_problem = v->refused = true;
    snprintf(v->field, sizeof v->field, "%s", own.field);
    snprintf(v->reason, sizeof v->reason, "%.*s", (int)sizeof v->reason - 1, own.message);
    return ATTN_OK;
}

static void keep(attn_plan *plan, const attn__impl *impl, const verdict *v) {
    if (plan->n_refusals < ATTN__MAX_REFUSALS) {
        attn__refusal *refusal = &plan->refusals[plan->n_refusals++];
        refusal->name = impl->name;
        snprintf(refusal->reason, sizeof refusal->reason, "%s%s%s", v->field, v->field[0] ? " " : "", v->reason);
    }
}

/* "avx2, generic: dim_v is 600, must be at most 576; ...": equal reasons once. */
static void join_refusals(const attn_plan *plan, char *message, size_t size) {
    attn__text text = attn__text_start(message, size);
    for (int n = 0; n < plan->n_refusals; n++) {
        const char *reason = plan->refusals[n].reason;
        bool told = false;
        for (int m = 0; m < n; m++) {
            told = told || strcmp(plan->refusals[m].reason, reason) == 0;
        }
        if (told) {
            continue;
        }
        attn__text_add(&text, "%s%s", text.length ? "; " : "", plan->refusals[n].name);
        for (int m = n + 1; m < plan->n_refusals; m++) {
            if (strcmp(plan->refusals[m].reason, reason) == 0) {
                attn__text_add(&text, ", %s", plan->refusals[m].name);
            }
        }
        attn__text_add(&text, ": %s", reason);
    }
}

attn_status attn__plan_choose(attn_plan *plan, const attn__impl *const *list, const attn__impl *limit,
                              attn_error *error) {
    const attn__impl *named = NULL;
    verdict first = {0}; /* the first refusal that the problem itself causes names the field */
    plan->impl = NULL;
    plan->n_refusals = 0;
    if (plan->hints.implementation) {
        attn_status status = attn__impl_find(list, plan->hints.implementation, "hints.implementation", &named, error);
        if (status) {
            return status;
        }
        plan->hints.implementation = named->name;
    }
    for (int n = 0; list[n]; n++) {
        verdict v = {0};
        if (list[n] != named && list[n]->device != (plan->gpu ? ATTN__CUDA : ATTN__CPU)) {
            continue; /* another device's implementations are no news */
        }
        judge(plan, list, limit, named, list[n], &v);
        if (!v.refused) {
            attn_status status = prepare(plan, list[n], &v, error);
            if (status || plan->impl) {
                return status;
            }
        }
        keep(plan, list[n], &v);
        if (named && list[n] == named) {
            return v.of_problem ? attn__fail(error, ATTN_ERR_UNSUPPORTED, v.field, "%s (%s)", v.reason, named->name)
                                : attn__fail(error, v.of_machine ? ATTN_ERR_DEVICE : ATTN_ERR_UNSUPPORTED,
                                             "hints.implementation", "is %s: %s", named->name, v.reason);
        }
        if (v.of_problem && !first.refused) {
            first = v;
        }
    }
    char message[224];
    join_refusals(plan, message, sizeof message);
    return attn__fail(error, ATTN_ERR_UNSUPPORTED, first.refused ? first.field : "problem", "%s", message);
}
