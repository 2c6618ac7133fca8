/* SPDX-License-Identifier: Apache-2.0
 * `hopper` looks for no row maximum in blocks without masked keys: where a block's sums are large it scales the block
 * down, and where they tell of an overflow it computes the block again. Inputs made against that, against float64:
 * maxima that rise block by block, spikes past 2^127, a first block that is very negative, infinities and NaN; and all
 * of them twice more with bounds so low that every such block is scaled, or computed again. And what the queries of the
 * next packed sequence hold does not show in a row's bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "attn/attn_device.h"
#include "backend.h"
#include "plan/plan.h"
#include "support/machine.h"

enum { HEADS = 2, QUERIES = 200, KEYS = 1100, MOST_DIM = 256 };
typedef enum input { NORMAL, RISING, SPIKES, LOW_FIRST, INFINITE_KEY, NAN_VALUE, KINDS } input;
static const char *const kind_names[] = {"normal", "rising", "spikes", "low first", "infinite key", "NaN value"};

static uint64_t state = 1;
static double uniform(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}
static double normal(void) {
    return sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform());
}

static double widen(uint16_t bits, bool half) {
    uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    if (half) {
        int exponent = bits >> 10 & 31, fraction = bits & 1023;
        double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
        return bits >> 15 ? -value : value;
    }
    return x;
}
/* Cut off, not rounded: inputs need no more. */
static uint16_t narrow(double value, bool half) {
    float x = (float)value;
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    if (!half) {
        return (uint16_t)(word >> 16);
    }
    uint16_t sign = (uint16_t)(word >> 16 & 0x8000);
    if (isnan(value) || fabs(value) >= 65504) {
        return sign | (isnan(value) ? 0x7e00 : isinf(value) ? 0x7c00 : 0x7bff);
    }
    return sign | (fabs(value) < 6.2e-5 ? 0 : (uint16_t)(((word >> 23 & 255) - 112) << 10 | (word >> 13 & 1023)));
}

typedef struct tensors {
    int dim;
    bool half, causal;
    uint16_t *q, *k, *v, *o;
    float *lse;
} tensors;

static void fill(tensors *t, input kind) {
    for (int i = 0; i < QUERIES * HEADS * t->dim; i++) {
        t->q[i] = narrow(kind == LOW_FIRST ? 1 + 0.1 * normal() : normal(), t->half);
    }
    for (int j = 0; j < KEYS; j++) {
        /* Blocks are taken from the last key to the first. */
        double grow = kind == RISING ? 1 + 20.0 * (KEYS - j) / KEYS : 1, shift = 0;
        grow = kind == SPIKES && j % 257 == 40 ? 90 : grow;
        shift = kind == LOW_FIRST && j >= KEYS - 300 ? -25 : 0;
        for (int c = 0; c < HEADS * t->dim; c++) {
            t->k[j * HEADS * t->dim + c] = narrow(normal() * grow + shift, t->half);
            t->v[j * HEADS * t->dim + c] = narrow(normal(), t->half);
        }
    }
    if (kind == INFINITE_KEY) {
        t->k[(KEYS / 3) * HEADS * t->dim] = narrow(INFINITY, t->half);
    } else if (kind == NAN_VALUE) {
        t->v[(KEYS / 3) * HEADS * t->dim + 1] = narrow(NAN, t->half);
        t->v[(KEYS / 2) * HEADS * t->dim + 3] = narrow(-INFINITY, t->half);
    }
}

/* Row i of a head in float64. */
static double expected_row(const tensors *t, int head, int i, double *o) {
    double scores[KEYS], top = -INFINITY, sum = 0;
    int count = t->causal ? i + KEYS - QUERIES + 1 : KEYS;
    for (int j = 0; j < count; j++) {
        scores[j] = 0;
        for (int c = 0; c < t->dim; c++) {
            scores[j] += widen(t->q[(i * HEADS + head) * t->dim + c], t->half) *
                         widen(t->k[(j * HEADS + head) * t->dim + c], t->half);
        }
        scores[j] /= sqrt(t->dim);
        top = scores[j] > top ? scores[j] : top;
    }
    memset(o, 0, (size_t)t->dim * sizeof *o);
    for (int j = 0; j < count; j++) {
        double weight = exp(scores[j] - top);
        sum += weight;
        for (int c = 0; c < t->dim; c++) {
            double v = widen(t->v[(j * HEADS + head) * t->dim + c], t->half);
            o[c] += isfinite(v) ? weight * v : v;
        }
    }
    for (int c = 0; c < t->dim; c++) {
        o[c] /= sum;
    }
    return top + log(sum);
}

