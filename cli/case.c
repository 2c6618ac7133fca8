/* SPDX-License-Identifier: Apache-2.0
 * Cases: shapes from the problem, memory, widening, arguments. */
#include "case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cli_slot_names[CLI_SLOT_COUNT] = {
#define CLI_NAME(name, field, layout, role) #field,
    CLI_SLOT_LIST(CLI_NAME)
#undef CLI_NAME
};
const cli_role cli_slot_roles[CLI_SLOT_COUNT] = {
#define CLI_ROLE(name, field, layout, role) CLI_ROLE_##role,
    CLI_SLOT_LIST(CLI_ROLE)
#undef CLI_ROLE
};
static const size_t layout_offset[CLI_SLOT_COUNT] = {
#define CLI_OFFSET(name, field, layout, role) offsetof(attn_problem, layout),
    CLI_SLOT_LIST(CLI_OFFSET)
#undef CLI_OFFSET
};
static const size_t pointer_offset[CLI_SLOT_COUNT] = {
#define CLI_OFFSET(name, field, layout, role) offsetof(attn_args, field),
    CLI_SLOT_LIST(CLI_OFFSET)
#undef CLI_OFFSET
};

static attn_layout *layout_of(attn_problem *problem, int slot) {
    return (attn_layout *)(void *)((char *)problem + layout_offset[slot]);
}

cli_exit cli_problem_settle(attn_problem *problem, char *text, size_t size, cli_error *error) {
    attn_error cause;
    if (attn_problem_check(problem, &cause)) {
        return cli_fail_library(error, "problem", &cause);
    }
    if (attn_problem_format(problem, text, size) >= size) {
        return cli_fail(error, CLI_USAGE, "problem: its text form is longer than the limit of %zu bytes", size - 1);
    }
    attn_problem settled = attn_problem_init();
    if (attn_problem_parse(&settled, text, &cause)) {
        return cli_fail_library(error, "problem", &cause);
    }
    *problem = settled;
    return CLI_RIGHT;
}

static void slot_shape(const attn_problem *p, int slot, int64_t shape[4]) {
    int64_t rows_q = p->rows_q == ATTN_DENSE ? p->tokens_q : p->total_q;
    int64_t rows_kv = p->rows_kv == ATTN_DENSE ? p->tokens_kv : p->total_kv;
    int64_t batch_q = p->rows_q == ATTN_PACKED ? 1 : p->batch, batch_kv = p->rows_kv == ATTN_PACKED ? 1 : p->batch;
    const int64_t shapes[][4] = {
        {batch_q, p->heads_q, rows_q, p->dim_qk},
        {batch_kv, p->heads_kv, rows_kv, p->dim_qk},
        {batch_kv, p->heads_kv, rows_kv, p->dim_v},
        {batch_q, p->heads_q, rows_q, p->dim_v},
        {batch_q, p->heads_q, rows_q, 1},
        {p->batch, p->heads_q, p->tokens_q, p->tokens_kv},
        {p->alibi.stride[0] ? p->batch : 1, p->heads_q, 1, 1},
        {1, p->heads_q, 1, 1},
    };
    static const int which[CLI_SLOT_COUNT] = {
        [CLI_SLOT_Q] = 0,    [CLI_SLOT_DQ] = 0,    [CLI_SLOT_K] = 1,    [CLI_SLOT_DK] = 1,
        [CLI_SLOT_V] = 2,    [CLI_SLOT_DV] = 2,    [CLI_SLOT_O] = 3,    [CLI_SLOT_DOUT] = 3,
        [CLI_SLOT_LSE] = 4,  [CLI_SLOT_DLSE] = 4,  [CLI_SLOT_BIAS] = 5, [CLI_SLOT_DBIAS] = 5,
        [CLI_SLOT_MASK] = 5, [CLI_SLOT_ALIBI] = 6, [CLI_SLOT_SINK] = 7, [CLI_SLOT_DSINK] = 7,
    };
    memcpy(shape, shapes[which[slot]], sizeof shapes[0]);
    if (slot == CLI_SLOT_BIAS || slot == CLI_SLOT_MASK || slot == CLI_SLOT_DBIAS) {
        const attn_layout *layout = slot == CLI_SLOT_MASK ? &p->mask : &p->bias;
        for (int a = 0; a < 4; a++) { /* what is broadcast exists once */
            shape[a] = layout->stride[a] ? shape[a] : shape[a] > 0;
        }
    }
}

void cli_case_shape(cli_case *at, const attn_problem *problem) {
    at->problem = *problem;
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        const attn_layout *layout = layout_of(&at->problem, s);
        bool backward = cli_slot_roles[s] == CLI_ROLE_GRADIENT || cli_slot_roles[s] == CLI_ROLE_BACKWARD;
        at->present[s] = layout->dtype != ATTN_NONE && (!backward || problem->pass == ATTN_BACKWARD);
        if (at->present[s]) {
            at->view[s].type = cli_dtype_type(layout->dtype);
            slot_shape(problem, s, at->view[s].shape);
            memcpy(at->view[s].stride, layout->stride, sizeof layout->stride);
        }
    }
}

