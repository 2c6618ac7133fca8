/* SPDX-License-Identifier: Apache-2.0
 *
 * libattn: exact, fused attention. This header is the whole contract.
 *
 * Order of use
 *   1. describe   attn_problem    shapes, types, strides, mask: no pointers, no device
 *   2. plan       attn_plan       chosen once, immutable, prints itself, shared by threads
 *   3. run        attn_forward / attn_backward, with the caller's tensors and workspace
 * For the first five minutes: attn_run() does all three in one call.
 * Beside it: attn_device.h, memory and streams of a GPU without its vendor's toolkit; attn_kernels.h, compiled kernels
 * as files.
 *
 * The definition. For query row i, head h, kv head g = h / (heads_q / heads_kv):
 *     s_ij = scale * <q_i, k_j>                     scale: 1/sqrt(dim_qk) unless given
 *     s_ij = softcap * tanh(s_ij / softcap)         if softcap > 0
 *     s_ij = s_ij + bias_ij - slope_h * |i' - j|    additive bias, ALiBi
 *     s_ij = -inf                                   where band, boolean mask or a length forbids
 *     p_ij = exp(s_ij - lse_i),  lse_i = ln(sum_j exp(s_ij) [+ exp(sink_h)])
 *     o_i  = sum_j p_ij v_j                         with dropout: p_ij * keep_ij / (1 - dropout)
 * i' is the row's position among the keys: i + S_kv - S_q with ATTN_BOTTOM_RIGHT (the default, and
 * what "causal" means here unless said otherwise), i with ATTN_TOP_LEFT; S_q and S_kv are the true
 * lengths of that sequence.
 *
 * Numerics that callers may rely on
 *   - lse is the natural logarithm; 16-bit inputs accumulate and take softmax in float32.
 *   - A row that sees nothing gives o = 0, lse = -inf (with a sink: lse = sink) and zero gradients.
 *   - A key hidden from a row has no influence on it, whatever it holds (NaN and inf included);
 *     a visible NaN shows in the rows that see it.
 *   - On the CPU one implementation gives the same bits for any number of threads; on a GPU forward
 *     gives the same bits on every run, and so does backward with ATTN_DETERMINISTIC. A row's bits do
 *     not depend on what the other sequences of the batch hold, nor on strides and addresses; they
 *     may depend on the problem's sizes (number of sequences, heads and the token bounds), from which
 *     work is divided, on hints, and on a GPU on its model. Not so for packed rows on a GPU: what
 *     sequences behind it hold may change a row's rounding, and its value by no more than that.
 *
 * Rules of the interface
 *   - Strides are in elements, 64 bits, in the order batch, head, token, dim. They may be 0
 *     (broadcast, inputs only) or negative. Offsets past 2^31 elements are fine.
 *   - In every struct zero means the default. struct_size is sizeof the struct as the caller
 *     compiled it; fields are only ever appended. A shorter struct is read as if zeros followed, a
 *     longer one if zeros do follow. Structs that are filled are filled up to their struct_size.
 *   - Every call that returns attn_status fills *error when one is given, also on success. On
 *     failure nothing has been written to any output.
 *   - The library never prints, exits, aborts, or keeps process-wide state. Running a plan
 *     allocates nothing and reads no environment.
 */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/* Version of the library in use, as major * 10000 + minor * 100 + patch. */
ATTN_API int attn_version(void);

/* ------------------------------------------------------------------------------------------------
 * Status and error
 * --------------------------------------------------------------------------------------------- */

/* One list makes the enum, the names and the texts. Numbers are never reused. */
#define ATTN_STATUS_LIST(X)                                                                                            \
    X(OK, 0, "success")                                                                                                \
    X(ERR_INVALID, 1, "an argument contradicts itself or another one")                                                 \
    X(ERR_UNSUPPORTED, 2, "valid, but nothing in this context can run it")                                             \
    X(ERR_WORKSPACE, 3, "workspace missing, too small or misaligned")                                                  \
    X(ERR_MEMORY, 4, "an allocation failed")                                                                           \
    X(ERR_COMPILE, 5, "a kernel could not be compiled")                                                                \
    X(ERR_DEVICE, 6, "the device failed or is missing")                                                                \
    X(ERR_COMM, 7, "communication between ranks failed")                                                               \
    X(ERR_INTERNAL, 8, "a fault in the library")

