/* SPDX-License-Identifier: Apache-2.0
 * Lengths and segments of the host arrive whole in the workspace, however many launches that takes, and where the
 * parameters say; those of the device are passed on unread. The driver is a stand-in that carries the launches out. */
#include "cuda/device/lengths.h"
#include "fixture.h"

enum { BATCHES = 6 };
static const int64_t batches[BATCHES] = {0, 1, 3, 253, 1100, 5000};

typedef struct data {
    int32_t *cu[2], *used[2], *lengths[2];
    attn_segment *segments[2];
    int64_t n_segments[2];
} data;

/* Every array has content that no other has, sound or not: nothing here looks at it. */
static data make_data(int64_t batch) {
    data d;
    int32_t next = 1;
    for (int side = 0; side < 2; side++) {
        int32_t **arrays[3] = {&d.cu[side], &d.used[side], &d.lengths[side]};
        for (int a = 0; a < 3; a++) {
            *arrays[a] = malloc((size_t)(batch + 1) * sizeof(int32_t));
            for (int64_t n = 0; n <= batch; n++) {
                (*arrays[a])[n] = next++;
            }
        }
        d.n_segments[side] = batch * 2;
        d.segments[side] = calloc((size_t)batch * 2 + 1, sizeof(attn_segment));
        for (int64_t n = 0; n < batch * 2; n++) {
            d.segments[side][n] = (attn_segment){next, next + 1, next + 2, next + 3};
            next += 4;
        }
    }
    return d;
}

static void free_data(data *d) {
    for (int side = 0; side < 2; side++) {
        free(d->cu[side]);
        free(d->used[side]);
        free(d->lengths[side]);
        free(d->segments[side]);
    }
}

static attn_problem problem_of(int64_t batch, attn_rows q, attn_rows kv, uint32_t flags) {
    attn_problem p = attn_problem_dense(ATTN_BF16, batch, 2, 2, 64, 64, 64, 64);
    p.rows_q = q;
    p.rows_kv = kv;
    p.total_q = p.total_kv = 1000;
    p.segments_q = q == ATTN_SEGMENTS ? batch * 3 : 0;
    p.segments_kv = kv == ATTN_SEGMENTS ? batch * 3 : 0;
    if (q != ATTN_DENSE) {
        p.q.stride[0] = p.o.stride[0] = 0;
    }
    if (kv != ATTN_DENSE) {
        p.k.stride[0] = p.v.stride[0] = 0;
    }
    p.flags = flags;
    return p;
}

static attn_args args_of(const data *d) {
    attn_args a = attn_args_init();
    a.cu_seqlens_q = d->cu[0];
    a.cu_seqlens_kv = d->cu[1];
    a.used_q = d->used[0];
    a.used_kv = d->used[1];
    a.lengths_q = d->lengths[0];
    a.lengths_kv = d->lengths[1];
    a.segments_q = d->segments[0];
    a.segments_kv = d->segments[1];
    a.n_segments_q = d->n_segments[0];
    a.n_segments_kv = d->n_segments[1];
    return a;
}

static void holds(const void *found, const void *wanted, size_t size) {
    if (size) {
        assert_ptr_not_equal(found, wanted);
        assert_memory_equal(found, wanted, size);
    }
}

static void check_side(const attn__side_ref *side, attn_rows rows, bool used, const data *d, int of, int64_t batch) {
    if (rows == ATTN_PACKED) {
        holds(side->cu, d->cu[of], (size_t)(batch + 1) * sizeof(int32_t));
    } else {
        assert_null(side->cu);
    }
    if (used) {
        holds(side->used, d->used[of], (size_t)batch * sizeof(int32_t));
    } else {
        assert_null(side->used);
    }
    if (rows == ATTN_SEGMENTS) {
        holds(side->lengths, d->lengths[of], (size_t)batch * sizeof(int32_t));
        holds(side->segments, d->segments[of], (size_t)d->n_segments[of] * sizeof(attn_segment));
        assert_int_equal(side->n_segments, d->n_segments[of]);
    } else {
        assert_int_equal(side->n_segments, 0);
    }
}

static void upload_one(const attn_context *context, int64_t batch, attn_rows q, attn_rows kv, uint32_t flags) {
    attn_problem problem = problem_of(batch, q, kv, flags);
    data d = make_data(batch);
    attn_args args = args_of(&d);
    attn_error error;
    attn_plan plan;
    attn__cuda_run run;
    draft_plan(&plan, context, &problem, NULL);
    build_plan(&plan);
    size_t size = plan.workspace;
    char *workspace = aligned_alloc(64, (size / 64 + 2) * 64);
    memset(workspace, 0x77, size + 64);
    assert_int_equal(attn__cuda_begin(&run, &plan, &args, workspace, NULL, &error), ATTN_OK);
    assert_int_equal(attn__cuda_end(&run, ATTN_OK), ATTN_OK);
    check_side(&run.params.side_q, q, plan.problem.flags & ATTN_USED_Q, &d, 0, batch);
    check_side(&run.params.side_kv, kv, plan.problem.flags & ATTN_USED_KV, &d, 1, batch);
    assert_null(run.params.status);
    for (size_t n = size; n < size + 64; n++) {
        assert_int_equal(workspace[n], 0x77);
    }
    attn__cuda_unbuild(&plan);
    free(workspace);
    free_data(&d);
}

