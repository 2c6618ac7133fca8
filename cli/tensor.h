/* SPDX-License-Identifier: Apache-2.0
 * Arrays in files: .npy and .safetensors, read as views into the file's bytes and written in kind. The parsers take
 * bytes and their number, trust nothing, and allocate only for the header, so that they can be fuzzed whole.
 * Limits: little-endian data, at most 8 axes, hosts that are little-endian. */
#ifndef CLI_TENSOR_H
#define CLI_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "error.h"

#define CLI_RANK_MAX 8

/* Element types, one list: name here, bytes, the name in .npy (NULL: none) and in .safetensors. */
#define CLI_TYPE_LIST(X)                                                                                               \
    X(F16, "f16", 2, "<f2", "F16")                                                                                     \
    X(BF16, "bf16", 2, NULL, "BF16")                                                                                   \
    X(F32, "f32", 4, "<f4", "F32")                                                                                     \
    X(F64, "f64", 8, "<f8", "F64")                                                                                     \
    X(BOOL, "bool", 1, "|b1", "BOOL")                                                                                  \
    X(U8, "u8", 1, "|u1", "U8")                                                                                        \
    X(I32, "i32", 4, "<i4", "I32")                                                                                     \
    X(I64, "i64", 8, "<i8", "I64")
typedef enum cli_type {
#define CLI_ENUM(name, text, bytes, npy, safetensors) CLI_##name,
    CLI_TYPE_LIST(CLI_ENUM)
#undef CLI_ENUM
        CLI_TYPE_COUNT
} cli_type;

typedef struct cli_type_facts {
    const char *name;
    size_t bytes;
    const char *npy, *safetensors;
} cli_type_facts;
extern const cli_type_facts cli_types[CLI_TYPE_COUNT];

typedef struct cli_tensor {
    cli_type type;
    int rank;
    int64_t shape[CLI_RANK_MAX];
    int64_t stride[CLI_RANK_MAX]; /* in elements, >= 0 */
    const unsigned char *data;    /* may be unaligned */
} cli_tensor;

/* Product of the shape; it fits, or the tensor would not exist. */
int64_t cli_tensor_count(const cli_tensor *tensor);
/* Sets the strides of an array in C order. Fails if the bytes of the array do not fit in 63 bits. */
bool cli_tensor_row_major(cli_tensor *tensor);
/* "[2, 16, 4, 64]" */
const char *cli_shape_text(char *text, size_t size, const int64_t *shape, int rank);

/* `what` names the file in messages, as "-k: k.npy". */
cli_exit cli_npy_parse(cli_tensor *tensor, const unsigned char *bytes, size_t size, const char *what, cli_error *error);
/* Writes header and data (C order, contiguous). Returns false if the stream fails. */
bool cli_npy_write(FILE *stream, const cli_tensor *tensor);

/* The tensor called `name`. */
cli_exit cli_safetensors_parse(cli_tensor *tensor, const unsigned char *bytes, size_t size, const char *name,
                               const char *what, cli_error *error);
typedef struct cli_named {
    const char *name;
    const cli_tensor *tensor;
} cli_named;
/* Writes a whole file; CLI_UNRUN if the stream fails. */
cli_exit cli_safetensors_write(FILE *stream, const cli_named *tensors, int count, const char *what, cli_error *error);

/* A path as the user gives it: FILE.npy, FILE.safetensors, FILE.safetensors:NAME. */
typedef struct cli_path {
    char file[1024];
    char name[256]; /* of the tensor; npy: empty */
    bool safetensors;
} cli_path;
/* A .safetensors file without NAME means the tensor called `default_name`. */
cli_exit cli_path_parse(cli_path *path, const char *text, const char *option, const char *default_name,
                        cli_error *error);

/* A file's bytes, mapped, or read when it cannot be mapped (a pipe). */
typedef struct cli_file {
    unsigned char *bytes;
    size_t size;
    bool mapped;
} cli_file;
cli_exit cli_file_open(cli_file *file, const char *path, const char *what, cli_error *error);
void cli_file_close(cli_file *file);

#endif
