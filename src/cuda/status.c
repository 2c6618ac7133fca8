/* SPDX-License-Identifier: Apache-2.0
 * What a status word says: attn__check of device/lengths.cu writes it. */
#include <stdio.h>

#include "base/error.h"
#include "cuda/device/lengths.h"

static const char *const arrays[] = {"",          "cu_seqlens_q", "cu_seqlens_kv", "used_q",     "used_kv",
                                     "lengths_q", "lengths_kv",   "segments_q",    "segments_kv"};
static const char *const rules[] = {"",
                                    "must be 0",
                                    "is less than the offset before it",
                                    "makes a sequence longer than the problem's tokens",
                                    "reaches past the rows of the buffer",
                                    "is negative",
                                    "is more than the sequence's slot",
                                    "names a sequence that is none of the batch",
                                    "names a sequence below that of the segment before it",
                                    "reaches past the sequence's length",
                                    "covers positions that another segment holds",
                                    "covers rows of an output that another segment holds"};

attn_status attn_status_word(int32_t word, attn_error *error) {
    char field[40];
    int array = word >> 27 & 15, index = word >> 5 & ATTN__WORD_INDEX_MAX, rule = word & 31;
    if (word == 0) {
        return attn__succeed(error);
    }
    if (word < 0 || array == 0 || array >= (int)(sizeof arrays / sizeof arrays[0]) || rule == 0 ||
        rule >= (int)(sizeof rules / sizeof rules[0])) {
        return attn__fail(error, ATTN_ERR_INVALID, "word",
                          "is %d, which no run wrote: was it read before the stream was synchronised?", (int)word);
    }
    snprintf(field, sizeof field, "%s[%d]", arrays[array], index);
    return attn__fail(error, ATTN_ERR_INVALID, field, "%s%s (found on the device; nothing was written)", rules[rule],
                      index == ATTN__WORD_INDEX_MAX ? ", at this index or later" : "");
}
