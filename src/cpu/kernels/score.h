/* SPDX-License-Identifier: Apache-2.0
 * From a raw product <q, k> to a score: the one place where scale, soft cap, bias, ALiBi, boolean mask and band meet,
 * for forward and backward. A block of scores is transposed, [group][key][lane]; lanes are query rows.
 *
 * Where nothing but the scale applies (`plain`), scores stay raw products; otherwise score_apply makes them natural
 * units, hidden ones -inf. References m are kept in the same unit, and p = 2^((s - m) * unit): the difference comes
 * first, so that what is large and common to a row costs neither precision nor range. */
#ifndef ATTN_CPU_SCORE_H
#define ATTN_CPU_SCORE_H

#include <float.h>
#include <math.h>

#include "cpu/cpu.h"
#include "vec_math.h"
#include "vec_rows.h"

/* Rows of one block with all that their scores need. */
typedef struct score_rows {
    attn__lanes lanes;
    /* Keys a lane may see by band: [low, high], and up to causal_high for global keys. */
    int32_t low[ATTN__BLOCK], high[ATTN__BLOCK], causal_high[ATTN__BLOCK];
    float slope[ATTN__BLOCK];
} score_rows;

typedef struct score_rule {
    const attn_problem *problem;
    const attn_args *args;
    float scale;    /* |scale|: its sign is folded into q */
    bool negative;  /* scale < 0 */
    bool plain;     /* nothing but scale and band */
    bool has_extra; /* bias or boolean mask */
    float unit;     /* what turns a stored score into log2 units */
    double natural; /* what turns a reference m into natural units */
} score_rule;

VEC_INLINE score_rule score_rule_make(const attn_problem *problem, const attn_args *args) {
    score_rule rule = {problem, args, fabsf(problem->scale), problem->scale < 0, true, false, 0, 0};
    rule.has_extra = problem->bias.dtype != ATTN_NONE || problem->mask.dtype != ATTN_NONE;
    /* A scale of 0 would turn a hidden -inf into NaN as it is scaled, one near it a sink into inf. */
    rule.plain = !rule.has_extra && problem->softcap == 0 && problem->alibi.dtype == ATTN_NONE && rule.scale > 1e-30f;
    rule.natural = rule.plain ? rule.scale : 1;
    rule.unit = (float)fmin(rule.natural * ATTN_LOG2E, FLT_MAX);
    return rule;
}

static inline int32_t clamp_position(int64_t position) {
    return position < INT32_MIN ? INT32_MIN : position > INT32_MAX ? INT32_MAX : (int32_t)position;
}

static __attribute__((unused)) void score_rows_fill(score_rows *rows, const score_rule *rule,
                                                    const attn__query_rows *query, int64_t first) {
    const attn_band *band = &rule->problem->band;
    const attn_layout *alibi = &rule->problem->alibi;
    attn__lanes *lanes = &rows->lanes;
    attn__lanes_fill(lanes, query, first);
    for (int lane = 0; lane < ATTN__BLOCK; lane++) {
        int64_t shifted = lanes->shifted[lane];
        int64_t top = band->kind & ATTN_CAUSAL ? shifted : INT32_MAX, low = INT32_MIN, high = top;
        if ((band->kind & ATTN_WINDOW) && shifted >= band->globals) {
            low = band->left < 0 || band->left > INT32_MAX ? INT32_MIN : shifted - band->left;
            if (band->right >= 0 && band->right <= INT32_MAX && shifted + band->right < high) {
                high = shifted + band->right;
            }
        }
        rows->causal_high[lane] = clamp_position(top);
        rows->low[lane] = clamp_position(low);
        rows->high[lane] = clamp_position(high);
        rows->slope[lane] =
            alibi->dtype == ATTN_NONE
                ? 0.0f
                : ((const float *)
                       rule->args->alibi)[lanes->sequence * alibi->stride[0] + lanes->head[lane] * alibi->stride[1]];
    }
}

typedef enum score_span { SPAN_HIDDEN, SPAN_FULL, SPAN_EDGE } score_span;