typedef enum attn_status {
#define ATTN__ENUM(name, number, text) ATTN_##name = number,
    ATTN_STATUS_LIST(ATTN__ENUM)
#undef ATTN__ENUM
} attn_status;

/* 256 bytes for ever; the caller's own; may be NULL wherever it is taken. */
typedef struct attn_error {
    attn_status status;
    char field[28];    /* "k.stride[2]"; empty on success */
    char message[224]; /* "is 96, must be at least dim_qk = 128" */
} attn_error;

/* "ERR_INVALID" and its one-line text; never NULL, "?" for an unknown number. */
ATTN_API const char *attn_status_name(attn_status status);
ATTN_API const char *attn_status_text(attn_status status);

/* ------------------------------------------------------------------------------------------------
 * The problem: what to compute. Zero is the default in every field.
 * --------------------------------------------------------------------------------------------- */

typedef enum attn_dtype {
    ATTN_NONE = 0, /* tensor absent, or "like its partner" where the field says so */
    ATTN_F32 = 1,
    ATTN_F16 = 2,
    ATTN_BF16 = 3,
    ATTN_F64 = 4, /* run by the implementation `reference` */
    ATTN_U8 = 16  /* boolean mask: 0 hidden, anything else visible */
} attn_dtype;

/* Bytes of one element; 0 for ATTN_NONE and unknown values. */
ATTN_API size_t attn_dtype_size(attn_dtype dtype);
/* "f32", "f16", "bf16", "f64", "u8", "none"; "?" for unknown values. */
ATTN_API const char *attn_dtype_name(attn_dtype dtype);

/* Where element (batch, head, token, dim) lies: base + sum of index * stride, in elements. */
typedef struct attn_layout {
    attn_dtype dtype;
    int64_t stride[4];
} attn_layout;

/* How a sequence's tokens map to rows of the tensors. A row's address is
 *     base + s * stride[0] + head * stride[1] + row * stride[2]
 * with s the sequence's number (packed: s counts as 0, stride[0] is not read). */
typedef enum attn_rows {
    ATTN_DENSE = 0,   /* sequence s: rows 0 ... tokens - 1 */
    ATTN_PACKED = 1,  /* sequence s: rows cu_seqlens[s] ... cu_seqlens[s+1] - 1 */
    ATTN_SEGMENTS = 2 /* a list of attn_segment: shards of a sequence with global positions */
} attn_rows;

/* A run of rows: row `first + r` holds position `position + r` of sequence `sequence`, 0 <= r < rows. */
typedef struct attn_segment {
    int64_t first;
    int64_t rows;
    int64_t position;
    int64_t sequence;
} attn_segment;

typedef enum attn_pass { ATTN_FORWARD = 0, ATTN_BACKWARD = 1 } attn_pass;
typedef enum attn_corner { ATTN_BOTTOM_RIGHT = 0, ATTN_TOP_LEFT = 1 } attn_corner;

/* Which keys a row may see by position alone. Fields count only when their flag is in `kind`; 0 globals are none.
 *   causal   j <= i'
 *   window   i' - left <= j <= i' + right; -1 means unlimited
 *   globals  a key j < globals, or a query with i' < globals, is exempt from the window (not from
 *            causality, the boolean mask, a bias of -inf or the lengths) */
typedef enum attn_band_kind { ATTN_CAUSAL = 1u << 0, ATTN_WINDOW = 1u << 1, ATTN_GLOBALS = 1u << 2 } attn_band_kind;
typedef struct attn_band {
    uint32_t kind; /* attn_band_kind, or-ed */
    attn_corner corner;
    int64_t left, right;
    int64_t globals;
} attn_band;

