/* SPDX-License-Identifier: Apache-2.0
 * What run.c and run_memory.c share: one run of a trial, its tensors in memory, and the moving of values into them and
 * out of them. */
#ifndef TESTS_SUPPORT_RUN_STATE_H
#define TESTS_SUPPORT_RUN_STATE_H

#include "support/lengths.h"
#include "support/run.h"

typedef struct run {
    const trial *trial;
    const run_options *how;
    attn_problem problem;
    attn_context *context;
    attn_hints hints;
    tensor tensor[T_COUNT];
    attn_args args;
    bool device, rehearsal; /* the implementation works in device memory; or another stands in for it */
    device_lengths lengths;
    result *out;
} run;

/* Notes a failure; false. */
bool run_trouble(run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Does the run have this tensor, or ask for this output? */
bool run_wanted(const run *r, tensor_id id);
form run_form_of(const run *r, tensor_id id);
attn_dtype run_dtype_of(const run *r, tensor_id id);
bool run_create(run *r, tensor_id id, bool output);
/* `first` and the two tensors after it in one buffer. */
bool run_create_joint(run *r, tensor_id first, bool output);
void run_put(run *r, tensor_id id, double *values);
/* Takes an output's values into the result; false if one was never written. */
bool run_get(run *r, tensor_id id);
/* Takes every element that may have been written out of the memory; what remains must be the pattern. */
bool run_erase(run *r, tensor_id id);
bool run_intact(run *r, tensor_id id);

#endif
