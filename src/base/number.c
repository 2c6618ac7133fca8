/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 64 };

static size_t digits(const char *text, size_t length) {
    size_t count = 0;
    while (count < length && text[count] >= '0' && text[count] <= '9') {
        count++;
    }
    return count;
}

bool attn__int_read(const char *text, size_t length, int64_t *value) {
    bool negative = length > 0 && text[0] == '-';
    size_t start = negative, count = digits(text + start, length - start);
    if (count == 0 || start + count != length || (text[start] == '0' && (count > 1 || negative))) {
        return false;
    }
    int64_t sum = 0;
    for (size_t n = start; n < length; n++) {
        int digit = text[n] - '0';
        if (__builtin_mul_overflow(sum, (int64_t)10, &sum) ||
            __builtin_add_overflow(sum, (int64_t)(negative ? -digit : digit), &sum)) {
            return false;
        }
    }
    *value = sum;
    return true;
}

/* What this locale writes between whole and fraction, asked of printf, since localeconv is not thread-safe. */
static size_t separator(char text[16]) {
    char half[16];
    int length = snprintf(half, sizeof half, "%.1f", 0.5);
    memcpy(text, half + 1, (size_t)length - 2);
    return (size_t)length - 2;
}

static bool is_decimal(const char *text, size_t length) {
    size_t at = length > 0 && text[0] == '-', whole = digits(text + at, length - at);
    if (whole == 0 || (whole > 1 && text[at] == '0')) {
        return false;
    }
    at += whole;
    if (at < length && text[at] == '.') {
        size_t fraction = digits(text + at + 1, length - at - 1);
        if (fraction == 0) {
            return false;
        }
        at += 1 + fraction;
    }
    if (at < length && text[at] == 'e') {
        at++;
        at += at < length && (text[at] == '-' || text[at] == '+');
        size_t exponent = digits(text + at, length - at);
        if (exponent == 0) {
            return false;
        }
        at += exponent;
    }
    return at == length;
}

bool attn__float_read(const char *text, size_t length, float *value) {
    char copy[LONGEST + 32], point[16];
    if (length > LONGEST || !is_decimal(text, length)) {
        return false;
    }
    const char *dot = memchr(text, '.', length);
    size_t whole = dot ? (size_t)(dot - text) : length, gap = dot ? separator(point) : 0, fraction = length - whole;
    memcpy(copy, text, whole);
    if (dot) {
        memcpy(copy + whole, point, gap);
        memcpy(copy + whole + gap, dot + 1, fraction - 1);
        fraction--;
    }
    copy[whole + gap + fraction] = 0;
    float result = strtof(copy, NULL);
    if (!isfinite(result)) {
        return false;
    }
    *value = result;
    return true;
}

void attn__float_write(float value, char text[32]) {
    char point[16];
    size_t gap = separator(point);
    char candidate[32];
    size_t shortest = 32;
    for (int precision = 1; precision <= 9; precision++) {
        size_t length = (size_t)snprintf(candidate, sizeof candidate, "%.*g", precision, (double)value);
        if (length < shortest && strtof(candidate, NULL) == value) {
            memcpy(text, candidate, length + 1);
            shortest = length;
        }
    }
    char *found = memchr(text, point[0], strlen(text));
    if (found) {
        *found = '.';
        memmove(found + 1, found + gap, strlen(found + gap) + 1);
    }
}