typedef enum attn_flags {
    ATTN_HAS_SCALE = 1u << 0,  /* `scale` counts; 0 and negative scales are legal */
    ATTN_USED_Q = 1u << 1,     /* args.used_q gives each sequence's used length; dense and packed */
    ATTN_USED_KV = 1u << 2,    /* args.used_kv likewise */
    ATTN_ACCUMULATE = 1u << 3, /* backward adds to dq, dk, dv, dbias and dsink instead of storing */
    /* Backward gives the same bits on every run; the CPU always does, on a GPU it costs time. */
    ATTN_DETERMINISTIC = 1u << 4,
    /* Products of f32 tensors may round their factors to tf32 (10 bits of mantissa); sums stay in float32. */
    ATTN_ALLOW_TF32 = 1u << 5,
    /* GPU only: cu_seqlens, used, lengths and segments lie in device memory; see attn_args. */
    ATTN_DEVICE_LENGTHS = 1u << 6,
    /* GPU only: dropout's seed and offset are read from device memory; see attn_args. */
    ATTN_DEVICE_SEED = 1u << 7,
    /* GPU only, counts with ATTN_DEVICE_LENGTHS and without ATTN_ACCUMULATE: on sides that are packed, rows of outputs
     * past the last sequence are written too: o, dq, dk, dv 0, lse -inf. */
    ATTN_CLEAR_REST = 1u << 8
} attn_flags;

/* Sizes are upper bounds where lengths are data: dense with used lengths, packed, segments.
 *
 * Shapes by layout (see attn_rows for what batch and token mean when packed):
 *   q, dq  [batch, heads_q,  tokens_q,  dim_qk]     k, dk  [batch, heads_kv, tokens_kv, dim_qk]
 *   o, dout[batch, heads_q,  tokens_q,  dim_v ]     v, dv  [batch, heads_kv, tokens_kv, dim_v ]
 *   lse, dlse, delta [batch, heads_q, tokens_q]     (stride[3] is not read)
 *   bias, mask, dbias [sequence, heads_q, i, j]     (positions inside the sequence; stride 0 broadcasts)
 *   alibi [sequence, heads_q]                       (stride[2], stride[3] not read; stride[0] 0 for [H])
 *   sink, dsink [heads_q]                           (only stride[1] is read)
 *
 * An unset layout is all zeros: strides without a type are refused. Layouts of gradients (from dout on) are not read
 * forward. No two elements of an output (forward o and lse, backward dq, dk, dv and dbias) may share an address, which
 * is judged so: with the axes of more than one element sorted by |stride|, each |stride| must be larger than the
 * farthest offset that the smaller ones reach together. dbias may have strides of 0, over which it sums; segments may
 * have stride[0] = 0, all sequences then lying in one run of rows. f64 goes with f64 only (a bias may be f32).
 *
 * Limits: 0 <= batch, heads, tokens <= 2^31 - 1; 1 <= dims <= 2^31 - 1; heads_q a multiple of heads_kv, 0 only
 * together; packed totals <= 2^31 - 1; batch * heads * rows * dim <= 2^60; offsets within 2^63 bytes.
 * What each implementation refuses beyond that stands in one table: docs/support.md, attn_supported(). */
