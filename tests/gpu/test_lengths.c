/* SPDX-License-Identifier: Apache-2.0
 * Lengths in device memory that contradict the problem or themselves: nothing is written, the status word names the
 * field. Sound ones set the word to 0, which every trial checks. Rows past the last sequence are left alone, or written
 * with ATTN_CLEAR_REST. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "stress/shared.h"

enum { BATCH = 2, TOKENS = 6, ROWS = 12, HEADS = 2, DIM = 16, MOST = 8 };

/* One side's lengths, of either kind; the other side's are sound. */
typedef struct lengths {
    const char *field; /* part of the field that the word names */
    attn_rows rows;
    bool used;
    int32_t values[BATCH + 1];
    attn_segment segments[BATCH];
    bool shares_rows;
} lengths;

static const lengths bad[] = {
    {"cu_seqlens", ATTN_PACKED, false, {1, 3, 8}, {{0}}, false},
    {"cu_seqlens", ATTN_PACKED, false, {-1, 3, 8}, {{0}}, false},
    {"cu_seqlens", ATTN_PACKED, false, {0, 5, 4}, {{0}}, false},
    {"cu_seqlens", ATTN_PACKED, false, {0, 6, 13}, {{0}}, false},
    {"cu_seqlens", ATTN_PACKED, false, {0, 8, 9}, {{0}}, false},
    {"cu_seqlens", ATTN_PACKED, false, {0, -1, 4}, {{0}}, false},
    {"cu_seqlens", ATTN_PACKED, false, {0, INT32_MIN, INT32_MAX}, {{0}}, false},
    {"used", ATTN_DENSE, true, {7, 3}, {{0}}, false},
    {"used", ATTN_DENSE, true, {-1, 3}, {{0}}, false},
    {"used", ATTN_DENSE, true, {2, INT32_MAX}, {{0}}, false},
    {"lengths", ATTN_SEGMENTS, false, {7, 3}, {{0, 6, 0, 0}, {6, 3, 0, 1}}, false},
    {"lengths", ATTN_SEGMENTS, false, {-2, 3}, {{0, 0, 0, 0}, {6, 3, 0, 1}}, false},
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 6, 0, 0}, {6, 3, 0, 1}}, false},  /* past its sequence */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{-1, 5, 0, 0}, {6, 3, 0, 1}}, false}, /* before the buffer */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 5, 0, 0}, {10, 3, 0, 1}}, false}, /* past the buffer */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 5, 0, 0}, {6, 3, 0, 2}}, false},  /* no such sequence */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 5, 0, 1}, {6, 3, 0, 0}}, false},  /* descending */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, -3, 0, 0}, {6, 3, 0, 1}}, false}, /* negative */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 3, 0, 0}, {3, 3, 2, 0}}, false},  /* a position twice */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 3, 0, 0}, {2, 2, 3, 0}}, true},   /* a row twice */
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{INT64_MAX, 3, 0, 0}, {2, 2, 0, 1}}, false},
    {"segments", ATTN_SEGMENTS, false, {5, 3}, {{0, 3, INT64_MAX, 0}, {4, 2, 0, 1}}, false},
};

static const lengths good[] = {
    [ATTN_DENSE] = {"", ATTN_DENSE, true, {6, 2}, {{0}}, false},
    [ATTN_PACKED] = {"", ATTN_PACKED, false, {0, 6, 9}, {{0}}, false},
    [ATTN_SEGMENTS] = {"", ATTN_SEGMENTS, false, {5, 3}, {{0, 5, 0, 0}, {6, 3, 0, 1}}, false},
};

static void describe_side(attn_problem *p, bool queries, const lengths *l) {
    *(queries ? &p->rows_q : &p->rows_kv) = l->rows;
    *(queries ? &p->total_q : &p->total_kv) = ROWS;
    *(queries ? &p->segments_q : &p->segments_kv) = l->rows == ATTN_SEGMENTS ? BATCH : 0;
    if (l->rows == ATTN_SEGMENTS) { /* all sequences in one run of rows */
        attn_layout *shared[2] = {queries ? &p->q : &p->k, queries ? &p->o : &p->v};
        shared[0]->stride[0] = shared[1]->stride[0] = 0;
    }
    p->flags |= !l->used ? 0 : queries ? ATTN_USED_Q : ATTN_USED_KV;
}

static void *pushed(void *owned[MOST], int *count, const void *from, size_t size) {
    void *memory = device_allocate(size);
    device_upload(memory, from, size);
    owned[(*count)++] = memory;
    return memory;
}

