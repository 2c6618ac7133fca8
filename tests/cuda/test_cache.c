/* SPDX-License-Identifier: Apache-2.0
 * Kept kernels: compiled once for a context, once for a folder; a folder that is damaged, shared, full, read-only or
 * absent costs time and never a result; packs serve without a compiler. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "cuda/record.h"
#include "fixture.h"

static fake_compiler *compiler;

static int start(void **state) {
    (void)state;
    compiler = fake_nvrtc();
    return 0;
}

/* One plan in a context of its own; tells how many kernels were compiled for it. */
static int compiled_for(const attn_config *config) {
    attn_problem problem = packed_problem();
    attn_plan plan;
    attn_context *context = opened(config);
    draft_plan(&plan, context, &problem, NULL);
    build_plan(&plan);
    int compiled = context->cuda->compiled;
    attn__cuda_unbuild(&plan);
    attn_context_destroy(context);
    return compiled;
}

static void test_memory_and_disk(void **state) {
    (void)state;
    const char *folder = fresh_folder();
    attn_config c = cuda_config("gpu:a100", folder);
    attn_problem problem = packed_problem();
    attn_plan one, two;
    attn_context *context = opened(&c);
    draft_plan(&one, context, &problem, NULL);
    build_plan(&one);
    problem.batch = 2;
    problem.total_q = 250;
    draft_plan(&two, context, &problem, NULL);
    build_plan(&two);
    assert_int_equal(context->cuda->compiled, 1); /* the second plan found it in memory */
    attn__cuda_unbuild(&one);
    attn__cuda_unbuild(&two);
    attn_context_destroy(context);
    assert_int_equal(each_file(folder, NULL), 1);
    assert_int_equal(compiled_for(&c), 0); /* another context, on disk */
    c.device = "gpu:h200";
    assert_int_equal(compiled_for(&c), 1); /* another architecture */
    c.device = "gpu:l4";
    c.max_isa = "sm_80"; /* a100's code, for an L4 */
    assert_int_equal(compiled_for(&c), 0);
    c.max_isa = NULL;
    c.device = "gpu:a100";
    compiler->minor = 1;
    assert_int_equal(compiled_for(&c), 1); /* another compiler */
    c.nvrtc = "";
    assert_int_equal(compiled_for(&c), 0); /* no compiler: code of any serves */
    c.device = "gpu:t4";
    attn_plan none;
    attn_error error;
    context = opened(&c);
    draft_plan(&none, context, &problem, NULL);
    expect_error(attn__cuda_build(&none, &error), &error, ATTN_ERR_COMPILE, "nvrtc", "switched off");
    attn_context_destroy(context);
    c.nvrtc = NULL;
    c.cache = "";
    assert_int_equal(compiled_for(&c), 1);
    remove_folder(folder);
}

/* --- Damage --- */

static int cut_at, flip_at;

