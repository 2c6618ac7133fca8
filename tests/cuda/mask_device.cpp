/* SPDX-License-Identifier: Apache-2.0
 * The band of device code, compiled for the host, against the definition: every small window, number of globals, block
 * of rows and block of keys. One program for each kind of band (constant BAND). */
#include "device_on_host.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define __CUDA_ARCH__ 800
#define ROWS_Q        0
#define ROWS_KV       0
#define USED_Q        0
#define USED_KV       0
#define HAS_MASK      0
#include "mask.cuh"

#include "problem/problem.h"

static long checks, faults;

/* Rows with i' in [low, high] and keys [first, last) of a sequence of `length` keys. */
static void check_block(const attn_band &band, int low, int high, int length, int first, int last) {
    attn__params p;
    memset(&p, 0, sizeof p);
    p.left = band.left;
    p.right = band.right;
    p.globals = band.globals;
    int begin = first, end = last;
    bool full = band_span(p, low, high, length, &begin, &end);
    bool hides = band_hides_block(p, low, high, first, last);
    for (int x = low; x <= high; x++) {
        row_band row = band_of_row(p, x, length);
        for (int j = first; j < last; j++) {
            bool visible = j < length && attn__band_visible(&band, x, j), inside = j >= begin && j < end;
            bool right = band_sees(p, row, j) == visible && !(visible && (hides || !inside));
            right = right && !(full && inside && !visible);
            checks++;
            if (!right && ++faults < 10) {
                printf("left %lld right %lld globals %lld: row %d of %d...%d, key %d of %d...%d, length %d\n",
                       (long long)band.left, (long long)band.right, (long long)band.globals, x, low, high, j, first,
                       last, length);
            }
        }
    }
}

static void check_band(const attn_band &band) {
    for (int low = -4; low <= 9; low++) {
        for (int high = low; high <= low + 4; high++) {
            for (int length = 0; length <= 9; length += 3) {
                for (int first = 0; first <= 9; first++) {
                    for (int last = first; last <= 9; last++) {
                        check_block(band, low, high, length, first, last);
                    }
                }
            }
        }
    }
}

/* At the ends of positions nothing wraps. */
static void check_far() {
    const int64_t far = ((int64_t)1 << 32) - 1, most = ATTN__MAX_TOKENS;
    attn__params p;
    memset(&p, 0, sizeof p);
    p.left = p.right = far;
    p.globals = BAND & GLOBALS ? most : ATTN__NO_GLOBALS;
    const int64_t rows[3] = {-most, 0, most};
    for (int64_t x : rows) {
        row_band row = band_of_row(p, x, (int)most);
        bool last = !(BAND & CAUSAL) || x >= most - 1;
        if (BAND & WINDOW && !(BAND & GLOBALS && x < p.globals)) {
            last = last && x + far >= most - 1;
        }
        checks++;
        faults += band_sees(p, row, (int)most - 1) != last;
    }
}

int main() {
    const int64_t none = ATTN__NO_GLOBALS;
    for (int left = -1; left <= (BAND & WINDOW ? 4 : -1); left++) {
        for (int right = -1; right <= (BAND & WINDOW ? 4 : -1); right++) {
            for (int64_t globals = BAND & GLOBALS ? 1 : none; globals <= (BAND & GLOBALS ? 4 : none); globals++) {
                attn_band band = {BAND, ATTN_BOTTOM_RIGHT, left, right, globals};
                if (!(BAND & WINDOW) || left >= 0 || right >= 0) {
                    check_band(band);
                }
            }
        }
    }
    check_far();
    printf("%ld checks, %ld faults\n", checks, faults);
    return checks == 0 || faults != 0;
}
