/* SPDX-License-Identifier: Apache-2.0
 * The data of a call: pointers there exactly when needed, lengths inside what the problem promised. */
#include "problem/unit.h"

#include <limits.h>

#include "problem/problem.h"

static float data[64], out[64];
static const uint8_t bytes[64];

/* Everything that forward or backward of `text` may need. */
typedef struct call {
    attn_problem problem;
    attn_args args;
} call;

static call call_of(const char *text) {
    call c;
    attn_error error;
    expect_success(attn_problem_parse(&c.problem, text, &error), &error);
    c.args = attn_args_init();
    c.args.q = c.args.k = c.args.v = data;
    c.args.o = out;
    if (c.problem.pass == ATTN_BACKWARD) {
        c.args.lse = out;
        c.args.dout = data;
        c.args.dq = c.args.dk = c.args.dv = out;
    }
    return c;
}

#define REFUSED(text, field, part, ...)                                                                                \
    do {                                                                                                               \
        call c = call_of(text);                                                                                        \
        attn_args *a = &c.args, copy, before;                                                                          \
        attn_error error;                                                                                              \
        __VA_ARGS__;                                                                                                   \
        memset(&copy, 0x5a, sizeof copy);                                                                              \
        before = copy;                                                                                                 \
        expect_error(attn__args_check(&c.problem, a, &copy, &error), &error, ATTN_ERR_INVALID, field, part);           \
        assert_int_equal(memcmp(&copy, &before, sizeof copy), 0);                                                      \
    } while (0)

#define ACCEPTED(text, ...)                                                                                            \
    do {                                                                                                               \
        call c = call_of(text);                                                                                        \
        attn_args *a = &c.args, copy;                                                                                  \
        attn_error error;                                                                                              \
        __VA_ARGS__;                                                                                                   \
        expect_success(attn__args_check(&c.problem, a, &copy, &error), &error);                                        \
    } while (0)

#define FWD "fwd:f32:b2:hq2:hk1:sq3:skv4:d2"
#define BWD "bwd:f32:b2:hq2:hk1:sq3:skv4:d2"

static void test_null(void **state) {
    (void)state;
    call c = call_of(FWD);
    attn_args copy;
    attn_error error;
    expect_error(attn__args_check(&c.problem, NULL, &copy, &error), &error, ATTN_ERR_INVALID, "args", "is NULL");
}

static void test_forward_pointers(void **state) {
    (void)state;
    ACCEPTED(FWD, (void)a);
    ACCEPTED(FWD, a->lse = out);
    REFUSED(FWD, "q", "is NULL, but the problem needs it", a->q = NULL);
    REFUSED(FWD, "k", "is NULL, but the problem needs it", a->k = NULL);
    REFUSED(FWD, "v", "is NULL, but the problem needs it", a->v = NULL);
    REFUSED(FWD, "o", "is NULL, but the problem needs it", a->o = NULL);
    REFUSED(FWD, "bias", "must be NULL: the problem has no such data", a->bias = data);
    REFUSED(FWD, "mask", "must be NULL", a->mask = bytes);
    REFUSED(FWD, "alibi", "must be NULL", a->alibi = data);
    REFUSED(FWD, "sink", "must be NULL", a->sink = data);
    REFUSED(FWD ":bias=f32", "bias", "is NULL, but the problem needs it", (void)a);
    REFUSED(FWD ":mask=u8", "mask", "is NULL, but the problem needs it", (void)a);
    REFUSED(FWD ":alibi=f32", "alibi", "is NULL, but the problem needs it", (void)a);
    REFUSED(FWD ":sink=f32", "sink", "is NULL, but the problem needs it", (void)a);
    REFUSED(FWD, "q", "must be a multiple of its element size 4", a->q = (const char *)data + 2);
    REFUSED(FWD, "lse", "must be a multiple of its element size 4", a->lse = (char *)out + 1);
    ACCEPTED(FWD ":mask=u8", a->mask = bytes + 1);
    /* The fields of the other pass are not looked at. */
    ACCEPTED(FWD, a->dq = out, a->dout = data, a->dsink = out, a->dbias = out, a->delta = data);
    /* Tensors without elements need no memory. */
    ACCEPTED("fwd:f32:b0:h2:s3:d2:bias=f32:sink=f32", memset(a, 0, sizeof *a), a->struct_size = sizeof *a,
             a->sink = data);
    ACCEPTED("fwd:f32:b2:h2:sq3:skv0:d2:bias=f32", a->k = a->v = NULL);
    ACCEPTED("fwd:f32:b2:h2:sq0:skv3:d2", a->q = NULL, a->o = NULL);
}

