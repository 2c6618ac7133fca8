/* SPDX-License-Identifier: Apache-2.0
 * The text form back into a problem. Every token is known, used once and read to its end, or the text is refused with
 * the token and where it stands. Layouts are noted first and resolved when all sizes are known. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "problem/check.h"
#include "problem/problem.h"
#include "problem/tensors.h"
#include "problem/text.h"

const attn__size_word attn__size_words[ATTN__SIZE_WORDS] = {
    {"b", offsetof(attn_problem, batch), 0},
    {"hq", offsetof(attn_problem, heads_q), 0},
    {"hk", offsetof(attn_problem, heads_kv), 0},
    {"h", offsetof(attn_problem, heads_q), offsetof(attn_problem, heads_kv)},
    {"sq", offsetof(attn_problem, tokens_q), 0},
    {"skv", offsetof(attn_problem, tokens_kv), 0},
    {"s", offsetof(attn_problem, tokens_q), offsetof(attn_problem, tokens_kv)},
    {"dqk", offsetof(attn_problem, dim_qk), 0},
    {"dv", offsetof(attn_problem, dim_v), 0},
    {"d", offsetof(attn_problem, dim_qk), offsetof(attn_problem, dim_v)},
};

/* What the text says of one tensor. */
typedef struct wish {
    bool given, strided, heads_first;
    attn_dtype dtype;
    int64_t stride[4];
} wish;

typedef struct reader {
    const char *text, *at; /* at: the token */
    size_t length;         /* of the token */
    attn_problem problem;
    wish wishes[ATTN__TENSORS];
    uint64_t seen; /* bit per size field, word and tensor; see claim */
    attn_error *error;
} reader;

static attn_status refuse(const reader *r, const char *why) {
    char token[41];
    size_t length = r->length < sizeof token - 1 ? r->length : sizeof token - 1;
    for (size_t n = 0; n < length; n++) {
        token[n] = r->at[n] > ' ' && r->at[n] < 127 ? r->at[n] : '?';
    }
    token[length] = 0;
    return attn__fail(r->error, ATTN_ERR_INVALID, "text", "\"%s\" at character %zu %s", token,
                      (size_t)(r->at - r->text) + 1, why);
}

static bool token_is(const reader *r, const char *word) {
    return strlen(word) == r->length && memcmp(r->at, word, r->length) == 0;
}

/* Marks bit `which`; false if it was set already. */
static bool claim(reader *r, int which) {
    uint64_t bit = (uint64_t)1 << which;
    bool fresh = !(r->seen & bit);
    r->seen |= bit;
    return fresh;
}
enum { SEEN_SIZES = 0, SEEN_WORDS = 16, SEEN_TENSORS = 40 };

static const char *const twice = "gives what stands before it already";

/* --- Sizes --- */

static const size_t size_fields[] = {
    offsetof(attn_problem, batch),    offsetof(attn_problem, heads_q),   offsetof(attn_problem, heads_kv),
    offsetof(attn_problem, tokens_q), offsetof(attn_problem, tokens_kv), offsetof(attn_problem, dim_qk),
    offsetof(attn_problem, dim_v),
};
static const char *const size_names[] = {"b",          "hq (or h)",  "hk (or h)", "sq (or s)",
                                         "skv (or s)", "d (or dqk)", "d (or dv)"};
enum { SIZE_FIELDS = sizeof size_fields / sizeof size_fields[0] };

static bool set_size(reader *r, size_t field, int64_t value) {
    for (int n = 0; n < SIZE_FIELDS; n++) {
        if (size_fields[n] == field) {
            memcpy((char *)&r->problem + field, &value, sizeof value);
            return claim(r, SEEN_SIZES + n);
        }
    }
    return false;
}

/* A key and a number; *known stays false if the token does not begin so. */
static attn_status read_size(reader *r, bool *known) {
    for (int n = 0; n < ATTN__SIZE_WORDS; n++) {
        const attn__size_word *word = &attn__size_words[n];
        size_t key = strlen(word->key);
        if (r->length <= key || memcmp(r->at, word->key, key) != 0 || r->at[key] < '0' || r->at[key] > '9') {
            continue;
        }
        int64_t value;
        *known = true;
        if (!attn__int_read(r->at + key, r->length - key, &value)) {
            return refuse(r, "has no number of up to 63 bits, without leading zeros, behind its key");
        }
        bool fresh = set_size(r, word->field, value);
        fresh = (word->second == 0 || set_size(r, word->second, value)) && fresh;
        return fresh ? ATTN_OK : refuse(r, twice);
    }
    return ATTN_OK;
}

