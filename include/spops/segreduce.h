/*
 * Segmented reduction: plans (spops_segments) and the calls that run them, forward and backward.
 *
 * A plan says which terms belong to which segment, which row of x and which weight a term takes,
 * and how the work is divided. It is built once from indices that are checked then, is immutable,
 * and may be executed any number of times, from any context of the same device.
 */
#ifndef SPOPS_SEGREDUCE_H
#define SPOPS_SEGREDUCE_H

#include "spops/context.h"
#include "spops/regime.h"

SPOPS_EXTERN_C_BEGIN

typedef struct spops_segments spops_segments;

/** Which gradients a plan can run. Each needs lists of its own, made when the plan is built. */
typedef enum spops_gradients {
    SPOPS_GRADIENTS_NONE = 0,
    SPOPS_GRADIENTS_LINEAR = 1, /* SUM and MEAN */
    SPOPS_GRADIENTS_ALL = 2     /* any reduction; scratch grows by 8 bytes per output element */
} spops_gradients;

typedef struct spops_segments_options {
    size_t struct_size;        /* sizeof(spops_segments_options) */
    const int32_t *idx;        /* [num_terms] row of x of a term; NULL: term t takes row t */
    int64_t num_rows;          /* rows of x; 0 with idx NULL: num_terms */
    const int32_t *weight_idx; /* [num_terms] weight of a term; NULL: term t takes weight t */
    int64_t num_weights;       /* weights; 0 with weight_idx NULL: num_terms */
    int64_t max_cols;          /* widest x it will meet (scratch, schedule); 0: 256 */
    spops_gradients gradients;
} spops_segments_options;

static inline spops_segments_options spops_segments_options_default(void)
{
    spops_segments_options options = SPOPS_ZERO_INIT;
    options.struct_size = sizeof options;
    return options;
}

/**
 * Plan segments given by offsets: segment s holds the terms offsets[s] .. offsets[s+1] - 1.
 *
 * num_segments  0 to INT32_MAX - 1.
 * offsets       [num_segments + 1] ascending, offsets[0] = 0; the last is num_terms.
 * options       NULL: defaults (term t takes row t and weight t).
 * out           The plan; NULL after a failure.
 *
 * Memory    offsets and the options' arrays where ctx runs; read during the call, copied.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT (names the first bad element), OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 * Source    One owner per interval, after BEVPoolV3; long segments split: docs/segreduce.md.
 */
SPOPS_API spops_status spops_segments_create(spops_context *ctx, int64_t num_segments,
                                             const int32_t *offsets,
                                             const spops_segments_options *options,
                                             spops_segments **out);

typedef enum spops_key_order {
    SPOPS_KEYS_UNSORTED = 0, /* sorted by the library, stably: ties keep the caller's order */
    SPOPS_KEYS_SORTED = 1    /* ascending already; refused if they are not */
} spops_key_order;

/**
 * Plan segments given by a key per term: term t belongs to segment keys[t].
 *
 * num_terms     0 to INT32_MAX - 1.
 * keys          [num_terms], each 0 to num_segments - 1.
 *
 * The rest as spops_segments_create. Term numbers (arg outputs, idx NULL, weight_idx NULL) stay the
 * caller's whatever the order.
 */
SPOPS_API spops_status spops_segments_create_from_keys(spops_context *ctx, int64_t num_segments,
                                                       int64_t num_terms, const int32_t *keys,
                                                       spops_key_order order,
                                                       const spops_segments_options *options,
                                                       spops_segments **out);

/**
 * Plan into a capacity: room for max_terms unsorted keys, filled by spops_segments_set, as often as
 * wanted, on the stream, also inside a captured graph. Until the first set it has no terms. The
 * options' idx and weight_idx must be NULL (spops_segments_set takes them); their num_* count.
 */
SPOPS_API spops_status spops_segments_reserve(spops_context *ctx, int64_t num_segments,
                                              int64_t max_terms,
                                              const spops_segments_options *options,
                                              spops_segments **out);

/**
 * Refill a plan made by spops_segments_reserve.
 *
 * num_terms   One int32 where ctx runs (device memory for CUDA): how many keys count. More than
 *             max_terms sets the plan's overflow flag and only max_terms are taken.
 * keys        [max_terms]. A term whose key, idx or weight_idx is out of range is left out and
 *             counted in num_dropped.
 * idx         [max_terms] or NULL, weight_idx likewise; as in spops_segments_options.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 *           Runs of the plan on other streams must be ordered by the caller.
 * Errors    INVALID_ARGUMENT (not such a plan, NULL), CUDA.
 */
