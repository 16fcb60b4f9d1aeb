/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points: neighbours within a radius, nearest neighbours and farthest point sampling, exact, in clouds
 * of one or more samples whose rows lie below each other ("jagged": nothing is padded).
 *
 * Points are compared by one rule, the same on every backend, each operation rounded to f32:
 *
 *     d = p - q per axis,   d2 = (d.x * d.x + d.y * d.y) + d.z * d.z
 *     SPOPS_METRIC_BALL       neighbours if d2 <= r * r
 *     SPOPS_METRIC_CHEBYSHEV  neighbours if |d.x| <= r and |d.y| <= r and |d.z| <= r
 *
 * Points of different samples are never neighbours.
 */
#ifndef SPOPS_POINTS_H
#define SPOPS_POINTS_H

#include "spops/context.h"
#include "spops/plan.h"

SPOPS_EXTERN_C_BEGIN

/** Points of one or more samples. Final: nothing will be added. */
typedef struct spops_point_cloud {
    spops_matrix points;    /* [rows, 3] f32, m, any row stride; for buckets and patches also i32 */
    const int32_t *offsets; /* [num_samples + 1] where ctx runs, ascending from 0: sample b has rows
                               offsets[b] .. offsets[b + 1] - 1; NULL: one sample with all rows */
    int64_t num_samples;    /* 0 where offsets is NULL */
} spops_point_cloud;

/* ---- Neighbours within a radius ---------------------------------------------------------------- */

/** Which data points ("inputs") are neighbours of which query points ("outputs"), at which tap. */
typedef struct spops_neighbors spops_neighbors;

/** How the distance of two points is measured. */
typedef enum spops_metric { SPOPS_METRIC_BALL = 0, SPOPS_METRIC_CHEBYSHEV = 1 } spops_metric;

/**
 * What neighbours hold besides a list for every output, to be or-ed.
 *
 * BY_TAP    For every tap its pairs (input, output): triplets in the order of their taps.
 * REVERSE   A list for every input of the outputs that it is a neighbour of.
 * LISTS     Nothing more than the lists of the outputs.
 * FOR_CONV  What every point convolution runs on, the fastest way of this device too: BY_TAP, and
 *           REVERSE for gradients, where the device has implicit GEMM for them (compute capability
 *           9.0) and the inputs are not the outputs.
 *
 * FOR_CONV stands for others, by the device of ctx.
 */
typedef enum spops_neighbors_contents {
    SPOPS_NEIGHBORS_BY_TAP = 1,
    SPOPS_NEIGHBORS_REVERSE = 2,
    SPOPS_NEIGHBORS_LISTS = 4,
    SPOPS_NEIGHBORS_FOR_CONV = 8
} spops_neighbors_contents;

#define SPOPS_MAX_POINT_TAPS 9 /* along an axis */

/** Which neighbours of an output stay where it has more than max_neighbors. */
typedef enum spops_neighbors_keep {
    SPOPS_NEIGHBORS_KEEP_NEAREST = 0, /* by ascending d2, of either metric, then by ascending row */
    SPOPS_NEIGHBORS_KEEP_FIRST = 1,   /* by ascending row */
    SPOPS_NEIGHBORS_KEEP_RANDOM = 2   /* by a hash of the seed and both rows: all equally likely */
} spops_neighbors_keep;

#define SPOPS_MAX_NEIGHBORS 128 /* of max_neighbors */

/**
 * A neighbour's tap follows from its offset d = input - output. Along an axis with t taps of
 * tap_size_m = s, all in f32, q = d / s:
 *
 *     t odd    the number of borders 0.5, 1.5, ... (t / 2 of them) that |q| reaches, away from the
 *              middle tap. So an offset on a border belongs to the outer of its two taps
 *     t even   the number of borders -(t / 2 - 1) .. t / 2 - 1 that q reaches. So an offset on a
 *              border belongs to the upper tap
 *
 * An offset beyond the outermost borders belongs to the outermost tap. Taps are numbered
 * (x * t + y) * t + z, as those of a kernel map. With odd t, tap k of (output, input) is tap
 * t^3 - 1 - k of (input, output).
 */
