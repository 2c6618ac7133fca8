/* SPDX-License-Identifier: Apache-2.0 */
#include "spot.h"

#include <string.h>

#define WHOLE_FLOP 3e8 /* about half a second for the reference */
#define ROWS       8
#define SHORT      160

static int count_wrong(const cli_judge *judge, const cli_case *tested) {
    int wrong = 0;
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        bool output = cli_slot_roles[s] == CLI_ROLE_OUTPUT || cli_slot_roles[s] == CLI_ROLE_BACKWARD;
        wrong += tested->present[s] && output && !cli_judge_slot(judge, tested, s).right;
    }
    return wrong;
}

static cli_exit judge_all(const attn_context *context, const cli_case *at, int *wrong, cli_error *error) {
    cli_judge judge;
    cli_exit code = cli_judge_create(&judge, context, at, error);
    if (!code) {
        *wrong += count_wrong(&judge, at);
    }
    cli_judge_release(&judge);
    return code;
}

/* The last rows of one head as a problem of its own: with the corner at the bottom right every row keeps its position,
 * hence its keys. A row's o, lse and dq depend on no other row; dk, dv and the rest do. */
static cli_exit judge_last_rows(const attn_context *context, const cli_case *at, int64_t batch, int64_t head,
                                int *wrong, cli_error *error) {
    cli_case part = *at;
    attn_problem *p = &part.problem;
    char text[2048];
    int64_t first = p->tokens_q > ROWS ? p->tokens_q - ROWS : 0, head_kv = head / (p->heads_q / p->heads_kv);
    memset(&part.memory, 0, sizeof part.memory);
    p->batch = p->heads_q = p->heads_kv = 1;
    p->tokens_q -= first;
    cli_exit code = cli_problem_settle(p, text, sizeof text, error);
    if (code) {
        return code;
    }
    attn_problem settled = *p;
    cli_case_shape(&part, &settled);
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        bool of_rows = s <= CLI_SLOT_DQ;
        part.present[s] = at->present[s] && of_rows;
        if (part.present[s]) {
            const int64_t *stride = at->view[s].stride;
            bool keys = s == CLI_SLOT_K || s == CLI_SLOT_V, one_a_head = s == CLI_SLOT_ALIBI || s == CLI_SLOT_SINK;
            int64_t offset =
                batch * stride[0] + (keys ? head_kv : head) * stride[1] + (keys || one_a_head ? 0 : first) * stride[2];
            part.view[s].base = (char *)at->view[s].base + offset * (int64_t)cli_types[at->view[s].type].bytes;
        }
    }
    return judge_all(context, &part, wrong, error);
}

static int64_t at_most(int64_t value, int64_t limit) {
    return value < limit ? value : limit;
}

/* Short sequences under the same rules. */
static cli_exit judge_smaller(const cli_place *place, const cli_case *at, const attn_hints *hints, int *wrong,
                              cli_error *error) {
    const attn_problem *from = &at->problem;
    int64_t group = from->heads_kv ? from->heads_q / from->heads_kv : 1, heads_kv = at_most(from->heads_kv, 2);
    int64_t q = at_most(from->tokens_q, SHORT), kv = at_most(from->tokens_kv, SHORT + 16), b = at_most(from->batch, 2);
    attn_problem p =
        attn_problem_dense(from->q.dtype, b, at_most(group, 8) * heads_kv, heads_kv, q, kv, from->dim_qk, from->dim_v);
    attn_dtype wide = from->q.dtype == ATTN_F64 ? ATTN_F64 : ATTN_F32;
    p.pass = from->pass;
    p.flags = from->flags & (ATTN_HAS_SCALE | ATTN_ALLOW_TF32 | ATTN_DETERMINISTIC);
    p.scale = from->scale;
    p.softcap = from->softcap;
    p.dropout = from->dropout;
    p.band = from->band;
    p.bias = from->bias.dtype ? (attn_layout){from->bias.dtype, {0, q * kv, kv, 1}} : p.bias;
    p.mask = from->mask.dtype ? (attn_layout){ATTN_U8, {q * kv, 0, kv, 1}} : p.mask;
    p.alibi = from->alibi.dtype ? (attn_layout){wide, {0, 1, 0, 0}} : p.alibi;
    p.sink = from->sink.dtype ? (attn_layout){wide, {0, 1, 0, 0}} : p.sink;
    cli_case small = {0};
    cli_runner runner;
    char text[2048];
    cli_exit code = cli_problem_settle(&p, text, sizeof text, error);
    if (!code) {
        cli_case_shape(&small, &p);
        code = cli_case_allocate(&small, error);
        code = code ? code : cli_case_random(&small, at->seed, error);
    }
    code = code ? code : cli_runner_create(&runner, place->context, &p, hints, error);
    if (!code) {
        cli_case_poison(&small);
        code = cli_runner_run_all(&runner, &small, error);
        code = code ? code : judge_all(place->host, &small, wrong, error);
        cli_runner_release(&runner);
    }
    cli_case_release(&small);
    return code;
}

cli_exit cli_spot_check(const cli_place *place, const cli_case *at, const attn_hints *hints, const char **how,
                        int *wrong, cli_error *error) {
    const attn_problem *p = &at->problem;
    double pairs = (double)p->batch * (double)p->heads_q * (double)p->tokens_q * (double)p->tokens_kv;
    double flop = pairs * (double)(p->dim_qk + p->dim_v) * (p->pass == ATTN_BACKWARD ? 7 : 2);
    *wrong = 0;
    if (flop <= WHOLE_FLOP) {
        *how = "whole";
        return judge_all(place->host, at, wrong, error);
    }
    bool dense = p->rows_q == ATTN_DENSE && p->rows_kv == ATTN_DENSE && !(p->flags & (ATTN_USED_Q | ATTN_USED_KV));
    bool from_the_end = p->band.corner == ATTN_BOTTOM_RIGHT || p->tokens_q == p->tokens_kv;
    double of_rows = (double)ROWS * (double)p->tokens_kv * (double)(p->dim_qk + p->dim_v) * 4;
    bool rows_alone = dense && from_the_end && p->dropout == 0 && of_rows <= 4 * WHOLE_FLOP;
    cli_exit code = CLI_RIGHT;
    *how = !rows_alone ? "smaller" : p->pass == ATTN_BACKWARD ? "both" : "last rows";
    if (rows_alone) {
        code = judge_last_rows(place->host, at, 0, 0, wrong, error);
        code = code ? code : judge_last_rows(place->host, at, p->batch - 1, p->heads_q - 1, wrong, error);
    }
    if (!code && (!rows_alone || p->pass == ATTN_BACKWARD)) {
        code = judge_smaller(place, at, hints, wrong, error);
    }
    return code;
}