typedef struct attn_problem {
    size_t struct_size;
    attn_pass pass;
    uint32_t flags; /* attn_flags, or-ed */
    int64_t batch;  /* sequences */
    int64_t heads_q, heads_kv;
    int64_t tokens_q, tokens_kv; /* longest sequence; segments: longest whole sequence over all shards */
    int64_t dim_qk, dim_v;
    attn_rows rows_q, rows_kv;
    int64_t total_q, total_kv;       /* packed, segments: rows of the buffers (of each sequence's, if
                                      * stride[0] tells sequences apart); dense: not read */
    int64_t segments_q, segments_kv; /* segments: the most that args will list */
    attn_band band;
    float scale;                  /* counts only with ATTN_HAS_SCALE */
    float softcap;                /* 0: none */
    float dropout;                /* probability of dropping, 0 <= dropout < 1 */
    attn_layout q, k, v;          /* required */
    attn_layout o;                /* required; q's type or f32 */
    attn_layout lse;              /* unset: f32 (f64 if q is), contiguous [batch, head, token], packed [head, total_q],
                                   * segments [head, total_q] if q.stride[0] is 0, else [batch, head, total_q] */
    attn_layout bias;             /* unset: none. f32, or q's type */
    attn_layout mask;             /* unset: none. u8 */
    attn_layout alibi;            /* unset: none. f32 (f64 if q is) */
    attn_layout sink;             /* unset: none. f32 (f64 if q is) */
    attn_layout dout, dq, dk, dv; /* unset: like o, q, k, v; q's type or f32 */
    attn_layout dlse;             /* unset: like lse; also delta's layout */
    attn_layout dbias;            /* unset: like bias, in f32 (f64 if q is); summed over axes of stride 0 */
} attn_problem;

static inline attn_problem attn_problem_init(void) {
    attn_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.struct_size = sizeof problem;
    return problem;
}

/* Contiguous layouts. */
static inline attn_layout attn_layout_bshd(attn_dtype dtype, int64_t heads, int64_t tokens, int64_t dim) {
    attn_layout layout = {dtype, {tokens * heads * dim, dim, heads * dim, 1}};
    return layout;
}
static inline attn_layout attn_layout_bhsd(attn_dtype dtype, int64_t heads, int64_t tokens, int64_t dim) {
    attn_layout layout = {dtype, {heads * tokens * dim, tokens * dim, dim, 1}};
    return layout;
}

/* Dense problem with contiguous [batch, token, head, dim] tensors of one type; set further fields
 * (band, scale, pass ...) before planning. */
static inline attn_problem attn_problem_dense(attn_dtype dtype, int64_t batch, int64_t heads_q, int64_t heads_kv,
                                              int64_t tokens_q, int64_t tokens_kv, int64_t dim_qk, int64_t dim_v) {
    attn_problem p = attn_problem_init();
    p.batch = batch;
    p.heads_q = heads_q;
    p.heads_kv = heads_kv;
    p.tokens_q = tokens_q;
    p.tokens_kv = tokens_kv;
    p.dim_qk = dim_qk;
    p.dim_v = dim_v;
    p.q = attn_layout_bshd(dtype, heads_q, tokens_q, dim_qk);
    p.k = attn_layout_bshd(dtype, heads_kv, tokens_kv, dim_qk);
    p.v = attn_layout_bshd(dtype, heads_kv, tokens_kv, dim_v);
    p.o = attn_layout_bshd(dtype, heads_q, tokens_q, dim_v);
    return p;
}

/* Is the problem sound? Needs no device. ERR_INVALID names field, value and limit. */
ATTN_API attn_status attn_problem_check(const attn_problem *problem, attn_error *error);

/* Text form: "fwd:bf16:b2:hq32:hk8:sq4096:skv4096:d128:causal"; layouts appear only where they are not
 * the contiguous [batch, token, head, dim] ones. Grammar: docs/problem-text.md.
 * Writes at most `size` bytes with a terminating NUL (text may be NULL if size is 0) and returns the
 * length the whole text has, as snprintf does; 0 if the problem is unsound. */
ATTN_API size_t attn_problem_format(const attn_problem *problem, char *text, size_t size);
/* The reverse. parse(format(p)) gives p with its defaults filled in. */
ATTN_API attn_status attn_problem_parse(attn_problem *problem, const char *text, attn_error *error);

/* ------------------------------------------------------------------------------------------------
 * Context: where to run. It replaces every global.
 * --------------------------------------------------------------------------------------------- */

typedef struct attn_context attn_context;