typedef struct spops_neighbors_options {
    size_t struct_size; /* sizeof(spops_neighbors_options) */
    float radius_m;     /* r: 0 to 1e18 */
    spops_metric metric;
    int32_t taps;              /* t: along an axis, up to SPOPS_MAX_POINT_TAPS; 0: 1 */
    float tap_size_m;          /* s: more than 0 where t > 1; any size, whatever the radius */
    int32_t contents;          /* SPOPS_NEIGHBORS_*; 0: FOR_CONV */
    spops_plan_memory *memory; /* of reserve: where they live; NULL: allocated */
    /* Neighbours of an output, up to SPOPS_MAX_NEIGHBORS; 0: all. Then a pair may be there without
       the one the other way round, also where outputs are the inputs. */
    int32_t max_neighbors;
    spops_neighbors_keep keep;
    uint32_t seed;     /* RANDOM */
    int64_t max_pairs; /* of create: more are refused, before there is memory for them; 0:
                          INT32_MAX - 1 */
} spops_neighbors_options;

SPOPS_DEFINE_DEFAULT(spops_neighbors_options)

/**
 * Find neighbours.
 *
 * outputs   The query points; NULL: those of inputs. A point is its own neighbour.
 * inputs    The data points, as many samples as outputs.
 * options   NULL: radius 0, which finds points at the same place.
 * out       The neighbours; NULL after a failure.
 *
 * Refused, and named: coordinates that are not finite, offsets that do not ascend from 0 to the
 * number of rows, more pairs than options->max_pairs or than INT32_MAX - 1.
 *
 * Memory    The arrays where ctx runs; read during the call.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Numerics  The same neighbours, in the same order, on every backend and run.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (too many pairs), OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the neighbours.
 * Source    PointCNN++, section 4.1 (search by sorting) and section 3.2 (local voxelization); cells
 *           of a radius, runs of three cells and the order of lists are ours.
 */
SPOPS_API spops_status spops_neighbors_create(spops_context *ctx, const spops_point_cloud *outputs,
                                              const spops_point_cloud *inputs,
                                              const spops_neighbors_options *options,
                                              spops_neighbors **out);

/** Capacities; each 0 to INT32_MAX - 1. Final: nothing will be added. */
typedef struct spops_neighbors_capacity {
    int64_t max_outputs; /* rows of outputs; 0 where outputs are the inputs */
    int64_t max_inputs;
    int64_t max_samples; /* at least 1 */
    int64_t max_pairs;
} spops_neighbors_capacity;

/**
 * Neighbours into capacities, filled by spops_neighbors_update as often as wanted. Until then there
 * are none.
 *
 * same      1: outputs are the inputs.
 *
 * Memory    All that a set needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Options, Errors and Threads as spops_neighbors_create.
 */
SPOPS_API spops_status spops_neighbors_reserve(spops_context *ctx,
                                               const spops_neighbors_capacity *capacity,
                                               int32_t same, const spops_neighbors_options *options,
                                               spops_neighbors **out);

/**
 * Find neighbours again, from what the clouds hold when the stream gets there.
 *
 * outputs   [max_outputs, 3]; NULL for neighbours that were reserved with same = 1.
 * inputs    [max_inputs, 3]. With offsets, rows from the last of them on are not in use, so the
 *           number of points need not be known to the host.
 *
 * A point that is not finite has no neighbours, and counts in num_dropped. Offsets that do not
 * ascend from 0 to at most the capacity leave everything empty, and set bad_offsets. Where there are
 * more pairs than max_pairs, everything is empty and overflow is set.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not made by reserve, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per neighbours.
 */
SPOPS_API spops_status spops_neighbors_update(spops_context *ctx, spops_neighbors *neighbors,
                                              const spops_point_cloud *outputs,
                                              const spops_point_cloud *inputs);

