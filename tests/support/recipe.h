/* SPDX-License-Identifier: Apache-2.0
 * A recipe is a test case as data: which features together, which sizes, which memory forms. From a recipe and its
 * seed comes always the same trial. Zero is plain everywhere, so a table of cases states only what is special. */
#ifndef TESTS_SUPPORT_RECIPE_H
#define TESTS_SUPPORT_RECIPE_H

#include "support/trial.h"

typedef enum recipe_rows { ROWS_FULL, ROWS_USED, ROWS_PACKED, ROWS_PACKED_USED, ROWS_SEGMENTS, ROWS_COUNT } recipe_rows;

/* Broadcast axes of bias and mask: 0 is absent, else PRESENT with or without these. */
enum {
    PRESENT = 1u << 4,
    OVER_BATCH = 1u << AXIS_BATCH,
    OVER_HEADS = 1u << AXIS_HEAD,
    OVER_ROWS = 1u << AXIS_TOKEN, /* a key padding mask when over heads and rows */
    OVER_KEYS = 1u << AXIS_DIM
};

typedef enum recipe_form {
    FORM_BSHD,
    FORM_BHSD,
    FORM_JOINT,    /* q, k, v (and their gradients) interleaved in one buffer; else BSHD */
    FORM_SLICE,    /* a column slice of a wider row */
    FORM_STEP,     /* last-dimension stride 2 */
    FORM_NEGATIVE, /* tokens, heads and dims run backwards */
    FORM_ODD,      /* starts 1, 2, 3 elements into the storage */
    FORM_DIM_OUTER,
    FORM_BROADCAST, /* k and v the same for all sequences and heads (stride 0) */
    FORM_RANDOM,    /* each tensor of its own kind */
    FORM_COUNT
} recipe_form;

typedef struct recipe {
    const char *name;
    uint64_t seed;
    attn_dtype dtype;
    bool f32_out;                                                   /* o and gradients in float32 */
    int batch, heads_kv, group, tokens_q, tokens_kv, dim_qk, dim_v; /* dim_v 0: dim_qk */
    attn_band band;
    bool has_scale;
    float scale, softcap, dropout;
    unsigned alibi, bias, mask; /* PRESENT | OVER_... */
    unsigned dbias;             /* as bias; 0: like the bias */
    bool bias_low;              /* bias in q's type */
    bool sink, dlse, accumulate, give_delta, unset;
    bool poison; /* some keys are hidden from every row by the mask and hold NaN and inf */
    recipe_rows rows_q, rows_kv;
    recipe_form form;
    unsigned skip;                     /* outputs not asked for, 1 << tensor_id */
    int64_t block_q, block_kv, splits; /* hints */
} recipe;

trial *recipe_trial(const recipe *r);
/* Draws every field from the seed alone. */
recipe recipe_random(uint64_t seed);
/* Another of the same seed in what warp-group kernels take, with rows and keys for several of their tiles. */
recipe recipe_random_half(uint64_t seed);
/* One line with all that is not plain. */
void recipe_text(const recipe *r, char *text, size_t size);

#endif
