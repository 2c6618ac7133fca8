/* SPDX-License-Identifier: Apache-2.0
 * Is a result right? NaN and inf positions are compared first, then
 *
 *     max|error| <= 2 * max|error of native in the same types| + 2 ulp of the output type at max|reference|
 *
 * with the reference in float64 from the same rounded inputs. The plain computation's error on a tensor of a few
 * elements is small by luck now and then; when a result misses the bound, the plain error is measured again over
 * further draws of the same problem, and so is what exact arithmetic loses by the types alone (backward reads an o that
 * was rounded to 16 bits); the largest counts. Where the true value cancels (a row that sees one key has
 * dq = 0) both errors are float32 rounding noise of the terms; four such roundings are always allowed. judge.c has one
 * more allowance, for results of very large scores. Products in tf32 keep as many bits as float16 does: they are held
 * to the plain computation's error in that type. So are results of a float32 dout that tensor cores take in 16 bits. */
#ifndef TESTS_SUPPORT_JUDGE_H
#define TESTS_SUPPORT_JUDGE_H

#include "support/run.h"

typedef struct judge {
    const trial *trial;
    trial *rounded; /* owned: the trial of a judge of rounded inputs */
    uint64_t redraw_seed;
    bool forward_only;
    result oracle, plain;
    struct judge *low;       /* of results from rounded inputs; made at the first */
    double redrawn[T_COUNT]; /* plain errors over further draws; measured on the first miss */
    bool has_redrawn;
    bool fixed; /* the trial's values are meant: no further draws */
    char trouble[700];
} judge;

/* Runs oracle and native; false (and trouble) if one of them fails. */
bool judge_open(judge *j, const trial *t, bool forward_only);
void judge_close(judge *j);
/* Compares all outputs; false and a sentence in j->trouble at the first that is wrong. */
bool judge_accepts(judge *j, const result *r);

/* Bitwise equality of the outputs of two results of trials with the same canonical order. */
bool results_equal(const trial *t, const result *a, const result *b, char *text, size_t size);

/* Units in the last place of a type at |value|. */
double type_ulp(attn_dtype dtype, double value);

#endif
