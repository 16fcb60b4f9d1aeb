/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of segments: which terms belong to which segment, which row of x and which weight a term
 * takes, and how the work is divided. spops/segreduce.h reduces rows by them, spops/gather.h copies
 * rows by them; plans of other modules hold one.
 *
 * A plan is built once from indices that are checked then, is immutable, and may be executed any
 * number of times, from any context of the same device.
 */
#ifndef SPOPS_SEGMENTS_H
#define SPOPS_SEGMENTS_H

#include "spops/context.h"
#include "spops/plan.h"
#include "spops/device/schedule.h"
#include "spops/regime.h"

SPOPS_EXTERN_C_BEGIN

/**
 * A plan: which rows are reduced to which output row, checked, and divided into work of like size.
 */
typedef struct spops_segments spops_segments;

/** Which gradients a plan can run. Each needs lists of its own, made when the plan is built. */
typedef enum spops_gradients {
    SPOPS_GRADIENTS_NONE = 0,
    SPOPS_GRADIENTS_LINEAR = 1, /* SUM and MEAN */
    SPOPS_GRADIENTS_ALL = 2     /* any reduction; scratch grows by 8 bytes per output element */
} spops_gradients;

/** Choices of the calls that make plans of segments. */
typedef struct spops_segments_options {
    size_t struct_size;        /* sizeof(spops_segments_options) */
    const int32_t *idx;        /* [num_terms] row of x of a term; NULL: term t takes row t */
    int64_t num_rows;          /* rows of x; 0 with idx NULL: num_terms */
    const int32_t *weight_idx; /* [num_terms] weight of a term; NULL: term t takes weight t */
    int64_t num_weights;       /* weights; 0 with weight_idx NULL: num_terms */
    int64_t max_cols;          /* widest x it will meet (scratch, schedule); 0: 256 */
    spops_gradients gradients;
    int32_t sum_variant; /* kernel of sums over rows of whole 16-byte chunks, of f32, f16 or bf16:
                            0: by the tuning table, 1 to 3: that one, whatever the table says (same
                            bits). Refused where there is no choice: on the CPU, by reserve */
    spops_plan_memory *memory; /* of reserve: where the plan lives; NULL: allocated */
} spops_segments_options;

SPOPS_DEFINE_DEFAULT(spops_segments_options)

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
 * Source    Interval-owned, after BEVPoolV3; long segments split: docs/segreduce.md.
 */
SPOPS_API spops_status spops_segments_create(spops_context *ctx, int64_t num_segments,
                                             const int32_t *offsets,
                                             const spops_segments_options *options,
                                             spops_segments **out);

/** Whether keys are given in order. */
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
 * Plan into a capacity: room for max_terms unsorted keys, filled by spops_segments_update, as often as
 * wanted, on the stream, also inside a captured graph. Until the first set it has no terms. The
 * options' idx and weight_idx must be NULL (spops_segments_update takes them); their num_* count.
 *
 * Memory    All that a set needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 */
SPOPS_API spops_status spops_segments_reserve(spops_context *ctx, int64_t num_segments,
                                              int64_t max_terms,
                                              const spops_segments_options *options,
                                              spops_segments **out);

/**
 * Refill a plan made by spops_segments_reserve, or attached.
 *
 * num_terms   One int32 where ctx runs (device memory for CUDA): how many keys count. More than
 *             max_terms sets the plan's overflow flag and only max_terms are taken.
 * keys        [max_terms]. A term whose key, idx or weight_idx is out of range is left out and
 *             counted in num_dropped.
 * idx         [max_terms] or NULL, weight_idx likewise; as in spops_segments_options.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 *           Runs of the plan on other streams must be ordered by the caller.
 * Scratch   None: the plan has its own.
 * Errors    INVALID_ARGUMENT (not such a plan, NULL), CUDA.
 * Threads   One thread at a time per ctx and per plan.
 */
