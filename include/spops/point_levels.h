/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coarser clouds and the way back: downsampling that keeps true points or averages them, its exact
 * inverse, interpolation between clouds, and all levels of a network in one call.
 */
#ifndef SPOPS_POINT_LEVELS_H
#define SPOPS_POINT_LEVELS_H

#include "spops/gather.h"
#include "spops/points.h"
#include "spops/segreduce.h"

SPOPS_EXTERN_C_BEGIN

/* ---- One level --------------------------------------------------------------------------------- */

/** A coarser cloud: a point for each occupied voxel of a grid. */
typedef struct spops_point_level spops_point_level;

/** Which of a voxel's points a coarser cloud has. */
typedef enum spops_point_keep {
    SPOPS_POINT_KEEP_NEAREST = 0, /* of a voxel's points the one nearest to its centre; of several
                                     the one with the lowest row */
    SPOPS_POINT_KEEP_FIRST = 1,   /* the one with the lowest row */
    SPOPS_POINT_KEEP_RANDOM = 2,  /* one at random, by seed: the same on every backend and run */
    SPOPS_POINT_KEEP_MEAN = 3     /* none: the point is their mean */
} spops_point_keep;

/** How a cloud is downsampled. */
typedef struct spops_point_level_options {
    size_t struct_size; /* sizeof(spops_point_level_options) */
    double size_m;      /* of a voxel, more than 0: no default */
    double origin_m[3]; /* lower corner of the voxel at 0 */
    spops_point_keep keep;
    uint32_t seed;             /* of SPOPS_POINT_KEEP_RANDOM */
    spops_gradients gradients; /* of the plans */
    int32_t reserved;          /* 0 */
    int64_t max_cols;          /* of the plans; 0: 256 */
    spops_plan_memory *memory; /* of reserve: where the level lives; NULL: allocated */
} spops_point_level_options;

SPOPS_DEFINE_DEFAULT(spops_point_level_options)

/**
 * Downsample a cloud. Coarse points lie by sample and then by voxel, lexicographically.
 *
 * fine      Read during the call.
 * options   size_m is needed.
 * level     NULL after a failure.
 *
 * Memory    Where ctx runs.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plans' own needs.
 * Errors    INVALID_ARGUMENT (names the first bad element), OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the level.
 * Source    PointCNN++, section 4.1: voxels choose points and do not move them.
 */
SPOPS_API spops_status spops_point_level_create(spops_context *ctx, const spops_point_cloud *fine,
                                                const spops_point_level_options *options,
                                                spops_point_level **level);

/** Capacities, and where points may be. Final: nothing will be added. */
typedef struct spops_point_level_capacity {
    int64_t max_fine, max_coarse;  /* 0 to INT32_MAX - 1 */
    int64_t num_samples;           /* of every cloud, 1 or more; samples may be empty */
    double lower_m[3], upper_m[3]; /* points in voxels that do not meet this range are left out */
} spops_point_level_capacity;

/**
 * A level into capacities, filled by spops_point_level_update as often as wanted. Until then it is
 * empty. Its cloud has max_coarse rows, and offsets that tell how many are in use.
 *
 * options   size_m is needed.
 *
 * Memory    All that a set needs is allocated here.
 * The rest as spops_point_level_create.
 */
SPOPS_API spops_status spops_point_level_reserve(spops_context *ctx,
                                                 const spops_point_level_capacity *capacity,
                                                 const spops_point_level_options *options,
                                                 spops_point_level **level);

/**
 * Downsample again, from what the cloud holds when the stream gets there.
 *
 * fine      [max_fine, 3] and num_samples samples. Rows from the last of its offsets on are not in
 *           use, so the number of points need not be known to the host. Points that are not finite,
 *           or outside the range, have no coarse point (-1). Offsets that do not ascend from 0 to
 *           at most max_fine leave the level empty.
 *
 * Where there are more coarse points than max_coarse, the first are kept, and overflow is set.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not made by reserve, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per level.
 */