static void pass_side(attn_args *args, bool queries, const lengths *l, void *owned[MOST], int *count) {
    const int32_t *values = pushed(owned, count, l->values, sizeof l->values);
    if (l->rows == ATTN_PACKED) {
        *(queries ? &args->cu_seqlens_q : &args->cu_seqlens_kv) = values;
    } else if (l->rows == ATTN_SEGMENTS) {
        *(queries ? &args->segments_q : &args->segments_kv) = pushed(owned, count, l->segments, sizeof l->segments);
        *(queries ? &args->n_segments_q : &args->n_segments_kv) = BATCH;
        *(queries ? &args->lengths_q : &args->lengths_kv) = values;
    } else {
        *(queries ? &args->used_q : &args->used_kv) = values;
    }
}

static bool holds_poison(const job *j, const job_room *room) {
    bool all = true;
    for (int n = JOB_O; n < JOB_TENSORS; n++) {
        unsigned char *bytes = malloc(j->bytes[n] + 1);
        device_download(bytes, room->output[n], j->bytes[n]);
        for (size_t i = 0; i < j->bytes[n]; i++) {
            all = all && bytes[i] == 0xFF;
        }
        free(bytes);
    }
    return all;
}

/* A dense job's tensors hold the rows of every map that is asked for here. */
static void contradiction(const char *implementation, const lengths *q, const lengths *kv, const char *field) {
    attn_problem p = attn_problem_dense(ATTN_F16, BATCH, HEADS, HEADS, TOKENS, TOKENS, DIM, DIM);
    bool queries = q->field[0];
    void *owned[MOST];
    int count = 0;
    int32_t word = 0x5a5a5a5a;
    attn_error error;
    job j;
    describe_side(&p, true, q);
    describe_side(&p, false, kv);
    p.flags |= ATTN_DEVICE_LENGTHS | ATTN_CLEAR_REST;
    device_note(field);
    if (!job_create(&j, machine_device(), implementation, &p, 3, &error)) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    job_room room = job_room_create(&j);
    attn_args args = job_args(&j, &room);
    pass_side(&args, true, q, owned, &count);
    pass_side(&args, false, kv, owned, &count);
    /* Keys that two positions share are no output forward. */
    int first = !queries && kv->shares_rows ? ATTN_BACKWARD : ATTN_FORWARD;
    for (int pass = first; pass <= ATTN_BACKWARD; pass++) {
        attn_plan *plan = pass == ATTN_FORWARD ? j.forward : j.backward;
        args.status = pushed(owned, &count, &word, sizeof word);
        job_poison_all(&j, &room);
        attn_status status = (pass == ATTN_FORWARD ? attn_forward : attn_backward)(
            plan, &args, room.workspace, attn_plan_workspace(plan), room.stream, &error);
        if (status != ATTN_OK) {
            fail_msg("%s, %s: %s %s", implementation, field, error.field, error.message);
        }
        device_wait();
        int32_t found = 0;
        device_download(&found, args.status, sizeof found);
        status = attn_status_word(found, &error);
        if (status != ATTN_ERR_INVALID || !strstr(error.field, field) || !strstr(error.field, queries ? "_q" : "_kv")) {
            fail_msg("%s, %s of %s, contradiction %d: word %d, %s %s", implementation, field, queries ? "q" : "kv",
                     (int)((queries ? q : kv) - bad), found, error.field, error.message);
        }
        if (!holds_poison(&j, &room)) {
            fail_msg("%s, %s of %s, contradiction %d: an output was written", implementation, field,
                     queries ? "q" : "kv", (int)((queries ? q : kv) - bad));
        }
    }
    for (int n = 0; n < count; n++) {
        device_release(owned[n]);
    }
    job_room_destroy(&j, &room);
    job_destroy(&j);
}

static void test_contradictions_write_nothing(void **state) {
    (void)state;
    if (machine_lacks_gpu()) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
            contradiction(*name, &bad[n], &good[bad[n].rows], bad[n].field);
            contradiction(*name, &good[bad[n].rows], &bad[n], bad[n].field);
        }
    }
}

/* Rows of both sides end at cu[BATCH]. */
static const struct rest_case {
    int tokens, dim;
    int32_t cu[BATCH + 1];
} rest_cases[] = {{6, 16, {0, 6, 9}},       {6, 16, {0, 6, 12}},      {6, 16, {0, 0, 0}},     {9, 20, {0, 2, 11}},
                  {700, 64, {0, 300, 301}}, {700, 128, {0, 64, 640}}, {5000, 64, {0, 0, 700}}};

