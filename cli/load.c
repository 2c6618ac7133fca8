/* SPDX-License-Identifier: Apache-2.0
 * Cases from files: one pass over the options, from q, which sets the sizes, to the optional tensors. */
#include "load.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(cli_inputs, field)
const cli_option cli_input_options[] = {
    {"Inputs (FILE.npy, or FILE.safetensors:NAME)", CLI_TITLE, 0, NULL, NULL, 0, 0},
    {"-q", CLI_WORD, AT(q), "FILE  queries [B,S,H,D]; f16, bf16, f32 or f64", NULL, 0, 0},
    {"-k", CLI_WORD, AT(k), "FILE  keys [B,Skv,Hkv,D]", NULL, 0, 0},
    {"-v", CLI_WORD, AT(v), "FILE  values [B,Skv,Hkv,Dv]", NULL, 0, 0},
    {"--cu-seqlens-q", CLI_WORD, AT(cu_q), "FILE  i32 or i64 [B+1]: where packed sequences start", NULL, 0, 0},
    {"--cu-seqlens-k", CLI_WORD, AT(cu_k), "FILE  the same for keys", NULL, 0, 0},
    {"--used-q", CLI_WORD, AT(used_q), "FILE  i32 or i64 [B]: used lengths of the queries", NULL, 0, 0},
    {"--used-k", CLI_WORD, AT(used_k), "FILE  the same for keys", NULL, 0, 0},
    {"--do", CLI_WORD, AT(dout), "FILE  gradient of the output, shaped as it: makes a backward pass", NULL, 0, 0},
    {"--dlse", CLI_WORD, AT(dlse), "FILE  gradient that arrives at the lse, shaped as it", NULL, 0, 0},
};
const int cli_input_count = sizeof cli_input_options / sizeof cli_input_options[0];

bool cli_inputs_given(const cli_inputs *inputs) {
    return inputs->q || inputs->k || inputs->v || inputs->dout || inputs->dlse || inputs->cu_q || inputs->cu_k ||
           inputs->used_q || inputs->used_k;
}

typedef struct loader {
    cli_case *at;
    cli_loaded *loaded;
    cli_layout layout;
    cli_type compute;
    const char *verb;
    cli_error *error;
} loader;

static cli_exit read_tensor(loader *l, cli_tensor *tensor, const char *option, const char *text, const char *name,
                            bool *safetensors) {
    cli_path path;
    cli_file file;
    char what[1400];
    cli_exit code = cli_path_parse(&path, text, option, name, l->error);
    snprintf(what, sizeof what, "%s: %.300s", option, text);
    code = code ? code : cli_file_open(&file, path.file, what, l->error);
    if (code) {
        return code;
    }
    if (!path.safetensors && file.size >= 6 && memcmp(file.bytes, "\x93NUMPY", 6) != 0 && strrchr(text, ':')) {
        code = cli_fail(l->error, CLI_USAGE, "%s: is no .npy file, and FILE:NAME is read from FILE.safetensors", what);
    } else {
        code = path.safetensors ? cli_safetensors_parse(tensor, file.bytes, file.size, path.name, what, l->error)
                                : cli_npy_parse(tensor, file.bytes, file.size, what, l->error);
    }
    if (safetensors) {
        *safetensors = path.safetensors;
    }
    if (code) {
        cli_file_close(&file);
        return code;
    }
    return cli_memory_adopt(&l->at->memory, &file, l->error);
}

static bool is_float(cli_type type) {
    return type == CLI_F16 || type == CLI_BF16 || type == CLI_F32 || type == CLI_F64;
}

static cli_exit want_float(loader *l, const cli_tensor *tensor, const char *option, const char *text) {
    return is_float(tensor->type) ? CLI_RIGHT
                                  : cli_fail(l->error, CLI_USAGE,
                                             "%s: %.300s has elements of type %s, can be f16, bf16, "
                                             "f32 or f64",
                                             option, text, cli_types[tensor->type].name);
}

