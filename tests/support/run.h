/* SPDX-License-Identifier: Apache-2.0
 * Runs a trial on one implementation, forward and then backward with its own o and lse, under watch: gaps and guard
 * zones of inputs hold NaN, outputs start as signalling NaN, the workspace has exactly the size the plan asks for and
 * starts as all ones. Afterwards every output element must have been written, nothing else may have been, and inputs
 * must be as they were. An implementation of the device works on copies there, with the same surroundings, that are
 * brought back to be judged. */
#ifndef TESTS_SUPPORT_RUN_H
#define TESTS_SUPPORT_RUN_H

#include "support/trial.h"

typedef struct run_options {
    const char *implementation; /* NULL: chosen by the library */
    bool oracle;                /* everything as float64 in plain forms; implementation `reference` */
    bool plain;                 /* plain forms, the trial's types */
    bool forward_only;
    int threads;        /* 0: the trial's */
    bool deterministic; /* ATTN_DETERMINISTIC */
    bool pass_on;       /* a pass that the rules refuse is run by whatever the library chooses */
    bool device_data;   /* on a device: lengths, and dropout's seed, lie in its memory */
} run_options;

typedef enum run_outcome { RUN_DONE, RUN_REFUSED, RUN_FAILED } run_outcome;

typedef struct result {
    run_outcome outcome;
    double *value[T_COUNT]; /* outputs in canonical order; rows that no segment covers hold 0 */
    attn_error error;       /* of a refusal */
    attn_pass pass;         /* the pass that was planned last */
    const char *rule;   /* the field by which the rules refuse it (machine_expected_refusal); NULL: it must be taken */
    unsigned passed_on; /* 1 << pass */
    bool rounds;        /* inputs may have been rounded first (machine_rounds) */
    char text[500];     /* the problem as it was planned last */
    char trouble[400];  /* of a failure */
} result;

/* The trial must be settled (trial_draw or trial_settle). */
run_outcome run_trial(const trial *t, const run_options *how, result *out);
void result_free(result *r);

/* One value of a result. */
double result_at(const trial *t, const result *r, tensor_id id, int64_t sequence, int64_t head, int64_t position,
                 int64_t dim);

#endif
