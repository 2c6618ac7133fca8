/* SPDX-License-Identifier: Apache-2.0
 * Every implementation of this build, best first. */
#include "backend.h"

const attn__impl *const attn__implementations[] = {
    NULL,
};
