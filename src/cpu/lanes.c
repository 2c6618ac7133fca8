/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/cpu.h"

void attn__lanes_fill(attn__lanes *lanes, const attn__query_rows *rows, int64_t first) {
    const attn_segment *segment = &rows->segment;
    int64_t left = rows->row_end - first;
    lanes->count = (int)(left < ATTN__BLOCK ? left : ATTN__BLOCK);
    lanes->sequence = segment->sequence;
    lanes->low = INT32_MAX;
    lanes->high = INT32_MIN;
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        int64_t at = first + (lane < lanes->count ? lane : 0);
        int64_t row = at % segment->rows;
        int64_t position = segment->position + row;
        lanes->head[lane] = (int32_t)(rows->head_first + at / segment->rows);
        lanes->row[lane] = segment->first + row;
        lanes->position[lane] = (int32_t)position;
        lanes->shifted[lane] = (int32_t)(position + rows->shift);
        lanes->low = lanes->shifted[lane] < lanes->low ? lanes->shifted[lane] : lanes->low;
        lanes->high = lanes->shifted[lane] > lanes->high ? lanes->shifted[lane] : lanes->high;
    }
}

int64_t attn__prefix_find(const int64_t *prefix, int64_t segments, int64_t task) {
    int64_t low = 0, high = segments; /* prefix[low] <= task < prefix[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (prefix[middle] <= task) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

int64_t attn__sequence_keys(const attn__side *kv, int64_t sequence) {
    int64_t first, last, keys = 0;
    attn__side_range(kv, sequence, &first, &last);
    for (int64_t n = first; n < last; n++) {
        keys += attn__side_segment(kv, n).rows;
    }
    return keys;
}
