/* SPDX-License-Identifier: Apache-2.0
 * One array of a case: read, arranged to [batch, head, token, dim], put in place or converted. */
#include <inttypes.h>
#include <string.h>

#include "load_parts.h"

cli_exit cli_load_read(cli_loader *l, cli_tensor *tensor, const char *option, const char *text, const char *name,
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

bool cli_load_is_float(cli_type type) {
    return type == CLI_F16 || type == CLI_BF16 || type == CLI_F32 || type == CLI_F64;
}

cli_exit cli_load_want_float(cli_loader *l, const cli_tensor *tensor, const char *option, const char *text) {
    return cli_load_is_float(tensor->type) ? CLI_RIGHT
                                           : cli_fail(l->error, CLI_USAGE,
                                                      "%s: %.300s has elements of type %s, can be f16, bf16, "
                                                      "f32 or f64",
                                                      option, text, cli_types[tensor->type].name);
}

/* The axes [batch, head, token, dim] of a q-, k- or v-shaped array. */
static cli_exit arrange(cli_loader *l, cli_view *view, const cli_tensor *t, const char *option) {
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
void cli_load_in_layout(cli_view *view, cli_layout layout) {
    const int64_t *n = view->shape;
    if (layout == CLI_BHSD) {
        memcpy(view->stride, (int64_t[4]){n[1] * n[2] * n[3], n[2] * n[3], n[3], 1}, sizeof view->stride);
    } else {
        memcpy(view->stride, (int64_t[4]){n[1] * n[2] * n[3], n[3], n[1] * n[3], 1}, sizeof view->stride);
    }
}

static void note_overflow(const cli_loader *l, const char *option, cli_type type, const cli_overflow *overflow) {
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
cli_exit cli_load_place(cli_loader *l, int slot, const cli_view *source, cli_type type, const cli_view *plain,
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

cli_exit cli_load_rows(cli_loader *l, int slot, const char *option, const char *text, const char *name,
                       cli_view *source) {
    cli_tensor tensor;
    bool safetensors;
    cli_exit code = cli_load_read(l, &tensor, option, text, name, &safetensors);
    code = code ? code : cli_load_want_float(l, &tensor, option, text);
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
cli_exit cli_load_agree(cli_loader *l, const char *option, const char *axis, int64_t got, int64_t wanted,
                        const char *other) {
    return got == wanted ? CLI_RIGHT
                         : cli_fail(l->error, CLI_USAGE, "%s: the %s is %" PRId64 ", must be %" PRId64 " as in %s",
                                    option, axis, got, wanted, other);
}

cli_exit cli_load_place_rows(cli_loader *l, int slot, const cli_view *source, const char *option) {
    cli_view plain = *source;
    cli_load_in_layout(&plain, l->layout);
    return cli_load_place(l, slot, source, l->compute, &plain, option);
}
