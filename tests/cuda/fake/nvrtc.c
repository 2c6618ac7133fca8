/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "fake/nvrtc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/nvrtc.h"

#define SEEN                                    __attribute__((visibility("default")))
#define FAKE__DECLARE(name, symbol, parameters) SEEN int fake_##name parameters __asm__(symbol);
ATTN__NVRTC_LIST(FAKE__DECLARE)

SEEN extern fake_compiler fake_compiler_block __asm__("fake_compiler");
fake_compiler fake_compiler_block;
#define orders fake_compiler_block

struct attn__nvrtc_program {
    char text[8192];
};

static const char good_log[] = "ptxas info    : Compiling entry function\n"
                               "    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n"
                               "ptxas info    : Used 42 registers, used 1 barriers\n";

static const char *the_log(void) {
    return orders.log ? orders.log : good_log;
}

int fake_Version(int *major, int *minor) {
    *major = orders.major ? orders.major : 13;
    *minor = orders.minor;
    return 0;
}
int fake_CreateProgram(nvrtcProgram *program, const char *source, const char *name, int headers,
                       const char *const *texts, const char *const *names) {
    (void)name, (void)headers, (void)texts, (void)names;
    *program = calloc(1, sizeof **program);
    snprintf((*program)->text, sizeof(*program)->text, "%s", source);
    return 0;
}
int fake_DestroyProgram(nvrtcProgram *program) {
    free(*program);
    return 0;
}
int fake_CompileProgram(nvrtcProgram program, int count, const char *const *option) {
    (void)program;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    size_t length = 0;
    pthread_mutex_lock(&lock);
    for (int n = 0; n < count && length < sizeof orders.options; n++) {
        length += (size_t)snprintf(orders.options + length, sizeof orders.options - length, "%s ", option[n]);
    }
    orders.compiled++;
    pthread_mutex_unlock(&lock);
    usleep((unsigned)orders.microseconds);
    return orders.result;
}
int fake_GetCUBINSize(nvrtcProgram program, size_t *size) {
    *size = strlen(program->text) + 1;
    return 0;
}
int fake_GetCUBIN(nvrtcProgram program, char *code) {
    strcpy(code, program->text);
    return 0;
}
int fake_GetPTXSize(nvrtcProgram program, size_t *size) {
    return fake_GetCUBINSize(program, size);
}
int fake_GetPTX(nvrtcProgram program, char *code) {
    return fake_GetCUBIN(program, code);
}
int fake_GetProgramLogSize(nvrtcProgram program, size_t *size) {
    (void)program;
    *size = strlen(the_log()) + 1;
    return 0;
}
int fake_GetProgramLog(nvrtcProgram program, char *log) {
    (void)program;
    strcpy(log, the_log());
    return 0;
}
