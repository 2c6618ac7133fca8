/* SPDX-License-Identifier: Apache-2.0
 * The choice of an implementation: a pure function of problem, hints, machine and list. */
#ifndef ATTN_PLAN_CHOOSE_H
#define ATTN_PLAN_CHOOSE_H

#include "backend.h"

/* Finds a name in a NULL-terminated list; ERR_INVALID on `field` lists the known ones. */
attn_status attn__impl_find(const attn__impl *const *list, const char *name, const char *field, const attn__impl **impl,
                            attn_error *error);
/* Does impl stand before `limit` in the list? Never with limit NULL. */
bool attn__impl_limited(const attn__impl *const *list, const attn__impl *limit, const attn__impl *impl);

/* Reads *hints (may be NULL) into *out; the name is resolved by attn__plan_choose. */
attn_status attn__hints_read(const attn_hints *hints, attn_hints *out, attn_error *error);

/* plan->problem, hints and machine are set; fills impl, choice, workspace and refusals (those also on failure). */
attn_status attn__plan_choose(attn_plan *plan, const attn__impl *const *list, const attn__impl *limit,
                              attn_error *error);

#endif