SPOPS_API spops_status spops_point_level_update(spops_context *ctx, spops_point_level *level,
                                                const spops_point_cloud *fine);

/** The coarser cloud, owned by the level, where its context runs. NULL for NULL. */
SPOPS_API const spops_point_cloud *spops_point_level_cloud(const spops_point_level *level);

/**
 * Segments are coarse points, rows the fine points that they come from: the one kept, whose features
 * are SUM, or with KEEP_MEAN all. Owned by the level.
 */
SPOPS_API const spops_segments *spops_point_level_kept(const spops_point_level *level);

/**
 * Segments are coarse points, rows all fine points of their voxels: features of a voxel are MEAN or
 * MAX of it. The way back is spops_gather_execute on it, which gives each fine point the features of
 * its voxel: the exact inverse of the downsampling. Owned by the level.
 */
SPOPS_API const spops_segments *spops_point_level_voxels(const spops_point_level *level);

/** Arrays of a level. */
typedef struct spops_point_level_view {
    size_t struct_size;           /* set by the caller */
    int64_t num_fine, num_coarse; /* for a level made by reserve: the capacities */
    const int32_t *coarse_of;     /* [num_fine] the coarse point whose voxel a fine point is in */
    const int32_t *fine_of;  /* [num_coarse] the fine point that was kept; NULL with KEEP_MEAN */
    const int32_t *num_rows; /* [1] coarse points in use */
} spops_point_level_view;

SPOPS_DEFINE_DEFAULT(spops_point_level_view)

/** Fill view; its arrays are where the level's context runs and valid while it lives. */
SPOPS_API spops_status spops_point_level_get_view(spops_context *ctx,
                                                  const spops_point_level *level,
                                                  spops_point_level_view *view);

/** What a level holds. */
typedef struct spops_point_level_info {
    size_t struct_size; /* set by the caller */
    int64_t num_coarse; /* in use */
    int64_t max_coarse;
    int64_t num_dropped; /* fine points that are not finite, or outside the range */
    int64_t overflow;    /* 1: more coarse points than max_coarse */
} spops_point_level_info;

