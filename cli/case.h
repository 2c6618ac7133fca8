/* SPDX-License-Identifier: Apache-2.0
 * A case: a problem together with all its tensors, each known by its logical shape [batch, head, token, dim] and
 * strides. One table of tensors serves reading, random filling, conversion to float64, comparison and writing. */
#ifndef CLI_CASE_H
#define CLI_CASE_H

#include "convert.h"
#include "memory.h"

/* Tensors, in the order in which they are reported: name, field of attn_problem with the layout, shape, pass. */
#define CLI_SLOT_LIST(X)                                                                                               \
    X(Q, q, q, INPUT)                                                                                                  \
    X(K, k, k, INPUT)                                                                                                  \
    X(V, v, v, INPUT)                                                                                                  \
    X(BIAS, bias, bias, INPUT)                                                                                         \
    X(MASK, mask, mask, INPUT)                                                                                         \
    X(ALIBI, alibi, alibi, INPUT)                                                                                      \
    X(SINK, sink, sink, INPUT)                                                                                         \
    X(DOUT, dout, dout, GRADIENT)                                                                                      \
    X(DLSE, dlse, dlse, GRADIENT)                                                                                      \
    X(O, o, o, OUTPUT)                                                                                                 \
    X(LSE, lse, lse, OUTPUT)                                                                                           \
    X(DQ, dq, dq, BACKWARD)                                                                                            \
    X(DK, dk, dk, BACKWARD)                                                                                            \
    X(DV, dv, dv, BACKWARD)                                                                                            \
    X(DBIAS, dbias, dbias, BACKWARD)                                                                                   \
    X(DSINK, dsink, sink, BACKWARD)
typedef enum cli_slot {
#define CLI_ENUM(name, field, layout, role) CLI_SLOT_##name,
    CLI_SLOT_LIST(CLI_ENUM)
#undef CLI_ENUM
        CLI_SLOT_COUNT
} cli_slot;
typedef enum cli_role {
    CLI_ROLE_INPUT,
    CLI_ROLE_GRADIENT, /* an input of the backward pass */
    CLI_ROLE_OUTPUT,   /* of the forward pass */
    CLI_ROLE_BACKWARD  /* an output of the backward pass */
} cli_role;
extern const char *const cli_slot_names[CLI_SLOT_COUNT];
extern const cli_role cli_slot_roles[CLI_SLOT_COUNT];

typedef struct cli_case {
    attn_problem problem; /* every default filled in; its pass says whether there is a backward pass */
    cli_view view[CLI_SLOT_COUNT];
    bool present[CLI_SLOT_COUNT];
    int32_t *cu_q, *cu_kv;     /* [batch + 1] when packed */
    int32_t *used_q, *used_kv; /* [batch] with used lengths */
    uint64_t seed;
    cli_memory memory;
} cli_case;

/* Fills in the problem's defaults (through its text form). `text` receives that form. */
cli_exit cli_problem_settle(attn_problem *problem, char *text, size_t size, cli_error *error);

/* Marks which tensors the settled problem has and sets their shapes, types and strides; no memory yet. */
void cli_case_shape(cli_case *at, const attn_problem *problem);
/* Gives memory to the tensors that have none, zeroed. */
cli_exit cli_case_allocate(cli_case *at, cli_error *error);
/* Fills every input with random numbers, and lengths where the problem wants them. Standard normal; slopes as `auto`
 * has them; a mask hides a quarter. The same values on every machine. */
cli_exit cli_case_random(cli_case *at, uint64_t seed, cli_error *error);
/* Flags that only a GPU takes; they say where data lies, not what is computed. */
#define CLI_DEVICE_FLAGS ((uint32_t)(ATTN_DEVICE_LENGTHS | ATTN_DEVICE_SEED | ATTN_CLEAR_REST))
/* The same case on the host with every tensor in float64, plain layouts, axes of stride 0 kept. */
cli_exit cli_case_widen(cli_case *wide, const cli_case *from, cli_error *error);
/* Another case over the same inputs, with outputs of its own. */
cli_exit cli_case_share(cli_case *other, const cli_case *from, cli_error *error);
void cli_case_release(cli_case *at);

/* Fills the outputs with NaN, so that what is never written is seen. */
void cli_case_poison(cli_case *at);

/* The arguments of one pass. */
attn_args cli_case_args(const cli_case *at, attn_pass pass);

/* The slopes of Press, Smith and Lewis, "Train short, test long", ICLR 2022 (arXiv 2108.12409): 2^(-8 (h+1) / H) for a
 * power of two; for other H those of the power of two below, then every second one of the power above. */
double cli_alibi_slope(int64_t head, int64_t heads);

/* Bytes of a view's memory, counted from its lowest element, and how far above that element 0 lies. False if it does
 * not fit. */
bool cli_view_extent(const cli_view *view, int64_t *elements, int64_t *base);
/* Strides of the plain array [batch, head, token, dim]; an axis of extent 1 or of stride 0 in `like` gets 0. */
void cli_view_plain(cli_view *view, const cli_view *like);

#endif