static job rest_job(const char *implementation, const struct rest_case *c, uint32_t flag, job_room *room) {
    attn_problem p = attn_problem_dense(ATTN_F16, BATCH, 2 * HEADS, HEADS, c->tokens, c->tokens, c->dim, c->dim);
    attn_error error;
    void *owned[MOST];
    int count = 0;
    const int32_t word = 0x5a5a5a5a;
    job j;
    p.rows_q = p.rows_kv = ATTN_PACKED;
    p.total_q = p.total_kv = (int64_t)BATCH * c->tokens;
    p.band.kind = ATTN_CAUSAL;
    p.flags |= ATTN_DEVICE_LENGTHS | flag;
    if (!job_create(&j, machine_device(), implementation, &p, 5, &error)) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    *room = job_room_create(&j);
    attn_args args = job_args(&j, room);
    args.cu_seqlens_q = pushed(owned, &count, c->cu, sizeof c->cu);
    args.cu_seqlens_kv = pushed(owned, &count, c->cu, sizeof c->cu);
    args.status = pushed(owned, &count, &word, sizeof word);
    job_poison_all(&j, room);
    if (!job_launch(&j, room, &args, &error)) {
        fail_msg("%s: %s %s", implementation, error.field, error.message);
    }
    device_wait();
    int32_t found = 0;
    device_download(&found, args.status, sizeof found);
    assert_int_equal(found, 0);
    for (int n = 0; n < count; n++) {
        device_release(owned[n]);
    }
    return j;
}

static bool filled(const unsigned char *at, size_t size, const void *pattern, size_t step) {
    bool all = true;
    for (size_t i = 0; i < size; i += step) {
        all = all && !memcmp(at + i, pattern, step);
    }
    return all;
}

/* One output, as it is without the flag and with it. */
static void compare_rest(const char *implementation, const struct rest_case *c, int tensor, const unsigned char *left,
                         const unsigned char *cleared, size_t bytes) {
    const float nothing = -INFINITY;
    const unsigned char zero[2] = {0}, poison[4] = {0xFF, 0xFF, 0xFF, 0xFF};
    const bool lse = tensor == JOB_LSE, forward = tensor == JOB_O || lse;
    const size_t total = (size_t)BATCH * (size_t)c->tokens, end = (size_t)c->cu[BATCH];
    const size_t lines = lse ? bytes / (total * sizeof(float)) : 1, row = bytes / (total * lines);
    for (size_t n = 0; n < lines * total; n++) {
        const unsigned char *x = left + n * row, *y = cleared + n * row;
        const bool written = n % total < end;
        const bool right =
            written ? (!forward || !memcmp(x, y, row)) && !filled(y, row, poison, 2)
                    : filled(x, row, poison, 2) && (lse ? !memcmp(y, &nothing, row) : filled(y, row, zero, 2));
        if (!right) {
            fail_msg("%s, d %d, cu_seqlens to %d of %d: row %zu of output %d", implementation, c->dim, c->cu[BATCH],
                     (int)total, n % total, tensor);
        }
    }
}

static void rest(const char *implementation, const struct rest_case *c) {
    job_room left_room, cleared_room;
    device_note("rows past the last sequence");
    job left = rest_job(implementation, c, 0, &left_room);
    job cleared = rest_job(implementation, c, ATTN_CLEAR_REST, &cleared_room);
    for (int n = JOB_O; n < JOB_TENSORS; n++) {
        unsigned char *x = malloc(left.bytes[n]), *y = malloc(left.bytes[n]);
        device_download(x, left_room.output[n], left.bytes[n]);
        device_download(y, cleared_room.output[n], left.bytes[n]);
        compare_rest(implementation, c, n, x, y, left.bytes[n]);
        free(x);
        free(y);
    }
    job_room_destroy(&left, &left_room);
    job_room_destroy(&cleared, &cleared_room);
    job_destroy(&left);
    job_destroy(&cleared);
}

static void test_rest(void **state) {
    (void)state;
    if (machine_lacks_gpu()) {
        return;
    }
    for (const char *const *name = machine_implementations(true); *name; name++) {
        for (size_t n = 0; n < sizeof rest_cases / sizeof *rest_cases; n++) {
            const struct rest_case *c = &rest_cases[n];
            attn_problem like =
                attn_problem_dense(ATTN_F16, BATCH, 2 * HEADS, HEADS, c->tokens, c->tokens, c->dim, c->dim);
            like.pass = ATTN_BACKWARD;
            if (job_allowed(*name, &like)) {
                rest(*name, c);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_contradictions_write_nothing),
                                       cmocka_unit_test(test_rest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