SPOPS_DEFINE_DEFAULT(spops_point_level_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 */
SPOPS_API spops_status spops_point_level_get_info_sync(spops_context *ctx,
                                                       const spops_point_level *level,
                                                       spops_point_level_info *info);

/** Free a level; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_point_level_destroy(spops_point_level *level)
{
    spops_plan_destroy((spops_plan *)level);
}

/* ---- Between clouds ---------------------------------------------------------------------------- */

/** Which points of one cloud a point of another takes its features from, with which weights. */
typedef struct spops_interpolation spops_interpolation;

/** How points take features from others. */
typedef struct spops_interpolation_options {
    size_t struct_size;
    int32_t count; /* nearest points, up to SPOPS_MAX_NEAREST; 0: 3 */
    spops_gradients gradients;
    int64_t max_cols;          /* of the plan; 0: 256 */
    spops_plan_memory *memory; /* of reserve: where it lives; NULL: allocated */
} spops_interpolation_options;

SPOPS_DEFINE_DEFAULT(spops_interpolation_options)

/**
 * Interpolate by inverse distances: a point of `to` takes the points of `from` nearest to it, each
 * with a weight of 1 / max(distance, 1e-10 m), over their sum. A point that coincides
 * with a source point takes almost all from it. A point that is not finite, or whose sample has no
 * points in `from`, takes nothing: its features are 0. Features are
 * spops_segreduce_execute's SUM over the segments with the weights; gradients are its backward.
 *
 * to        As many samples as from.
 *
 * Memory, Stream, Scratch, Errors and Threads as spops_point_level_create.
 */
SPOPS_API spops_status spops_interpolation_create(spops_context *ctx, const spops_point_cloud *from,
                                                  const spops_point_cloud *to,
                                                  const spops_interpolation_options *options,
                                                  spops_interpolation **interpolation);

/**
 * Room for an interpolation, filled by spops_interpolation_update as often as wanted. Until then all
 * features are 0.
 *
 * max_from     Points of `from`, 0 to INT32_MAX - 1.
 * max_to       Points of `to`, likewise; options->count times as many as well.
 * num_samples  Of every cloud, 1 or more; samples may be empty.
 *
 * Memory    All that filling needs is allocated here.
 * The rest as spops_interpolation_create.
 */
SPOPS_API spops_status spops_interpolation_reserve(spops_context *ctx, int64_t max_from,
                                                   int64_t max_to, int64_t num_samples,
                                                   const spops_interpolation_options *options,
                                                   spops_interpolation **interpolation);

/**
 * Interpolate again, between what the clouds hold when the stream gets there.
 *
 * from, to  [max_from, 3] and [max_to, 3], with num_samples samples each. Rows from the last of their
 *           offsets on are not in use: nothing is taken from them, and they take nothing.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not made by reserve, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per interpolation.
 */
SPOPS_API spops_status spops_interpolation_update(spops_context *ctx,
                                                  spops_interpolation *interpolation,
                                                  const spops_point_cloud *from,
                                                  const spops_point_cloud *to);

/** Segments are points of `to`, rows those of `from`. Owned by the interpolation. */
SPOPS_API const spops_segments *
spops_interpolation_segments(const spops_interpolation *interpolation);

/** [points of `to` * count, 1] f32, for spops_segreduce_execute's w. Owned, to be read only. */
SPOPS_API spops_matrix spops_interpolation_weights(const spops_interpolation *interpolation);

/** Free it; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_interpolation_destroy(spops_interpolation *interpolation)
{
    spops_plan_destroy((spops_plan *)interpolation);
}

/* ---- All levels of a network ------------------------------------------------------------------- */

#define SPOPS_POINT_PYRAMID_MAX_LEVELS 8 /**< levels of a pyramid */

/** Clouds of all levels, and the neighbours within and between them. Level 0 is the finest. */
typedef struct spops_point_pyramid spops_point_pyramid;

/** What the levels of a pyramid are like. */
typedef struct spops_point_pyramid_options {
    size_t struct_size;
    int32_t num_levels; /* 1 to SPOPS_POINT_PYRAMID_MAX_LEVELS; 0: 4 */
    float tap_size_m;   /* of level 0; doubles from level to level: no default */
    float radius_taps;  /* radius over tap size; 0: 1.861, the ball with the volume of 3^3 taps */
    spops_metric metric;
    int32_t taps;          /* along an axis, within a level and between levels; 0: 3 */
    int32_t contents;      /* SPOPS_NEIGHBORS_*, of all; 0: FOR_CONV */
    spops_point_keep keep; /* level n + 1 has a point a voxel of that level's tap size */
    uint32_t seed;
    int32_t cover; /* 1: neighbours from a level to the next reach far enough for every
                                point to be a neighbour of the point of its voxel */
    spops_gradients gradients;
    int32_t reserved;
    int64_t max_cols;
    spops_plan_memory *memory; /* of reserve: where the pyramid lives; NULL: allocated */
} spops_point_pyramid_options;

SPOPS_DEFINE_DEFAULT(spops_point_pyramid_options)

/**
 * All levels, made as by spops_point_level_create and spops_neighbors_create.
 *
 * finest    Read during the call, and kept as level 0: its arrays must outlive the pyramid.
 *
 * Memory, Stream, Scratch, Errors and Threads as spops_point_level_create.
 */
SPOPS_API spops_status spops_point_pyramid_create(spops_context *ctx,
                                                  const spops_point_cloud *finest,
                                                  const spops_point_pyramid_options *options,
                                                  spops_point_pyramid **pyramid);

/** Capacities of levels, and where points may be. Final: nothing will be added. */
typedef struct spops_point_pyramid_capacity {
    int64_t max_rows[SPOPS_POINT_PYRAMID_MAX_LEVELS];  /* of a level's cloud; 0 (not of level 0): as
                                                         many as the level before */
    int64_t max_pairs[SPOPS_POINT_PYRAMID_MAX_LEVELS]; /* within a level; 0: 32 a row */
    int64_t max_down_pairs[SPOPS_POINT_PYRAMID_MAX_LEVELS]; /* from a level to the next; 0: 32 a row
                                                               of the level */
    int64_t num_samples;           /* of every cloud, 1 or more; samples may be empty */
    double lower_m[3], upper_m[3]; /* as of spops_point_level_capacity, for all levels */
} spops_point_pyramid_capacity;

/**
 * A pyramid into capacities, filled by spops_point_pyramid_update as often as wanted. Until then its
 * coarser clouds and its neighbours are empty, and level 0 has no points.
 *
 * Memory    All that a set needs is allocated here.
 * The rest as spops_point_pyramid_create.
 */
SPOPS_API spops_status spops_point_pyramid_reserve(spops_context *ctx,
                                                   const spops_point_pyramid_capacity *capacity,
                                                   const spops_point_pyramid_options *options,
                                                   spops_point_pyramid **pyramid);

/**
 * All levels again, from what the cloud holds when the stream gets there: as by
 * spops_point_level_update and spops_neighbors_update, level by level.
 *
 * finest    [max_rows[0], 3] and num_samples samples. Kept as level 0: its arrays must live as long
 *           as the pyramid, or until the next set.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not made by reserve, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per pyramid.
 */
SPOPS_API spops_status spops_point_pyramid_update(spops_context *ctx, spops_point_pyramid *pyramid,
                                                  const spops_point_cloud *finest);

/** What the levels of a pyramid hold. */
typedef struct spops_point_pyramid_info {
    size_t struct_size; /* set by the caller */
    int32_t num_levels;
    int32_t overflow;                                  /* 1: more rows or pairs than a capacity */
    int64_t num_rows[SPOPS_POINT_PYRAMID_MAX_LEVELS];  /* in use */
    int64_t num_pairs[SPOPS_POINT_PYRAMID_MAX_LEVELS]; /* within, also past the capacity */
    int64_t num_down_pairs[SPOPS_POINT_PYRAMID_MAX_LEVELS]; /* to the next level, likewise */
    int64_t num_dropped; /* points of level 0 that are not finite, or outside the range */
    int64_t bad_offsets; /* 1: offsets of the set did not ascend; everything is empty */
} spops_point_pyramid_info;

SPOPS_DEFINE_DEFAULT(spops_point_pyramid_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1: the message names the level.
 * Threads   One thread at a time per ctx; the pyramid may be shared.
 */
SPOPS_API spops_status spops_point_pyramid_get_info_sync(spops_context *ctx,
                                                         const spops_point_pyramid *pyramid,
                                                         spops_point_pyramid_info *info);

/** A level's cloud; NULL for one that is not there. */
SPOPS_API const spops_point_cloud *spops_point_pyramid_cloud(const spops_point_pyramid *pyramid,
                                                             int32_t level);

/** How level + 1 came from a level; NULL for the last. */
SPOPS_API const spops_point_level *spops_point_pyramid_level(const spops_point_pyramid *pyramid,
                                                             int32_t level);

/** Neighbours within a level. */
SPOPS_API const spops_neighbors *spops_point_pyramid_within(const spops_point_pyramid *pyramid,
                                                            int32_t level);

/** Neighbours for a strided convolution: outputs are points of level + 1, inputs of the level. */
SPOPS_API const spops_neighbors *spops_point_pyramid_down(const spops_point_pyramid *pyramid,
                                                          int32_t level);

/** Free a pyramid; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_point_pyramid_destroy(spops_point_pyramid *pyramid)
{
    spops_plan_destroy((spops_plan *)pyramid);
}

SPOPS_EXTERN_C_END

#endif
