/* SPDX-License-Identifier: Apache-2.0
 * Every implementation of this build, best first. */
#include "backend.h"

extern const attn__impl attn__impl_reference;

const attn__impl *const attn__implementations[] = {
    &attn__impl_reference,
    NULL,
};
