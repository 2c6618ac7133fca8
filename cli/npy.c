/* SPDX-License-Identifier: Apache-2.0
 * NumPy's .npy, versions 1.0, 2.0 and 3.0: magic, version, header length, a Python dictionary as text with the keys
 * descr, fortran_order and shape, then the data. Only that dictionary is understood, not Python. Column-major data
 * is taken by strides. */
#include <string.h>

#include "tensor.h"

typedef struct scanner {
    const char *at, *end;
} scanner;

static void skip_space(scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) {
        s->at++;
    }
}

static bool take(scanner *s, char c) {
    skip_space(s);
    if (s->at < s->end && *s->at == c) {
        s->at++;
        return true;
    }
    return false;
}

static bool take_word(scanner *s, const char *word) {
    skip_space(s);
    size_t length = strlen(word);
    if ((size_t)(s->end - s->at) >= length && memcmp(s->at, word, length) == 0) {
        s->at += length;
        return true;
    }
    return false;
}

/* A quoted string without escapes, at most 31 bytes. */
static bool take_string(scanner *s, char text[32]) {
    skip_space(s);
    char quote = s->at < s->end ? *s->at : 0;
    if (quote != '\'' && quote != '"') {
        return false;
    }
    s->at++;
    size_t n = 0;
    while (s->at < s->end && *s->at != quote && *s->at != '\\' && n < 31) {
        text[n++] = *s->at++;
    }
    text[n] = 0;
    return take(s, quote);
}

static bool take_number(scanner *s, int64_t *value) {
    skip_space(s);
    if (s->at >= s->end || *s->at < '0' || *s->at > '9') {
        return false;
    }
    for (*value = 0; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        int digit = *s->at - '0';
        if (*value > (INT64_MAX - digit) / 10) {
            return false;
        }
        *value = *value * 10 + digit;
    }
    if (s->at < s->end && *s->at == 'L') { /* Python 2 wrote its long integers so */
        s->at++;
    }
    return true;
}

static cli_exit parse_shape(scanner *s, cli_tensor *tensor, const char *what, cli_error *error) {
    if (!take(s, '(')) {
        return cli_fail(error, CLI_USAGE, "%s: the header's shape is not a tuple", what);
    }
    tensor->rank = 0;
    while (!take(s, ')')) {
        if (tensor->rank == CLI_RANK_MAX) {
            return cli_fail(error, CLI_USAGE, "%s: has more than %d axes", what, CLI_RANK_MAX);
        }
        if (!take_number(s, &tensor->shape[tensor->rank])) {
            return cli_fail(error, CLI_USAGE, "%s: axis %d of the header's shape is not a number that fits", what,
                            tensor->rank);
        }
        tensor->rank++;
        if (!take(s, ',') && (s->at >= s->end || *s->at != ')')) {
            return cli_fail(error, CLI_USAGE, "%s: the header's shape is not closed", what);
        }
    }
    return CLI_RIGHT;
}

static cli_exit parse_descr(scanner *s, cli_tensor *tensor, const char *what, cli_error *error) {
    char descr[32];
    if (!take_string(s, descr)) {
        return cli_fail(error, CLI_USAGE, "%s: its elements are records, plain numbers are needed", what);
    }
    if (descr[0] == '>') {
        return cli_fail(error, CLI_USAGE, "%s: is big-endian ('%s'), only little-endian data is read", what, descr);
    }
    char first = descr[0] == '=' || descr[0] == '|' ? '<' : descr[0];
    for (int t = 0; t < CLI_TYPE_COUNT; t++) {
        const char *known = cli_types[t].npy;
        if (known && first == '<' && strcmp(known + 1, descr + 1) == 0) {
            tensor->type = (cli_type)t;
            return CLI_RIGHT;
        }
    }
    if (strcmp(descr + (descr[0] != 0), "V2") == 0) {
        return cli_fail(error, CLI_USAGE, "%s: has elements of type '%s'; bf16 is read from .safetensors", what, descr);
    }
    return cli_fail(error, CLI_USAGE, "%s: has elements of type '%s', can be f2, f4, f8, b1, u1, i4 or i8", what,
                    descr);
}

