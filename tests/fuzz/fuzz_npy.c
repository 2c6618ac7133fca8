/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as an .npy file. */
#include "array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cli_tensor tensor;
    cli_error error = {CLI_RIGHT, ""};
    judge(cli_npy_parse(&tensor, data, size, "file", &error), &error, &tensor, data, size);
    return 0;
}
