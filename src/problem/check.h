/* SPDX-License-Identifier: Apache-2.0
 * The two halves of soundness, in the order canonical.c needs them. */
#ifndef ATTN_PROBLEM_CHECK_H
#define ATTN_PROBLEM_CHECK_H

#include "attn/attn.h"

/* Enums, flags, sizes, band and scalars of a problem as the caller gave it. After it the products of sizes that
 * layouts are made of fit in 60 bits. */
attn_status attn__check_sizes(const attn_problem *problem, attn_error *error);
/* Types, strides and offsets of a problem whose layouts are all resolved. */
attn_status attn__check_layouts(const attn_problem *problem, attn_error *error);

#endif
