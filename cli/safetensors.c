/* SPDX-License-Identifier: Apache-2.0
 * The safetensors format: 8 bytes of header length, a JSON object that maps each tensor's name to dtype, shape and
 * data_offsets, then the data. As its specification demands, the tensors' spans must cover the data exactly: no
 * overlap, no hole, no tail. Every span is checked, also of the tensors that are not asked for. */
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "tensor.h"

#ifdef CLI_HAVE_JANSSON
#include <jansson.h>

#define HEADER_MAX 100000000u /* the format's own limit */

typedef struct span {
    uint64_t begin, end;
    const char *name;
} span;

static int by_begin(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static cli_exit read_span(span *out, const char *name, const json_t *entry, uint64_t held, const char *what,
                          cli_error *error) {
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last)) {
        return cli_fail(error, CLI_USAGE, "%s: data_offsets of '%s' is not a pair of whole numbers", what, name);
    }
    json_int_t begin = json_integer_value(first), end = json_integer_value(last);
    if (begin < 0 || end < begin || (uint64_t)end > held) {
        return cli_fail(error, CLI_USAGE, "%s: data_offsets of '%s' is %lld to %lld, the data has %llu bytes", what,
                        name, (long long)begin, (long long)end, (unsigned long long)held);
    }
    *out = (span){(uint64_t)begin, (uint64_t)end, name};
    return CLI_RIGHT;
}

/* All tensors' spans, in order of their place, must follow one another without a gap. */
static cli_exit check_spans(json_t *root, uint64_t held, const char *what, cli_error *error) {
    size_t count = 0, n = json_object_size(root);
    span *spans = malloc((n ? n : 1) * sizeof *spans);
    if (!spans) {
        return cli_fail(error, CLI_UNRUN, "%s: out of memory for the spans of %zu tensors", what, n);
    }
    cli_exit code = CLI_RIGHT;
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry) {
        if (strcmp(name, "__metadata__") != 0 && !code) {
            code = read_span(&spans[count], name, entry, held, what, error);
            count++;
        }
    }
    uint64_t end = 0;
    if (!code) {
        qsort(spans, count, sizeof *spans, by_begin);
        for (size_t i = 0; i < count && !code; i++) {
            if (spans[i].begin != end) {
                code =
                    cli_fail(error, CLI_USAGE, "%s: the data of '%s' starts at byte %llu, the one before ends at %llu",
                             what, spans[i].name, (unsigned long long)spans[i].begin, (unsigned long long)end);
            }
            end = spans[i].end;
        }
    }
    if (!code && end != held) {
        code = cli_fail(error, CLI_USAGE, "%s: has %llu bytes of data, its tensors end at %llu", what,
                        (unsigned long long)held, (unsigned long long)end);
    }
    free(spans);
    return code;
}

static cli_exit read_entry(cli_tensor *tensor, const char *name, const json_t *entry, const unsigned char *data,
                           uint64_t held, const char *what, cli_error *error) {
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    int found = 0;
    while (found < CLI_TYPE_COUNT && (!type || strcmp(cli_types[found].safetensors, type) != 0)) {
        found++;
    }
    if (found == CLI_TYPE_COUNT) {
        return cli_fail(error, CLI_USAGE, "%s: '%s' has dtype %.32s, can be F16, BF16, F32, F64, BOOL, U8, I32 or I64",
                        what, name, type ? type : "missing");
    }
    tensor->type = (cli_type)found;
    if (!json_is_array(shape) || json_array_size(shape) > CLI_RANK_MAX) {
        return cli_fail(error, CLI_USAGE, "%s: the shape of '%s' is not a list of at most %d numbers", what, name,
                        CLI_RANK_MAX);
    }
    tensor->rank = (int)json_array_size(shape);
    for (int a = 0; a < tensor->rank; a++) {
        const json_t *extent = json_array_get(shape, (size_t)a);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0) {
            return cli_fail(error, CLI_USAGE, "%s: axis %d of the shape of '%s' is not a whole number >= 0", what, a,
                            name);
        }
        tensor->shape[a] = json_integer_value(extent);
    }
    char text[160];
    cli_shape_text(text, sizeof text, tensor->shape, tensor->rank);
    if (!cli_tensor_row_major(tensor)) {
        return cli_fail(error, CLI_USAGE, "%s: the shape %s of '%s' needs more than 2^63 bytes", what, text, name);
    }
    span place;
    cli_exit code = read_span(&place, name, entry, held, what, error);
    if (code) {
        return code;
    }
    uint64_t needed = (uint64_t)cli_tensor_count(tensor) * cli_types[tensor->type].bytes;
    if (place.end - place.begin != needed) {
        return cli_fail(error, CLI_USAGE, "%s: '%s' holds %llu bytes, the shape %s of %s needs %llu", what, name,
                        (unsigned long long)(place.end - place.begin), text, cli_types[tensor->type].name,
                        (unsigned long long)needed);
    }
    tensor->data = data + place.begin;
    return CLI_RIGHT;
}

