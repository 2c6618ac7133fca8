/* SPDX-License-Identifier: Apache-2.0
 * The main job on real input: queries, keys and values of a small language model on one sentence. The output is
 * compared with what the model itself computed, and the attention is shown as a picture.
 *     demo DATA.safetensors FOLDER          exit status 0: right, 1: wrong, 2: bad input, 3: could not run
 * The weights are had from the library too: with the identity as values, row i of the output is row i of the
 * probabilities. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "picture.h"
#include "tensor.h"

/* Both sides round in float32; the largest values here are about 3. */
#define TOLERANCE 1e-5

typedef struct sentence {
    cli_file file;
    cli_tensor q, k, v, o, probabilities; /* (1, tokens, heads, dim); probabilities (1, heads, tokens, tokens) */
    cli_tensor words, text;
    int tokens, heads, dim;
    char labels[1024]; /* the tokens, each ended by NUL */
} sentence;

static int fail(const attn_error *error) {
    fprintf(stderr, "demo: %s: %s %s\n", attn_status_name(error->status), error->field, error->message);
    return 3;
}

/* One tensor by name; of the shape given, where an extent of 0 takes any. */
static int take(sentence *s, cli_tensor *tensor, const char *name, cli_type type, int rank, const int64_t *shape) {
    cli_error error;
    if (cli_safetensors_parse(tensor, s->file.bytes, s->file.size, name, "data", &error)) {
        fprintf(stderr, "demo: %s\n", error.text);
        return 2;
    }
    int fits = tensor->type == type && tensor->rank == rank;
    for (int axis = 0; fits && axis < rank; axis++) {
        fits = tensor->shape[axis] > 0 && (shape[axis] == 0 || tensor->shape[axis] == shape[axis]);
    }
    if (!fits) {
        fprintf(stderr, "demo: tensor %s has another type or shape than the model's\n", name);
        return 2;
    }
    return 0;
}

static int read_sentence(sentence *s, const char *path) {
    cli_error error;
    if (cli_file_open(&s->file, path, path, &error)) {
        fprintf(stderr, "demo: %s\n", error.text);
        return 2;
    }
    const int64_t any[4] = {1, 0, 0, 0}, bytes[1] = {0};
    if (take(s, &s->q, "q", CLI_F32, 4, any)) {
        return 2;
    }
    const int64_t *same = s->q.shape, square[4] = {1, same[2], same[1], same[1]};
    if (take(s, &s->k, "k", CLI_F32, 4, same) || take(s, &s->v, "v", CLI_F32, 4, same) ||
        take(s, &s->o, "o", CLI_F32, 4, same) || take(s, &s->probabilities, "probabilities", CLI_F32, 4, square) ||
        take(s, &s->words, "tokens", CLI_U8, 1, bytes) || take(s, &s->text, "sentence", CLI_U8, 1, bytes)) {
        return 2;
    }
    if (same[1] > PICTURE_MAX_TOKENS || s->words.shape[0] >= (int64_t)sizeof s->labels) {
        fprintf(stderr, "demo: the sentence has %d tokens, at most %d can be shown\n", (int)same[1],
                PICTURE_MAX_TOKENS);
        return 2;
    }
    s->tokens = (int)same[1];
    s->heads = (int)same[2];
    s->dim = (int)same[3];
    memcpy(s->labels, s->words.data, (size_t)s->words.shape[0]);
    return 0;
}

/* Splits the labels; returns how many there are. */
static int split_labels(sentence *s, const char *label[PICTURE_MAX_TOKENS]) {
    int count = 0;
    for (char *word = strtok(s->labels, " "); word && count < PICTURE_MAX_TOKENS; word = strtok(NULL, " ")) {
        label[count++] = word;
    }
    return count;
}

/* Plans and runs one forward pass; says what ran if `say`. */
static attn_status run(const attn_problem *problem, const attn_args *args, int say, attn_error *error) {
    attn_context *context = NULL;
    attn_plan *plan = NULL;
    void *workspace = NULL;
    attn_status status = attn_context_create(&context, NULL, error);
    if (!status) {
        status = attn_plan_create(&plan, context, problem, NULL, error);
    }
    if (!status) {
        size_t size = attn_plan_workspace(plan);
        size_t whole = (size + ATTN_WORKSPACE_ALIGNMENT) / ATTN_WORKSPACE_ALIGNMENT * ATTN_WORKSPACE_ALIGNMENT;
        workspace = aligned_alloc(ATTN_WORKSPACE_ALIGNMENT, whole);
        status = attn_forward(plan, args, workspace, size, NULL, error);
    }
    attn_plan_info info = {.struct_size = sizeof info};
    if (!status && say && !attn_plan_query(plan, &info, NULL)) {
        printf("computed by     %s, %d threads, %.1f KiB of workspace\n", info.implementation, info.threads,
               info.memory_fused / 1024);
    }
    free(workspace);
    attn_plan_destroy(plan);
    attn_context_destroy(context);
    return status;
}