static void test_backward_pointers(void **state) {
    (void)state;
    ACCEPTED(BWD, (void)a);
    ACCEPTED(BWD, a->dlse = data, a->delta = data, a->o = NULL);
    ACCEPTED(BWD, a->dq = NULL, a->dk = NULL);
    REFUSED(BWD, "lse", "is NULL, but the problem needs it", a->lse = NULL);
    REFUSED(BWD, "dout", "is NULL, but the problem needs it", a->dout = NULL);
    REFUSED(BWD, "o", "is NULL, but the problem needs it", a->o = NULL);
    REFUSED(BWD, "dq", "at least one must be set", a->dq = a->dk = a->dv = NULL);
    REFUSED(BWD, "dbias", "must be NULL", a->dbias = out);
    REFUSED(BWD, "dsink", "must be NULL", a->dsink = out);
    REFUSED(BWD, "delta", "multiple of its element size 4", a->delta = (const char *)data + 1);
    ACCEPTED(BWD ":bias=f32:sink=f32", a->bias = a->sink = data, a->dbias = a->dsink = out);
    ACCEPTED(BWD ":bias=f32:sink=f32", a->bias = a->sink = data);
    ACCEPTED(BWD ":sink=f32", a->sink = data, a->dsink = out, a->dq = a->dk = a->dv = NULL);
    REFUSED(BWD ":sink=f32[0,0,0,0]", "dsink", "sink.stride[1] is 0", a->sink = data, a->dsink = out);
    ACCEPTED(BWD ":sink=f32[0,0,0,0]", a->sink = data);
    ACCEPTED("bwd:f32:b0:h2:s3:d2", memset(a, 0, sizeof *a), a->struct_size = sizeof *a);
    REFUSED("bwd:f32:b1:h2:sq0:skv3:d2", "dq", "at least one must be set", a->dq = a->dk = a->dv = NULL);
}

#define PACKED "fwd:f32:b3:h1:sq4:skv5:d2:packed_q=9:packed_kv=10"

static void test_cu_seqlens(void **state) {
    (void)state;
    static const int32_t q[] = {0, 4, 4, 9}, kv[] = {0, 5, 9, 9}, good[] = {0, 4, 4, 8};
    static const int32_t first[] = {1, 4, 4, 8}, falls[] = {0, 4, 3, 8}, beyond[] = {0, 4, 8, 11};
    static const int32_t low[] = {0, INT32_MIN, 0, 0}, high[] = {0, INT32_MAX, INT32_MAX, INT32_MAX};
    ACCEPTED(PACKED, a->cu_seqlens_q = good, a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_q", "is NULL, but", a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_kv", "is NULL, but", a->cu_seqlens_q = good);
    REFUSED(PACKED, "cu_seqlens_q", "multiple of its element size 4",
            a->cu_seqlens_q = (const void *)((const char *)good + 1), a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_q[0]", "is 1, must be 0", a->cu_seqlens_q = first, a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_q[2]", "is 3, must be at least the offset before it, 4", a->cu_seqlens_q = falls,
            a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_q[3]", "is 9, makes sequence 2 5 long, must be at most tokens_q = 4",
            a->cu_seqlens_q = q, a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_kv[3]", "is 11, must be at most total_kv = 10", a->cu_seqlens_q = good,
            a->cu_seqlens_kv = beyond);
    REFUSED(PACKED, "cu_seqlens_q[1]", "must be at least the offset", a->cu_seqlens_q = low, a->cu_seqlens_kv = kv);
    REFUSED(PACKED, "cu_seqlens_q[1]", "must be at most tokens_q = 4", a->cu_seqlens_q = high, a->cu_seqlens_kv = kv);
    REFUSED(FWD, "cu_seqlens_q", "must be NULL", a->cu_seqlens_q = good);
    ACCEPTED("fwd:f32:b0:h1:sq4:skv5:d2:packed_q=9:packed_kv=10", a->q = data);
}