SPOPS_API spops_status spops_segments_set(spops_context *ctx, spops_segments *segments,
                                          const int32_t *num_terms, const int32_t *keys,
                                          const int32_t *idx, const int32_t *weight_idx);

/** Counts of a plan. For one made by reserve they are read from the device. */
typedef struct spops_segments_info {
    size_t struct_size; /* set by the caller */
    int64_t num_segments;
    int64_t num_terms;
    int64_t num_rows;
    int64_t num_weights;
    int64_t num_nonempty;
    int64_t longest;     /* terms of the longest segment */
    int64_t num_pieces;  /* pieces that split segments were cut into */
    int64_t num_dropped; /* terms left out by spops_segments_set */
    int64_t overflow;    /* 1: spops_segments_set met more terms than the capacity */
} spops_segments_info;

/** Fill info; waits for ctx's stream. CAPACITY_EXCEEDED (info still filled) if overflow is 1. */
SPOPS_API spops_status spops_segments_get_info_sync(spops_context *ctx,
                                                    const spops_segments *segments,
                                                    spops_segments_info *info);

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
SPOPS_API void spops_segments_destroy(spops_segments *segments);

/** Scratch that every call with this plan fits in, up to max_cols columns. */
SPOPS_API size_t spops_segments_scratch_bytes(const spops_segments *segments);

/**
 * Bytes one spops_segreduce_execute moves with rows of cols elements of dtype; waits once. For the
 * 8- and 4-bit dtypes, bytes of a pooling of such rows (spops/bevpool.h) with weights and output of
 * f16; rows of f4e2m1 come with their block scales.
 */
SPOPS_API spops_status spops_segments_get_traffic_sync(spops_context *ctx,
                                                       const spops_segments *segments,
                                                       spops_dtype dtype, int64_t cols,
                                                       int weighted, spops_traffic *traffic);

/**
 * Reduce the rows of every segment to one row:
 *
 *     out[s, c] = reduce over terms t of segment s of  w[weight_idx[t]] * x[idx[t], c]
 *
 * reduce    SPOPS_REDUCE_*, whose own comment gives the value of an empty segment, or an id from
 *           spops_reduce_create on the same context.
 * x         [num_rows, cols], f32 f16 bf16.
 * w         [num_weights, 1], f32 or the dtype of x, row_stride 1; NULL for all ones.
 * out       [num_segments, cols], dtype of x. Every element is written. Must not overlap inputs.
 * arg       [num_segments, cols] i32 or NULL: the winning term's number, -1 for an empty segment.
 *           Only for MIN and MAX.
 *
 * Memory    Where ctx runs: device memory for CUDA, host memory for CPU. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_segments_scratch_bytes(segments), reserved in ctx beforehand.
 * Numerics  Accumulates in f32 in an order the plan fixes: same bits on every run and thread count.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride), SCRATCH_TOO_SMALL, NOT_SUPPORTED, CUDA.
 *           After any but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx; segments may be shared.
 * Source    One owner per interval, after BEVPoolV3; long segments split: docs/segreduce.md.
 */
SPOPS_API spops_status spops_segreduce_execute(spops_context *ctx, const spops_segments *segments,
                                               spops_reduce reduce, spops_matrix x,
                                               const spops_matrix *w, spops_matrix out,
                                               const spops_matrix *arg);

/**
 * Gradients of spops_segreduce_execute:
 *
 *     grad_x[j, c] = sum over terms t with idx[t] = j         of w grad(t, c) grad_out[s(t), c]
 *     grad_w[m]    = sum over terms t with weight_idx[t] = m,
 *                    over c               of x[idx[t], c] grad(t, c) grad_out[s(t), c]
 *
 * where grad is the reduction's own (see spops_reduce). What the forward pass knew (winners,
 * products) is computed again from x and w.
 *
 * grad_out  [num_segments, cols], dtype of x.
 * x, w      As forward.
 * grad_x    [num_rows, cols], dtype of x, or NULL. Every element is written.
 * grad_w    [num_weights, 1], dtype of w, row_stride 1, or NULL (always when w is NULL). Every
 *           element is written.
 *
 * The plan must have been built with the gradients asked for. Otherwise as
 * spops_segreduce_execute; deterministic, without atomics on outputs.
 */
