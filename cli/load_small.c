/* SPDX-License-Identifier: Apache-2.0
 * The arrays of a case that are not shaped as q, k or v: lengths, scores, one number a head, lse. */
#include <inttypes.h>
#include <string.h>

#include "load_parts.h"

/* Whole numbers as int32; `fewest` entries at least. */
static cli_exit load_lengths(cli_loader *l, int32_t **out, int64_t *count, const char *option, const char *text,
                             const char *name) {
    cli_tensor t;
    cli_exit code = cli_load_read(l, &t, option, text, name, NULL);
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

cli_exit cli_load_offsets(cli_loader *l, int32_t **cu, int64_t *batch, int64_t *longest, int64_t rows,
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

cli_exit cli_load_used(cli_loader *l, int32_t **used, const int32_t *cu, int64_t tokens, const char *option,
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

/* Axes right-aligned to [sequence, head, row, key]; an axis of 1 is broadcast. Packed sequences have different lengths,
 * so there an axis may be longer than the longest. */
cli_exit cli_load_scores(cli_loader *l, int slot, const char *option, const char *text) {
    const attn_problem *p = &l->at->problem;
    const int64_t whole[4] = {p->batch, p->heads_q, p->tokens_q, p->tokens_kv};
    static const char *const axes[4] = {"batch size", "number of heads", "number of queries", "number of keys"};
    cli_tensor t;
    cli_exit code = cli_load_read(l, &t, option, text, option + 2, NULL);
    if (code) {
        return code;
    }
    bool boolean = t.type == CLI_BOOL || t.type == CLI_U8;
    if (slot == CLI_SLOT_MASK ? !boolean : !cli_load_is_float(t.type)) {
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
            return cli_fail(l->error, CLI_USAGE, "%s: the %s is %" PRId64 ", must be 1 or %" PRId64, option, axes[a],
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
    return cli_load_place(l, slot, &source, type, &plain, option);
}

/* One number a head: slopes [H] or [B,H], sinks [H]. */
cli_exit cli_load_heads(cli_loader *l, int slot, const char *option, const char *text) {
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
        code = cli_load_read(l, &t, option, text, option + 2, NULL);
        code = code ? code : cli_load_want_float(l, &t, option, text);
        if (!code && t.rank != 1 && (slot == CLI_SLOT_SINK || t.rank != 2)) {
            code = cli_fail(l->error, CLI_USAGE, "%s: has %d axes, must have %s", option, t.rank,
                            slot == CLI_SLOT_SINK ? "1: [H]" : "1 or 2: [H] or [B,H]");
        }
        code = code ? code : cli_load_agree(l, option, "number of heads", t.shape[t.rank - 1], p->heads_q, "-q");
        if (!code && t.rank == 2) {
            code = cli_load_agree(l, option, "batch size", t.shape[0], p->batch, "-q");
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
    return cli_load_place(l, slot, &source, wide, &plain, option);
}

cli_exit cli_load_dlse(cli_loader *l, const char *text) {
    const cli_view *q = &l->at->view[CLI_SLOT_Q];
    const int64_t whole[3] = {q->shape[0], q->shape[1], q->shape[2]};
    static const char *const axes[3] = {"batch size", "number of heads", "number of tokens"};
    cli_tensor t;
    cli_exit code = cli_load_read(l, &t, "--dlse", text, "dlse", NULL);
    code = code ? code : cli_load_want_float(l, &t, "--dlse", text);
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
        code = code ? code : cli_load_agree(l, "--dlse", axes[a], source.shape[a], whole[a], "the lse");
    }
    if (code) {
        return code;
    }
    cli_view_plain(&plain, &source);
    return cli_load_place(l, CLI_SLOT_DLSE, &source, l->compute == CLI_F64 ? CLI_F64 : CLI_F32, &plain, "--dlse");
}
