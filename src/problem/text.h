/* SPDX-License-Identifier: Apache-2.0
 * The words of the text form that writer and reader share. Grammar: docs/problem-text.md. */
#ifndef ATTN_PROBLEM_TEXT_H
#define ATTN_PROBLEM_TEXT_H

#include "attn/attn.h"

/* Sizes: a key directly followed by its number. Key, fields it sets. The reader takes the longest key that fits. */
typedef struct attn__size_word {
    const char *key;
    size_t field, second; /* offsets in attn_problem; second 0: none */
} attn__size_word;
enum { ATTN__SIZE_WORDS = 10 };
extern const attn__size_word attn__size_words[ATTN__SIZE_WORDS];

/* Words alone. */
#define ATTN__WORD_CAUSAL         "causal"
#define ATTN__WORD_TOP_LEFT       "topleft"
#define ATTN__WORD_USED_Q         "used_q"
#define ATTN__WORD_USED_KV        "used_kv"
#define ATTN__WORD_ACCUMULATE     "accumulate"
#define ATTN__WORD_DETERMINISTIC  "deterministic"
#define ATTN__WORD_TF32           "tf32"
#define ATTN__WORD_DEVICE_LENGTHS "device_lengths"
#define ATTN__WORD_DEVICE_SEED    "device_seed"
#define ATTN__WORD_CLEAR_REST     "clear_rest"

/* Words before '='. Tensors have their own names from the table of tensors. */
#define ATTN__WORD_PACKED_Q    "packed_q"
#define ATTN__WORD_PACKED_KV   "packed_kv"
#define ATTN__WORD_SEGMENTS_Q  "segments_q"
#define ATTN__WORD_SEGMENTS_KV "segments_kv"
#define ATTN__WORD_WINDOW      "window"
#define ATTN__WORD_GLOBALS     "globals"
#define ATTN__WORD_SCALE       "scale"
#define ATTN__WORD_SOFTCAP     "softcap"
#define ATTN__WORD_DROPOUT     "dropout"

/* Strides by name inside brackets: contiguous [batch, head, token, dim]. */
#define ATTN__WORD_HEADS_FIRST "bhsd"

#endif
