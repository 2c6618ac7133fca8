/* SPDX-License-Identifier: Apache-2.0
 * Output files: temporary names, rename at the end, clean-up by signal. The list of temporary names that the signal
 * handler walks is the command's only process-wide state. */
#include "output.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char pending[CLI_OUTPUTS_MAX][1248];
static volatile sig_atomic_t is_pending[CLI_OUTPUTS_MAX];

static void on_signal(int number) {
    for (int i = 0; i < CLI_OUTPUTS_MAX; i++) {
        if (is_pending[i]) {
            unlink(pending[i]);
        }
    }
    signal(number, SIG_DFL);
    raise(number);
}

void cli_outputs_guard_signals(void) {
    static const int fatal[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++) {
        struct sigaction before, action = {.sa_handler = on_signal};
        sigemptyset(&action.sa_mask);
        if (sigaction(fatal[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
            sigaction(fatal[i], &action, NULL);
        }
    }
    signal(SIGXFSZ, SIG_IGN);
}

static void block_signals(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(how, &set, NULL);
}

static bool ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcmp(text + n - m, ending) == 0;
}

/* The file that `path` stands for: symbolic links followed; for a new file its folder resolved. */
static cli_exit resolve(char *target, size_t size, const char *path, const char *option, cli_error *error) {
    char folder[1024], real[PATH_MAX];
    if (realpath(path, real)) {
        if (strlen(real) >= size) {
            return cli_fail(error, CLI_USAGE, "%s: a path of %zu bytes, the limit is %zu", option, strlen(real),
                            size - 1);
        }
        strcpy(target, real);
        return CLI_RIGHT;
    }
    if (errno != ENOENT) {
        return cli_fail(error, CLI_USAGE, "%s: %.200s cannot be written: %s", option, path, strerror(errno));
    }
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (!realpath(folder, real)) {
        return cli_fail(error, CLI_USAGE, "%s: %s cannot be written: the folder %s: %s", option, path, folder,
                        strerror(errno));
    }
    const char *base = slash ? slash + 1 : path;
    if (base[0] == 0) {
        return cli_fail(error, CLI_USAGE, "%s: %s is a folder, a file is needed", option, path);
    }
    if ((size_t)snprintf(target, size, "%s/%s", strcmp(real, "/") == 0 ? "" : real, base) >= size) {
        return cli_fail(error, CLI_USAGE, "%s: the path is longer than the limit of %zu bytes", option, size - 1);
    }
    return CLI_RIGHT;
}

cli_exit cli_outputs_add(cli_outputs *outputs, const char *option, const char *text, const char *default_name,
                         bool like_safetensors, int *index, cli_error *error) {
    if (outputs->count == CLI_OUTPUTS_MAX) {
        return cli_fail(error, CLI_USAGE, "%s: more than %d outputs", option, CLI_OUTPUTS_MAX);
    }
    cli_output *output = &outputs->output[outputs->count];
    cli_exit code = cli_path_parse(&output->path, text, option, default_name, error);
    if (code) {
        return code;
    }
    output->option = option;
    if (!output->path.safetensors && !ends_with(text, ".npy") && like_safetensors) {
        output->path.safetensors = true;
        strcpy(output->path.name, default_name);
    }
    if (strcmp(output->path.name, "__metadata__") == 0) {
        return cli_fail(error, CLI_USAGE, "%s: a tensor cannot be called __metadata__", option);
    }
    char target[sizeof outputs->file[0].target];
    code = resolve(target, sizeof target, output->path.file, option, error);
    if (code) {
        return code;
    }
    struct stat facts;
    bool exists = stat(target, &facts) == 0;
    if (exists && S_ISDIR(facts.st_mode)) {
        return cli_fail(error, CLI_USAGE, "%s: %s is a folder, a file is needed", option, output->path.file);
    }
    bool direct = exists && !S_ISREG(facts.st_mode);
    for (int i = 0; i < outputs->count; i++) {
        const cli_output *other = &outputs->output[i];
        if (direct || strcmp(outputs->file[other->file].target, target) != 0) {
            continue;
        }
        if (!output->path.safetensors || !other->path.safetensors) {
            return cli_fail(error, CLI_USAGE, "%s: %s is the output of %s already, the limit is one", option,
                            output->path.file, other->option);
        }
        if (strcmp(other->path.name, output->path.name) == 0) {
            return cli_fail(error, CLI_USAGE, "%s: the tensor '%s' of %s is the output of %s already", option,
                            output->path.name, output->path.file, other->option);
        }
        output->file = other->file;
        *index = outputs->count++;
        return CLI_RIGHT;
    }
    cli_output_file *file = &outputs->file[outputs->files];
    memset(file, 0, sizeof *file);
    strcpy(file->target, target);
    file->direct = direct;
    file->safetensors = output->path.safetensors;
    output->file = outputs->files++;
    *index = outputs->count++;
    return CLI_RIGHT;
}

cli_exit cli_outputs_refuse_input(const cli_outputs *outputs, const char *option, const char *file, cli_error *error) {
    struct stat input, target;
    if (stat(file, &input) != 0) {
        return CLI_RIGHT;
    }
    for (int i = 0; i < outputs->count; i++) {
        const cli_output_file *written = &outputs->file[outputs->output[i].file];
        if (written->safetensors && !written->direct && stat(written->target, &target) == 0 &&
            target.st_dev == input.st_dev && target.st_ino == input.st_ino) {
            return cli_fail(error, CLI_USAGE, "%s: %s is read by %s, and writing it would lose its other tensors",
                            outputs->output[i].option, outputs->output[i].path.file, option);
        }
    }
    return CLI_RIGHT;
}

/* The access rights a plain open would have given, or those of the file that is replaced. */
static void set_rights(int descriptor, const char *target) {
    struct stat facts;
    mode_t mask = umask(0);
    umask(mask);
    mode_t mode = stat(target, &facts) == 0 ? facts.st_mode & 0777 : 0666 & ~mask;
    if (fchmod(descriptor, mode) != 0) {
        return; /* a file system without rights keeps its own */
    }
}

/* The first output that goes into a file: its option and path stand for the file in messages. */
static const cli_output *spokesman(const cli_outputs *outputs, int index) {
    int i = 0;
    while (outputs->output[i].file != index) {
        i++;
    }
    return &outputs->output[i];
}

static cli_exit open_file(cli_outputs *outputs, int index, cli_error *error) {
    cli_output_file *file = &outputs->file[index];
    const cli_output *first = spokesman(outputs, index);
    if (file->direct) {
        file->stream = fopen(file->target, "wb");
    } else {
        const char *slash = strrchr(file->target, '/');
        snprintf(file->temporary, sizeof file->temporary, "%.*s.%.200s.attn_XXXXXX_partial",
                 (int)(slash - file->target) + 1, file->target, slash + 1);
        block_signals(SIG_BLOCK);
        int descriptor = mkstemps(file->temporary, (int)strlen("_partial"));
        if (descriptor >= 0) {
            strcpy(pending[index], file->temporary);
            is_pending[index] = 1;
        } else {
            file->temporary[0] = 0;
        }
        block_signals(SIG_UNBLOCK);
        if (descriptor >= 0) {
            set_rights(descriptor, file->target);
            file->stream = fdopen(descriptor, "wb");
        }
    }
    if (!file->stream) {
        cli_exit code =
            errno == ENOSPC || errno == EDQUOT || errno == ENOMEM || errno == EMFILE ? CLI_UNRUN : CLI_USAGE;
        return cli_fail(error, code, "%s: %s cannot be written: %s", first->option, first->path.file, strerror(errno));
    }
    return CLI_RIGHT;
}

cli_exit cli_outputs_open(cli_outputs *outputs, cli_error *error) {
    for (int i = 0; i < outputs->files; i++) {
        cli_exit code = open_file(outputs, i, error);
        if (code) {
            return code;
        }
    }
    return CLI_RIGHT;
}

static cli_exit write_file(cli_outputs *outputs, int index, cli_error *error) {
    cli_output_file *file = &outputs->file[index];
    const cli_output *first = spokesman(outputs, index);
    cli_named tensors[CLI_OUTPUTS_MAX] = {{0}};
    char what[1100];
    int count = 0;
    snprintf(what, sizeof what, "%s: %s", first->option, first->path.file);
    for (int i = 0; i < outputs->count; i++) {
        if (outputs->output[i].file == index) {
            tensors[count++] = (cli_named){outputs->output[i].path.name, outputs->output[i].tensor};
        }
    }
    errno = 0;
    cli_exit code = CLI_RIGHT;
    if (file->safetensors) {
        code = cli_safetensors_write(file->stream, tensors, count, what, error);
    } else if (!cli_npy_write(file->stream, tensors[0].tensor)) {
        code = CLI_UNRUN;
    }
    bool synced = fflush(file->stream) == 0;
    int cause = errno;
    bool closed = fclose(file->stream) == 0;
    cause = cause ? cause : errno;
    file->stream = NULL;
    if (code == CLI_USAGE) {
        return code;
    }
    if (code || !synced || !closed) {
        return cli_fail(error, CLI_UNRUN, "%s: could not be written: %s", what,
                        cause ? strerror(cause) : "the stream failed");
    }
    return CLI_RIGHT;
}

cli_exit cli_outputs_commit(cli_outputs *outputs, cli_error *error) {
    for (int i = 0; i < outputs->files; i++) {
        cli_exit code = write_file(outputs, i, error);
        if (code) {
            return code;
        }
    }
    for (int i = 0; i < outputs->files; i++) {
        cli_output_file *file = &outputs->file[i];
        if (!file->direct) {
            if (rename(file->temporary, file->target) != 0) {
                return cli_fail(error, CLI_UNRUN, "%s: %s could not be put in place: %s", spokesman(outputs, i)->option,
                                spokesman(outputs, i)->path.file, strerror(errno));
            }
            is_pending[i] = 0;
            file->temporary[0] = 0;
        }
    }
    return CLI_RIGHT;
}

void cli_outputs_discard(cli_outputs *outputs) {
    for (int i = 0; i < outputs->files; i++) {
        cli_output_file *file = &outputs->file[i];
        if (file->stream) {
            fclose(file->stream);
            file->stream = NULL;
        }
        if (file->temporary[0]) {
            unlink(file->temporary);
            file->temporary[0] = 0;
        }
        is_pending[i] = 0;
    }
}