static bool near(double got, double want, double bound) {
    if (isnan(want) || isinf(want)) {
        return isnan(want) ? isnan(got) : got == want;
    }
    return fabs(got - want) <= bound * (1 + fabs(want));
}

static int wrong_rows(const tensors *t) {
    double o[MOST_DIM];
    int wrong = 0;
    for (int n = 0; n < HEADS * QUERIES; n += 3) {
        int head = n % HEADS, i = n / HEADS;
        double lse = expected_row(t, head, i, o);
        bool good = near(t->lse[head * QUERIES + i], lse, 1e-3);
        for (int c = 0; c < t->dim; c++) {
            good = good && near(widen(t->o[(i * HEADS + head) * t->dim + c], t->half), o[c], t->half ? 3e-3 : 2e-2);
        }
        wrong += !good;
    }
    return wrong;
}

static void good(attn_status status, const attn_error *error) {
    if (status != ATTN_OK) {
        fail_msg("%s %s", error->field, error->message);
    }
}

/* How blocks without masked keys are treated: as their sums tell; all scaled down; all computed again. */
enum { AS_TOLD, ALL_SCALED, ALL_AGAIN, WAYS };
static const char *const way_names[] = {"", ", all scaled", ", all again"};

/* The plan's kernel with other bounds of a block's sums, under a name of its own. */
static void rebuild(attn_plan *plan, int way) {
    attn_error error;
    attn__kernel *kernel = &plan->gpu_choice.kernels[0];
    plan->impl->release(plan);
    for (int n = 0; n < kernel->n_constants; n++) {
        const char *constant = kernel->constants[n].name;
        if (!strcmp(constant, "ALARM") || (way == ALL_AGAIN && !strcmp(constant, "LOST"))) {
            kernel->constants[n].value = 0;
        }
    }
    kernel->name[strlen(kernel->name) - 1] = (char)('x' + way);
    good(plan->impl->build(plan, &error), &error);
}

/* Packed rows, where the problem has them: two sequences. */
static const int32_t packed_q[3] = {0, 107, QUERIES}, packed_kv[3] = {0, 700, KEYS};

static void run(const attn_plan *plan, tensors *t) {
    const attn_context *context = machine_device();
    size_t queries = sizeof(uint16_t) * QUERIES * HEADS * (size_t)t->dim, keys = queries / QUERIES * KEYS,
           rows = sizeof(float) * QUERIES * HEADS, sizes[6] = {queries, keys, keys, queries, rows};
    void *memory[6];
    const void *from[3] = {t->q, t->k, t->v};
    attn_error error;
    sizes[5] = attn_plan_workspace(plan);
    for (int n = 0; n < 6; n++) {
        good(attn_memory_create(&memory[n], context, sizes[n], &error), &error);
        if (n < 3) {
            good(attn_memory_copy(context, memory[n], from[n], sizes[n], NULL, &error), &error);
        } else if (sizes[n]) {
            good(attn_memory_fill(context, memory[n], 0xa5, sizes[n], NULL, &error), &error);
        }
    }
    attn_args args = {.struct_size = sizeof args, .q = memory[0], .k = memory[1], .v = memory[2], .o = memory[3]};
    args.lse = memory[4];
    if (plan->problem.rows_q == ATTN_PACKED) {
        args.cu_seqlens_q = packed_q;
        args.cu_seqlens_kv = packed_kv;
    }
    good(attn_forward(plan, &args, memory[5], sizes[5], NULL, &error), &error);
    good(attn_memory_copy(context, t->o, memory[3], queries, NULL, &error), &error);
    good(attn_memory_copy(context, t->lse, memory[4], rows, NULL, &error), &error);
    for (int n = 0; n < 6; n++) {
        attn_memory_destroy(context, memory[n]);
    }
}

static tensors make_tensors(int dim, bool half, bool causal) {
    size_t elements = (size_t)HEADS * (size_t)dim * sizeof(uint16_t);
    tensors t = {dim,
                 half,
                 causal,
                 malloc(elements * QUERIES),
                 malloc(elements * KEYS),
                 malloc(elements * KEYS),
                 malloc(elements * QUERIES),
                 malloc(sizeof(float) * QUERIES * HEADS)};
    return t;
}

