/* SPDX-License-Identifier: Apache-2.0
 * Backward on Hopper: what the loading warp tells the computing warps about a step and about a tile's outputs, and how
 * it finds that out from the walk (gradient_walk.cuh). Computing warps know no sequence, head or window.
 *
 * A block of threads may own a part of the walk's tile of keys only: `first` is the part's first key in the tile. */
#pragma once
#include "gradient_walk.cuh"
#include "hopper/tma.cuh"

/* What the computing warps must know of a step, beside its q. Key r of the tile and query c of the step: visible where
 * r <= c + above and r >= c - below; global pairs (r < global_keys or c < global_queries) where r <= c + causal; keys
 * from `keys` on do not exist. */
enum {
    STEP_SLOT, /* of the queries, heads counted in: where its dq is added up */
    STEP_FLAGS,
    STEP_KEYS,
    STEP_ABOVE,
    STEP_BELOW,
    STEP_GLOBAL_KEYS,
    STEP_GLOBAL_QUERIES,
    STEP_CAUSAL,
    STEP_WORDS
};
typedef struct step_record {
    int word[STEP_WORDS];
} step_record;
#define STEP_RECORD 32
static_assert(sizeof(step_record) == STEP_RECORD, "the record of a step");
#define STEP_LAST   1 /* flags: of the tile */
#define STEP_MASKED 2 /* some pair is hidden */

/* Where a tile's dk and dv go, beside its k: element offsets of its row 0. rows: those that exist, -1: no tile is left;
 * slot_rows: those of the slot, which get zeros. */
typedef struct output_record {
    int rows, slot_rows; /* rows is read first, alone */
    int64_t dk, dv;
    int number; /* for the list of tiles that must be taken again */
    int part;
} output_record;
#define OUTPUT_RECORD 32
static_assert(sizeof(output_record) == OUTPUT_RECORD, "the record of a tile's outputs");

/* A tile that is loaded, or the next (backward_tiles.cuh). */
#define PLACES       2
#define PLACE_RECORD (96 - 4 * DETERMINISTIC) /* loaded 16 bytes at a time, but where heads up to 64 lack the room */
static_assert(sizeof(tile_place) <= PLACE_RECORD, "the record of a tile's place");

extern __shared__ __align__(1024) char attn__shared[];
INLINE char *shared_memory() {
    return attn__shared;
}

/* --- Shared memory by address --- */

INLINE float4 load_floats(uint32_t address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address));
    return x;
}
INLINE void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

/* --- By the loading thread --- */

/* Tiles of a wide section even out better at the end; in a narrow one q, dout and the sums of dq stay in L2 (those of
 * 128 heads of 512 rows did not: 470 us, with 16 heads 392). Sections are of equal width, since a narrow last one
 * leaves processors idle. Measured, d 128, causal: docs/hopper.md. */
#define SECTION_ROWS  65536
#define SECTION_LEAST 8
#define SECTION_MOST  16
/* In a fixed order a tile follows the one before it of its head by a step at least, and waits if it is drawn sooner. So
 * as many heads are dealt out together as tiles are drawn in STEPS_APART steps; the rest is for where all begin at
 * once. In a window each tile begins ahead of the one before it, and nothing need be apart. */
#define STEPS_APART   2
#define SECTION_APART 4
INLINE int64_t section_apart(const attn__params &p) {
    const int64_t drawing = (int64_t)gridDim.x * LISTED_KV / TILE_KV, blocks = blocks_of(p.side_q.tokens, TILE_Q);
    const int64_t steps = larger(1, p.group * (BAND & CAUSAL ? (blocks + 1) / 2 : blocks));
    return larger(SECTION_APART, (STEPS_APART * drawing + steps - 1) / steps);
}

INLINE int64_t section_pairs(const attn__params &p) {
    if (!BAND && !DETERMINISTIC) {
        return 1;
    }
    const int64_t pairs = (int64_t)p.batch * p.heads_kv;
    const int64_t rows = larger(1, p.side_q.tokens);
    const int64_t heads = smaller(SECTION_MOST, larger(SECTION_LEAST, SECTION_ROWS / rows));
    int64_t wide = BAND ? larger(1, heads / p.group) : 1;
    if (DETERMINISTIC && !(BAND & WINDOW)) {
        wide = larger(wide, section_apart(p));
    }
    const int64_t sections = (pairs + wide - 1) / wide;
    return (pairs + sections - 1) / sections;
}

/* Near enough for 32 bits, far more than a tile has rows. */
INLINE int nearby(int64_t x) {
    return x < -(1 << 29) ? -(1 << 29) : x > 1 << 29 ? 1 << 29 : (int)x;
}

INLINE void describe_step(const attn__params &p, const tile_place &tile, const walk &w, int first, bool last,
                          uint32_t slot, step_record &step) {
    const int low = tile.low + first;
    const int64_t ahead = (int64_t)span_of(tile, w).position + (int64_t)w.block * TILE_Q - low;
    int64_t above = (int64_t)1 << 40, below = above;
    if (BAND & WINDOW) {
        above = p.right >= 0 ? p.right : above;
        below = p.left >= 0 ? p.left : below;
    }
    if (BAND & CAUSAL) {
        above = smaller(above, 0);
    }
    step.word[STEP_SLOT] = (int)slot;
    step.word[STEP_FLAGS] = (last ? STEP_LAST : 0) | (walk_full(tile, w) ? 0 : STEP_MASKED);
    step.word[STEP_KEYS] = tile.rows - first;
    step.word[STEP_ABOVE] = nearby(above + ahead);
    if (BAND & WINDOW) {
        step.word[STEP_BELOW] = nearby(below - ahead);
    }
    if (BAND & GLOBALS) {
        step.word[STEP_GLOBAL_KEYS] = nearby(p.globals - low);
        step.word[STEP_GLOBAL_QUERIES] = nearby(p.globals - low - ahead);
        step.word[STEP_CAUSAL] = BAND & CAUSAL ? nearby(ahead) : 1 << 29;
    }
}

INLINE void describe_output(const attn__params &p, const tile_place &tile, int first, output_record &output) {
    const int64_t slot =
        run_slot<ROWS_KV>(p.side_kv, tile.x_run, LISTED_KV) + (tile.block * TILE_KV + first) / LISTED_KV;
    output.dk = row_offset(p.dk, tile.sequence, tile.head, tile.row + first);
    output.dv = row_offset(p.dv, tile.sequence, tile.head, tile.row + first);
    output.rows = larger(0, tile.rows - first);
    output.slot_rows = tile.slot_rows - first;
    output.number = (int)((tile.part * p.heads_kv + tile.head) * key_slots(p) + slot);
    output.part = tile.part;
}