/* Cuts keys [*begin, *end) to those that some lane may see by band; full if every lane sees all of them. */
static __attribute__((unused)) score_span score_band_span(const attn_band *band, const attn__lanes *lanes,
                                                          int64_t *begin, int64_t *end) {
    int64_t low = lanes->low, high = lanes->high;
    bool window = band->kind & ATTN_WINDOW, causal = band->kind & ATTN_CAUSAL;
    if (causal && *end > high + 1) {
        *end = high + 1;
    }
    if (window && *begin >= band->globals && low >= band->globals) {
        if (band->left >= 0 && *begin < low - band->left) {
            *begin = low - band->left;
        }
        if (band->right >= 0 && *end > high + band->right + 1) {
            *end = high + band->right + 1;
        }
    }
    if (*begin >= *end) {
        return SPAN_HIDDEN;
    }
    bool full = !causal || *end - 1 <= low;
    if (window && *end > band->globals && high >= band->globals) {
        full = full && (band->left < 0 || *begin >= high - band->left) &&
               (band->right < 0 || *end - 1 <= low + band->right);
    }
    return full ? SPAN_FULL : SPAN_EDGE;
}

/* Do all lanes read the same element of a [sequence, head, i, j] tensor? */
static inline bool score_row_shared(const attn_layout *layout, const attn__lanes *lanes) {
    return layout->stride[2] == 0 && (layout->stride[1] == 0 || lanes->head[0] == lanes->head[lanes->count - 1]);
}
static inline int64_t score_pair_offset(const attn_layout *layout, const attn__lanes *lanes, int lane, int64_t j) {
    return lanes->sequence * layout->stride[0] + lanes->head[lane] * layout->stride[1] +
           lanes->position[lane] * layout->stride[2] + j * layout->stride[3];
}

/* Bias of keys [j, j + count) for all lanes as [group][key][lane], natural units, -inf where the boolean mask hides.
 * Returns false if every lane is hidden from every key. */
static __attribute__((unused)) bool score_extra(const score_rule *rule, const score_rows *rows, int groups, int64_t j,
                                                int count, float *extra) {
    const attn_layout *bias = &rule->problem->bias, *mask = &rule->problem->mask;
    const attn__lanes *lanes = &rows->lanes;
    bool shared = (bias->dtype == ATTN_NONE || score_row_shared(bias, lanes)) &&
                  (mask->dtype == ATTN_NONE || score_row_shared(mask, lanes));
    bool seen = false;
    for (int lane = 0; lane < (shared ? 1 : groups * ATTN_LANES); lane++) {
        int64_t bias_at = score_pair_offset(bias, lanes, lane, j), mask_at = score_pair_offset(mask, lanes, lane, j);
        float *out = extra + (int64_t)(lane / ATTN_LANES) * count * ATTN_LANES + lane % ATTN_LANES;
        for (int n = 0; n < count; n++) {
            float value = 0.0f;
            if (bias->dtype == ATTN_F32) {
                value = ((const float *)rule->args->bias)[bias_at + n * bias->stride[3]];
            } else if (bias->dtype != ATTN_NONE) {
                value = (float)attn__load(bias->dtype, rule->args->bias, bias_at + n * bias->stride[3]);
            }
            if (mask->dtype != ATTN_NONE && !((const uint8_t *)rule->args->mask)[mask_at + n * mask->stride[3]]) {
                value = -INFINITY;
            }
            out[(int64_t)n * ATTN_LANES] = value;
            seen = seen || value != -INFINITY;
        }
    }
    if (shared && seen) {
        for (int n = 0; n < count; n++) {
            vf value = vf_set(extra[(int64_t)n * ATTN_LANES]);
            for (int group = 0; group < groups; group++) {
                for (int v = 0; v < ATTN_NV; v++) {
                    vf_store(extra + ((int64_t)group * count + n) * ATTN_LANES + v * ATTN_W, value);
                }
            }
        }
    }
    return seen;
}

/* Lanes that the band hides from key j. */
VEC_INLINE vi score_band_hides(const score_rows *rows, const attn_band *band, int lane, int32_t j) {
    vi key = vi_set(j);
    if (j < band->globals) {
        return vi_loadu(rows->causal_high + lane) < key;
    }
    return (vi_loadu(rows->high + lane) < key) | (vi_loadu(rows->low + lane) > key);
}

/* A product that is a number and leaves the range by its scale is NaN: -inf means hidden. */
VEC_INLINE vf score_scaled(vf s, vf scale) {
    const vf inf = vf_set(INFINITY);
    vf scaled = s * scale;
    vi lost = (vf_abs(scaled) == inf) & (vf_abs(s) < inf);
    return vf_select(lost, vf_set(NAN), scaled);
}