static void test_uploads(void **state) {
    (void)state;
    fake_driver();
    fake_nvrtc();
    attn_config c = cuda_config("cuda", "");
    attn_context *context = opened(&c);
    for (int b = 0; b < BATCHES; b++) {
        for (int rows = 0; rows < 9; rows++) {
            for (uint32_t used = 0; used < 4; used++) {
                attn_rows q = (attn_rows)(rows / 3), kv = (attn_rows)(rows % 3);
                bool legal = !(used & 1 && q == ATTN_SEGMENTS) && !(used & 2 && kv == ATTN_SEGMENTS);
                if (legal) {
                    upload_one(context, batches[b], q, kv,
                               (used & 1 ? ATTN_USED_Q : 0u) | (used & 2 ? ATTN_USED_KV : 0u));
                }
            }
        }
    }
    attn_context_destroy(context);
}

/* Few sequences cost one launch, and none where nothing has to travel. */
static void test_launches(void **state) {
    (void)state;
    fake_orders *orders = fake_driver();
    fake_nvrtc();
    attn_config c = cuda_config("cuda", "");
    attn_context *context = opened(&c);
    upload_one(context, 100, ATTN_DENSE, ATTN_DENSE, 0);
    assert_int_equal(orders->launches, 0);
    upload_one(context, 200, ATTN_PACKED, ATTN_PACKED, ATTN_USED_Q | ATTN_USED_KV);
    assert_int_equal(orders->launches, 1);
    upload_one(context, 10, ATTN_SEGMENTS, ATTN_SEGMENTS, 0);
    assert_true(orders->launches <= 1 + 3); /* lists may be longer than this one: gaps between the arrays */
    attn_context_destroy(context);
}

static void test_device_lengths(void **state) {
    (void)state;
    fake_orders *orders = fake_driver();
    fake_nvrtc();
    attn_config c = cuda_config("cuda", "");
    attn_context *context;
    attn_error error;
    attn_plan plan;
    attn__cuda_run run;
    context = opened(&c);
    attn_problem problem = problem_of(7, ATTN_PACKED, ATTN_SEGMENTS, ATTN_USED_Q | ATTN_DEVICE_LENGTHS);
    draft_plan(&plan, context, &problem, NULL);
    build_plan(&plan);
    assert_int_equal(plan.workspace, 0);
    attn_args a = attn_args_init();
    a.cu_seqlens_q = (const int32_t *)(uintptr_t)0x1000; /* no address of this process */
    a.used_q = (const int32_t *)(uintptr_t)0x2000;
    a.lengths_kv = (const int32_t *)(uintptr_t)0x3000;
    a.segments_kv = (const attn_segment *)(uintptr_t)0x4000;
    a.n_segments_kv = 9;
    a.status = (int32_t *)(uintptr_t)0x5000;
    assert_int_equal(attn__cuda_begin(&run, &plan, &a, NULL, NULL, &error), ATTN_OK);
    assert_int_equal(attn__cuda_end(&run, ATTN_OK), ATTN_OK);
    assert_int_equal(orders->launches, 1);
    assert_string_equal(orders->name, "attn_check__sm90");
    assert_ptr_equal(run.params.side_q.cu, a.cu_seqlens_q);
    assert_ptr_equal(run.params.side_q.used, a.used_q);
    assert_ptr_equal(run.params.side_kv.lengths, a.lengths_kv);
    assert_ptr_equal(run.params.side_kv.segments, a.segments_kv);
    assert_int_equal(run.params.side_kv.n_segments, 9);
    assert_ptr_equal(run.params.status, a.status);
    attn__cuda_unbuild(&plan);
    attn_context_destroy(context);
}

/* --- Status words --- */

static void test_words(void **state) {
    (void)state;
    attn_error error;
    expect_success(attn_status_word(0, &error), &error);
    expect_error(attn_status_word(ATTN__WORD(ATTN__WORD_CU, 3, ATTN__RULE_DECREASES), &error), &error, ATTN_ERR_INVALID,
                 "cu_seqlens_q[3]", "is less than the offset before it");
    expect_error(attn_status_word(ATTN__WORD(ATTN__WORD_SEGMENTS + 1, 1 << 30, ATTN__RULE_ROWS), &error), &error,
                 ATTN_ERR_INVALID, "segments_kv[4194303]", "at this index or later");
    expect_error(attn_status_word(-1, &error), &error, ATTN_ERR_INVALID, "word", "which no run wrote");
    expect_error(attn_status_word(0x5a5a5a5a, &error), &error, ATTN_ERR_INVALID, "word", "which no run wrote");
    for (int array = ATTN__WORD_CU; array <= ATTN__WORD_SEGMENTS + 1; array++) {
        for (int rule = ATTN__RULE_START; rule <= ATTN__RULE_ROWS; rule++) {
            assert_true(ATTN__WORD(array, 0x7fffffff, rule) > 0);
            assert_int_equal(attn_status_word(ATTN__WORD(array, 0, rule), &error), ATTN_ERR_INVALID);
            assert_non_null(strchr(error.field, '['));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_uploads), cmocka_unit_test(test_launches),
                                       cmocka_unit_test(test_device_lengths), cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
