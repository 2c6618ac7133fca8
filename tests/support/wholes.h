/* SPDX-License-Identifier: Apache-2.0
 * Whole problems that tests take apart and put together in other ways. What a way gives is judged as the whole's result
 * would be, on every implementation and type. */
#ifndef TESTS_SUPPORT_WHOLES_H
#define TESTS_SUPPORT_WHOLES_H

#include "support/run.h"

/* Computes the whole in another way; false, with what stopped it in out (wholes_blame), if it could not. */
typedef bool (*wholes_way)(const trial *whole, const char *implementation, rng *r, result *out);

/* Number of failures. */
int wholes_judged(const char *title, wholes_way take, bool forward_only);
/* One plain run of a trial, for ways; out's values are replaced. */
bool wholes_run(const trial *t, const char *implementation, bool forward_only, result *out);

/* Takes over from a part what it came to: outcome, texts, error and rule. */
void wholes_blame(result *out, const result *part);

#endif
