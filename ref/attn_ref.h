/* SPDX-License-Identifier: Apache-2.0
 * The definition in float64: attention forward and every gradient, written to be read beside the formulas of the
 * public header, not to be fast. It is what every other implementation is measured against, so it shares no code
 * with them: it reads row maps, bands and lengths by itself.
 *
 * What goes in
 *   problem  with every default filled in: scale, and dtype and strides of all tensors that are present;
 *   args     already checked: pointers, lengths and segments agree with the problem; the rows that the segments of
 *            one sequence list are at most `tokens` of that side;
 *   workspace  of attn_ref_workspace bytes, 8-byte aligned. Nothing else is allocated, nothing is kept.
 * Any tensor may have any float type and any strides; arithmetic and sums are float64, each result is rounded once.
 *
 * What the definition leaves open, decided here
 *   - Hidden means: outside the band, past a length, boolean mask 0, or a bias of -inf. Hidden pairs are not part of
 *     any sum, so that NaN and inf there have no influence. A visible score that happens to be -inf has weight 0, and
 *     0 times a visible NaN is NaN.
 *   - Key segments that are a part of the sequence give a partial result: lse over these keys only. Backward takes
 *     p = exp(s - lse) from the lse it is given, so that a sum over parts is the whole.
 *   - dbias is written over its whole extent [batch, heads_q, tokens_q, tokens_kv] (1 where its stride is 0): 0 for
 *     pairs that no row sees.
 *   - Float64 problems whose scale is the float nearest to 1/sqrt(dim_qk) get 1/sqrt(dim_qk) in float64. */
#ifndef ATTN_REF_H
#define ATTN_REF_H

#include "attn/attn.h"

/* Bytes of workspace for the problem's pass; SIZE_MAX if it does not fit size_t. */
size_t attn_ref_workspace(const attn_problem *problem);

void attn_ref_forward(const attn_problem *problem, const attn_args *args, void *workspace);
/* args.lse is the lse over all keys; delta is taken from args.delta, else from dout and o. */
void attn_ref_backward(const attn_problem *problem, const attn_args *args, void *workspace);

#endif
