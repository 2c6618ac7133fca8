/* SPDX-License-Identifier: Apache-2.0
 * Makes and shows small arrays for the command's tests, without the command's own readers and writers.
 *   fixture npy  FILE TYPE SHAPE VALUES [fortran] [big] [v2|v3]
 *   fixture safe FILE (NAME TYPE SHAPE VALUES)...
 *   fixture show FILE          the header of an .npy file and its numbers
 * TYPE is f2 bf f4 f8 b1 u1 i4 i8. SHAPE is 1x2x3 (0 axes: -). VALUES: x:TAG the numbers of the field cases (multiples
 * of 1/64 in [-2, 2)), c:NUMBER a constant, l:A,B,... a list, p:INDEX:NUMBER x:1 with one element replaced. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double field_number(uint32_t tag, uint32_t i) {
    uint32_t h = i * 0x9E3779B1u + tag * 0x85EBCA77u + 0x165667B1u;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    h ^= h >> 12;
    h *= 0x297A2D39u;
    h ^= h >> 15;
    return ((double)(h >> 24) - 128) / 64;
}

static double value_at(const char *values, long i) {
    const char *at = values + 2;
    switch (values[0]) {
    case 'x': return field_number((uint32_t)atoi(at), (uint32_t)i);
    case 'c': return strtod(at, NULL);
    case 'p': {
        char *rest;
        long index = strtol(at, &rest, 10);
        return i == index ? strtod(rest + 1, NULL) : field_number(1, (uint32_t)i);
    }
    default:
        for (; i > 0; i--) {
            at = strchr(at, ',') + 1;
        }
        return strtod(at, NULL);
    }
}

/* float to half for values that a half holds exactly, infinities and NaN included. */
static uint16_t half_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, exponent = bits >> 23 & 0xff, mantissa = bits >> 13 & 0x3ff;
    if (exponent == 0xff) {
        return (uint16_t)(sign | 0x7c00 | (isnan(value) ? 0x200 : 0));
    }
    return (uint16_t)(value == 0 ? sign : sign | (exponent - 112) << 10 | mantissa);
}

static size_t width(const char *type) {
    return type[1] == 'f' ? 2 : (size_t)(type[1] - '0');
}

static void put(FILE *file, const char *type, double value, int big) {
    unsigned char bytes[8];
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    int32_t int32 = (int32_t)(strchr("biu", type[0]) && type[1] != 'f' ? value : 0);
    int64_t int64 = (int64_t)int32;
    uint16_t half = type[0] == 'b' ? (uint16_t)(bits >> 16) : half_bits(single);
    size_t n = width(type);
    const void *from = strcmp(type, "f8") == 0   ? (const void *)&value
                       : strcmp(type, "f4") == 0 ? (const void *)&single
                       : n == 2                  ? (const void *)&half
                       : strcmp(type, "i8") == 0 ? (const void *)&int64
                                                 : (const void *)&int32;
    memcpy(bytes, from, n);
    for (size_t b = 0; b < n; b++) {
        fputc(bytes[big ? n - 1 - b : b], file);
    }
}

static int parse_shape(const char *text, long shape[8], long *count) {
    int rank = 0;
    *count = 1;
    for (const char *at = text; *text != '-' && rank < 8; at++) {
        char *rest;
        shape[rank] = strtol(at, &rest, 10);
        *count *= shape[rank++];
        at = rest;
        if (*at != 'x') {
            break;
        }
    }
    return rank;
}

/* The index in C order of element i in column-major order. */
static long row_major(long i, const long shape[8], int rank) {
    long index = 0, at[8];
    for (int a = 0; a < rank; a++) {
        at[a] = i % shape[a];
        i /= shape[a];
    }
    for (int a = 0; a < rank; a++) {
        index = index * shape[a] + at[a];
    }
    return index;
}