/* One group's raw products of keys [j, j + count), made scores of the rule's unit in place; the maximum a lane is
 * recomputed. `edge`: the band cuts through this block. extra: this group's, or NULL. Reading rule once keeps the
 * switches out of the compiler's way. With `slope_of` (backward) the derivative of the soft cap goes there. */
static __attribute__((noinline, unused)) void score_apply(const score_rule *rule, const score_rows *rows, int group,
                                                          bool edge, const float *extra, int64_t j, int count,
                                                          float *scores, float *maximum, float *slope_of) {
    const attn_band *band = &rule->problem->band;
    const bool plain = rule->plain, alibi = rule->problem->alibi.dtype != ATTN_NONE;
    const float softcap = rule->problem->softcap;
    const vf scale = vf_set(rule->scale), cap = vf_set(softcap), inverse_cap = vf_set(softcap > 0 ? 1.0f / softcap : 0);
    const vf hidden_score = vf_set(-INFINITY);
    for (int v = 0; v < ATTN_NV; v++) {
        const int lane = group * ATTN_LANES + v * ATTN_W;
        const vf slope = vf_loadu(rows->slope + lane);
        const vi shifted = vi_loadu(rows->lanes.shifted + lane);
        vf top = hidden_score;
        for (int n = 0; n < count; n++) {
            int64_t at = (int64_t)n * ATTN_LANES + v * ATTN_W;
            vf s = vf_load(scores + at);
            if (!plain) {
                s = score_scaled(s, scale);
                if (softcap > 0) {
                    vf bent = vf_tanh(s * inverse_cap);
                    s = cap * bent;
                    if (slope_of) {
                        vf_store(slope_of + at, vf_set(1.0f) - bent * bent);
                    }
                }
                if (extra) {
                    vf add = vf_load(extra + at);
                    s = vf_select(add == hidden_score, hidden_score, s + add);
                }
                if (alibi) {
                    s = s - slope * vf_abs(vf_of(shifted - vi_set((int32_t)(j + n))));
                }
            }
            if (edge) {
                s = vf_select(score_band_hides(rows, band, lane, (int32_t)(j + n)), hidden_score, s);
            }
            vf_store(scores + at, s);
            top = vf_max(top, s);
        }
        vf_store(maximum + v * ATTN_W, top);
    }
}

/* keep / (1 - rate) of keys [j, j + count) for one group, [key][lane]. Dropped is -0: the product with p is told from
 * the +0 of a hidden pair by its bits. */
static __attribute__((noinline, unused)) void score_keep(const attn__run *run, const score_rows *rows, int group,
                                                         int64_t j, int count, float *keep) {
    const float kept = (float)(1.0 / (1.0 - (double)run->problem->dropout));
    for (int n = 0; n < ATTN_LANES; n++) {
        int lane = group * ATTN_LANES + n;
        uint32_t head = (uint32_t)(rows->lanes.head[lane] + run->args->head_first);
        uint32_t sequence = (uint32_t)(rows->lanes.sequence + run->args->batch_first);
        int64_t key = j;
        while (key < j + count) {
            attn__u32x4 words = attn__dropout_words(run->dropout, (uint32_t)(key >> 2),
                                                    (uint32_t)rows->lanes.position[lane], head, sequence);
            do {
                keep[(key - j) * ATTN_LANES + n] = words.word[key & 3] >= run->dropout.threshold ? kept : -0.0f;
                key++;
            } while ((key & 3) && key < j + count);
        }
    }
}

/* m and l of a row before its first key: the sink's weight, where this part carries it. */
static inline void score_sink_start(const score_rule *rule, const attn__lanes *lanes, int lane, bool with_sink,
                                    float *m, float *l) {
    *m = -INFINITY;
    *l = 0.0f;
    if (rule->args->sink && with_sink) {
        float sink = ((const float *)rule->args->sink)[lanes->head[lane] * rule->problem->sink.stride[1]];
        sink = (float)(sink / rule->natural);
        if (sink != -INFINITY) {
            *m = sink;
            *l = 1.0f;
        }
    }
}

/* lse, where the caller wants it. -inf is kept for rows that saw nothing. */
static inline void score_lse_store(const score_rule *rule, const attn__lanes *lanes, int lane, float m, float l) {
    if (rule->args->lse) {
        double lse = m * rule->natural + log((double)l);
        lse = l == 0 ? -INFINITY : lse < -FLT_MAX ? -FLT_MAX : lse;
        ((float *)rule->args->lse)[attn__lane_offset(&rule->problem->lse, lanes, lane)] = (float)lse;
    }
}

#endif
