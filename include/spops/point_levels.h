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
    size_t struct_size; /* set by the caller */
    int64_t num_fine, num_coarse;
    const int32_t *coarse_of; /* [num_fine] the coarse point whose voxel a fine point is in */
    const int32_t *fine_of;   /* [num_coarse] the fine point that was kept; NULL with KEEP_MEAN */
} spops_point_level_view;

SPOPS_DEFINE_DEFAULT(spops_point_level_view)

/** Fill view; its arrays are where the level's context runs and valid while it lives. */
SPOPS_API spops_status spops_point_level_get_view(spops_context *ctx,
                                                  const spops_point_level *level,
                                                  spops_point_level_view *view);

/** Free a level; NULL is fine. Waits for its context; nothing else may be using it. */
SPOPS_API void spops_point_level_destroy(spops_point_level *level);

/* ---- Between clouds ---------------------------------------------------------------------------- */

/** Which points of one cloud a point of another takes its features from, with which weights. */
typedef struct spops_interpolation spops_interpolation;

/** How points take features from others. */
typedef struct spops_interpolation_options {
    size_t struct_size;
    int32_t count; /* nearest points, up to SPOPS_MAX_NEAREST; 0: 3 */
    spops_gradients gradients;
    int64_t max_cols; /* of the plan; 0: 256 */
} spops_interpolation_options;

SPOPS_DEFINE_DEFAULT(spops_interpolation_options)

/**
 * Interpolate by inverse distances: a point of `to` takes the points of `from` nearest to it, each
 * with a weight of 1 / max(distance, 1e-10 m), over their sum. A point at the place of one takes
 * that one but for 1e-10 m over the distances of the others. Features are
 * spops_segreduce_execute's SUM over the segments with the weights; gradients are its backward.
 *
 * Memory, Stream, Scratch, Errors and Threads as spops_point_level_create.
 */
SPOPS_API spops_status spops_interpolation_create(spops_context *ctx, const spops_point_cloud *from,
                                                  const spops_point_cloud *to,
                                                  const spops_interpolation_options *options,
                                                  spops_interpolation **interpolation);

/** Segments are points of `to`, rows those of `from`. Owned by the interpolation. */
SPOPS_API const spops_segments *
spops_interpolation_segments(const spops_interpolation *interpolation);

/** [points of `to` * count, 1] f32, for spops_segreduce_execute's w. Owned, to be read only. */
SPOPS_API spops_matrix spops_interpolation_weights(const spops_interpolation *interpolation);

/** Free it; NULL is fine. Waits for its context; nothing else may be using it. */
SPOPS_API void spops_interpolation_destroy(spops_interpolation *interpolation);

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
    int32_t contents;      /* SPOPS_NEIGHBORS_*, of all; 0: BY_TAP */
    spops_point_keep keep; /* level n + 1 has a point a voxel of that level's tap size */
    uint32_t seed;
    int32_t cover; /* 1: neighbours from a level to the next reach far enough for every
                                point to be a neighbour of the point of its voxel */
    spops_gradients gradients;
    int32_t reserved;
    int64_t max_cols;
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
SPOPS_API void spops_point_pyramid_destroy(spops_point_pyramid *pyramid);

SPOPS_EXTERN_C_END

#endif
