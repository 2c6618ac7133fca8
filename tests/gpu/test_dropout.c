/* SPDX-License-Identifier: Apache-2.0
 * Dropout keeps the same pairs on a device as on the CPU, bit by bit: with all scores equal and v the unit matrix, o is
 * the mask itself; so is dv, for dout the unit matrix. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/published.h"

static double unit_matrix(void *context, int64_t sequence, int64_t head, int64_t position, int64_t dim) {
    (void)context;
    (void)sequence;
    (void)head;
    return position == dim;
}

static trial *mask_trial(attn_dtype dtype, bool packed) {
    static const int32_t lengths[3] = {64, 0, 40};
    trial *t = trial_create(dtype, 3, 4, 2, 64, 64, 64, 64);
    if (packed) {
        trial_pack(t, SIDE_Q, lengths, 0);
        trial_pack(t, SIDE_KV, lengths, 0);
    }
    published_fill(t);
    published_constant(t, T_Q, 0);
    trial_set(t, T_V, unit_matrix, NULL);
    trial_set(t, T_DOUT, unit_matrix, NULL);
    t->problem.dropout = 0.37f;
    t->seed = 0x123456789abcdefu;
    t->offset = 0xfedcba9876543210u;
    t->head_first = 3;
    t->batch_first = 1000000;
    return t;
}

static void masks(const char *implementation, attn_dtype dtype) {
    for (int packed = 0; packed < 2; packed++) {
        published cpu = published_run("native", dtype, mask_trial(dtype, packed));
        for (int device_seed = 0; device_seed < 2; device_seed++) {
            trial *t = mask_trial(dtype, packed);
            run_options how = {.implementation = implementation, .device_data = device_seed};
            result r;
            trial_settle(t);
            run_outcome outcome = run_trial(t, &how, &r);
            if (outcome == RUN_REFUSED && r.rule && !strcmp(r.rule, "dropout")) {
                trial_destroy(t);
                continue;
            }
            if (outcome != RUN_DONE) {
                fail_msg("%s %s: %s%s %s", implementation, attn_dtype_name(dtype), r.trouble, r.error.field,
                         r.error.message);
            }
            static const tensor_id ids[2] = {T_O, T_DV};
            for (int n = 0; n < 2; n++) {
                int64_t kept = 0, count = trial_size(t, ids[n]);
                for (int64_t i = 0; i < count; i++) {
                    assert_int_equal(r.value[ids[n]][i] != 0, cpu.result.value[ids[n]][i] != 0);
                    kept += r.value[ids[n]][i] != 0;
                }
                assert_true(kept > count / 3 && kept < count);
            }
            result_free(&r);
            trial_destroy(t);
        }
        published_end(&cpu);
    }
}

static void test_same_pairs_as_the_cpu(void **state) {
    (void)state;
    published_everywhere(masks);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_pairs_as_the_cpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