static void test_used(void **state) {
    (void)state;
    static const int32_t cu[] = {0, 4, 4, 8}, kv[] = {0, 5, 9, 9};
    static const int32_t two[] = {3, 0}, negative[] = {0, -1}, four[] = {3, 4};
    static const int32_t within[] = {4, 0, 3}, outside[] = {1, 1, 1};
    ACCEPTED(FWD ":used_q", a->used_q = two);
    REFUSED(FWD ":used_q", "used_q", "is NULL, but", (void)a);
    REFUSED(FWD, "used_kv", "must be NULL", a->used_kv = two);
    REFUSED(FWD ":used_kv", "used_kv[1]", "is -1, must be at least 0", a->used_kv = negative);
    REFUSED(FWD ":used_q", "used_q[1]", "is 4, must be at most the tokens of a slot = 3", a->used_q = four);
    ACCEPTED(PACKED ":used_q", a->cu_seqlens_q = cu, a->cu_seqlens_kv = kv, a->used_q = within);
    REFUSED(PACKED ":used_q", "used_q[1]", "is 1, must be at most the sequence's slot = 0", a->cu_seqlens_q = cu,
            a->cu_seqlens_kv = kv, a->used_q = outside);
}

#define SEGMENTS(pass) pass ":f32:b3:h1:s100:d2:segments_q=20,4:segments_kv=20,4"
static const int32_t lengths[] = {50, 0, 100};

static void set_segments(attn_args *a, const attn_segment *q, int64_t n_q, const attn_segment *kv, int64_t n_kv) {
    a->segments_q = q;
    a->n_segments_q = n_q;
    a->segments_kv = kv;
    a->n_segments_kv = n_kv;
    a->lengths_q = a->lengths_kv = lengths;
}

#define ONE(...)                                                                                                       \
    set_segments(a, (const attn_segment[]){__VA_ARGS__},                                                               \
                 (int64_t)(sizeof((const attn_segment[]){__VA_ARGS__}) / sizeof(attn_segment)), NULL, 0)
#define KEYS(...)                                                                                                      \
    set_segments(a, NULL, 0, (const attn_segment[]){__VA_ARGS__},                                                      \
                 (int64_t)(sizeof((const attn_segment[]){__VA_ARGS__}) / sizeof(attn_segment)))

