/* SPDX-License-Identifier: Apache-2.0
 * Offsets past 2^31 elements in every tensor and along every axis, in reserved but mostly untouched memory; and decode
 * against very many keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "support/campaign.h"
#include "support/machine.h"

#define PAST ((int64_t)1 << 31)

/* Lets `id` reach past 2^31 elements along an axis. */
static bool spread(trial *t, tensor_id id, int axis, bool backwards) {
    int64_t n[4];
    trial_extents(t, id, n);
    if (n[axis] < 2) {
        return false;
    }
    t->form[id].spread_axis = axis;
    t->form[id].spread = PAST / (n[axis] - 1) + 5;
    t->form[id].negative = backwards ? 1u << axis : 0;
    return true;
}

/* Device memory is all there: the axis has to be the outermost one, or everything outside it is as far apart. */
static void outermost(recipe *p, int axis) {
    p->batch = axis == AXIS_BATCH || axis == AXIS_TOKEN ? p->batch : 1;
    if (axis == AXIS_DIM) {
        p->heads_kv = p->group = 1;
    }
}

static void order(trial *t, int axis) {
    static const form_order orders[] = {ORDER_BSHD, ORDER_BHSD, ORDER_SBHD, ORDER_BHDS};
    for (int id = 0; id < T_COUNT; id++) {
        t->form[id].order = orders[axis];
    }
}

static void far_case(campaign *c, attn_dtype dtype, int axis, bool backwards, bool scores) {
    recipe p = {.name = "far",
                .dtype = dtype,
                .batch = 2,
                .heads_kv = 2,
                .group = 2,
                .tokens_q = 9,
                .tokens_kv = 14,
                .dim_qk = 8,
                .sink = true,
                .dlse = true,
                .seed = (uint64_t)(axis + 10 * (int)dtype + backwards),
                .band = {.kind = ATTN_CAUSAL}};
    if (scores) {
        p.bias = p.mask = PRESENT;
        p.alibi = PRESENT;
    }
    if (machine_device()) {
        outermost(&p, axis);
    }
    trial *t = recipe_trial(&p);
    if (machine_device()) {
        order(t, axis);
    }
    bool any = false;
    for (int id = 0; id < T_COUNT; id++) {
        bool pair = id == T_BIAS || id == T_MASK || id == T_DBIAS || id == T_ALIBI;
        if (trial_has(t, id) && pair == scores && id != T_SINK && id != T_DSINK) {
            any = spread(t, id, axis, backwards) || any;
        }
    }
    judge j;
    c->recipes += any;
    if (any && judge_open(&j, t, false)) {
        for (const char *const *name = machine_implementations(true); *name; name++) {
            run_options how = {.implementation = *name};
            result r;
            run_outcome outcome = campaign_run(c, t, &how, &r);
            if (outcome == RUN_FAILED || (outcome == RUN_DONE && !judge_accepts(&j, &r))) {
                campaign_fail(c, &p, *name, r.text, outcome == RUN_DONE ? j.trouble : r.trouble);
            }
            result_free(&r);
        }
        judge_close(&j);
    }
    trial_destroy(t);
}

static void test_offsets_past_2_to_31(void **state) {
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    campaign c = campaign_begin("far");
    for (int d = 0; d < 3; d++) {
        for (int axis = 0; axis < 4; axis++) {
            if (machine_intensity() <= 0 && (d + axis) % 3) {
                continue;
            }
            far_case(&c, dtypes[d], axis, false, false);
            far_case(&c, dtypes[d], axis, true, false);
            far_case(&c, dtypes[d], axis, axis % 2, true);
        }
    }
    assert_int_equal(campaign_end(&c), 0);
    assert_true(c.runs > 0);
}

static void test_decode_against_many_keys(void **state) {
    (void)state;
    static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int many[] = {9001, 70001, 300007};
    int keys = many[machine_intensity() <= 0 ? 0 : machine_intensity() > 1 ? 2 : 1];
    campaign c = campaign_begin("many keys");
    for (int d = 0; d < 3; d++) {
        recipe p = {.name = "many keys",
                    .dtype = dtypes[d],
                    .batch = 1,
                    .heads_kv = 1,
                    .group = 2,
                    .tokens_q = 1,
                    .tokens_kv = keys,
                    .dim_qk = 16,
                    .seed = 3,
                    .band = {.kind = ATTN_CAUSAL}};
        campaign_try(&c, &p);
        p.band.kind |= ATTN_WINDOW | ATTN_GLOBALS;
        p.band.left = 5000;
        p.band.right = -1;
        p.band.globals = 7;
        p.tokens_q = 3;
        campaign_try(&c, &p);
    }
    assert_int_equal(campaign_end(&c), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offsets_past_2_to_31),
        cmocka_unit_test(test_decode_against_many_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
