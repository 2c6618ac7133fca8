/* SPDX-License-Identifier: Apache-2.0
 * Cases from files: one pass over the options, from q, which sets the sizes, to the optional tensors. */
#include "load.h"

#include <inttypes.h>
#include <string.h>

#include "load_parts.h"

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

static cli_exit load_main(cli_loader *l, const cli_inputs *in, const char *dtype) {
    const char *const given[3] = {in->q, in->k, in->v}, *const option[3] = {"-q", "-k", "-v"};
    cli_view view[3];
    for (int i = 0; i < 3; i++) {
        if (!given[i]) {
            return cli_fail(l->error, CLI_USAGE, "%s: is missing; -q, -k and -v are needed together", option[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        cli_exit code = cli_load_rows(l, CLI_SLOT_Q + i, option[i], given[i], option[i] + 1, &view[i]);
        if (code) {
            return code;
        }
        if (!dtype && view[i].type != view[0].type) {
            return cli_fail(l->error, CLI_USAGE, "%s: is %s, -q is %s; --dtype chooses the type to compute in",
                            option[i], cli_types[view[i].type].name, cli_types[view[0].type].name);
        }
    }
    const int64_t *q = view[0].shape, *k = view[1].shape, *v = view[2].shape;
    cli_exit code = cli_load_agree(l, "-k", "batch size", k[0], q[0], "-q");
    code = code ? code : cli_load_agree(l, "-k", "head dimension", k[3], q[3], "-q");
    code = code ? code : cli_load_agree(l, "-v", "batch size", v[0], k[0], "-k");
    code = code ? code : cli_load_agree(l, "-v", "number of heads", v[1], k[1], "-k");
    code = code ? code : cli_load_agree(l, "-v", "number of tokens", v[2], k[2], "-k");
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
        code = cli_load_place_rows(l, CLI_SLOT_Q + i, &view[i], option[i]);
    }
    return code;
}

static cli_exit load_sizes(cli_loader *l, const cli_inputs *in) {
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
        code = cli_load_offsets(l, &l->at->cu_q, &p->batch, &p->tokens_q, p->total_q, "--cu-seqlens-q", in->cu_q);
        code = code ? code
                    : cli_load_offsets(l, &l->at->cu_kv, &batch_kv, &p->tokens_kv, p->total_kv, "--cu-seqlens-k",
                                       in->cu_k);
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
        code = cli_load_used(l, &l->at->used_q, l->at->cu_q, p->tokens_q, "--used-q", in->used_q);
    }
    if (!code && in->used_k) {
        p->flags |= ATTN_USED_KV;
        code = cli_load_used(l, &l->at->used_kv, l->at->cu_kv, p->tokens_kv, "--used-k", in->used_k);
    }
    return code;
}

static cli_exit load_backward(cli_loader *l, const cli_inputs *in) {
    cli_view source;
    const cli_view *q = &l->at->view[CLI_SLOT_Q];
    cli_exit code = cli_load_rows(l, CLI_SLOT_DOUT, "--do", in->dout, "do", &source);
    static const char *const axes[3] = {"batch size", "number of heads", "number of tokens"};
    for (int a = 0; a < 3 && !code; a++) {
        code = cli_load_agree(l, "--do", axes[a], source.shape[a], q->shape[a], "-q");
    }
    code = code ? code
                : cli_load_agree(l, "--do", "head dimension", source.shape[3], l->at->view[CLI_SLOT_V].shape[3], "-v");
    code = code ? code : cli_load_place_rows(l, CLI_SLOT_DOUT, &source, "--do");
    if (!code && in->dlse) {
        code = cli_load_dlse(l, in->dlse);
    }
    return code;
}

static attn_layout layout_from(const cli_view *view) {
    attn_layout layout = {cli_type_dtype(view->type), {0, 0, 0, 0}};
    memcpy(layout.stride, view->stride, sizeof layout.stride);
    return layout;
}

/* Layouts of everything, inputs as they lie, outputs in the user's order. */
static void describe(cli_loader *l, bool backward) {
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
    cli_load_in_layout(&o, l->layout);
    p->o = layout_from(&o);
    if (!backward) {
        return;
    }
    attn_layout *const gradients[] = {&p->dq, &p->dk, &p->dv};
    for (int s = 0; s < 3; s++) {
        cli_view gradient = v[CLI_SLOT_Q + s];
        cli_load_in_layout(&gradient, l->layout);
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
    cli_loader l = {at, loaded, layout, CLI_F32, verb, error};
    loaded->layout = layout;
    at->problem = attn_problem_init();
    at->problem.pass = backward ? ATTN_BACKWARD : ATTN_FORWARD;
    cli_exit code = cli_features_check(features, error);
    code = code ? code : load_main(&l, in, dtype);
    code = code ? code : load_sizes(&l, in);
    if (!code && features->bias) {
        code = cli_load_scores(&l, CLI_SLOT_BIAS, "--bias", features->bias);
    }
    if (!code && features->mask) {
        code = cli_load_scores(&l, CLI_SLOT_MASK, "--mask", features->mask);
    }
    if (!code && features->alibi) {
        code = cli_load_heads(&l, CLI_SLOT_ALIBI, "--alibi", features->alibi);
    }
    if (!code && features->sink) {
        code = cli_load_heads(&l, CLI_SLOT_SINK, "--sink", features->sink);
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
