/* SPDX-License-Identifier: Apache-2.0
 * The reader of problem texts: any bytes are either refused with a reason or make a sound problem whose own text reads
 * back as itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hold(int condition) {
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    hold(text != NULL);
    if (size) {
        memcpy(text, data, size);
    }
    text[size] = 0;
    attn_problem problem, again;
    attn_error error;
    if (attn_problem_parse(&problem, text, &error)) {
        hold(error.status == ATTN_ERR_INVALID && error.field[0] && error.message[0]);
    } else {
        char first[4096], second[4096];
        hold(attn_problem_check(&problem, NULL) == ATTN_OK);
        hold(attn_problem_format(&problem, first, sizeof first) < sizeof first);
        hold(attn_problem_parse(&again, first, NULL) == ATTN_OK);
        attn_problem_format(&again, second, sizeof second);
        hold(strcmp(first, second) == 0);
    }
    free(text);
    return 0;
}
