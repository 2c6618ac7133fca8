/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "machine.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Names as /proc/cpuinfo has them (x86 "flags", Arm "Features"). */
static const char *const known_isas[] = {"avx2",     "fma",         "f16c",        "avx512f",  "avx512bw",
                                         "avx512vl", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
                                         "asimd",    "asimdhp",     "bf16",        "sve"};

static void copy_value(char *to, size_t size, const char *line) {
    const char *value = strchr(line, ':');
    value = value ? value + 1 + strspn(value + 1, " \t") : "";
    snprintf(to, size, "%.*s", (int)strcspn(value, "\n"), value);
}

static int has_word(const char *line, const char *word) {
    size_t width = strlen(word);
    for (const char *at = strstr(line, word); at; at = strstr(at + 1, word)) {
        if (isspace((unsigned char)at[-1]) && (isspace((unsigned char)at[width]) || at[width] == 0)) {
            return 1;
        }
    }
    return 0;
}

static void read_cpuinfo(cli_machine *machine) {
    static char line[16384];
    FILE *stream = fopen("/proc/cpuinfo", "r");
    while (stream && fgets(line, sizeof line, stream)) {
        if (strncmp(line, "model name", 10) == 0 && !machine->model[0]) {
            copy_value(machine->model, sizeof machine->model, line);
        }
        if ((strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) && !machine->isa[0]) {
            for (size_t i = 0; i < sizeof known_isas / sizeof known_isas[0]; i++) {
                if (has_word(line, known_isas[i])) {
                    strcat(machine->isa, machine->isa[0] ? " " : "");
                    strcat(machine->isa, known_isas[i]);
                }
            }
        }
    }
    if (stream) {
        fclose(stream);
    }
}

static int64_t cache_size(int number) {
    long long kib = 0;
    for (int index = 0; index < 8; index++) {
        char path[96], type[32] = "";
        int level = 0;
        long long size = 0;
        FILE *stream;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/level", index);
        if ((stream = fopen(path, "r"))) {
            level = fscanf(stream, "%d", &level) == 1 ? level : 0;
            fclose(stream);
        }
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/type", index);
        if ((stream = fopen(path, "r"))) {
            type[0] = fscanf(stream, "%31s", type) == 1 ? type[0] : 0;
            fclose(stream);
        }
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        if ((stream = fopen(path, "r"))) {
            size = fscanf(stream, "%lld", &size) == 1 ? size : 0;
            fclose(stream);
        }
        if (level == number && strcmp(type, "Instruction") != 0 && size > kib) {
            kib = size;
        }
    }
    return (int64_t)kib * 1024;
}

void cli_machine_read(cli_machine *machine) {
    memset(machine, 0, sizeof *machine);
    read_cpuinfo(machine);
    struct utsname name;
    if (uname(&name) == 0) {
        snprintf(machine->system, sizeof machine->system, "%.40s %.40s %.40s", name.sysname, name.release,
                 name.machine);
    }
    cpu_set_t set;
    CPU_ZERO(&set);
    machine->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    machine->l1 = cache_size(1);
    machine->l2 = cache_size(2);
    machine->l3 = cache_size(3);
    machine->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}
