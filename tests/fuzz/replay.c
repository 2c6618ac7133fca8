/* SPDX-License-Identifier: Apache-2.0
 * Runs a fuzz target without a fuzzer: over every file of the folders given, then over each with one byte changed, cut
 * short, or with a piece repeated. The same bytes on every run. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LONGEST_INPUT 65536

static uint32_t state = 12345;

static uint32_t next_random(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* The exact size, so that a sanitizer sees a read past the end. */
static void feed(const uint8_t *data, size_t size) {
    uint8_t *copy = calloc(size ? size : 1, 1);
    if (!copy) {
        return;
    }
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void feed_mutations(const uint8_t *data, size_t size, int rounds) {
    uint8_t changed[2 * LONGEST_INPUT];
    for (int round = 0; round < rounds && size > 0; round++) {
        size_t at = next_random() % size, length = size;
        memcpy(changed, data, size);
        switch (round % 3) {
        case 0: changed[at] = (uint8_t)next_random(); break;
        case 1: length = at; break;
        default: /* data[at ...] once more */
            memcpy(changed + size, data + at, size - at);
            length = size + (size - at);
            break;
        }
        feed(changed, length);
    }
}

static int replay_file(const char *path) {
    static uint8_t data[LONGEST_INPUT];
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 0;
    }
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    feed(data, size);
    feed_mutations(data, size, 300);
    return 1;
}

int main(int argc, char **argv) {
    int files = 0;
    feed((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            continue;
        }
        for (struct dirent *entry; (entry = readdir(folder));) {
            char path[4096];
            if (entry->d_name[0] != '.') {
                snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
                files += replay_file(path);
            }
        }
        closedir(folder);
    }
    printf("%d seeds\n", files);
    return 0;
}