/** Lists of one side. Arrays of what was not asked for are NULL. */
typedef struct spops_neighbor_lists {
    size_t struct_size;      /* what the library that made the neighbours has of it */
    int64_t max_rows;        /* for neighbours not made by reserve: the rows */
    const int32_t *num_rows; /* [1] rows in use */
    /*
     * Row r has the pairs offsets[r] .. offsets[r + 1] - 1, by ascending tap and then by ascending
     * rows[p], the other side's row. offsets has max_rows + 1 elements, all of them valid.
     */
    const int32_t *offsets;
    const int32_t *rows;  /* [max_pairs] */
    const uint16_t *taps; /* [max_pairs] */
} spops_neighbor_lists;

/** Arrays of neighbours where their context runs; valid while they live. */
typedef struct spops_neighbors_view {
    size_t struct_size; /* set by the caller: sizeof(spops_neighbors_view) */
    int32_t num_taps;   /* t^3 */
    int32_t
        mirrored; /* 1: outputs are inputs, t is odd and max_neighbors is 0, so that a pair at tap k comes with one
                           the other way round at tap num_taps - 1 - k. A reader of `out` alone can
                           then do without `in`. The arrays of `in`, where they are, hold the pairs'
                           own taps: nothing in them is mirrored */
    int64_t max_pairs;
    const spops_neighbor_lists *out; /* host memory, belongs to the neighbours */
    const spops_neighbor_lists *in;  /* arrays are NULL without SPOPS_NEIGHBORS_REVERSE */
    /* BY_TAP. Tap k has the pairs tap_offsets[k] .. tap_offsets[k + 1] - 1, by ascending output and
       then by ascending input. */
    const int32_t *tap_offsets; /* [num_taps + 1] */
    const int32_t *in_rows;     /* [max_pairs] */
    const int32_t *out_rows;    /* [max_pairs] */
} spops_neighbors_view;

SPOPS_DEFINE_DEFAULT(spops_neighbors_view)

/**
 * Fill view; its arrays are where the neighbours' context runs and valid while they live.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; the neighbours may be shared.
 */
SPOPS_API spops_status spops_neighbors_get_view(spops_context *ctx,
                                                const spops_neighbors *neighbors,
                                                spops_neighbors_view *view);

/** What neighbours hold. */
typedef struct spops_neighbors_info {
    size_t struct_size;              /* set by the caller */
    int64_t num_outputs, num_inputs; /* rows in use */
    int64_t num_pairs;               /* found, also where they exceed the capacity */
    int64_t max_pairs;
    int64_t num_dropped; /* points that are not finite, of both clouds */
    int64_t overflow;    /* 1: more pairs than max_pairs */
    int64_t bad_offsets; /* 1: offsets of a set did not ascend */
} spops_neighbors_info;