SPOPS_API spops_status spops_segreduce_execute_backward(
    spops_context *ctx, const spops_segments *segments, spops_reduce reduce, spops_matrix grad_out,
    spops_matrix x, const spops_matrix *w, const spops_matrix *grad_x, const spops_matrix *grad_w);

/**
 * Save a plan made by create or create_from_keys as bytes, and load it back on any backend.
 *
 * save      buffer NULL: only *bytes is set, to what is needed. Otherwise buffer (host memory)
 *           holds `capacity` bytes, and *bytes is set to what was written. Waits.
 * load      data is checked like a caller's indices: damaged or hostile bytes give CORRUPT_DATA.
 *
 * Errors    INVALID_ARGUMENT (buffer too small, a plan made by reserve), CORRUPT_DATA,
 *           OUT_OF_MEMORY, CUDA.
 */
SPOPS_API spops_status spops_segments_save(spops_context *ctx, const spops_segments *segments,
                                           void *buffer, size_t capacity, size_t *bytes);
SPOPS_API spops_status spops_segments_load(spops_context *ctx, const void *data, size_t bytes,
                                           spops_segments **out);

/**
 * A reduction of the caller's own, for one context.
 *
 * A column's state is at most SPOPS_REDUCE_STATE_BYTES_MAX bytes and trivially copyable. The CPU
 * functions work on n neighbouring columns at once: state points to n states one after the other.
 * combine must be associative up to rounding; it need not be commutative (a holds earlier terms).
 * The functions must be pure; they are called from several threads.
 */
#define SPOPS_REDUCE_STATE_BYTES_MAX 8

typedef struct spops_reduce_desc {
    size_t struct_size;
    const char *name;   /* for messages */
    size_t state_bytes; /* 1 to SPOPS_REDUCE_STATE_BYTES_MAX */
    void *user;         /* handed to the CPU functions */
    void (*identity)(void *user, int64_t n, void *state);
    /* fold term number `term`, with values v[0..n-1], into the states behind what they hold */
    void (*fold)(void *user, int64_t n, void *state, const float *v, int32_t term);
    void (*combine)(void *user, int64_t n, void *a, const void *b);
    void (*finalize)(void *user, int64_t n, const void *state, int64_t count, float *out);
    /* d out / d v of term `term`, whose values are v; NULL: no gradient */
    void (*grad)(void *user, int64_t n, const float *v, int32_t term, const void *state,
                 int64_t count, float *dv);
    /*
     * CUDA C++ source that defines a struct `cuda_op` as spops/device/segreduce.cuh describes;
     * compiled with NVRTC (loaded at run time) when the reduction is created on a CUDA context.
     * NULL: a CUDA context refuses to create it. Only the running context's side is needed.
     */
    const char *cuda_source;
    const char *cuda_op;
} spops_reduce_desc;

/**
 * Register a reduction with ctx. *out is an id that spops_segreduce_execute and its backward take,
 * on this context only, until the context is destroyed. May compile (seconds) and wait.
 *
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, COMPILE_FAILED (with the compiler's first line), CUDA,
 *           NOT_SUPPORTED (the stream is being captured, or ctx has 64 reductions already).
 */
SPOPS_API spops_status spops_reduce_create(spops_context *ctx, const spops_reduce_desc *desc,
                                           spops_reduce *out);

/**
 * The arrays of a plan's forward lists where its context runs, for kernels of the caller's own
 * (spops/device/segreduce.cuh). Owner o holds positions offsets[o] .. offsets[o+1] - 1.
 */
typedef struct spops_lists_view {
    int64_t num_owners;
    int64_t max_terms;
    const int32_t *offsets; /* [num_owners + 1] */
    const int32_t *pairs;   /* [max_terms][2]: row, weight; NULL: both are the position itself */
    const int32_t *order;   /* [max_terms] term number of a position; NULL: the position itself */
    const void *schedule;   /* spops_schedule of spops/device/schedule.h, where ctx runs */
    const void *entries;    /* spops_entry[]: whole owners by class, see schedule.h */
    const void *pieces;     /* spops_entry[]: pieces of split owners */
    const void *splits;     /* spops_split[] */
    int64_t max_entries;
    int64_t max_pieces;
    int64_t max_splits;
} spops_lists_view;

/** Fill view with the plan's forward lists; valid while the plan lives. */
SPOPS_API spops_status spops_segments_get_view(spops_context *ctx, const spops_segments *segments,
                                               spops_lists_view *view);

SPOPS_EXTERN_C_END

#endif