/* The axes [batch, head, token, dim] of a q-, k- or v-shaped array. */
static cli_exit arrange(loader *l, cli_view *view, const cli_tensor *t, const char *option) {
    static const int order[3][4] = {{0, 2, 1, 3}, {0, 1, 2, 3}, {-1, 1, 0, 2}};
    int missing = l->layout == CLI_THD ? 0 : 4 - t->rank, rank = l->layout == CLI_THD ? 3 : 4;
    char shape[160];
    if (l->layout == CLI_THD ? t->rank != 3 : t->rank < 2 || t->rank > 4) {
        cli_shape_text(shape, sizeof shape, t->shape, t->rank);
        return cli_fail(l->error, CLI_USAGE, "%s: has shape %s, layout %s needs %s", option, shape,
                        l->layout == CLI_THD    ? "thd"
                        : l->layout == CLI_BHSD ? "bhsd"
                                                : "bshd",
                        l->layout == CLI_THD ? "3 axes [T,H,D]" : "4 axes, or 3 or 2 (without batch, without head)");
    }
    int64_t extents[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 0};
    for (int a = 0; a < t->rank; a++) {
        /* 3 axes lack the batch; 2 axes lack the head too, whichever place it has. */
        int to = a + (rank == 4 ? missing : 0);
        if (rank == 4 && t->rank == 2 && a == 0) {
            to = l->layout == CLI_BSHD ? 1 : 2;
        }
        extents[to] = t->shape[a];
        strides[to] = t->stride[a];
    }
    *view = (cli_view){.type = t->type, .base = (void *)(uintptr_t)t->data};
    for (int a = 0; a < 4; a++) {
        int from = order[l->layout][a];
        view->shape[a] = from < 0 ? 1 : extents[from];
        view->stride[a] = from < 0 ? 0 : strides[from];
    }
    return CLI_RIGHT;
}

/* Strides of an array in the order that the user's layout names. */
static void in_layout(cli_view *view, cli_layout layout) {
    const int64_t *n = view->shape;
    if (layout == CLI_BHSD) {
        memcpy(view->stride, (int64_t[4]){n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}, sizeof view->stride);
    } else {
        memcpy(view->stride, (int64_t[4]){n[1] * n[2] * n[3], n[3], n[1] * n[3], 1}, sizeof view->stride);
    }
}

static void note_overflow(const loader *l, const char *option, cli_type type, const cli_overflow *overflow) {
    if (overflow->count) {
        fprintf(stderr,
                "attn %s: note: %s: %" PRId64 " values are too large for %s and become infinite; the first is %g at "
                "batch %" PRId64 ", head %" PRId64 ", token %" PRId64 ", dim %" PRId64 "\n",
                l->verb, option, overflow->count, cli_types[type].name, overflow->value, overflow->first[0],
                overflow->first[1], overflow->first[2], overflow->first[3]);
    }
}

/* Gives the slot the data of `source` in type `type`: in place, or converted into strides that the caller has set in
 * `plain`. */
static cli_exit place(loader *l, int slot, const cli_view *source, cli_type type, const cli_view *plain,
                      const char *option) {
    cli_view *view = &l->at->view[slot];
    size_t each = cli_types[source->type].bytes;
    bool same = source->type == type || (type == CLI_U8 && source->type == CLI_BOOL);
    l->at->present[slot] = true;
    if (same && (uintptr_t)source->base % each == 0 && (source->stride[3] == 1 || source->shape[3] <= 1)) {
        *view = *source;
        view->type = type;
        if (view->stride[3] == 0 && plain->stride[3]) {
            view->stride[3] = 1; /* an axis of one element; kernels like a unit stride */
        }
        return CLI_RIGHT;
    }
    *view = *plain;
    view->type = type;
    int64_t elements, base;
    void *block;
    if (!cli_view_extent(view, &elements, &base)) {
        return cli_fail(l->error, CLI_UNRUN, "out of memory: %s reaches past 2^63 elements", option);
    }
    cli_exit code = cli_memory_take(&l->at->memory, &block, (double)elements * (double)cli_types[type].bytes,
                                    cli_slot_names[slot], l->error);
    if (code) {
        return code;
    }
    view->base = block;
    if (each > 1 && (uintptr_t)source->base % each != 0) { /* a safetensors file need not be aligned */
        cli_view aligned = *source;
        if (!cli_view_extent(source, &elements, &base)) {
            return cli_fail(l->error, CLI_UNRUN, "out of memory: %s reaches past 2^63 elements", option);
        }
        code = cli_memory_take(&l->at->memory, &aligned.base, (double)elements * (double)each, option, l->error);
        if (code) {
            return code;
        }
        memcpy(aligned.base, source->base, (size_t)elements * each);
        cli_overflow overflow = {0};
        cli_convert(view, &aligned, &overflow);
        note_overflow(l, option, type, &overflow);
        return CLI_RIGHT;
    }
    cli_overflow overflow = {0};
    cli_convert(view, source, &overflow);
    note_overflow(l, option, type, &overflow);
    return CLI_RIGHT;
}