SPOPS_API spops_status spops_segments_update(spops_context *ctx, spops_segments *segments,
                                             const int32_t *num_terms, const int32_t *keys,
                                             const int32_t *idx, const int32_t *weight_idx);

/** Counts of a plan. For one made by reserve they are read from the device. */
typedef struct spops_segments_info {
    size_t struct_size; /* set by the caller */
    int64_t num_segments;
    int64_t
        num_terms; /* in the plan; those that spops_segments_update dropped are not among them */
    int64_t num_rows;
    int64_t num_weights;
    int64_t num_nonempty;
    int64_t longest;     /* terms of the longest segment */
    int64_t num_pieces;  /* pieces that split segments were cut into */
    int64_t num_dropped; /* terms left out by spops_segments_update */
    int64_t overflow;    /* 1: spops_segments_update met more terms than the capacity */
    int32_t sum_variant; /* that rows of max_cols columns of f16 take; 0: there is no choice */
    int32_t reserved;
} spops_segments_info;

SPOPS_DEFINE_DEFAULT(spops_segments_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_segments_get_info_sync(spops_context *ctx,
                                                    const spops_segments *segments,
                                                    spops_segments_info *info);

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
static inline void spops_segments_destroy(spops_segments *segments)
{
    spops_plan_destroy((spops_plan *)segments);
}

/** Scratch that every call with this plan fits in, up to max_cols columns. */
static inline size_t spops_segments_scratch_bytes(const spops_segments *segments)
{
    return spops_plan_scratch_bytes((const spops_plan *)segments);
}

/**
 * Bytes one spops_segreduce_execute moves with rows of cols elements of dtype; waits once. For the
 * 8- and 4-bit dtypes, bytes of a pooling of such rows (spops/bevpool.h) with weights and output of
 * f16; rows of f4e2m1 come with their block scales.
 *
 * weighted  Whether weights are read (1) or not (0).
 * traffic   Filled; its struct_size set by the caller.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_segments_get_traffic_sync(spops_context *ctx,
                                                       const spops_segments *segments,
                                                       spops_dtype dtype, int64_t cols,
                                                       int weighted, spops_traffic *traffic);

/**
 * The arrays of a plan's forward lists where its context runs, for kernels of the caller's own
 * (spops/device/segreduce.cuh). Segment s holds positions offsets[s] .. offsets[s+1] - 1.
 */
typedef struct spops_segments_view {
    size_t struct_size; /* set by the caller: sizeof(spops_segments_view) */
    int64_t num_segments;
    int64_t max_terms;
    const int32_t *offsets; /* [num_segments + 1] */
    const int32_t *pairs;   /* [max_terms][2]: row, weight; NULL: both are the position itself */
    const int32_t *order;   /* [max_terms] term number of a position; NULL: the position itself */
    const spops_schedule *schedule;    /* [1] counts of what follows, see schedule.h */
    const spops_work_item *entries;    /* [max_entries] whole segments by class */
    const spops_work_item *pieces;     /* [max_pieces] pieces of split segments */
    const spops_split_segment *splits; /* [max_splits] split segments */
    int64_t max_entries;
    int64_t max_pieces;
    int64_t max_splits;
} spops_segments_view;

SPOPS_DEFINE_DEFAULT(spops_segments_view)

/**
 * Fill view with the plan's forward lists; valid while the plan lives. What a plan made by reserve
 * holds changes with every set, the addresses do not.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_segments_get_view(spops_context *ctx, const spops_segments *segments,
                                               spops_segments_view *view);

/**
 * How many terms before it the segment of each term has.
 *
 * ranks     [terms of the plan, or its capacity], in the order of the caller's terms: 0 for the first
 *           of a segment; -1 for a term that the plan left out, or that a capacity had room for.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED, CUDA. After any but CUDA, nothing was enqueued.
 * Threads   One thread at a time per ctx; segments may be shared.
 */
SPOPS_API spops_status spops_rank_execute(spops_context *ctx, const spops_segments *segments,
                                          int32_t *ranks);

SPOPS_EXTERN_C_END

#endif