static void free_tensors(tensors *t) {
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->o);
    free(t->lse);
}

static int try_shape(int dim, bool half, bool causal) {
    const attn_hints hints = {.struct_size = sizeof hints, .implementation = "hopper"};
    tensors t = make_tensors(dim, half, causal);
    attn_problem p;
    attn_plan *plan;
    attn_error error;
    char text[120];
    int failures = 0;
    snprintf(text, sizeof text, "fwd:%s:b1:h%d:sq%d:skv%d:d%d%s", half ? "f16" : "bf16", HEADS, QUERIES, KEYS, dim,
             causal ? ":causal" : "");
    good(attn_problem_parse(&p, text, &error), &error);
    for (int way = AS_TOLD; way < WAYS; way++) {
        good(attn_plan_create(&plan, machine_device(), &p, &hints, &error), &error);
        if (way != AS_TOLD) {
            rebuild(plan, way);
        }
        for (int kind = 0; kind < KINDS; kind++) {
            fill(&t, (input)kind);
            run(plan, &t);
            int wrong = wrong_rows(&t);
            if (wrong) {
                printf("%s, %s%s: %d rows are wrong\n", text, kind_names[kind], way_names[way], wrong);
                failures++;
            }
        }
        attn_plan_destroy(plan);
    }
    free_tensors(&t);
    return failures;
}

/* The first sequence's outputs with any queries in the second one's rows, which share a tile with its last. */
static int try_neighbour(int dim, bool half, bool causal) {
    static const double neighbours[] = {1, 1000, INFINITY, NAN};
    const attn_hints hints = {.struct_size = sizeof hints, .implementation = "hopper"};
    const size_t row = (size_t)HEADS * (size_t)dim, own = (size_t)packed_q[1];
    tensors t = make_tensors(dim, half, causal), before = make_tensors(dim, half, causal);
    attn_problem p;
    attn_plan *plan;
    attn_error error;
    char text[120];
    int failures = 0;
    snprintf(text, sizeof text, "fwd:%s:b2:h%d:sq%d:skv%d:d%d:packed_q=%d:packed_kv=%d%s", half ? "f16" : "bf16", HEADS,
             packed_q[1], packed_kv[1], dim, QUERIES, KEYS, causal ? ":causal" : "");
    good(attn_problem_parse(&p, text, &error), &error);
    good(attn_plan_create(&plan, machine_device(), &p, &hints, &error), &error);
    fill(&t, RISING);
    for (int n = 0; n < 4; n++) {
        for (size_t i = own * row; i < QUERIES * row; i++) {
            t.q[i] = narrow(normal() * neighbours[n], half);
        }
        run(plan, &t);
        bool same = n == 0 || !memcmp(t.o, before.o, own * row * sizeof *t.o);
        for (int head = 0; head < HEADS && n; head++) {
            same = same && !memcmp(t.lse + head * QUERIES, before.lse + head * QUERIES, own * sizeof *t.lse);
        }
        if (!same) {
            printf("%s: rows change with the neighbour's queries, times %g\n", text, neighbours[n]);
            failures++;
        }
        memcpy(before.o, t.o, QUERIES * row * sizeof *t.o);
        memcpy(before.lse, t.lse, sizeof *t.lse * QUERIES * HEADS);
    }
    attn_plan_destroy(plan);
    free_tensors(&t);
    free_tensors(&before);
    return failures;
}

static void test_without_maximum(void **unused) {
    static const int dims[] = {64, 128, 256};
    int failures = 0;
    uint64_t at = 0;
    (void)unused;
    attn_problem p;
    attn_error error;
    const attn_hints hints = {.struct_size = sizeof hints, .implementation = "hopper"};
    good(attn_problem_parse(&p, "fwd:bf16:b1:h1:s8:d64", &error), &error);
    if (!machine_device() || attn_supported(machine_device(), &p, &hints, &error)) {
        print_message("skipped: ATTN_TEST_DEVICE names no sm_90\n");
        return;
    }
    for (int n = 0; n < 3; n++) {
        for (int half = 0; half < 2; half++) {
            for (int causal = 0; causal < 2; causal++) {
                failures += machine_shard(at++) ? try_shape(dims[n], half, causal) : 0;
            }
        }
        failures += machine_shard(at++) ? try_neighbour(dims[n], n == 1, n != 2) : 0;
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_maximum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