static cli_exit not_there(json_t *root, const char *name, const char *what, cli_error *error) {
    char list[256] = "";
    size_t n = 0, shown = 0;
    const char *other;
    json_t *entry;
    json_object_foreach(root, other, entry) {
        if (strcmp(other, "__metadata__") != 0 && n + strlen(other) + 8 < sizeof list) {
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", shown ? ", " : "", other);
            shown++;
        }
    }
    return cli_fail(error, CLI_USAGE, "%s: holds no tensor called '%s'; it holds %s%s", what, name,
                    shown ? list : "none", shown + 1 < json_object_size(root) ? ", ..." : "");
}

cli_exit cli_safetensors_parse(cli_tensor *tensor, const unsigned char *bytes, size_t size, const char *name,
                               const char *what, cli_error *error) {
    memset(tensor, 0, sizeof *tensor);
    uint64_t length = 0;
    for (int i = 0; i < 8 && size >= 8; i++) {
        length |= (uint64_t)bytes[i] << 8 * i;
    }
    if (size < 8 || length > size - 8 || length > HEADER_MAX) {
        return cli_fail(error, CLI_USAGE,
                        "%s: is no safetensors file: a header of %llu bytes in a file of %zu (limit %u)", what,
                        (unsigned long long)length, size, HEADER_MAX);
    }
    json_error_t fault;
    json_t *root = json_loadb((const char *)bytes + 8, (size_t)length, JSON_REJECT_DUPLICATES, &fault);
    if (!json_is_object(root)) {
        cli_exit code = cli_fail(error, CLI_USAGE, "%s: the header is no JSON object: %s", what,
                                 root ? "it is another value" : fault.text);
        json_decref(root);
        return code;
    }
    uint64_t held = size - 8 - length;
    cli_exit code = check_spans(root, held, what, error);
    if (!code) {
        const json_t *entry = strcmp(name, "__metadata__") == 0 ? NULL : json_object_get(root, name);
        code = entry ? read_entry(tensor, name, entry, bytes + 8 + length, held, what, error)
                     : not_there(root, name, what, error);
    }
    json_decref(root);
    return code;
}

static int by_width(const void *a, const void *b) {
    const cli_named *x = a, *y = b;
    size_t wide = cli_types[x->tensor->type].bytes, other = cli_types[y->tensor->type].bytes;
    return wide != other ? (wide > other ? -1 : 1) : strcmp(x->name, y->name);
}

cli_exit cli_safetensors_write(FILE *stream, const cli_named *tensors, int count, const char *what, cli_error *error) {
    cli_named sorted[32];
    if (count > 32) {
        return cli_fail(error, CLI_USAGE, "%s: %d tensors in one file, the limit is 32", what, count);
    }
    memcpy(sorted, tensors, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_width); /* widest first: every tensor is aligned */
    json_t *root = json_object();
    uint64_t end = 0;
    for (int i = 0; i < count; i++) {
        const cli_tensor *tensor = sorted[i].tensor;
        uint64_t bytes = (uint64_t)cli_tensor_count(tensor) * cli_types[tensor->type].bytes;
        json_t *shape = json_array();
        for (int a = 0; a < tensor->rank; a++) {
            json_array_append_new(shape, json_integer(tensor->shape[a]));
        }
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", cli_types[tensor->type].safetensors, "shape", shape,
                                  "data_offsets", (json_int_t)end, (json_int_t)(end + bytes));
        if (json_object_set_new(root, sorted[i].name, entry) != 0) {
            json_decref(root);
            return cli_fail(error, CLI_USAGE, "%s: the tensor name '%s' is not UTF-8", what, sorted[i].name);
        }
        end += bytes;
    }
    char *header = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!header) {
        return cli_fail(error, CLI_UNRUN, "%s: out of memory for the header", what);
    }
    size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char start[8];
    for (int i = 0; i < 8; i++) {
        start[i] = (unsigned char)((uint64_t)padded >> 8 * i);
    }
    bool good = fwrite(start, 1, 8, stream) == 8 && fwrite(header, 1, length, stream) == length &&
                fwrite("        ", 1, padded - length, stream) == padded - length;
    free(header);
    for (int i = 0; i < count && good; i++) {
        size_t bytes = (size_t)cli_tensor_count(sorted[i].tensor) * cli_types[sorted[i].tensor->type].bytes;
        good = fwrite(sorted[i].tensor->data, 1, bytes, stream) == bytes;
    }
    return good ? CLI_RIGHT : cli_fail(error, CLI_UNRUN, "%s: could not be written", what);
}

#else

cli_exit cli_safetensors_parse(cli_tensor *tensor, const unsigned char *bytes, size_t size, const char *name,
                               const char *what, cli_error *error) {
    (void)bytes, (void)size, (void)name;
    memset(tensor, 0, sizeof *tensor);
    return cli_fail(error, CLI_USAGE, "%s: %s", what, CLI_JSON_MISSING);
}

cli_exit cli_safetensors_write(FILE *stream, const cli_named *tensors, int count, const char *what, cli_error *error) {
    (void)stream, (void)tensors, (void)count;
    return cli_fail(error, CLI_USAGE, "%s: %s", what, CLI_JSON_MISSING);
}

#endif
