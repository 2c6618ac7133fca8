/* SPDX-License-Identifier: Apache-2.0
 * Parameter blocks of the kernels in lengths.cu, the same bytes on host and device. */
#ifndef ATTN_CUDA_LENGTHS_H
#define ATTN_CUDA_LENGTHS_H

#include "params.h"

/* A launch takes 4096 bytes of parameters on every device. */
#define ATTN__UPLOAD_WORDS 1012

typedef struct attn__upload {
    int *to;
    int words;
    int data[ATTN__UPLOAD_WORDS];
} attn__upload;

/* One side of the problem as the check of lengths sees it. */
typedef struct attn__check_side {
    attn__side_ref side;
    int layout;  /* attn_rows */
    int written; /* its rows are outputs: none may be given twice */
    int shared;  /* segments: all sequences lie in one run of rows */
} attn__check_side;

/* An output whose rows past the last sequence the check writes (ATTN_CLEAR_REST), once the lengths are found sound. */
typedef struct attn__rest {
    attn__tensor_ref tensor; /* data NULL: none */
    attn__u64 value;         /* of each element, `size` bytes */
    int size, heads, dim;
    int kv; /* of the side of keys */
} attn__rest;

#define ATTN__RESTS 3

typedef struct attn__check {
    attn__check_side q, kv;
    int batch;
    int *status;
    attn__rest rest[ATTN__RESTS];
} attn__check;

/* A status word that is not 0: array, index (saturating), rule. The smallest word wins, so the first entry of the
 * first array is told. */
#define ATTN__WORD_INDEX_MAX 0x3fffff
#define ATTN__WORD(array, index, rule)                                                                                 \
    ((array) << 27 | ((index) < ATTN__WORD_INDEX_MAX ? (int)(index) : ATTN__WORD_INDEX_MAX) << 5 | (rule))

enum { /* arrays; the kv side's are 1 more */
       ATTN__WORD_CU = 1,
       ATTN__WORD_USED = 3,
       ATTN__WORD_LENGTHS = 5,
       ATTN__WORD_SEGMENTS = 7
};
enum {                       /* rules */
       ATTN__RULE_START = 1, /* cu_seqlens[0] is not 0 */
       ATTN__RULE_DECREASES, /* an offset below the one before it */
       ATTN__RULE_TOKENS,    /* longer than tokens */
       ATTN__RULE_TOTAL,     /* past the rows of the buffer */
       ATTN__RULE_NEGATIVE,  /* below 0 */
       ATTN__RULE_SLOT,      /* used length above its slot */
       ATTN__RULE_SEQUENCE,  /* segment of no sequence */
       ATTN__RULE_ORDER,     /* sequences do not ascend */
       ATTN__RULE_LENGTH,    /* segment past its sequence's length */
       ATTN__RULE_POSITIONS, /* covers positions that another holds */
       ATTN__RULE_ROWS       /* covers rows of an output that another holds */
};

#endif
