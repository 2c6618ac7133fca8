/* SPDX-License-Identifier: Apache-2.0
 * Types, shapes and paths shared by both file formats. */
#include "tensor.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "array files are read in place, which needs a little-endian host"
#endif

const cli_type_facts cli_types[CLI_TYPE_COUNT] = {
#define CLI_FACTS(name, text, bytes, npy, safetensors) {text, bytes, npy, safetensors},
    CLI_TYPE_LIST(CLI_FACTS)
#undef CLI_FACTS
};

int64_t cli_tensor_count(const cli_tensor *tensor) {
    int64_t count = 1;
    for (int a = 0; a < tensor->rank; a++) {
        if (tensor->shape[a] == 0) {
            return 0; /* the other extents of an empty array may be anything: their product need not fit */
        }
    }
    for (int a = 0; a < tensor->rank; a++) {
        count *= tensor->shape[a];
    }
    return count;
}

bool cli_tensor_row_major(cli_tensor *tensor) {
    int64_t limit = INT64_MAX / (int64_t)cli_types[tensor->type].bytes, step = 1;
    bool empty = false;
    for (int a = 0; a < tensor->rank; a++) {
        empty = empty || tensor->shape[a] == 0;
    }
    for (int a = tensor->rank - 1; a >= 0; a--) {
        tensor->stride[a] = empty ? 0 : step;
        if (!empty && tensor->shape[a] > limit / step) {
            return false;
        }
        step *= empty ? 1 : tensor->shape[a];
    }
    return true;
}

const char *cli_shape_text(char *text, size_t size, const int64_t *shape, int rank) {
    size_t n = (size_t)snprintf(text, size, "[");
    for (int a = 0; a < rank && n < size; a++) {
        n += (size_t)snprintf(text + n, size - n, a ? ", %lld" : "%lld", (long long)shape[a]);
    }
    if (n < size) {
        snprintf(text + n, size - n, "]");
    }
    return text;
}

cli_exit cli_path_parse(cli_path *path, const char *text, const char *option, const char *default_name,
                        cli_error *error) {
    static const char ending[] = ".safetensors";
    const size_t width = sizeof ending - 1;
    memset(path, 0, sizeof *path);
    const char *name = "";
    size_t length = strlen(text);
    for (const char *at = text; (at = strstr(at, ending)); at += width) {
        if (at[width] == ':' || at[width] == 0) {
            path->safetensors = true;
            length = (size_t)(at - text) + width;
            name = at[width] ? at + width + 1 : default_name;
            break;
        }
    }
    if (length >= sizeof path->file) {
        return cli_fail(error, CLI_USAGE, "%s: a file name of %zu bytes, the limit is %zu", option, length,
                        sizeof path->file - 1);
    }
    if (strlen(name) >= sizeof path->name || (path->safetensors && !name[0])) {
        return cli_fail(error, CLI_USAGE, "%s: a tensor name of %zu bytes, the limits are 1 to %zu", option,
                        strlen(name), sizeof path->name - 1);
    }
    memcpy(path->file, text, length);
    memcpy(path->name, name, strlen(name));
    return CLI_RIGHT;
}