/* --- Words --- */

typedef enum value_kind { NO_VALUE, ONE_INT, TWO_INTS, ONE_FLOAT } value_kind;

typedef struct value {
    int64_t first, second;
    float real;
} value;

static void set_causal(attn_problem *p, const value *v) {
    (void)v;
    p->band.kind |= ATTN_CAUSAL;
}
static void set_top_left(attn_problem *p, const value *v) {
    (void)v;
    p->band.corner = ATTN_TOP_LEFT;
}
static void set_used_q(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_USED_Q;
}
static void set_used_kv(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_USED_KV;
}
static void set_accumulate(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_ACCUMULATE;
}
static void set_deterministic(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_DETERMINISTIC;
}
static void set_tf32(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_ALLOW_TF32;
}
static void set_device_lengths(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_DEVICE_LENGTHS;
}
static void set_device_seed(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_DEVICE_SEED;
}
static void set_clear_rest(attn_problem *p, const value *v) {
    (void)v;
    p->flags |= ATTN_CLEAR_REST;
}
static void set_packed_q(attn_problem *p, const value *v) {
    p->rows_q = ATTN_PACKED;
    p->total_q = v->first;
}
static void set_packed_kv(attn_problem *p, const value *v) {
    p->rows_kv = ATTN_PACKED;
    p->total_kv = v->first;
}
static void set_segments_q(attn_problem *p, const value *v) {
    p->rows_q = ATTN_SEGMENTS;
    p->total_q = v->first;
    p->segments_q = v->second;
}
static void set_segments_kv(attn_problem *p, const value *v) {
    p->rows_kv = ATTN_SEGMENTS;
    p->total_kv = v->first;
    p->segments_kv = v->second;
}
static void set_window(attn_problem *p, const value *v) {
    p->band.kind |= ATTN_WINDOW;
    p->band.left = v->first;
    p->band.right = v->second;
}
static void set_globals(attn_problem *p, const value *v) {
    p->band.kind |= ATTN_GLOBALS;
    p->band.globals = v->first;
}
static void set_scale(attn_problem *p, const value *v) {
    p->flags |= ATTN_HAS_SCALE;
    p->scale = v->real;
}
static void set_softcap(attn_problem *p, const value *v) {
    p->softcap = v->real;
}
static void set_dropout(attn_problem *p, const value *v) {
    p->dropout = v->real;
}

static const struct word {
    const char *key;
    value_kind kind;
    int slot; /* words with one slot exclude each other */
    void (*set)(attn_problem *problem, const value *v);
} words[] = {
    {ATTN__WORD_CAUSAL, NO_VALUE, 0, set_causal},
    {ATTN__WORD_TOP_LEFT, NO_VALUE, 1, set_top_left},
    {ATTN__WORD_USED_Q, NO_VALUE, 2, set_used_q},
    {ATTN__WORD_USED_KV, NO_VALUE, 3, set_used_kv},
    {ATTN__WORD_ACCUMULATE, NO_VALUE, 4, set_accumulate},
    {ATTN__WORD_PACKED_Q, ONE_INT, 5, set_packed_q},
    {ATTN__WORD_PACKED_KV, ONE_INT, 6, set_packed_kv},
    {ATTN__WORD_SEGMENTS_Q, TWO_INTS, 5, set_segments_q},
    {ATTN__WORD_SEGMENTS_KV, TWO_INTS, 6, set_segments_kv},
    {ATTN__WORD_WINDOW, TWO_INTS, 7, set_window},
    {ATTN__WORD_GLOBALS, ONE_INT, 8, set_globals},
    {ATTN__WORD_SCALE, ONE_FLOAT, 9, set_scale},
    {ATTN__WORD_SOFTCAP, ONE_FLOAT, 10, set_softcap},
    {ATTN__WORD_DROPOUT, ONE_FLOAT, 11, set_dropout},
    {ATTN__WORD_DETERMINISTIC, NO_VALUE, 12, set_deterministic},
    {ATTN__WORD_TF32, NO_VALUE, 13, set_tf32},
    {ATTN__WORD_DEVICE_LENGTHS, NO_VALUE, 14, set_device_lengths},
    {ATTN__WORD_DEVICE_SEED, NO_VALUE, 15, set_device_seed},
    {ATTN__WORD_CLEAR_REST, NO_VALUE, 16, set_clear_rest},
};
enum { WORDS = sizeof words / sizeof words[0] };