static void damage(const char *path) {
    char byte;
    int handle = open(path, O_RDWR);
    assert_true(handle >= 0);
    if (cut_at >= 0) {
        assert_int_equal(ftruncate(handle, cut_at), 0);
    } else {
        assert_int_equal(pread(handle, &byte, 1, flip_at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(handle, &byte, 1, flip_at), 1);
    }
    close(handle);
}

static int64_t file_size;
static void measure(const char *path) {
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    file_size = file.st_size;
}

static void test_damage(void **state) {
    (void)state;
    const char *folder = fresh_folder();
    attn_config c = cuda_config("gpu:a100", folder);
    assert_int_equal(compiled_for(&c), 1);
    each_file(folder, measure);
    cut_at = -1;
    for (flip_at = 0; flip_at < file_size; flip_at += 7) { /* header, key, code */
        each_file(folder, damage);
        assert_int_equal(compiled_for(&c), 1);
        assert_int_equal(compiled_for(&c), 0); /* what was damaged was replaced */
    }
    for (cut_at = 0; cut_at < file_size; cut_at += 13) {
        each_file(folder, damage);
        assert_int_equal(compiled_for(&c), 1);
    }
    assert_int_equal(compiled_for(&c), 0);
    assert_int_equal(each_file(folder, NULL), 1);
    remove_folder(folder);
}

/* --- Folders that do not serve --- */

static int in_child(int (*body)(const attn_config *config), const attn_config *config) {
    int code;
    pid_t child = fork();
    if (child == 0) {
        _exit(body(config));
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

/* No file may grow: what a full disk does. */
static int with_full_disk(const attn_config *config) {
    const struct rlimit none = {100, 100};
    signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &none) == 0 ? compiled_for(config) : 100;
}

/* Without root's rights, a folder without write permission. */
static int as_nobody(const attn_config *config) {
    return (getuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0)) ? compiled_for(config) : 101;
}

static void test_useless_folders(void **state) {
    (void)state;
    char path[128];
    const char *folder = fresh_folder();
    attn_config c = cuda_config("gpu:a100", folder);
    assert_int_equal(in_child(with_full_disk, &c), 1);
    assert_int_equal(each_file(folder, NULL), 0); /* not a stump is left */
    assert_int_equal(chmod(folder, 0555), 0);
    assert_int_equal(in_child(as_nobody, &c), 1);
    assert_int_equal(each_file(folder, NULL), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    /* Below a file; and deep below nothing, which is made. */
    snprintf(path, sizeof path, "%s/file", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    snprintf(path, sizeof path, "%s/file/deep", folder);
    c.cache = path;
    assert_int_equal(compiled_for(&c), 1);
    snprintf(path, sizeof path, "%s/a/b", folder);
    assert_int_equal(compiled_for(&c), 1);
    assert_int_equal(compiled_for(&c), 0);
    remove_folder(path);
    snprintf(path, sizeof path, "%s/a", folder);
    rmdir(path);
    /* What stands where the kernel should is no file. */
    remove_folder(folder);
    assert_int_equal(mkdir(folder, 0755), 0);
    c.cache = folder;
    assert_int_equal(compiled_for(&c), 1);
    each_file(folder, remove_file);
    remove_folder(folder);
}

/* --- Many at once --- */

static int child_compiles(const attn_config *config) {
    return compiled_for(config) > 1;
}

static void test_processes(void **state) {
    (void)state;
    enum { CHILDREN = 16 };
    const char *folder = fresh_folder();
    attn_config c = cuda_config("gpu:a100", folder);
    pid_t child[CHILDREN];
    compiler->microseconds = 20000;
    for (int n = 0; n < CHILDREN; n++) {
        child[n] = fork();
        if (child[n] == 0) {
            _exit(child_compiles(&c));
        }
    }
    for (int n = 0; n < CHILDREN; n++) {
        int code;
        assert_int_equal(waitpid(child[n], &code, 0), child[n]);
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
    compiler->microseconds = 0;
    assert_int_equal(each_file(folder, NULL), 1);
    assert_int_equal(compiled_for(&c), 0);
    remove_folder(folder);
}

typedef struct worker {
    const attn_context *context;
    attn_plan plan;
    attn_status status;
} worker;

static void *build_in_thread(void *argument) {
    worker *w = argument;
    w->status = attn__cuda_build(&w->plan, NULL);
    return NULL;
}

static void run_workers(worker *workers, int count) {
    pthread_t threads[16];
    for (int n = 0; n < count; n++) {
        assert_int_equal(pthread_create(&threads[n], NULL, build_in_thread, &workers[n]), 0);
    }
    for (int n = 0; n < count; n++) {
        pthread_join(threads[n], NULL);
    }
}

static void test_threads(void **state) {
    (void)state;
    enum { THREADS = 16 };
    static worker workers[THREADS];
    attn_problem problem = packed_problem();
    attn_config c = cuda_config("gpu:a100", "");
    attn_context *context = opened(&c);
    for (int n = 0; n < THREADS; n++) {
        draft_plan(&workers[n].plan, context, &problem, n % 2 ? "attn_odd" : "attn_even");
    }
    compiler->microseconds = 20000;
    compiler->result = 6; /* those who wait for a failure fail by themselves */
    run_workers(workers, 4);
    for (int n = 0; n < 4; n++) {
        assert_int_equal(workers[n].status, ATTN_ERR_COMPILE);
        assert_null(workers[n].plan.built);
    }
    compiler->result = 0;
    run_workers(workers, THREADS);
    compiler->microseconds = 0;
    assert_int_equal(context->cuda->compiled, 3); /* odd, even, upload */
    for (int n = 0; n < THREADS; n++) {
        assert_int_equal(workers[n].status, ATTN_OK);
        attn__cuda_unbuild(&workers[n].plan);
    }
    attn_context_destroy(context);
}

/* --- Packs, lists, cleaning --- */

typedef struct seen {
    int count, current, spills;
    char target[64];
} seen;

static void see(void *user, const attn_kernel_info *info) {
    seen *s = user;
    s->count++;
    s->current += info->current;
    s->spills += info->spill_bytes;
    assert_int_equal(info->registers, 42);
    assert_string_equal(info->name, strstr(info->target, "80") ? "attn_upload__sm80" : "attn_upload__sm75");
    snprintf(s->target, sizeof s->target, "%s", info->target);
}

static void make_stale(const char *path) {
    char data[4096];
    attn__record record;
    int handle = open(path, O_RDWR);
    ssize_t size = read(handle, data, sizeof data);
    assert_true(attn__record_read(data, (size_t)size, &record));
    char *sources = strstr(data + sizeof record.header, "sources ") + 8;
    *sources = *sources == '0' ? '1' : '0';
    attn__code code = {(char *)(uintptr_t)record.code, record.header.code_size, 42, 8, 16, false};
    attn__record_seal(&record.header, record.key, &code);
    assert_int_equal(pwrite(handle, &record.header, sizeof record.header, 0), sizeof record.header);
    assert_int_equal(
        pwrite(handle, data + sizeof record.header, (size_t)size - sizeof record.header, sizeof record.header),
        size - (ssize_t)sizeof record.header);
    close(handle);
}

static void test_packs(void **state) {
    (void)state;
    char file[128], stray[128];
    int64_t packed = 0, removed = 0;
    seen s = {0};
    attn_error error;
    const char *folder = fresh_folder();
    attn_config c = cuda_config("gpu:a100", folder);
    assert_int_equal(compiled_for(&c), 1);
    c.device = "gpu:t4";
    assert_int_equal(compiled_for(&c), 1);
    attn_context *context = opened(&c);
    expect_success(attn_kernels_list(context, NULL, see, &s, &error), &error);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.current, 2);
    assert_int_equal(s.spills, 32);
    snprintf(file, sizeof file, "%s.pack", folder);
    expect_success(attn_kernels_pack(context, NULL, file, &packed, &error), &error);
    assert_int_equal(packed, 2);
    s.count = 0;
    expect_success(attn_kernels_list(context, file, see, &s, &error), &error);
    assert_int_equal(s.count, 2);
    /* What is not current stays out of packs and goes when cleaned; drafts and damage too; other files stay. */
    snprintf(stray, sizeof stray, "%s/notes", folder);
    each_file(folder, make_stale);
    c.device = "gpu:a100";
    assert_int_equal(compiled_for(&c), 1);
    close(open(stray, O_CREAT | O_WRONLY, 0600));
    s.count = s.current = 0;
    expect_success(attn_kernels_list(context, NULL, see, &s, &error), &error);
    assert_int_equal(s.count, 2); /* the stale one of the a100 was in the way, and was replaced */
    assert_int_equal(s.current, 1);
    expect_success(attn_kernels_clean(context, NULL, 0, &removed, &error), &error);
    assert_int_equal(removed, 1);
    assert_int_equal(each_file(folder, NULL), 2);
    expect_success(attn_kernels_clean(context, NULL, 1, &removed, &error), &error);
    assert_int_equal(removed, 1);
    expect_error(attn_kernels_pack(context, NULL, file, NULL, &error), &error, ATTN_ERR_INVALID, "folder",
                 "holds no kernel of this version");
    attn_context_destroy(context);
    /* The pack is as it was, and serves where there is neither compiler nor folder. */
    c.cache = c.nvrtc = "";
    c.kernels = file;
    assert_int_equal(compiled_for(&c), 0);
    c.device = "gpu:t4";
    assert_int_equal(compiled_for(&c), 0);
    measure(file);
    cut_at = (int)file_size - 1;
    damage(file);
    expect_error(attn_context_create(&context, &c, &error), &error, ATTN_ERR_INVALID, "kernels", "is damaged");
    unlink(file);
    unlink(stray);
    remove_folder(folder);
}

/* --- The log --- */

static char lines[4][1024];
static int n_lines;

static void keep_line(void *user, const char *line) {
    (void)user;
    if (n_lines < 4) {
        snprintf(lines[n_lines++], sizeof lines[0], "%s", line);
    }
}

static void test_log(void **state) {
    (void)state;
    const char *folder = fresh_folder();
    attn_config c = cuda_config("gpu:a100", folder);
    c.log = keep_line;
    setenv("ATTN_VERBOSE", "jit", 1);
    assert_int_equal(compiled_for(&c), 1);
    assert_int_equal(compiled_for(&c), 0);
    unsetenv("ATTN_VERBOSE");
    assert_int_equal(n_lines, 2);
    assert_non_null(strstr(lines[0], "attn,1,jit,fwd:bf16:"));
    assert_non_null(strstr(lines[0], ",attn_upload__sm80,compiled,0."));
    assert_non_null(strstr(lines[1], ",attn_upload__sm80,disk,0."));
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_memory_and_disk, start),
        cmocka_unit_test_setup(test_damage, start),
        cmocka_unit_test_setup(test_useless_folders, start),
        cmocka_unit_test_setup(test_processes, start),
        cmocka_unit_test_setup(test_threads, start),
        cmocka_unit_test_setup(test_packs, start),
        cmocka_unit_test_setup(test_log, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