static int make_npy(int argc, char **argv) {
    const char *type = argv[3], *values = argv[5];
    long shape[8], count;
    int rank = parse_shape(argv[4], shape, &count), fortran = 0, big = 0, version = 1;
    for (int i = 6; i < argc; i++) {
        fortran |= strcmp(argv[i], "fortran") == 0;
        big |= strcmp(argv[i], "big") == 0;
        version = argv[i][0] == 'v' ? argv[i][1] - '0' : version;
    }
    char header[256];
    int n = snprintf(header, sizeof header, "{'descr': '%c%s', 'fortran_order': %s, 'shape': (",
                     width(type) == 1 ? '|'
                     : big            ? '>'
                                      : '<',
                     type, fortran ? "True" : "False");
    for (int a = 0; a < rank; a++) {
        n += snprintf(header + n, sizeof header - (size_t)n, "%ld%s", shape[a], rank == 1 || a + 1 < rank ? ", " : "");
    }
    n += snprintf(header + n, sizeof header - (size_t)n, "), }");
    int start = version == 1 ? 10 : 12, padded = (start + n + 1 + 63) / 64 * 64 - start;
    FILE *file = fopen(argv[2], "wb");
    if (!file) {
        return 1;
    }
    fprintf(file, "\x93NUMPY%c%c", version, 0);
    for (int b = 0; b < start - 8; b++) {
        fputc(padded >> 8 * b & 0xff, file);
    }
    fprintf(file, "%s%*s\n", header, padded - n - 1, "");
    for (long i = 0; i < count; i++) {
        put(file, type, value_at(values, fortran ? row_major(i, shape, rank) : i), big);
    }
    return fclose(file);
}

static const char *safe_name(const char *type) {
    static const char *const names[][2] = {{"f2", "F16"},  {"bf", "BF16"}, {"f4", "F32"}, {"f8", "F64"},
                                           {"b1", "BOOL"}, {"u1", "U8"},   {"i4", "I32"}, {"i8", "I64"}};
    for (int i = 0; i < 8; i++) {
        if (strcmp(names[i][0], type) == 0) {
            return names[i][1];
        }
    }
    return "?";
}

static int make_safe(int argc, char **argv) {
    char header[4096] = "{\"__metadata__\":{\"made\":\"by hand\"}";
    size_t n = strlen(header), end = 0;
    for (int i = 3; i + 3 < argc; i += 4) {
        long shape[8], count;
        int rank = parse_shape(argv[i + 2], shape, &count);
        n += (size_t)snprintf(header + n, sizeof header - n, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", argv[i],
                              safe_name(argv[i + 1]));
        for (int a = 0; a < rank; a++) {
            n += (size_t)snprintf(header + n, sizeof header - n, a ? ",%ld" : "%ld", shape[a]);
        }
        size_t bytes = (size_t)count * width(argv[i + 1]);
        n += (size_t)snprintf(header + n, sizeof header - n, "],\"data_offsets\":[%zu,%zu]}", end, end + bytes);
        end += bytes;
    }
    n += (size_t)snprintf(header + n, sizeof header - n, "}");
    FILE *file = fopen(argv[2], "wb");
    if (!file) {
        return 1;
    }
    for (int b = 0; b < 8; b++) {
        fputc(b < 4 ? (int)(n >> 8 * b & 0xff) : 0, file);
    }
    fputs(header, file);
    for (int i = 3; i + 3 < argc; i += 4) {
        long shape[8], count;
        parse_shape(argv[i + 2], shape, &count);
        for (long e = 0; e < count; e++) {
            put(file, argv[i + 1], value_at(argv[i + 3], e), 0);
        }
    }
    return fclose(file);
}

static double number(const unsigned char *at, const char *type) {
    float single;
    double wide;
    uint16_t half;
    if (strcmp(type, "f8") == 0) {
        memcpy(&wide, at, 8);
        return wide;
    }
    if (strcmp(type, "f4") == 0) {
        memcpy(&single, at, 4);
        return (double)single;
    }
    memcpy(&half, at, 2);
    int exponent = half >> 10 & 31, mantissa = half & 1023;
    double magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

static int show(const char *path) {
    static unsigned char bytes[1 << 16];
    FILE *file = fopen(path, "rb");
    if (!file) {
        printf("%s: is not there\n", path);
        return 1;
    }
    size_t size = fread(bytes, 1, sizeof bytes, file), start = 10 + bytes[8] + 256u * bytes[9];
    fclose(file);
    char *end = strchr((char *)bytes + 10, '}');
    printf("%.*s\n", (int)(end - (char *)bytes - 9), bytes + 10);
    const char *type = strstr((char *)bytes + 10, "'<") + 2;
    char name[3] = {type[0], type[1], 0};
    for (size_t at = start; at < size; at += width(name)) {
        double value = number(bytes + at, name);
        printf("%s%.5g", at > start ? " " : "", value == 0 ? 0 : value);
    }
    printf("\n");
    return 0;
}

int main(int argc, char **argv) {
    if (argc >= 6 && strcmp(argv[1], "npy") == 0) {
        return make_npy(argc, argv);
    }
    if (argc >= 7 && strcmp(argv[1], "safe") == 0) {
        return make_safe(argc, argv);
    }
    if (argc == 3 && strcmp(argv[1], "show") == 0) {
        return show(argv[2]);
    }
    fputs("usage: fixture npy|safe|show ...\n", stderr);
    return 2;
}
