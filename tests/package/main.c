/* SPDX-License-Identifier: Apache-2.0
 * Uses the installed library: header and library must be of one version. */
#include <attn/attn.h>

#include <stdio.h>

int main(void) {
    int expected = ATTN_VERSION_MAJOR * 10000 + ATTN_VERSION_MINOR * 100 + ATTN_VERSION_PATCH;
    if (attn_version() != expected) {
        printf("library %d, header %d\n", attn_version(), expected);
        return 1;
    }
    return 0;
}
