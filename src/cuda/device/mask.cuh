/* SPDX-License-Identifier: Apache-2.0
 * The mask's one hook: which keys a row may see by position (band), and by the boolean mask.
 *
 * Constants: BAND (1 causal | 2 window | 4 globals, as attn_band_kind), HAS_MASK. All positions are int: a sequence has
 * at most 2^31 - 1 tokens; limits saturate. */
#pragma once
#include "rows.cuh"

#define CAUSAL  1
#define WINDOW  2
#define GLOBALS 4

#define POSITION_MAX 0x7fffffff
#define POSITION_MIN (-0x7fffffff - 1)

/* Keys a row may see: [low, high]; a global key (j < globals) is seen up to `top`. */
typedef struct row_band {
    int low, high, top;
} row_band;

INLINE int clamp_position(int64_t x) {
    return x < POSITION_MIN ? POSITION_MIN : x > POSITION_MAX ? POSITION_MAX : (int)x;
}

/* shifted: i' of the row. length: keys of the sequence, which bound every row. */
INLINE row_band band_of_row(const attn__params &p, int64_t shifted, int length) {
    int64_t top = length - 1, low = 0, high;
    if (BAND & CAUSAL) {
        top = smaller(top, shifted);
    }
    high = top;
    if ((BAND & WINDOW) && !((BAND & GLOBALS) && shifted < p.globals)) {
        if (p.left >= 0) {
            low = larger(low, shifted - p.left);
        }
        if (p.right >= 0) {
            high = smaller(high, shifted + p.right);
        }
    }
    row_band band = {clamp_position(low), clamp_position(high), clamp_position(top)};
    return band;
}

INLINE bool band_sees(const attn__params &p, const row_band &band, int j) {
    if (BAND & GLOBALS) {
        if (j < p.globals) {
            return j <= band.top;
        }
    }
    return j >= band.low && j <= band.high;
}

/* Keys that some row of a block may see, for rows with i' in [low, high]: [*begin, *end) is cut to them. With globals
 * the stretch before the window is skipped by band_gap. Returns true if every row sees every key of what is left. */
INLINE bool band_span(const attn__params &p, int64_t low, int64_t high, int length, int *begin, int *end) {
    int64_t first = *begin, last = smaller(*end, length);
    bool global_row = (BAND & GLOBALS) && low < p.globals;
    bool full = true;
    if (BAND & CAUSAL) {
        last = smaller(last, high + 1);
        full = last - 1 <= low;
    }
    if ((BAND & WINDOW) && !global_row) {
        if (p.left >= 0) {
            if (!((BAND & GLOBALS) && first < p.globals)) {
                first = larger(first, low - p.left);
            }
            full = full && first >= high - p.left;
        }
        if (p.right >= 0) {
            int64_t bound = high + p.right + 1;
            if (BAND & GLOBALS) {
                bound = larger(bound, smaller(p.globals, last));
            }
            last = smaller(last, bound);
            full = full && last - 1 <= low + p.right;
        }
    } else if (BAND & WINDOW) {
        full = full && high < p.globals; /* all rows global */
    }
    *begin = clamp_position(first);
    *end = clamp_position(last);
    return full;
}

/* Is block [begin, end) of keys hidden from all rows with i' in [low, high] (the stretch between the global keys and
 * the window)? */
INLINE bool band_hides_block(const attn__params &p, int64_t low, int64_t high, int begin, int end) {
    if ((BAND & CAUSAL) && begin > high) {
        return true;
    }
    if (!(BAND & WINDOW) || ((BAND & GLOBALS) && (low < p.globals || begin < p.globals))) {
        return false;
    }
    return (p.left >= 0 && end - 1 < low - p.left) || (p.right >= 0 && begin > high + p.right);
}

/* Does the boolean mask show key j to row i (positions)? */
INLINE bool mask_shows(const attn__params &p, int s, int head, int64_t i, int64_t j) {
    const attn__tensor_ref &t = p.mask;
    return ((const uint8_t *)t.data)[s * t.stride[0] + head * t.stride[1] + i * t.stride[2] + j * t.stride[3]] != 0;
}