typedef struct attn_config {
    size_t struct_size;
    /* NULL: "cpu". "cuda", "cuda:1": an NVIDIA GPU by the driver's number; tensors are then in its memory, and the
     * caller's current CUDA context is used if it is of that device, else the device's primary one. "gpu:a100",
     * "gpu:t4" ...: the facts of a known GPU without any GPU: plans explain themselves and, with ATTN_COMPILE,
     * compile; running is ERR_DEVICE. */
    const char *device;
    int threads; /* 0: ATTN_THREADS, else OpenMP's own choice (OMP_NUM_THREADS, then all cores); to 4096 */
    /* NULL: ATTN_MAX_ISA, else no limit; an implementation's name: none better is used. On a GPU also "sm_75",
     * "sm_80" ...: code and choices are those of that older architecture, run through its PTX. ERR_DEVICE: the name
     * of an implementation that this build lacks. */
    const char *max_isa;
    /* NULL: silent. May be called from any thread. Takes the lines that ATTN_VERBOSE lists (of plan,dispatch,jit,exec):
     *     attn,1,dispatch,<problem text>,<implementation>,refused|chosen,<reason>
     *     attn,1,plan,<problem text>,<implementation>,<choices>
     *     attn,1,jit,<problem text>,<kernel>,pack|disk|compiled|<status>,<seconds>
     *     attn,1,exec,<problem text>,<implementation>,<status>,<seconds> */
    void (*log)(void *user, const char *line);
    void *log_user;
    void *(*allocate)(void *user, size_t size); /* both NULL: malloc and free; contexts and plans use these */
    void (*release)(void *user, void *memory);
    void *allocator_user;
    /* GPU kernels. The library compiles each kernel once with NVRTC and keeps it. */
    const char *cache;   /* folder of compiled kernels. NULL: ATTN_CACHE_DIR, else XDG_CACHE_HOME/attn, else
                          * HOME/.cache/attn; "": none on disk. Unusable folders cost time, never a result */
    const char *kernels; /* NULL: ATTN_KERNELS, else none; a file of kernels made by attn_kernels_pack */
    const char *nvrtc;   /* NULL: ATTN_NVRTC, else searched for; path of libnvrtc; "": never compile */
    uint32_t options;    /* attn_option, or-ed */
} attn_config;

typedef enum attn_option {
    ATTN_COMPILE = 1u << 0 /* device "gpu:...": plan creation compiles into the cache, as it does on a real device */
} attn_option;

/* config NULL: all defaults. Reads the environment once, here (docs/environment.md lists it); fields that
 * are set win. Starts no thread. A context must outlive its plans and what they launched; it is immutable, threads
 * share it. */
ATTN_API attn_status attn_context_create(attn_context **context, const attn_config *config, attn_error *error);
ATTN_API void attn_context_destroy(attn_context *context);
ATTN_API int attn_context_threads(const attn_context *context);

/* The implementations, best first. */
typedef struct attn_implementation {
    size_t struct_size;
    const char *name;   /* "avx2": what hints.implementation and config.max_isa take */
    int available;      /* 1 if this machine and this context's limits allow it */
    const char *reason; /* why not, or "" */
} attn_implementation;
ATTN_API int attn_implementation_count(void);
ATTN_API attn_status attn_implementation_get(const attn_context *context, int index, attn_implementation *out,
                                             attn_error *error);

/* ------------------------------------------------------------------------------------------------
 * Plan: how to run it. Immutable; threads share it freely, each with a workspace of its own.
 * --------------------------------------------------------------------------------------------- */

typedef struct attn_plan attn_plan;

typedef enum attn_tensor_cores {
    ATTN_TENSOR_CORES_CHOSEN = 0,
    ATTN_TENSOR_CORES_OFF = 1, /* GPU: products on the plain float32 units */
    ATTN_TENSOR_CORES_ON = 2   /* GPU: an implementation without them refuses */
} attn_tensor_cores;

