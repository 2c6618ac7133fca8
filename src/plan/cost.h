/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ATTN_PLAN_COST_H
#define ATTN_PLAN_COST_H

#include "plan/plan.h"

/* Every field of the info of a finished plan. */
void attn__plan_info_fill(const attn_plan *plan, attn_plan_info *info);

#endif