static cli_exit load_rows(loader *l, int slot, const char *option, const char *text, const char *name,
                          cli_view *source) {
    cli_tensor tensor;
    bool safetensors;
    cli_exit code = read_tensor(l, &tensor, option, text, name, &safetensors);
    code = code ? code : want_float(l, &tensor, option, text);
    code = code ? code : arrange(l, source, &tensor, option);
    if (!code && slot == CLI_SLOT_Q) {
        l->loaded->type = tensor.type;
        l->loaded->safetensors = safetensors;
        l->loaded->rank = tensor.rank;
    } else if (!code && tensor.rank != l->loaded->rank) {
        code = cli_fail(l->error, CLI_USAGE, "%s: has %d axes, -q has %d", option, tensor.rank, l->loaded->rank);
    }
    return code;
}

/* One axis of `option` must be what another tensor has. */
static cli_exit agree(loader *l, const char *option, const char *axis, int64_t got, int64_t wanted, const char *other) {
    return got == wanted ? CLI_RIGHT
                         : cli_fail(l->error, CLI_USAGE, "%s: has %s %" PRId64 ", %s needs %" PRId64, option, axis, got,
                                    other, wanted);
}

static cli_exit place_rows(loader *l, int slot, const cli_view *source, const char *option) {
    cli_view plain = *source;
    in_layout(&plain, l->layout);
    return place(l, slot, source, l->compute, &plain, option);
}

