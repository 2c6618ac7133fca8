/* SPDX-License-Identifier: Apache-2.0
 * The table of what implementations refuse of sound problems; docs/support.md shows the same rows. */
#ifndef ATTN_PLAN_SUPPORT_H
#define ATTN_PLAN_SUPPORT_H

#include "plan/plan.h"

typedef struct attn__rule {
    const char *backend; /* of every implementation that this room runs */
    const char *field;   /* in attn_problem */
    const char *limit;   /* "at most 576": completes "must be" */
    const char *why;
    /* Writes the offending value and returns true if the problem breaks the rule. gpu is NULL on the CPU. */
    bool (*broken)(const attn_problem *problem, const attn__gpu *gpu, char *value, size_t size);
} attn__rule;

/* Ends with a row whose backend is NULL. */
extern const attn__rule attn__rules[];

#endif