/* Wishes for experiments. They change speed, never which result is right. */
typedef struct attn_hints {
    size_t struct_size;
    const char *implementation; /* NULL: the best that accepts; else this one: ERR_UNSUPPORTED if it refuses the
                                 * problem, ERR_DEVICE if this CPU cannot run it */
    int64_t block_q;            /* query rows a task; 0: chosen */
    int64_t block_kv;           /* keys a block; 0: chosen */
    int64_t splits;             /* parts the keys are split into; 0: chosen */
    int64_t stages;             /* GPU: key blocks in flight; 0: chosen */
    attn_tensor_cores tensor_cores;
} attn_hints;

/* Can this context run it? The same answer, field and message that attn_plan_create would give.
 * ERR_INVALID: unsound. ERR_UNSUPPORTED: sound, but every implementation refuses, each with its reason.
 * ERR_DEVICE: the CPU lacks what hints.implementation needs. */
ATTN_API attn_status attn_supported(const attn_context *context, const attn_problem *problem, const attn_hints *hints,
                                    attn_error *error);
/* hints NULL: automatic. *plan is NULL on failure. Strings in the arguments are copied. */
ATTN_API attn_status attn_plan_create(attn_plan **plan, const attn_context *context, const attn_problem *problem,
                                      const attn_hints *hints, attn_error *error);
ATTN_API void attn_plan_destroy(attn_plan *plan);

/* Bytes of workspace that attn_forward / attn_backward need, 64-byte aligned; may be 0. */
ATTN_API size_t attn_plan_workspace(const attn_plan *plan);
#define ATTN_WORKSPACE_ALIGNMENT 64

/* Multi-line text: problem, implementation and why, refusals, tiles, workspace, expected time.
 * Sizes as in attn_problem_format. */
ATTN_API size_t attn_plan_describe(const attn_plan *plan, char *text, size_t size);

typedef struct attn_plan_info {
    size_t struct_size;
    const char *implementation;
    int threads; /* of the CPU; on a GPU those of a block */
    int64_t block_q, block_kv, splits;
    double flop;             /* multiply and add count two; visible pairs only */
    double bytes;            /* inputs read once plus outputs written once */
    double memory_fused;     /* bytes beyond inputs and outputs: the workspace */
    double memory_native;    /* bytes the unfused path stores for scores and probabilities */
    double peak_flops;       /* assumed, of all threads or the whole GPU; 0 if unknown */
    double peak_bytes;       /* assumed memory rate, bytes a second */
    double expected_seconds; /* roofline: max(flop / peak_flops, bytes / peak_bytes); 0 if a peak is unknown */
    const char *bound;       /* "compute", "memory", or "unknown" */
} attn_plan_info;
ATTN_API attn_status attn_plan_query(const attn_plan *plan, attn_plan_info *info, attn_error *error);
/* Each implementation better than or beside the chosen one that was passed over, with its reason; returns 0
 * past the end. */
ATTN_API int attn_plan_refusal(const attn_plan *plan, int index, const char **name, const char **reason);

/* ------------------------------------------------------------------------------------------------
 * Run
 * --------------------------------------------------------------------------------------------- */

/* CUstream and cudaStream_t both fit; NULL on the CPU. */
typedef struct CUstream_st *attn_stream;

/* The data. Pointers to tensors that the problem declares absent must be NULL. Output pointers may be NULL
 * where "optional" is said, any pointer may be NULL if the tensor has no elements; addresses are multiples of the
 * element's size. The fields of backward are not read forward. All memory is the caller's; inputs and outputs must not
 * overlap. */