static cli_exit load_main(loader *l, const cli_inputs *in, const char *dtype) {
    const char *const given[3] = {in->q, in->k, in->v}, *const option[3] = {"-q", "-k", "-v"};
    cli_view view[3];
    for (int i = 0; i < 3; i++) {
        if (!given[i]) {
            return cli_fail(l->error, CLI_USAGE, "%s: is missing; -q, -k and -v are needed together", option[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        cli_exit code = load_rows(l, CLI_SLOT_Q + i, option[i], given[i], option[i] + 1, &view[i]);
        if (code) {
            return code;
        }
        if (!dtype && view[i].type != view[0].type) {
            return cli_fail(l->error, CLI_USAGE, "%s: is %s, -q is %s; --dtype chooses the type to compute in",
                            option[i], cli_types[view[i].type].name, cli_types[view[0].type].name);
        }
    }
    const int64_t *q = view[0].shape, *k = view[1].shape, *v = view[2].shape;
    cli_exit code = agree(l, "-k", "batch", k[0], q[0], "-q");
    code = code ? code : agree(l, "-k", "head dimension", k[3], q[3], "-q");
    code = code ? code : agree(l, "-v", "batch", v[0], k[0], "-k");
    code = code ? code : agree(l, "-v", "heads", v[1], k[1], "-k");
    code = code ? code : agree(l, "-v", "tokens", v[2], k[2], "-k");
    if (!code && (k[1] == 0 ? q[1] != 0 : q[1] % k[1] != 0)) {
        code = cli_fail(l->error, CLI_USAGE,
                        "-k: has %" PRId64 " heads, the %" PRId64 " of -q must be a multiple of it", k[1], q[1]);
    }
    for (int i = 0; i < 3 && !code; i++) {
        if (view[i].shape[3] == 0) {
            code = cli_fail(l->error, CLI_USAGE, "%s: has head dimension 0, at least 1 is needed", option[i]);
        }
    }
    l->compute = dtype ? cli_dtype_type(cli_dtype_of(dtype)) : view[0].type;
    for (int i = 0; i < 3 && !code; i++) {
        code = place_rows(l, CLI_SLOT_Q + i, &view[i], option[i]);
    }
    return code;
}

/* Whole numbers as int32; `fewest` entries at least. */
static cli_exit load_lengths(loader *l, int32_t **out, int64_t *count, const char *option, const char *text,
                             const char *name) {
    cli_tensor t;
    cli_exit code = read_tensor(l, &t, option, text, name, NULL);
    if (code) {
        return code;
    }
    if ((t.type != CLI_I32 && t.type != CLI_I64) || t.rank != 1) {
        return cli_fail(l->error, CLI_USAGE, "%s: is %s with %d axes, i32 or i64 with 1 axis is needed", option,
                        cli_types[t.type].name, t.rank);
    }
    void *block;
    code = cli_memory_take(&l->at->memory, &block, 4.0 * (double)(t.shape[0] + 1), option, l->error);
    *out = block;
    *count = t.shape[0];
    for (int64_t i = 0; i < t.shape[0] && !code; i++) {
        int64_t wide = 0;
        int32_t word;
        if (t.type == CLI_I64) {
            memcpy(&wide, t.data + 8 * i, 8);
        } else {
            memcpy(&word, t.data + 4 * i, 4);
            wide = word;
        }
        if (wide < 0 || wide > INT32_MAX) {
            code = cli_fail(l->error, CLI_USAGE, "%s: entry %" PRId64 " is %" PRId64 ", the limits are 0 to 2147483647",
                            option, i, wide);
        }
        (*out)[i] = (int32_t)wide;
    }
    return code;
}

static cli_exit load_offsets(loader *l, int32_t **cu, int64_t *batch, int64_t *longest, int64_t rows,
                             const char *option, const char *text) {
    int64_t count;
    if (!text) {
        return cli_fail(l->error, CLI_USAGE, "%s: is missing, --layout thd needs it", option);
    }
    cli_exit code = load_lengths(l, cu, &count, option, text, option + 2);
    if (code) {
        return code;
    }
    if (count < 1) {
        return cli_fail(l->error, CLI_USAGE, "%s: has no entry, one more than sequences are needed", option);
    }
    for (int64_t s = 0; s < count; s++) {
        int32_t before = s ? (*cu)[s - 1] : 0;
        if ((s == 0 && (*cu)[0] != 0) || (*cu)[s] < before || (*cu)[s] > rows) {
            return cli_fail(l->error, CLI_USAGE, "%s: entry %" PRId64 " is %d, the limits are %d to %" PRId64, option,
                            s, (*cu)[s], before, s ? rows : 0);
        }
        *longest = (*cu)[s] - before > *longest ? (*cu)[s] - before : *longest;
    }
    *batch = count - 1;
    return CLI_RIGHT;
}

static cli_exit load_used(loader *l, int32_t **used, const int32_t *cu, int64_t tokens, const char *option,
                          const char *text) {
    int64_t count;
    cli_exit code = load_lengths(l, used, &count, option, text, option + 2);
    if (!code && count != l->at->problem.batch) {
        code = cli_fail(l->error, CLI_USAGE, "%s: has %" PRId64 " entries, %" PRId64 " sequences need one each", option,
                        count, l->at->problem.batch);
    }
    for (int64_t s = 0; s < l->at->problem.batch && !code; s++) {
        int64_t slot = cu ? cu[s + 1] - cu[s] : tokens;
        if ((*used)[s] > slot) {
            code = cli_fail(l->error, CLI_USAGE, "%s: entry %" PRId64 " is %d, the sequence has %" PRId64 " tokens",
                            option, s, (*used)[s], slot);
        }
    }
    return code;
}

static cli_exit load_sizes(loader *l, const cli_inputs *in) {
    attn_problem *p = &l->at->problem;
    const cli_view *q = &l->at->view[CLI_SLOT_Q], *k = &l->at->view[CLI_SLOT_K], *v = &l->at->view[CLI_SLOT_V];
    p->batch = q->shape[0];
    p->heads_q = q->shape[1];
    p->heads_kv = k->shape[1];
    p->tokens_q = q->shape[2];
    p->tokens_kv = k->shape[2];
    p->dim_qk = q->shape[3];
    p->dim_v = v->shape[3];
    cli_exit code = CLI_RIGHT;
    if (l->layout == CLI_THD) {
        int64_t batch_kv = 0;
        p->rows_q = p->rows_kv = ATTN_PACKED;
        p->total_q = p->tokens_q;
        p->total_kv = p->tokens_kv;
        p->tokens_q = p->tokens_kv = 0;
        code = load_offsets(l, &l->at->cu_q, &p->batch, &p->tokens_q, p->total_q, "--cu-seqlens-q", in->cu_q);
        code = code ? code
                    : load_offsets(l, &l->at->cu_kv, &batch_kv, &p->tokens_kv, p->total_kv, "--cu-seqlens-k", in->cu_k);
        if (!code && batch_kv != p->batch) {
            code =
                cli_fail(l->error, CLI_USAGE, "--cu-seqlens-k: has %" PRId64 " sequences, --cu-seqlens-q has %" PRId64,
                         batch_kv, p->batch);
        }
    } else if (in->cu_q || in->cu_k) {
        code = cli_fail(l->error, CLI_USAGE, "%s: packed sequences need --layout thd",
                        in->cu_q ? "--cu-seqlens-q" : "--cu-seqlens-k");
    }
    if (!code && in->used_q) {
        p->flags |= ATTN_USED_Q;
        code = load_used(l, &l->at->used_q, l->at->cu_q, p->tokens_q, "--used-q", in->used_q);
    }
    if (!code && in->used_k) {
        p->flags |= ATTN_USED_KV;
        code = load_used(l, &l->at->used_kv, l->at->cu_kv, p->tokens_kv, "--used-k", in->used_k);
    }
    return code;
}

/* Axes right-aligned to [sequence, head, row, key]; an axis of 1 is broadcast. Packed sequences have different lengths,
 * so there an axis may be longer than the longest. */
static cli_exit load_scores(loader *l, int slot, const char *option, const char *text) {
    const attn_problem *p = &l->at->problem;
    const int64_t whole[4] = {p->batch, p->heads_q, p->tokens_q, p->tokens_kv};
    static const char *const axes[4] = {"batch", "heads", "query tokens", "key tokens"};
    cli_tensor t;
    cli_exit code = read_tensor(l, &t, option, text, option + 2, NULL);
    if (code) {
        return code;
    }
    bool boolean = t.type == CLI_BOOL || t.type == CLI_U8;
    if (slot == CLI_SLOT_MASK ? !boolean : !is_float(t.type)) {
        return cli_fail(l->error, CLI_USAGE, "%s: has elements of type %s, can be %s", option, cli_types[t.type].name,
                        slot == CLI_SLOT_MASK ? "bool or u8" : "f16, bf16, f32 or f64");
    }
    if (t.rank < 2 || t.rank > 4) {
        return cli_fail(l->error, CLI_USAGE, "%s: has %d axes, 2 to 4 are needed: [B|1,H|1,Sq|1,Skv|1]", option,
                        t.rank);
    }
    cli_view source = {.type = t.type, .shape = {1, 1, 1, 1}, .base = (void *)(uintptr_t)t.data};
    for (int a = 0; a < 4; a++) {
        int from = a - (4 - t.rank);
        int64_t extent = from < 0 ? 1 : t.shape[from];
        bool longer = l->layout == CLI_THD && a >= 2 && extent > whole[a];
        if (extent != whole[a] && extent != 1 && !longer) {
            return cli_fail(l->error, CLI_USAGE, "%s: has %s %" PRId64 ", must be 1 or %" PRId64, option, axes[a],
                            extent, whole[a]);
        }
        source.shape[a] = extent;
        source.stride[a] = from < 0 || extent == 1 ? 0 : t.stride[from];
    }
    if (slot == CLI_SLOT_BIAS) {
        l->loaded->bias_rank = t.rank;
        memcpy(l->loaded->bias_shape, t.shape, sizeof t.shape);
    }
    cli_type wide = l->compute == CLI_F64 ? CLI_F64 : CLI_F32;
    cli_type type = slot == CLI_SLOT_MASK ? CLI_U8 : t.type == l->compute ? l->compute : wide;
    cli_view plain;
    cli_view_plain(&plain, &source);
    for (int a = 0; a < 4; a++) {
        plain.stride[a] = source.shape[a] == 1 ? 0 : plain.stride[a];
    }
    return place(l, slot, &source, type, &plain, option);
}

/* One number a head: slopes [H] or [B,H], sinks [H]. */
static cli_exit load_heads(loader *l, int slot, const char *option, const char *text) {
    const attn_problem *p = &l->at->problem;
    cli_type wide = l->compute == CLI_F64 ? CLI_F64 : CLI_F32;
    bool automatic = slot == CLI_SLOT_ALIBI && strcmp(text, "auto") == 0;
    cli_view source = {.type = CLI_F64, .shape = {1, p->heads_q, 1, 1}, .stride = {0, 1, 0, 0}};
    void *slopes;
    cli_tensor t;
    cli_exit code;
    if (automatic) {
        code = cli_memory_take(&l->at->memory, &slopes, 8.0 * (double)p->heads_q, option, l->error);
        for (int64_t h = 0; h < p->heads_q && !code; h++) {
            ((double *)slopes)[h] = cli_alibi_slope(h, p->heads_q);
        }
        source.base = slopes;
    } else {
        code = read_tensor(l, &t, option, text, option + 2, NULL);
        code = code ? code : want_float(l, &t, option, text);
        if (!code && t.rank != 1 && (slot == CLI_SLOT_SINK || t.rank != 2)) {
            code = cli_fail(l->error, CLI_USAGE, "%s: has %d axes, %s needed", option, t.rank,
                            slot == CLI_SLOT_SINK ? "1 is: [H]" : "1 or 2 are: [H] or [B,H]");
        }
        code = code ? code : agree(l, option, "heads", t.shape[t.rank - 1], p->heads_q, "-q");
        if (!code && t.rank == 2) {
            code = agree(l, option, "batch", t.shape[0], p->batch, "-q");
            source.shape[0] = t.shape[0];
            source.stride[0] = t.stride[0];
        }
        if (!code) {
            source.type = t.type;
            source.stride[1] = t.stride[t.rank - 1];
            source.base = (void *)(uintptr_t)t.data;
        }
    }
    if (code) {
        return code;
    }
    cli_view plain = source;
    plain.stride[0] = source.stride[0] ? p->heads_q : 0;
    plain.stride[1] = 1;
    return place(l, slot, &source, wide, &plain, option);
}

static cli_exit load_dlse(loader *l, const char *text) {
    const cli_view *q = &l->at->view[CLI_SLOT_Q];
    const int64_t whole[3] = {q->shape[0], q->shape[1], q->shape[2]};
    static const char *const axes[3] = {"batch", "heads", "tokens"};
    cli_tensor t;
    cli_exit code = read_tensor(l, &t, "--dlse", text, "dlse", NULL);
    code = code ? code : want_float(l, &t, "--dlse", text);
    if (!code && (t.rank < 1 || t.rank > 3)) {
        code = cli_fail(l->error, CLI_USAGE, "--dlse: has %d axes, 1 to 3 are needed: [B,H,S] or [H,T]", t.rank);
    }
    if (code) {
        return code;
    }
    cli_view source = {.type = t.type, .shape = {1, 1, 1, 1}, .base = (void *)(uintptr_t)t.data}, plain;
    for (int a = 0; a < 3; a++) {
        int from = a - (3 - t.rank);
        source.shape[a] = from < 0 ? 1 : t.shape[from];
        source.stride[a] = from < 0 ? 0 : t.stride[from];
        code = code ? code : agree(l, "--dlse", axes[a], source.shape[a], whole[a], "the lse");
    }
    if (code) {
        return code;
    }
    cli_view_plain(&plain, &source);
    return place(l, CLI_SLOT_DLSE, &source, l->compute == CLI_F64 ? CLI_F64 : CLI_F32, &plain, "--dlse");
}

static cli_exit load_backward(loader *l, const cli_inputs *in) {
    cli_view source;
    const cli_view *q = &l->at->view[CLI_SLOT_Q];
    cli_exit code = load_rows(l, CLI_SLOT_DOUT, "--do", in->dout, "do", &source);
    static const char *const axes[3] = {"batch", "heads", "tokens"};
    for (int a = 0; a < 3 && !code; a++) {
        code = agree(l, "--do", axes[a], source.shape[a], q->shape[a], "-q");
    }
    code = code ? code : agree(l, "--do", "head dimension", source.shape[3], l->at->view[CLI_SLOT_V].shape[3], "-v");
    code = code ? code : place_rows(l, CLI_SLOT_DOUT, &source, "--do");
    if (!code && in->dlse) {
        code = load_dlse(l, in->dlse);
    }
    return code;
}

static attn_layout layout_from(const cli_view *view) {
    attn_layout layout = {cli_type_dtype(view->type), {0, 0, 0, 0}};
    memcpy(layout.stride, view->stride, sizeof layout.stride);
    return layout;
}

/* Layouts of everything, inputs as they lie, outputs in the user's order. */
static void describe(loader *l, bool backward) {
    cli_case *at = l->at;
    attn_problem *p = &at->problem;
    const cli_view *v = at->view;
    attn_layout *const layouts[] = {&p->q, &p->k, &p->v, &p->bias, &p->mask, &p->alibi, &p->sink, &p->dout, &p->dlse};
    for (int s = 0; s <= CLI_SLOT_DLSE; s++) {
        if (at->present[s]) {
            *layouts[s] = layout_from(&v[s]);
        }
    }
    cli_view o = v[CLI_SLOT_Q];
    o.shape[3] = p->dim_v;
    in_layout(&o, l->layout);
    p->o = layout_from(&o);
    if (!backward) {
        return;
    }
    attn_layout *const gradients[] = {&p->dq, &p->dk, &p->dv};
    for (int s = 0; s < 3; s++) {
        cli_view gradient = v[CLI_SLOT_Q + s];
        in_layout(&gradient, l->layout);
        *gradients[s] = layout_from(&gradient);
    }
    if (at->present[CLI_SLOT_BIAS]) { /* as the bias file is shaped */
        int64_t step = 1;
        p->dbias.dtype = l->compute == CLI_F64 ? ATTN_F64 : ATTN_F32;
        for (int a = 3; a >= 0; a--) {
            int from = a - (4 - l->loaded->bias_rank);
            int64_t extent = from < 0 ? 1 : l->loaded->bias_shape[from];
            p->dbias.stride[a] = extent == 1 ? 0 : step;
            step *= extent;
        }
    }
}

cli_exit cli_case_load(cli_case *at, cli_loaded *loaded, const cli_inputs *in, const cli_features *features,
                       cli_layout layout, const char *dtype, bool backward, const char *verb, cli_error *error) {
    memset(at, 0, sizeof *at);
    memset(loaded, 0, sizeof *loaded);
    loader l = {at, loaded, layout, CLI_F32, verb, error};
    loaded->layout = layout;
    at->problem = attn_problem_init();
    at->problem.pass = backward ? ATTN_BACKWARD : ATTN_FORWARD;
    cli_exit code = cli_features_check(features, error);
    code = code ? code : load_main(&l, in, dtype);
    code = code ? code : load_sizes(&l, in);
    if (!code && features->bias) {
        code = load_scores(&l, CLI_SLOT_BIAS, "--bias", features->bias);
    }
    if (!code && features->mask) {
        code = load_scores(&l, CLI_SLOT_MASK, "--mask", features->mask);
    }
    if (!code && features->alibi) {
        code = load_heads(&l, CLI_SLOT_ALIBI, "--alibi", features->alibi);
    }
    if (!code && features->sink) {
        code = load_heads(&l, CLI_SLOT_SINK, "--sink", features->sink);
    }
    if (!code && backward) {
        code = load_backward(&l, in);
    }
    if (code) {
        return code;
    }
    char text[2048];
    describe(&l, backward);
    cli_features_apply(features, features->causal.given && features->causal.value == 0, &at->problem);
    code = cli_problem_settle(&at->problem, text, sizeof text, error);
    if (code) {
        return code;
    }
    bool no_dlse = backward && !in->dlse;
    cli_case_shape(at, &at->problem);
    at->present[CLI_SLOT_DLSE] = at->present[CLI_SLOT_DLSE] && !no_dlse;
    at->seed = cli_features_seed(features);
    if (at->present[CLI_SLOT_DBIAS]) { /* the whole of the file's shape, also past the longest sequence */
        double elements = 1;
        for (int a = 0; a < loaded->bias_rank; a++) {
            elements *= (double)loaded->bias_shape[a];
        }
        code = cli_memory_take(&at->memory, &at->view[CLI_SLOT_DBIAS].base,
                               elements * (double)cli_types[at->view[CLI_SLOT_DBIAS].type].bytes, "dbias", error);
    }
    return code ? code : cli_case_allocate(at, error);
}