static void test_segments(void **state) {
    (void)state;
    ACCEPTED(SEGMENTS("fwd"), ONE({0, 10, 0, 0}, {10, 5, 45, 0}, {15, 5, 95, 2}));
    ACCEPTED(SEGMENTS("fwd"), set_segments(a, NULL, 0, NULL, 0));
    ACCEPTED(SEGMENTS("fwd"), ONE({5, 0, 50, 0}, {20, 0, 0, 1}, {0, 20, 80, 2})); /* empty ones */
    ACCEPTED(SEGMENTS("fwd"), ONE({10, 5, 45, 0}, {0, 10, 0, 0}));                /* any order inside a sequence */
    REFUSED(SEGMENTS("fwd"), "lengths_q", "is NULL, but", ONE({0, 1, 0, 0}), a->lengths_q = NULL);
    REFUSED(SEGMENTS("fwd"), "segments_q", "is NULL, but", set_segments(a, NULL, 1, NULL, 0));
    REFUSED(SEGMENTS("fwd"), "n_segments_q", "is -1, must be at least 0", ONE({0, 1, 0, 0}), a->n_segments_q = -1);
    REFUSED(SEGMENTS("fwd"), "n_segments_q", "is 5, must be at least 0 and at most segments_q = 4",
            ONE({0, 1, 0, 0}, {1, 1, 1, 0}, {2, 1, 2, 0}, {3, 1, 3, 0}, {4, 1, 4, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].sequence", "is 3, must be at most batch - 1 = 2", ONE({0, 1, 0, 3}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].sequence", "is -1, must be at least 0", ONE({0, 1, 0, -1}));
    REFUSED(SEGMENTS("fwd"), "segments_q[1].sequence", "is 0, must be at least that of the segment before it, 2",
            ONE({0, 1, 0, 2}, {1, 1, 0, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].first", "is 21, must be at most total_q = 20", ONE({21, 0, 0, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].first", "is -1, must be at least 0", ONE({-1, 2, 0, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].rows", "is 11, must be at most the rows behind first = 10",
            ONE({10, 11, 0, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].rows", "is 9223372036854775807", ONE({10, INT64_MAX, 0, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].rows", "is -1, must be at least 0", ONE({10, -1, 0, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].position", "is 51, must be at most the sequence's length = 50",
            ONE({0, 0, 51, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].position", "is -9223372036854775808", ONE({0, 1, INT64_MIN, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].rows", "is 6, must be at most what the sequence's length leaves = 5",
            ONE({0, 6, 45, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_q[0].rows", "is 1, must be at most", ONE({0, 1, 0, 1}));
    REFUSED(SEGMENTS("fwd"), "lengths_kv[2]", "is 101, must be at most tokens_kv = 100", ONE({0, 1, 0, 0}),
            a->lengths_kv = (const int32_t[]){0, 0, 101});
    REFUSED(SEGMENTS("fwd"), "lengths_q[0]", "is -1, must be at least 0", ONE({0, 1, 0, 0}),
            a->lengths_q = (const int32_t[]){-1, 0, 0});
}

static void test_segments_that_meet(void **state) {
    (void)state;
    /* A key given twice would count twice. */
    REFUSED(SEGMENTS("fwd"), "segments_kv[1].position", "is 4, covers positions that segment 0 holds already",
            KEYS({0, 5, 0, 0}, {5, 5, 4, 0}));
    REFUSED(SEGMENTS("fwd"), "segments_kv[2].position", "is 0, covers positions that segment 0",
            KEYS({0, 2, 0, 0}, {2, 2, 10, 0}, {4, 1, 0, 0}));
    /* Rows may be shared by keys that are only read, not by outputs. */
    ACCEPTED(SEGMENTS("fwd"), KEYS({0, 5, 0, 0}, {0, 5, 0, 2}));
    REFUSED(SEGMENTS("bwd"), "segments_kv[1].first", "is 0, covers rows of an output that segment 0 holds already",
            KEYS({0, 5, 0, 0}, {0, 5, 0, 2}));
    REFUSED(SEGMENTS("fwd"), "segments_q[1].first", "is 4, covers rows of an output", ONE({0, 5, 0, 0}, {4, 5, 0, 2}));
    REFUSED(SEGMENTS("fwd"), "segments_q[2].first", "is 0, covers rows of an output that segment 0",
            ONE({0, 2, 0, 0}, {10, 2, 10, 0}, {0, 1, 20, 0}));
    /* With a stride between sequences the same row number is another row. */
    ACCEPTED("fwd:f32:b3:h1:s100:d2:segments_q=20,4:segments_kv=20,4:q=[40,2,2,1]:o=[40,2,2,1]",
             ONE({0, 5, 0, 0}, {0, 5, 0, 2}));
    REFUSED("fwd:f32:b3:h1:s100:d2:segments_q=20,4:segments_kv=20,4:q=[40,2,2,1]:o=[40,2,2,1]", "segments_q[1].first",
            "is 4, covers rows", ONE({0, 5, 0, 0}, {4, 5, 10, 0}));
    /* It is the outputs' strides that count, whatever q's are; rows of q or k in one run are of one sequence each. */
    static const char *const shared[] = {"q=[40,2,2,1]:o=[0,2,2,1]", "q=[40,2,2,1]:o=[40,2,2,1]:lse=f32[0,20,1,0]",
                                         "q=[0,2,2,1]:o=[40,2,2,1]"};
    for (int n = 0; n < 3; n++) {
        char text[160];
        snprintf(text, sizeof text, SEGMENTS("fwd") ":%s", shared[n]);
        REFUSED(text, "segments_q[1].first", "is 0, covers rows of an output", ONE({0, 5, 0, 0}, {0, 5, 0, 2}));
        ACCEPTED(text, ONE({0, 5, 0, 0}, {5, 5, 0, 2}));
    }
    static const char *const gradients[] = {"dk=[0,2,2,1]:dv=[40,2,2,1]", "dk=[40,2,2,1]:dv=[0,2,2,1]"};
    for (int n = 0; n < 2; n++) {
        char text[160];
        snprintf(text, sizeof text, SEGMENTS("bwd") ":k=[40,2,2,1]:v=[40,2,2,1]:%s", gradients[n]);
        REFUSED(text, "segments_kv[1].first", "is 0, covers rows of an output", KEYS({0, 5, 0, 0}, {0, 5, 0, 2}));
    }
    ACCEPTED(SEGMENTS("bwd") ":k=[40,2,2,1]:v=[0,2,2,1]:dk=[40,2,2,1]:dv=[40,2,2,1]", KEYS({0, 5, 0, 0}, {0, 5, 0, 2}));
}

static void test_dropout_counters(void **state) {
    (void)state;
    ACCEPTED(FWD, a->head_first = ((int64_t)1 << 32) - 2, a->batch_first = ((int64_t)1 << 32) - 2);
    REFUSED(FWD, "head_first", "is 4294967295, must be at least 0 and at most 4294967294",
            a->head_first = ((int64_t)1 << 32) - 1);
    REFUSED(FWD, "head_first", "is -1, must be", a->head_first = -1);
    REFUSED(FWD, "batch_first", "is -3, must be", a->batch_first = -3);
}

/* Lengths in device memory: pointers and counts are checked, nothing is read. */
static void test_device_words(void **state) {
    (void)state;
    const int32_t *far = (const int32_t *)(uintptr_t)4096; /* reading it would be noticed */
    static int32_t status;
    static uint64_t seed[2];
    ACCEPTED(PACKED ":used_q:device_lengths", a->cu_seqlens_q = a->cu_seqlens_kv = a->used_q = far,
             a->status = &status);
    REFUSED(PACKED ":device_lengths", "status", "is NULL, but", a->cu_seqlens_q = a->cu_seqlens_kv = far);
    REFUSED(PACKED ":device_lengths", "cu_seqlens_kv", "is NULL, but", a->cu_seqlens_q = far, a->status = &status);
    REFUSED(PACKED ":device_lengths", "cu_seqlens_q", "multiple of its element size 4",
            a->cu_seqlens_q = (const int32_t *)(uintptr_t)4098, a->cu_seqlens_kv = far, a->status = &status);
    REFUSED(FWD, "status", "must be NULL", a->status = &status);
    ACCEPTED(SEGMENTS("fwd") ":device_lengths", a->segments_q = a->segments_kv = (const attn_segment *)(uintptr_t)4096,
             a->lengths_q = a->lengths_kv = far, a->n_segments_q = 3, a->n_segments_kv = 4, a->status = &status);
    REFUSED(SEGMENTS("fwd") ":device_lengths", "n_segments_kv", "is 5, must be at least 0 and at most segments_kv = 4",
            a->segments_q = a->segments_kv = (const attn_segment *)(uintptr_t)4096, a->lengths_q = a->lengths_kv = far,
            a->n_segments_q = 3, a->n_segments_kv = 5, a->status = &status);
    ACCEPTED(FWD ":dropout=0.5:device_seed", a->device_seed = seed);
    REFUSED(FWD ":dropout=0.5:device_seed", "device_seed", "is NULL, but", (void)a);
    REFUSED(FWD ":dropout=0.5:device_seed", "device_seed", "multiple of its element size 8",
            a->device_seed = (const uint64_t *)((uintptr_t)seed + 4));
    REFUSED(FWD ":dropout=0.5", "device_seed", "must be NULL", a->device_seed = seed);
    ACCEPTED(FWD ":device_seed", a->device_seed = seed);
    ACCEPTED(FWD ":device_seed", (void)a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_forward_pointers),
        cmocka_unit_test(test_backward_pointers),
        cmocka_unit_test(test_cu_seqlens),
        cmocka_unit_test(test_used),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_segments_that_meet),
        cmocka_unit_test(test_dropout_counters),
        cmocka_unit_test(test_device_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