typedef struct attn_args {
    size_t struct_size;
    const void *q, *k, *v;
    void *o;   /* forward: output. backward: input, or NULL when delta is given */
    void *lse; /* forward: output, optional. backward: input, the lse over all keys of the sequence */
    const void *bias, *mask, *alibi, *sink;

    /* Lengths, on the host unless ATTN_DEVICE_LENGTHS. Checked at each call before anything is written. */
    const int32_t *cu_seqlens_q, *cu_seqlens_kv; /* packed: [batch + 1], first 0, not decreasing */
    const int32_t *used_q, *used_kv;             /* [batch], at most the sequence's slot */
    /* segments: of one sequence together, sequences ascending; none covers a position of its sequence twice, nor
     * a row of an output. Lists ascending in position and row are checked in linear time, others pair by pair. */
    const attn_segment *segments_q, *segments_kv;
    int64_t n_segments_q, n_segments_kv;
    const int32_t *lengths_q, *lengths_kv; /* segments: [batch], whole lengths over all shards */

    /* Dropout. keep_ij = word >= floor(dropout * 2^32), where word is component j % 4 of
     * philox4x32-10(counter = (j / 4, i, head_first + head, batch_first + sequence), key = (K0, K1)) and
     * K0..K3 = philox4x32-10(counter = (offset lo, offset hi, 0, 0), key = (seed lo, seed hi)).
     * i and j are positions inside the sequence. The firsts let a shard name its heads and sequences as the
     * whole would. */
    uint64_t seed, offset;
    int64_t head_first, batch_first;

    /* Backward */
    const void *dout;
    const void *dlse;  /* optional: gradient that arrives at lse */
    const void *delta; /* optional: sum over dim of dout * o (final o), laid out as dlse is */
    void *dq, *dk, *dv;
    void *dbias; /* optional */
    void *dsink; /* optional, f32 (f64 if q is), laid out as sink is: summed over batch and rows */

    /* GPU. With ATTN_DEVICE_LENGTHS the lengths and segment lists above are device pointers (n_segments stay host
     * numbers), checked on the device: if they contradict the problem or themselves nothing is written and *status is
     * set, else *status is set to 0. Read it after synchronising; attn_status_word explains it. Required then. */
    int32_t *status;
    const uint64_t *device_seed; /* ATTN_DEVICE_SEED: seed and offset, two words, read when the kernels run */
} attn_args;

static inline attn_args attn_args_init(void) {
    attn_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    return args;
}

/* Past a sequence's used length o, dq, dk, dv are 0 and lse is -inf; rows that belong to no sequence or segment
 * are not touched (but see ATTN_CLEAR_REST). With ATTN_ACCUMULATE those zeros are not written. workspace may be NULL if
 * the plan needs 0 bytes. */
ATTN_API attn_status attn_forward(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_size,
                                  attn_stream stream, attn_error *error);
/* Needs q, k, v, lse, dout, and o or delta; writes dq, dk, dv (each optional, at least one output). */
ATTN_API attn_status attn_backward(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_size,
                                   attn_stream stream, attn_error *error);

/* Turns a status word that a GPU wrote into a status and an error with field and message. */
ATTN_API attn_status attn_status_word(int32_t word, attn_error *error);

/* Context, plan, workspace and one pass in one call; for scripts and first steps, since it plans anew each time. */
ATTN_API attn_status attn_run(const attn_problem *problem, const attn_args *args, attn_error *error);

/* ------------------------------------------------------------------------------------------------
 * Merging partial results
 * --------------------------------------------------------------------------------------------- */

/* Attention over the union of disjoint sets of keys from attention over each:
 *     lse = ln sum_p exp(lse_p),  o = sum_p exp(lse_p - lse) o_p
 * A part with lse_p = -inf has no influence, whatever its o holds; a single part with weight comes through
 * bit by bit. No part with weight: o = 0, lse = -inf. Sinks must be in one part only. */
typedef struct attn_merge_args {
    size_t struct_size;
    int64_t batch, heads, tokens, dim;
    attn_layout o;                /* of each part; any float type */
    attn_layout lse;              /* of each part and the result; unset: f32, contiguous [batch, head, token] */
    attn_layout result;           /* unset: like o */
    int64_t parts;                /* >= 1 */
    const void *const *o_parts;   /* [parts] */
    const void *const *lse_parts; /* [parts] */
    void *o_result;               /* may be one of the parts */
    void *lse_result;             /* may be one of the parts; optional */
} attn_merge_args;
ATTN_API attn_status attn_merge(const attn_merge_args *args, attn_error *error);

#ifdef __cplusplus
}
#endif

#endif
