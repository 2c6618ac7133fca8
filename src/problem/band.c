/* SPDX-License-Identifier: Apache-2.0
 * The band as intervals, and how many pairs it leaves visible.
 *
 * Counting: with x = i', a row sees the union of [lower(x), upper(x)) and [0, globals(x)). All three are clamped lines
 * of slope 0 or 1, so the count is linear in x between a few breakpoints; the sum over a piece of n rows is
 * n * (first + last) / 2. Exact in double up to 2^53 pairs. */
#include "problem/problem.h"

attn__range attn__band_range(const attn_band *band, int64_t shifted) {
    attn__range range = {0, ATTN__MAX_TOKENS};
    bool windowed = band->kind & ATTN_WINDOW && shifted >= band->globals;
    if (windowed && band->left >= 0 && shifted - band->left > 0) {
        range.first = shifted - band->left;
    }
    if (windowed && band->right >= 0 && shifted + band->right < range.last) {
        range.last = shifted + band->right;
    }
    if (band->kind & ATTN_CAUSAL && shifted < range.last) {
        range.last = shifted;
    }
    return range;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

/* Keys of `keys` that row x sees. */
static int64_t visible_keys(const attn_band *band, int64_t x, int64_t keys) {
    attn__range range = attn__band_range(band, x);
    int64_t causal = band->kind & ATTN_CAUSAL ? clamp(x + 1, 0, keys) : keys;
    int64_t globals = clamp(band->globals, 0, causal);
    int64_t first = range.first > globals ? range.first : globals, end = clamp(range.last + 1, 0, keys);
    return globals + (end > first ? end - first : 0);
}

static void insert(int64_t *breaks, int *count, int64_t value) {
    int place = (*count)++;
    while (place > 0 && breaks[place - 1] > value) {
        breaks[place] = breaks[place - 1];
        place--;
    }
    breaks[place] = value;
}

/* Pairs of one sequence with `rows` queries and `keys` keys. */
static double sequence_pairs(const attn_band *band, int64_t rows, int64_t keys) {
    int64_t begin = band->corner == ATTN_TOP_LEFT ? 0 : keys - rows, end = begin + rows;
    int64_t levels[3] = {0, keys, band->globals}, offsets[3] = {1, -band->left, band->right + 1}, breaks[16];
    int count = 0;
    /* Where x + offset crosses a level, and where rows cease to be global. */
    for (int n = 0; n < 9; n++) {
        insert(breaks, &count, levels[n / 3] - offsets[n % 3]);
    }
    insert(breaks, &count, band->globals);
    insert(breaks, &count, end);
    double pairs = 0;
    for (int n = 0; n < count && begin < end; n++) {
        int64_t stop = breaks[n] < end ? breaks[n] : end;
        if (stop > begin) {
            double sum = (double)visible_keys(band, begin, keys) + (double)visible_keys(band, stop - 1, keys);
            pairs += sum * (double)(stop - begin) / 2;
            begin = stop;
        }
    }
    return pairs;
}

/* The part of batch * tokens rows that a side's buffer holds; 1 for dense rows. */
static double held(attn_rows rows, int64_t batch, int64_t tokens, int64_t total, bool shared) {
    double whole = (double)batch * (double)tokens, there = (double)total * (shared ? 1 : (double)batch);
    return rows == ATTN_DENSE || whole == 0 || there > whole ? 1 : there / whole;
}

double attn__visible_pairs(const attn_problem *p) {
    double pairs = (double)p->batch * sequence_pairs(&p->band, p->tokens_q, p->tokens_kv);
    double q = held(p->rows_q, p->batch, p->tokens_q, p->total_q, p->q.stride[0] == 0);
    double kv = held(p->rows_kv, p->batch, p->tokens_kv, p->total_kv, p->k.stride[0] == 0);
    if (p->rows_q == ATTN_SEGMENTS || p->rows_kv == ATTN_SEGMENTS) {
        return pairs * q * kv; /* a shard of queries against a shard of keys */
    }
    return pairs * (q < kv ? q : kv); /* packed: as many sequences of full length as the buffers hold */
}
