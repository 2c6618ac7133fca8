/* SPDX-License-Identifier: Apache-2.0
 * Readers and writers of array files, on bytes in memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "tensor.h"

static cli_error error;

/* Writes one array and reads it back; every cut of the file must be refused. */
static void round_trip(cli_type type, int rank, const int64_t *shape, bool safetensors) {
    unsigned char data[256], bytes[2048];
    cli_tensor tensor = {.type = type, .rank = rank, .data = data}, again;
    memcpy(tensor.shape, shape, (size_t)rank * sizeof *shape);
    assert_true(cli_tensor_row_major(&tensor));
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (unsigned char)(i * 7 + 1);
    }
    memset(bytes, 0, sizeof bytes);
    FILE *stream = fmemopen(bytes, sizeof bytes, "wb");
    const cli_named named = {"a \"name\"", &tensor};
    if (safetensors) {
        assert_int_equal(cli_safetensors_write(stream, &named, 1, "file", &error), CLI_RIGHT);
    } else {
        assert_true(cli_npy_write(stream, &tensor));
    }
    long size = ftell(stream);
    fclose(stream);
    for (long cut = size; cut >= 0; cut--) {
        unsigned char *copy = malloc((size_t)cut + (cut == 0)); /* the exact size, for the sanitizers */
        memcpy(copy, bytes, (size_t)cut);
        cli_exit code = safetensors ? cli_safetensors_parse(&again, copy, (size_t)cut, named.name, "file", &error)
                                    : cli_npy_parse(&again, copy, (size_t)cut, "file", &error);
        assert_int_equal(code, cut == size ? CLI_RIGHT : CLI_USAGE);
        if (cut == size) {
            assert_int_equal(again.type, type);
            assert_int_equal(again.rank, rank);
            assert_memory_equal(again.shape, tensor.shape, sizeof tensor.shape);
            assert_memory_equal(again.stride, tensor.stride, sizeof tensor.stride);
            assert_memory_equal(again.data, data, (size_t)cli_tensor_count(&tensor) * cli_types[type].bytes);
        }
        free(copy);
    }
}

static void what_is_written_is_read(void **state) {
    (void)state;
    static const int64_t shapes[][4] = {{2, 3, 1, 4}, {5}, {0, 7}, {1, 1, 1}, {3, 0, 2, 2}};
    static const int ranks[] = {4, 1, 2, 3, 4};
    for (int type = 0; type < CLI_TYPE_COUNT; type++) {
        for (int s = 0; s < 5; s++) {
            if (cli_types[type].npy) {
                round_trip((cli_type)type, ranks[s], shapes[s], false);
            }
            if (cli_json_available()) {
                round_trip((cli_type)type, ranks[s], shapes[s], true);
            }
        }
        if (cli_types[type].npy) {
            round_trip((cli_type)type, 0, shapes[0], false);
        }
    }
}

static void npy_data_is_aligned(void **state) {
    (void)state;
    unsigned char bytes[512] = {0};
    float one = 1;
    cli_tensor tensor = {.type = CLI_F32, .data = (const unsigned char *)&one}, again;
    FILE *stream = fmemopen(bytes, sizeof bytes, "wb");
    assert_true(cli_npy_write(stream, &tensor));
    long size = ftell(stream);
    fclose(stream);
    assert_int_equal(cli_npy_parse(&again, bytes, (size_t)size, "file", &error), CLI_RIGHT);
    assert_int_equal((again.data - bytes) % 64, 0);
}

static void wider_tensors_come_first(void **state) {
    (void)state;
    if (!cli_json_available()) {
        skip();
    }
    unsigned char bytes[1024] = {0}, data[64] = {0};
    cli_tensor narrow = {.type = CLI_BF16, .rank = 1, .shape = {3}, .data = data};
    cli_tensor wide = {.type = CLI_F32, .rank = 1, .shape = {2}, .data = data}, again;
    const cli_named named[2] = {{"narrow", &narrow}, {"wide", &wide}};
    FILE *stream = fmemopen(bytes, sizeof bytes, "wb");
    assert_int_equal(cli_safetensors_write(stream, named, 2, "file", &error), CLI_RIGHT);
    long size = ftell(stream);
    fclose(stream);
    assert_int_equal(cli_safetensors_parse(&again, bytes, (size_t)size, "wide", "file", &error), CLI_RIGHT);
    assert_int_equal((again.data - bytes) % 8, 0);
    assert_int_equal(cli_safetensors_parse(&again, bytes, (size_t)size, "narrow", "file", &error), CLI_RIGHT);
    assert_int_equal(again.shape[0], 3);
    assert_int_equal(cli_safetensors_parse(&again, bytes, (size_t)size, "other", "file", &error), CLI_USAGE);
    assert_string_equal(error.text, "file: holds no tensor called 'other'; it holds wide, narrow");
}

static void paths(void **state) {
    (void)state;
    cli_path path;
    assert_int_equal(cli_path_parse(&path, "a:b.npy", "-q", "q", &error), CLI_RIGHT);
    assert_string_equal(path.file, "a:b.npy");
    assert_false(path.safetensors);
    assert_int_equal(cli_path_parse(&path, "m.safetensors", "-q", "q", &error), CLI_RIGHT);
    assert_string_equal(path.name, "q");
    assert_int_equal(cli_path_parse(&path, "x.safetensors.d/m.safetensors:a:b", "-q", "q", &error), CLI_RIGHT);
    assert_string_equal(path.file, "x.safetensors.d/m.safetensors");
    assert_string_equal(path.name, "a:b");
    assert_int_equal(cli_path_parse(&path, "m.safetensors:", "-q", "q", &error), CLI_USAGE);
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_int_equal(cli_path_parse(&path, text, "-q", "q", &error), CLI_USAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(npy_data_is_aligned),
        cmocka_unit_test(wider_tensors_come_first),
        cmocka_unit_test(paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
