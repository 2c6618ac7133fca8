/* SPDX-License-Identifier: Apache-2.0
 * A stand-in for NVRTC: the "code" it makes is the program's own text. Orders as in fake/driver.h, by the name
 * `fake_compiler`. */
#ifndef TESTS_CUDA_FAKE_NVRTC_H
#define TESTS_CUDA_FAKE_NVRTC_H

typedef struct fake_compiler {
    int major, minor;  /* 0: 13.0 */
    int result;        /* of compiling */
    const char *log;   /* NULL: registers and spills of a good kernel */
    int microseconds;  /* a compilation takes */
    int compiled;      /* how many were asked for */
    char options[256]; /* of the last one, joined by blanks */
} fake_compiler;

#endif