/* `count` whole numbers with commas between, to the end. */
static bool read_ints(const char *text, size_t length, int count, int64_t *out) {
    for (int n = 0; n < count; n++) {
        const char *comma = n + 1 < count ? memchr(text, ',', length) : text + length;
        if (!comma || !attn__int_read(text, (size_t)(comma - text), &out[n])) {
            return false;
        }
        length -= (size_t)(comma - text) + (n + 1 < count);
        text = comma + (n + 1 < count);
    }
    return true;
}

static attn_status read_word(reader *r, size_t key, bool *known) {
    for (int n = 0; n < WORDS; n++) {
        const struct word *word = &words[n];
        if (strlen(word->key) != key || memcmp(word->key, r->at, key) != 0) {
            continue;
        }
        *known = true;
        const char *text = r->at + key + 1;
        size_t length = r->length > key ? r->length - key - 1 : 0;
        value v = {0, 0, 0};
        int64_t ints[2] = {0, 0};
        if ((word->kind == NO_VALUE) != (r->length == key)) {
            return refuse(r, word->kind == NO_VALUE ? "takes no value" : "needs a value behind =");
        }
        if (word->kind == ONE_INT || word->kind == TWO_INTS) {
            int count = word->kind == ONE_INT ? 1 : 2;
            if (!read_ints(text, length, count, ints)) {
                return refuse(r, count == 1 ? "needs one whole number" : "needs two whole numbers, a comma between");
            }
        } else if (word->kind == ONE_FLOAT && !attn__float_read(text, length, &v.real)) {
            return refuse(r, "needs a finite decimal number");
        }
        v.first = ints[0];
        v.second = ints[1];
        if (!claim(r, SEEN_WORDS + word->slot)) {
            return refuse(r, twice);
        }
        word->set(&r->problem, &v);
        return ATTN_OK;
    }
    return ATTN_OK;
}

/* --- Layouts --- */

static bool read_dtype(const char *text, size_t length, attn_dtype *dtype) {
    static const attn_dtype types[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F64, ATTN_U8};
    for (size_t n = 0; n < sizeof types / sizeof types[0]; n++) {
        const char *name = attn_dtype_name(types[n]);
        if (strlen(name) == length && memcmp(name, text, length) == 0) {
            *dtype = types[n];
            return true;
        }
    }
    return false;
}

static bool read_strides(const char *text, size_t length, wish *w) {
    w->strided = true;
    if (length < 2 || text[0] != '[' || text[length - 1] != ']') {
        return false;
    }
    text++;
    length -= 2;
    w->heads_first = length == strlen(ATTN__WORD_HEADS_FIRST) && memcmp(text, ATTN__WORD_HEADS_FIRST, length) == 0;
    return w->heads_first || read_ints(text, length, 4, w->stride);
}

static attn_status read_tensor(reader *r, size_t key, bool *known) {
    for (int n = 0; n < ATTN__TENSORS; n++) {
        const attn__tensor *tensor = &attn__tensors[n];
        if (strlen(tensor->name) != key || memcmp(tensor->name, r->at, key) != 0 || r->length == key) {
            continue;
        }
        *known = true;
        wish *w = &r->wishes[n];
        const char *text = r->at + key + 1, *end = r->at + r->length;
        const char *bracket = memchr(text, '[', (size_t)(end - text));
        size_t type = (size_t)((bracket ? bracket : end) - text);
        if (tensor->backward && r->problem.pass == ATTN_FORWARD) {
            return refuse(r, "belongs to bwd only");
        }
        if ((type > 0 || !bracket) && !read_dtype(text, type, &w->dtype)) {
            return refuse(r, "has an unknown type: f32, f16, bf16, f64, u8");
        }
        if (bracket && !read_strides(bracket, (size_t)(end - bracket), w)) {
            return refuse(r, "needs [bhsd] or four whole numbers in brackets");
        }
        w->given = true;
        return claim(r, SEEN_TENSORS + n) ? ATTN_OK : refuse(r, twice);
    }
    return ATTN_OK;
}

