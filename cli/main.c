/* SPDX-License-Identifier: Apache-2.0
 * attn: attention from the command line. Finds the verb, prints the sentence of a failure, returns the exit code. */
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "verbs.h"

static const struct {
    const char *name, *what;
    cli_exit (*run)(int argc, char **argv, cli_error *error);
} verbs[] = {
    {"run", "attention of q, k and v from files, forward and backward", cli_run},
    {"check", "compare an implementation with the float64 reference, and explain what differs", cli_check},
    {"plan", "what would run, why, and what it costs", cli_plan},
    {"bench", "check, then time; measure the machine's ceilings", cli_bench},
    {"kernels", "compiled GPU kernels: list, build, pack, clean", cli_kernels},
    {"info", "version, machine, implementations: the head of a bug report", cli_info},
};
#define VERBS (sizeof verbs / sizeof verbs[0])

static size_t find_verb(const char *name) {
    size_t verb = 0;
    while (verb < VERBS && strcmp(name, verbs[verb].name) != 0) {
        verb++;
    }
    return verb;
}

static void print_help(void) {
    puts("usage: attn VERB [options]\n");
    for (size_t i = 0; i < VERBS; i++) {
        printf("  %-7s %s\n", verbs[i].name, verbs[i].what);
    }
    puts("\nEvery verb runs a small default without options. attn VERB --help lists its options; man attn says more.\n"
         "Exit code: 0 right, 1 wrong result, 2 bad usage or input, 3 valid but could not run.");
}

void cli_verb_help(const char *usage, const char *what, const cli_group *groups, int n_groups) {
    printf("usage: %s\n\n%s\n", usage, what);
    cli_options_help(groups, n_groups);
}

static cli_exit dispatch(int argc, char **argv, cli_error *error) {
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return CLI_RIGHT;
    }
    if (strcmp(argv[1], "--version") == 0) {
        int version = attn_version();
        printf("attn %d.%d.%d\n", version / 10000, version / 100 % 100, version % 100);
        return CLI_RIGHT;
    }
    size_t verb = find_verb(argv[1]);
    if (verb < VERBS) {
        return verbs[verb].run(argc - 1, argv + 1, error);
    }
    return cli_fail(error, CLI_USAGE, "'%.60s': no such verb; the verbs are run, check, plan, bench, kernels and info",
                    argv[1]);
}

int main(int argc, char **argv) {
    cli_error error = {CLI_RIGHT, ""};
    cli_outputs_guard_signals();
    cli_exit code = dispatch(argc, argv, &error);
    if (!code && (fflush(stdout) != 0 || ferror(stdout))) {
        code = cli_fail(&error, CLI_UNRUN, "the results could not be written to standard output");
    }
    if (code && error.text[0]) {
        const char *verb = find_verb(argc > 1 ? argv[1] : "") < VERBS ? argv[1] : "";
        fprintf(stderr, "attn%s%s: %s\n", verb[0] ? " " : "", verb, error.text);
    }
    return (int)code;
}
