/* SPDX-License-Identifier: Apache-2.0
 * What must hold for any bytes given to a reader of array files. */
#include <stdlib.h>

#include "tensor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Refused with a sentence, or a view that lies inside the bytes. */
static void judge(cli_exit code, const cli_error *error, const cli_tensor *tensor, const uint8_t *data, size_t size) {
    if (code != CLI_RIGHT) {
        if (code != CLI_USAGE || !error->text[0]) {
            abort();
        }
        return;
    }
    if (cli_tensor_count(tensor) == 0) {
        return;
    }
    int64_t last = 0;
    for (int a = 0; a < tensor->rank; a++) {
        last += (tensor->shape[a] - 1) * tensor->stride[a];
    }
    size_t start = (size_t)(tensor->data - data), bytes = cli_types[tensor->type].bytes;
    if (start > size || last < 0 || ((size_t)last + 1) * bytes > size - start) {
        abort();
    }
}