static attn_status grant(attn_problem *p, const attn__tensor *tensor, const wish *w, attn_error *error) {
    attn_layout *layout = attn__tensor_layout(p, tensor);
    attn_layout normal;
    if (!w->given && tensor->unset != ATTN__UNSET_REFUSED && tensor->unset != ATTN__UNSET_PLAIN) {
        return ATTN_OK;
    }
    bool fits = attn__tensor_normal(p, tensor, &normal);
    if (w->strided && w->heads_first) {
        fits = attn__tensor_plain(p, tensor, true, normal.stride);
    } else if (w->strided) {
        memcpy(normal.stride, w->stride, sizeof normal.stride);
        fits = true;
    }
    if (!fits) {
        return attn__fail(error, ATTN_ERR_INVALID, tensor->name, "has more elements than 63 bits count, give strides");
    }
    *layout = normal;
    layout->dtype = w->dtype != ATTN_NONE ? w->dtype : normal.dtype;
    return ATTN_OK;
}

/* --- The whole --- */

static attn_status read_token(reader *r) {
    bool known = false;
    const char *equals = memchr(r->at, '=', r->length);
    size_t key = equals ? (size_t)(equals - r->at) : r->length;
    attn_status status = read_word(r, key, &known);
    if (!status && !known) {
        status = read_tensor(r, key, &known);
    }
    if (!status && !known) {
        status = read_size(r, &known);
    }
    return status || known ? status : refuse(r, "is not known");
}

static attn_status read_head(reader *r, int number) {
    if (number == 0) {
        if (!token_is(r, "fwd") && !token_is(r, "bwd")) {
            return refuse(r, "must be fwd or bwd");
        }
        r->problem.pass = token_is(r, "bwd") ? ATTN_BACKWARD : ATTN_FORWARD;
        return ATTN_OK;
    }
    attn_dtype dtype = ATTN_NONE;
    if (!read_dtype(r->at, r->length, &dtype) || dtype == ATTN_U8) {
        return refuse(r, "must be f32, f16, bf16 or f64");
    }
    r->problem.q.dtype = dtype;
    return ATTN_OK;
}

static attn_status read_tokens(reader *r) {
    int number = 0;
    for (const char *next = r->text; next; number++) {
        r->at = next;
        r->length = strcspn(r->at, ":");
        next = r->at[r->length] ? r->at + r->length + 1 : NULL;
        attn_status status = number < 2 ? read_head(r, number) : read_token(r);
        if (status) {
            return status;
        }
    }
    if (number < 2) {
        return attn__fail(r->error, ATTN_ERR_INVALID, "text", "ends before the type, must be like fwd:f32:...");
    }
    for (int n = 0; n < SIZE_FIELDS; n++) {
        if (!(r->seen & (uint64_t)1 << (SEEN_SIZES + n))) {
            return attn__fail(r->error, ATTN_ERR_INVALID, "text", "lacks %s", size_names[n]);
        }
    }
    const uint32_t flags = r->problem.flags;
    if (flags & (ATTN_ACCUMULATE | ATTN_DETERMINISTIC) && r->problem.pass == ATTN_FORWARD) {
        return attn__fail(r->error, ATTN_ERR_INVALID, "text", "has %s, which belongs to bwd only",
                          flags & ATTN_ACCUMULATE ? ATTN__WORD_ACCUMULATE : ATTN__WORD_DETERMINISTIC);
    }
    if (flags & ATTN_ALLOW_TF32 && r->problem.q.dtype != ATTN_F32) {
        return attn__fail(r->error, ATTN_ERR_INVALID, "text", "has tf32, which belongs to f32 only, not to %s",
                          attn_dtype_name(r->problem.q.dtype));
    }
    return ATTN_OK;
}

attn_status attn_problem_parse(attn_problem *problem, const char *text, attn_error *error) {
    if (!problem || !text) {
        return attn__fail(error, ATTN_ERR_INVALID, problem ? "text" : "problem", "is NULL");
    }
    reader r = {.text = text, .at = text, .problem = attn_problem_init(), .error = error};
    attn_status status = read_tokens(&r);
    status = status ? status : attn__check_sizes(&r.problem, error);
    for (int n = 0; n < ATTN__TENSORS && !status; n++) {
        status = grant(&r.problem, &attn__tensors[n], &r.wishes[n], error);
    }
    if (status) {
        return status;
    }
    attn_problem canonical;
    status = attn__problem_canonical(&r.problem, &canonical, error);
    if (status == ATTN_OK) {
        *problem = canonical;
    }
    return status;
}