static attn_problem problem_of(const sentence *s) {
    return attn_problem_dense(ATTN_F32, 1, s->heads, s->heads, s->tokens, s->tokens, s->dim, s->dim);
}

static attn_status attend(const sentence *s, float *o, attn_error *error) {
    attn_problem problem = problem_of(s);
    attn_args args = attn_args_init();
    args.q = s->q.data, args.k = s->k.data, args.v = s->v.data, args.o = o;
    return run(&problem, &args, 1, error);
}

/* weights: (heads, tokens, tokens). The identity is one matrix for all heads: their stride is 0. */
static attn_status attend_identity(const sentence *s, float *identity, float *weights, attn_error *error) {
    attn_problem problem = problem_of(s);
    problem.dim_v = s->tokens;
    problem.v = attn_layout_bhsd(ATTN_F32, 1, s->tokens, s->tokens);
    problem.v.stride[1] = 0;
    problem.o = attn_layout_bhsd(ATTN_F32, s->heads, s->tokens, s->tokens);
    for (int i = 0; i < s->tokens * s->tokens; i++) {
        identity[i] = i / s->tokens == i % s->tokens;
    }
    attn_args args = attn_args_init();
    args.q = s->q.data, args.k = s->k.data, args.v = identity, args.o = weights;
    return run(&problem, &args, 0, error);
}

/* Prints the largest difference from the model; false if it is too large or not a number. */
static bool compare(const char *what, const float *ours, const cli_tensor *model) {
    double worst = 0;
    for (int64_t i = 0; i < cli_tensor_count(model); i++) {
        float theirs;
        memcpy(&theirs, model->data + (size_t)i * sizeof theirs, sizeof theirs);
        double off = fabs((double)ours[i] - theirs);
        worst = off <= worst ? worst : off; /* keeps a NaN */
    }
    bool right = worst <= TOLERANCE;
    printf("%s  largest difference from the model %.2e, allowed %.0e: %s\n", what, worst, TOLERANCE,
           right ? "right" : "WRONG");
    return right;
}

static int save(const attention_map *map, const char *folder) {
    canvas sheet = {0};
    char path[1024];
    const char *why;
    int status = 0;
    picture_draw(map, &sheet);
    snprintf(path, sizeof path, "%s/attention.svg", folder);
    if (canvas_write_svg(&sheet, path)) {
        printf("\npicture: %s\n", path);
    } else {
        fprintf(stderr, "demo: %s could not be written\n", path);
        status = 3;
    }
    snprintf(path, sizeof path, "%s/attention.png", folder);
    if (canvas_write_png(&sheet, path, &why)) {
        printf("picture: %s\n", path);
    } else if (*why) {
        printf("no %s: %s\n", path, why);
    } else {
        fprintf(stderr, "demo: %s could not be written\n", path);
        status = 3;
    }
    canvas_release(&sheet);
    return status;
}

static int demonstrate(sentence *s, float *o, float *identity, float *weights, const char *folder) {
    attn_error error;
    attention_map map = {.tokens = s->tokens, .heads = s->heads, .weights = weights};
    if (split_labels(s, map.label) != s->tokens) {
        fprintf(stderr, "demo: the number of words is not the number of tokens\n");
        return 2;
    }
    char title[160];
    snprintf(title, sizeof title, "all-MiniLM-L6-v2, layer 0: which token (row) attends to which (column)");
    map.title = title;
    printf("sentence        %.*s\n", (int)s->text.shape[0], (const char *)s->text.data);
    printf("model           all-MiniLM-L6-v2, encoder layer 0: %d tokens, %d heads of %d\n", s->tokens, s->heads,
           s->dim);
    if (attend(s, o, &error) || attend_identity(s, identity, weights, &error)) {
        return fail(&error);
    }
    bool right = compare("output        ", o, &s->o);
    right = compare("probabilities ", weights, &s->probabilities) && right;
    putchar('\n');
    picture_print(&map);
    int saved = save(&map, folder);
    return right ? saved : 1;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: demo DATA.safetensors FOLDER\n");
        return 2;
    }
    static sentence s;
    int status = read_sentence(&s, argv[1]);
    if (!status) {
        size_t square = (size_t)s.tokens * (size_t)s.tokens;
        float *o = malloc(sizeof(float) * (size_t)cli_tensor_count(&s.o));
        float *identity = malloc(sizeof(float) * square);
        float *weights = malloc(sizeof(float) * square * (size_t)s.heads);
        status = o && identity && weights ? demonstrate(&s, o, identity, weights, argv[2]) : 3;
        free(o);
        free(identity);
        free(weights);
    }
    cli_file_close(&s.file);
    return status;
}