SPOPS_DEFINE_DEFAULT(spops_neighbors_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 */
SPOPS_API spops_status spops_neighbors_get_info_sync(spops_context *ctx,
                                                     const spops_neighbors *neighbors,
                                                     spops_neighbors_info *info);

/** Free neighbours; NULL is fine. Waits for their context; nothing else may be using them. */
static inline void spops_neighbors_destroy(spops_neighbors *neighbors)
{
    spops_plan_destroy((spops_plan *)neighbors);
}

/* ---- Nearest neighbours ------------------------------------------------------------------------ */

/** Data points, arranged for finding those nearest to others. */
typedef struct spops_nearest spops_nearest;

#define SPOPS_MAX_NEAREST 128 /* neighbours of a point */

/**
 * Arrange data points.
 *
 * inputs    As spops_neighbors_create.
 * out       NULL after a failure.
 *
 * Memory    The arrays where ctx runs; read during the call, copied.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive it.
 */
SPOPS_API spops_status spops_nearest_create(spops_context *ctx, const spops_point_cloud *inputs,
                                            spops_nearest **out);

/**
 * Room for data points, arranged by spops_nearest_update as often as wanted. Until then there are none.
 *
 * max_points   0 to INT32_MAX - 1.
 * num_samples  Of every cloud, 1 or more; samples may be empty.
 * memory       Where it lives; NULL: allocated.
 *
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors and Threads as spops_nearest_create.
 */
SPOPS_API spops_status spops_nearest_reserve(spops_context *ctx, int64_t max_points,
                                             int64_t num_samples, spops_plan_memory *memory,
                                             spops_nearest **out);

/**
 * Arrange data points again, as they are when the stream gets there.
 *
 * inputs    [max_points, 3] and num_samples samples. Rows from the last of its offsets on are not in
 *           use, so the number of points need not be known to the host. A point that is not finite is
 *           nobody's neighbour. Offsets that do not ascend from 0 to at most max_points leave none.
 *
 * Memory    Where ctx runs; read when the stream gets there, copied.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not made by reserve, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per nearest.
 */
SPOPS_API spops_status spops_nearest_update(spops_context *ctx, spops_nearest *nearest,
                                            const spops_point_cloud *inputs);

/**
 * The count nearest data points of every query point, by ascending d2 and then by ascending row.
 *
 * queries    [n, 3], samples as those of the data points. One that is not finite has no neighbours,
 *            nor has a row after the last offset.
 * count      1 to SPOPS_MAX_NEAREST.
 * rows       [n][count] where ctx runs. Written: the rows of data points; -1 where a sample has
 *            fewer.
 * distances2 [n][count], written: their d2 in m^2, infinity where there is none; or NULL. It and
 *            rows must not overlap each other or the queries.
 *
 * Memory    Where ctx runs. No pointer is kept.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Numerics  Exact: the same rows on every backend and run.
 * Errors    INVALID_ARGUMENT, CUDA.
 * Threads   One thread at a time per ctx; nearest may be shared.
 */
SPOPS_API spops_status spops_nearest_execute(spops_context *ctx, const spops_nearest *nearest,
                                             const spops_point_cloud *queries, int32_t count,
                                             int32_t *rows, float *distances2);

/** Free it; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_nearest_destroy(spops_nearest *nearest)
{
    spops_plan_destroy((spops_plan *)nearest);
}

/* ---- Farthest point sampling ------------------------------------------------------------------- */

/**
 * Scratch of spops_farthest_execute on ctx, for clouds of at most so many rows and samples. 0 where a
 * number is negative.
 */
SPOPS_API size_t spops_farthest_scratch_bytes(spops_context *ctx, int64_t max_points,
                                              int64_t num_samples);

/**
 * Farthest point sampling of each sample on its own:
 *
 *     rows[b][0] = the first row of sample b that is finite
 *     rows[b][k] = the row p, of those not taken yet, for which min over j < k of d2(p, rows[b][j])
 *                  is largest; the lowest of several such rows
 *
 * cloud      [n, 3]. Rows from the last of its offsets on are not in use, so the number of points
 *            need not be known to the host. A point that is not finite is never taken. Offsets that
 *            do not ascend from 0 to at most n leave every sample without points.
 * count      Rows of a sample at most, 1 or more.
 * counts     [num_samples] where ctx runs: rows of each sample, clamped to 0 to count; or NULL: count.
 * rows       [num_samples][count] where ctx runs, num_samples 1 where cloud has no offsets. Written:
 *            rows of the cloud, each at most once; -1 where a sample has fewer, or counts says so.
 * distances2 [num_samples][count], written: the minimum of the formula in m^2, infinity of the
 *            first; 0 where rows has -1; or NULL.
 *
 * Memory    Where ctx runs. No pointer is kept. Outputs overlap nothing.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_farthest_scratch_bytes, reserved in ctx beforehand.
 * Numerics  Exact: the same rows and distances on every backend, run and number of threads.
 * Errors    INVALID_ARGUMENT, SCRATCH_TOO_SMALL, CUDA.
 * Threads   One thread at a time per ctx.
 * Source    Eldar, Lindenbaum, Porat, Zeevi, The Farthest Point Strategy for Progressive Image
 *           Sampling (the rule). Boxes that are left alone: QuickFPS, section III. Taking many
 *           points between two passes over the cloud is ours (docs/farthest.md).
 */
SPOPS_API spops_status spops_farthest_execute(spops_context *ctx, const spops_point_cloud *cloud,
                                              int32_t count, const int32_t *counts, int32_t *rows,
                                              float *distances2);

SPOPS_EXTERN_C_END

#endif