static cli_exit parse_header(scanner *s, cli_tensor *tensor, bool *fortran, const char *what, cli_error *error) {
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    int seen = 0;
    if (!take(s, '{')) {
        return cli_fail(error, CLI_USAGE, "%s: the header is not a dictionary", what);
    }
    while (!take(s, '}')) {
        char key[32];
        if (!take_string(s, key) || !take(s, ':')) {
            return cli_fail(error, CLI_USAGE, "%s: the header is not a dictionary with descr, fortran_order and shape",
                            what);
        }
        int which = strcmp(key, "descr") == 0           ? DESCR
                    : strcmp(key, "fortran_order") == 0 ? ORDER
                    : strcmp(key, "shape") == 0         ? SHAPE
                                                        : 0;
        if (!which || (seen & which)) {
            return cli_fail(error, CLI_USAGE, "%s: the header has the key '%s' %s", what, key,
                            which ? "twice" : "that does not belong there");
        }
        seen |= which;
        cli_exit code = CLI_RIGHT;
        if (which == DESCR) {
            code = parse_descr(s, tensor, what, error);
        } else if (which == SHAPE) {
            code = parse_shape(s, tensor, what, error);
        } else if (take_word(s, "True")) {
            *fortran = true;
        } else if (!take_word(s, "False")) {
            code = cli_fail(error, CLI_USAGE, "%s: the header's fortran_order is neither True nor False", what);
        }
        if (code) {
            return code;
        }
        if (!take(s, ',') && (s->at >= s->end || *s->at != '}')) {
            return cli_fail(error, CLI_USAGE, "%s: the header's dictionary is not closed", what);
        }
    }
    skip_space(s);
    if (s->at != s->end || seen != (DESCR | ORDER | SHAPE)) {
        return cli_fail(error, CLI_USAGE, "%s: the header %s", what,
                        s->at != s->end ? "goes on after its dictionary" : "lacks descr, fortran_order or shape");
    }
    return CLI_RIGHT;
}

cli_exit cli_npy_parse(cli_tensor *tensor, const unsigned char *bytes, size_t size, const char *what,
                       cli_error *error) {
    memset(tensor, 0, sizeof *tensor);
    if (size < 10 || memcmp(bytes, "\x93NUMPY", 6) != 0) {
        return cli_fail(error, CLI_USAGE, "%s: is no .npy file (%zu bytes without its magic number)", what, size);
    }
    if (bytes[6] < 1 || bytes[6] > 3 || bytes[7] != 0) {
        return cli_fail(error, CLI_USAGE, "%s: has .npy version %d.%d, can be 1.0, 2.0 or 3.0", what, bytes[6],
                        bytes[7]);
    }
    size_t start = bytes[6] == 1 ? 10 : 12, length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1 && size >= 12) {
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    }
    if (size < start || length > size - start) {
        return cli_fail(error, CLI_USAGE, "%s: the header is %zu bytes long, the file has %zu", what, length, size);
    }
    scanner s = {(const char *)bytes + start, (const char *)bytes + start + length};
    bool fortran = false;
    cli_exit code = parse_header(&s, tensor, &fortran, what, error);
    if (code) {
        return code;
    }
    char shape[160];
    cli_shape_text(shape, sizeof shape, tensor->shape, tensor->rank);
    if (!cli_tensor_row_major(tensor)) {
        return cli_fail(error, CLI_USAGE, "%s: the shape %s needs more than 2^63 bytes", what, shape);
    }
    size_t needed = (size_t)cli_tensor_count(tensor) * cli_types[tensor->type].bytes, held = size - start - length;
    if (held != needed) {
        return cli_fail(error, CLI_USAGE, "%s: holds %zu bytes of data, the shape %s of %s needs %zu", what, held,
                        shape, cli_types[tensor->type].name, needed);
    }
    for (int a = 0; fortran && needed && a < tensor->rank; a++) {
        tensor->stride[a] = a ? tensor->stride[a - 1] * tensor->shape[a - 1] : 1;
    }
    tensor->data = bytes + start + length;
    return CLI_RIGHT;
}

bool cli_npy_write(FILE *stream, const cli_tensor *tensor) {
    char header[512], shape[160];
    cli_shape_text(shape, sizeof shape, tensor->shape, tensor->rank);
    shape[strlen(shape) - 1] = 0;
    int length = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }",
                          cli_types[tensor->type].npy, shape + 1, tensor->rank == 1 ? "," : "");
    int padded = (10 + length + 1 + 63) / 64 * 64 - 10; /* the data starts at a multiple of 64, as the format wants */
    memset(header + length, ' ', (size_t)(padded - length));
    header[padded - 1] = '\n';
    unsigned char start[10] = "\x93NUMPY\x01";
    start[8] = (unsigned char)padded;
    start[9] = (unsigned char)(padded >> 8);
    size_t bytes = (size_t)cli_tensor_count(tensor) * cli_types[tensor->type].bytes;
    return fwrite(start, 1, 10, stream) == 10 && fwrite(header, 1, (size_t)padded, stream) == (size_t)padded &&
           fwrite(tensor->data, 1, bytes, stream) == bytes;
}