bool cli_view_extent(const cli_view *view, int64_t *elements, int64_t *base) {
    int64_t low = 0, high = 0, count = 1;
    for (int a = 0; a < 4; a++) {
        count = view->shape[a] ? count : 0;
    }
    for (int a = 0; a < 4 && count; a++) {
        int64_t reach;
        if (__builtin_mul_overflow(view->shape[a] - 1, view->stride[a], &reach) ||
            (reach < 0 ? __builtin_add_overflow(low, reach, &low) : __builtin_add_overflow(high, reach, &high))) {
            return false;
        }
    }
    *base = -low;
    return !__builtin_sub_overflow(high, low, elements) && !__builtin_add_overflow(*elements, count ? 1 : 0, elements);
}

void cli_view_plain(cli_view *view, const cli_view *like) {
    int64_t step = 1;
    for (int a = 3; a >= 0; a--) {
        view->shape[a] = like->shape[a];
        view->stride[a] = like->shape[a] == 1 && like->stride[a] == 0 ? 0 : step;
        step *= like->shape[a] ? like->shape[a] : 1;
    }
}

cli_exit cli_case_allocate(cli_case *at, cli_error *error) {
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        cli_view *view = &at->view[s];
        if (!at->present[s] || view->base) {
            continue;
        }
        int64_t elements, base;
        size_t each = cli_types[view->type].bytes;
        if (!cli_view_extent(view, &elements, &base)) {
            return cli_fail(error, CLI_UNRUN, "out of memory: the strides of %s reach past 2^63 elements",
                            cli_slot_names[s]);
        }
        void *block;
        cli_exit code = cli_memory_take(&at->memory, &block, (double)elements * (double)each, cli_slot_names[s], error);
        if (code) {
            return code;
        }
        view->base = (char *)block + (size_t)base * each;
    }
    return CLI_RIGHT;
}

cli_exit cli_case_share(cli_case *other, const cli_case *from, cli_error *error) {
    *other = *from;
    memset(&other->memory, 0, sizeof other->memory);
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        if (cli_slot_roles[s] == CLI_ROLE_OUTPUT || cli_slot_roles[s] == CLI_ROLE_BACKWARD) {
            other->view[s].base = NULL;
        }
    }
    return cli_case_allocate(other, error);
}

cli_exit cli_case_widen(cli_case *wide, const cli_case *from, cli_error *error) {
    memset(wide, 0, sizeof *wide);
    attn_problem problem = from->problem;
    problem.flags &= ~CLI_DEVICE_FLAGS;
    *wide = (cli_case){
        .cu_q = from->cu_q, .cu_kv = from->cu_kv, .used_q = from->used_q, .used_kv = from->used_kv, .seed = from->seed};
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        if (!from->present[s]) { /* what has no data goes back to its default, whose type follows q's */
            if (s != CLI_SLOT_DSINK) {
                *layout_of(&problem, s) = (attn_layout){0};
            }
            continue;
        }
        cli_view *view = &wide->view[s];
        cli_view_plain(view, &from->view[s]);
        view->type = s == CLI_SLOT_MASK ? CLI_U8 : CLI_F64;
        wide->present[s] = true;
        if (s != CLI_SLOT_DSINK) {
            attn_layout *layout = layout_of(&problem, s);
            layout->dtype = cli_type_dtype(view->type);
            memcpy(layout->stride, view->stride, sizeof view->stride);
        }
    }
    wide->problem = problem;
    cli_exit code = cli_case_allocate(wide, error);
    for (int s = 0; s < CLI_SLOT_COUNT && !code; s++) {
        if (from->present[s] && (cli_slot_roles[s] == CLI_ROLE_INPUT || cli_slot_roles[s] == CLI_ROLE_GRADIENT)) {
            cli_convert(&wide->view[s], &from->view[s], NULL);
        }
    }
    return code;
}

void cli_case_release(cli_case *at) {
    cli_memory_release(&at->memory);
    memset(at, 0, sizeof *at);
}

void cli_case_poison(cli_case *at) {
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        const cli_view *view = &at->view[s];
        if (!at->present[s] || cli_slot_roles[s] == CLI_ROLE_INPUT || cli_slot_roles[s] == CLI_ROLE_GRADIENT) {
            continue;
        }
        for (int64_t b = 0; b < view->shape[0]; b++) {
            for (int64_t h = 0; h < view->shape[1]; h++) {
                for (int64_t t = 0; t < view->shape[2]; t++) {
                    for (int64_t d = 0; d < view->shape[3]; d++) {
                        cli_store(view->type, view->base, cli_view_offset(view, b, h, t, d), NAN);
                    }
                }
            }
        }
    }
}

attn_args cli_case_args(const cli_case *at, attn_pass pass) {
    attn_args args = attn_args_init();
    for (int s = 0; s < CLI_SLOT_COUNT; s++) {
        bool backward = cli_slot_roles[s] == CLI_ROLE_GRADIENT || cli_slot_roles[s] == CLI_ROLE_BACKWARD;
        if (at->present[s] && (pass == ATTN_BACKWARD || !backward)) {
            *(void **)(void *)((char *)&args + pointer_offset[s]) = at->view[s].base;
        }
    }
    args.cu_seqlens_q = at->cu_q;
    args.cu_seqlens_kv = at->cu_kv;
    args.used_q = at->used_q;
    args.used_kv = at->used_kv;
    args.seed = at->seed;
    return args;
}
