/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points and voxels: the set of voxels that points lie in, the plan that reduces their points'
 * features to them, and the plan that brings features of voxels back to points.
 */
#ifndef SPOPS_VOXELS_H
#define SPOPS_VOXELS_H

#include "spops/coords.h"
#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/* ---- Voxels of points ------------------------------------------------------------------------ */

/** The voxels that points lie in, and which points lie in which. */
typedef struct spops_voxels spops_voxels;

/** Which of a voxel's points its segment holds; FIRST and RANDOM: one, or as many as most_points. */
typedef enum spops_voxel_points {
    SPOPS_VOXEL_POINTS_ALL = 0,
    SPOPS_VOXEL_POINTS_FIRST = 1,   /* the earliest */
    SPOPS_VOXEL_POINTS_NEAREST = 2, /* the nearest to the voxel's centre; the earliest on ties */
    SPOPS_VOXEL_POINTS_RANDOM = 3   /* at random, by seed */
} spops_voxel_points;

/** Choices of spops_voxels_create and spops_voxels_reserve. */
typedef struct spops_voxels_options {
    size_t struct_size;                 /* sizeof(spops_voxels_options) */
    double size_m[SPOPS_MAX_DIMS];      /* of a voxel, more than 0: no default */
    double origin_m[SPOPS_MAX_DIMS];    /* lower corner of the voxel at 0 */
    const spops_coords_options *coords; /* order, search, box (reserve needs it); NULL: defaults */
    spops_voxel_points points;
    spops_gradients gradients; /* of the segments */
    int64_t max_cols;          /* of the segments; 0: 256 */
    spops_plan_memory *memory; /* of reserve: where the voxels live; NULL: allocated */
    int32_t dims;              /* axes, the first columns of points; 0: every column is one */
    /*
     * 1: keep only voxels that intersect [lower_m, upper_m]. Points outside, or not finite, are left
     * out and counted (num_dropped of spops_coords_info). coords has no box then.
     * 0: points outside the box are refused by create.
     */
    int32_t crop;
    double lower_m[SPOPS_MAX_DIMS], upper_m[SPOPS_MAX_DIMS];
    uint32_t seed; /* of SPOPS_VOXEL_POINTS_RANDOM */
    /* Hard voxels: FIRST and RANDOM keep at most as many points of a voxel, up to 1024; 0: 1. num_points of
       the view still counts all. */
    int32_t most_points;
} spops_voxels_options;

SPOPS_DEFINE_DEFAULT(spops_voxels_options)

/**
 * Voxelize points: voxel = floor((p - origin) / size) per axis, in f64.
 *
 * points    [num_points, at least dims] f32 or f16, m, any row stride; dims is options->dims, or
 *           points.cols where that is 0: 1 to 4.
 * batch     [num_points], 0 or more; NULL: all 0.
 * options   size_m is needed.
 *
 * Refused, and named: points that are not finite, whose voxel is not an int32, or which lie
 * outside the box of options->coords.
 *
 * The voxels' features are a reduction over spops_voxels_segments: SUM, MEAN, MAX, with gradients;
 * with POINTS_FIRST and POINTS_NEAREST, the chosen point's own (SUM).
 *
 * Memory, Stream, Errors and Threads as spops_coords_create.
 * Scratch   Reserved in ctx for the segments' own needs.
 */
SPOPS_API spops_status spops_voxels_create(spops_context *ctx, spops_matrix points,
                                           const int32_t *batch,
                                           const spops_voxels_options *options, spops_voxels **out);

/**
 * Voxels into a capacity, filled by spops_voxels_update as often as wanted. Until then there are none.
 * The segments' plan has max_voxels segments.
 *
 * dims        1 to 4.
 * max_points  Points a fill may bring.
 * max_voxels  Voxels it can hold.
 * options     size_m, and the box of coords or a crop (of batch 0), are needed.
 *
 * Memory, Stream, Errors and Threads as spops_coords_reserve.
 * Scratch   Reserved in ctx for the segments' own needs.
 */
SPOPS_API spops_status spops_voxels_reserve(spops_context *ctx, int32_t dims, int64_t max_points,
                                            int64_t max_voxels, const spops_voxels_options *options,
                                            spops_voxels **out);

/**
 * Refill voxels made by spops_voxels_reserve.
 *
 * num_points  One int32 where ctx runs; as num_rows of spops_coords_update.
 * points      [max_points, at least dims] f32 or f16; points that are not finite, or outside the box, or of a batch
 *             outside it, are left out and counted.
 * batch       [max_points] or NULL.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not made by reserve, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per voxels.
 */
SPOPS_API spops_status spops_voxels_update(spops_context *ctx, spops_voxels *voxels,
                                           const int32_t *num_points, spops_matrix points,
                                           const int32_t *batch);

/**
 * The first half of spops_voxels_update: the coordinates, of which levels and maps are made. Arguments, Memory, Stream, Errors
 * and Threads as there.
 */
SPOPS_API spops_status spops_voxels_update_coords(spops_context *ctx, spops_voxels *voxels,
                                                  const int32_t *num_points, spops_matrix points,
                                                  const int32_t *batch);

/**
 * The second half, of the same num_points, points and batch: the segments, and what spops_voxels_view says of
 * points. It may run beside levels and maps, on another ctx of the same backend and device, whose stream waits for the
 * coordinates.
 *
 * Scratch   On another ctx: spops_segments_scratch_bytes of spops_voxels_segments for what runs on them there,
 *           reserved beforehand.
 * Errors    As spops_voxels_update; INVALID_ARGUMENT where no coordinates came before.
 *
 * Memory, Stream and Threads as spops_voxels_update.
 */
SPOPS_API spops_status spops_voxels_update_segments(spops_context *ctx, spops_voxels *voxels,
                                                    const int32_t *num_points, spops_matrix points,
                                                    const int32_t *batch);

/** The voxels; row_item is a voxel's first point, item_row a point's voxel. Owned by `voxels`. */
SPOPS_API const spops_coords *spops_voxels_coords(const spops_voxels *voxels);

/** Segments are voxels, rows are points. Owned by `voxels`. */
SPOPS_API const spops_segments *spops_voxels_segments(const spops_voxels *voxels);

/** Arrays of voxels where their context runs; valid while they live. */
typedef struct spops_voxels_view {
    size_t struct_size; /* set by the caller: sizeof(spops_voxels_view) */
    int64_t max_points, max_voxels;
    const int32_t *point_voxel;  /* [max_points] -1 for a point left out */
    const int32_t *num_points;   /* [max_voxels] points of a voxel */
    const int32_t *chosen_point; /* [max_voxels] NULL with POINTS_ALL; the first of several */
} spops_voxels_view;

SPOPS_DEFINE_DEFAULT(spops_voxels_view)

/**
 * Fill view.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; voxels may be shared.
 */
SPOPS_API spops_status spops_voxels_get_view(spops_context *ctx, const spops_voxels *voxels,
                                             spops_voxels_view *view);

/**
 * Rows of points as a padded matrix of voxels, [V, P, C] as hard voxels have it:
 *
 *     out[v * P + k, :] = x[point k of voxel v, :]     0 where voxel v has no such point
 *
 * P is most_points of the options, or 1. FIRST: points by ascending number; RANDOM: in the order drawn.
 *
 * voxels      Made with FIRST, NEAREST or RANDOM.
 * x           [max_points, C], f32 f16 bf16 and, on the CPU, f64.
 * out         [max_voxels * P, C], dtype of x. Every element is written.
 * num_points  [max_voxels], i32, or NULL: how many of a voxel's P places have a point.
 *
 * Memory    Where ctx runs. No pointer is kept. out must not overlap x.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   None.
 * Numerics  Elements are copied bit for bit.
 * Errors    INVALID_ARGUMENT (voxels with all their points, shapes, dtype, stride, overlap), NOT_SUPPORTED,
 *           CUDA. After any but CUDA, nothing was enqueued and nothing is written.
 * Threads   One thread at a time per ctx; voxels may be shared.
 * Source    spconv's PointToVoxel, PointPillars' voxels; which points are kept is by number or by seed here.
 */
SPOPS_API spops_status spops_voxels_padded_execute(spops_context *ctx, const spops_voxels *voxels,
                                                   spops_matrix x, spops_matrix out,
                                                   int32_t *num_points);

/** Its gradient: grad_x[i, :] is that of the place of point i, 0 for a point without one. */
SPOPS_API spops_status spops_voxels_padded_execute_backward(spops_context *ctx,
                                                            const spops_voxels *voxels,
                                                            spops_matrix grad_out,
                                                            spops_matrix grad_x);

/** Free voxels; NULL is fine. Waits for their context; nothing else may be using them. */
static inline void spops_voxels_destroy(spops_voxels *voxels)
{
    spops_plan_destroy((spops_plan *)voxels);
}

/**
 * The smallest and the largest element of each column of points; NaN where a column has one,
 * infinity and -infinity where there are no points.
 *
 * points        f32 or f16, any number of columns.
 * lower, upper  [points.cols] host memory.
 *
 * Memory    points where ctx runs.
 * Stream    Waits.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED (the stream is being captured), CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_points_get_bounds_sync(spops_context *ctx, spops_matrix points,
                                                    float *lower, float *upper);

/* ---- Voxels to points ------------------------------------------------------------------------ */

/** Which voxels a point takes its features from, and with which weights. */
typedef struct spops_devoxels spops_devoxels;

/** How features of voxels become features of a point. */
typedef enum spops_devoxels_interpolation {
    SPOPS_DEVOXELS_INTERPOLATION_NEAREST = 0, /* the voxel a point lies in, if there is one */
    SPOPS_DEVOXELS_INTERPOLATION_LINEAR = 1   /* 2^dims voxels around it, weighted */
} spops_devoxels_interpolation;

/** What becomes of the weights of voxels that are not there. */
typedef enum spops_devoxels_missing {
    SPOPS_DEVOXELS_MISSING_ZERO = 0,   /* they count as voxels whose features are 0 */
    SPOPS_DEVOXELS_MISSING_RESCALE = 1 /* the other weights are divided by their sum */
} spops_devoxels_missing;

/** Choices of spops_devoxels_create and spops_devoxels_reserve. */
typedef struct spops_devoxels_options {
    size_t struct_size; /* sizeof(spops_devoxels_options) */
    /* Of a voxel, and the lower corner of the voxel at 0; all 0: those of coords. A set has them that
       voxels were made with, and what is made from it by pruning, by union with a set of the same,
       and by windows as long as their stride; other sets need them here. */
    double size_m[SPOPS_MAX_DIMS];
    double origin_m[SPOPS_MAX_DIMS];
    spops_devoxels_interpolation interpolation;
    spops_devoxels_missing missing;
    spops_gradients gradients; /* of the segments */
    int32_t reserved;          /* 0 */
    int64_t max_cols;          /* of the segments; 0: 256 */
    spops_plan_memory *memory; /* of reserve: where it lives; NULL: allocated */
} spops_devoxels_options;

SPOPS_DEFINE_DEFAULT(spops_devoxels_options)

/**
 * The relation that brings features of voxels to points: segments are points, rows are voxels,
 * element p * C + c of the weights belongs to corner c of point p (C = 1 or 2^dims; corner bits,
 * the last axis lowest). Features of points are its weighted SUM; gradients are segreduce's.
 *
 * points, batch  As spops_voxels_create. A point that is not finite is refused; one outside the
 *                set's box has no voxels.
 * options        NULL: defaults. size_m and origin_m must be those of coords, where coords has any.
 * out            NULL after a failure. coords is not needed once it is made.
 *
 * Memory, Stream, Errors and Threads as spops_voxels_create.
 * Scratch   Reserved in ctx for the segments' own needs.
 */
SPOPS_API spops_status spops_devoxels_create(spops_context *ctx, const spops_coords *coords,
                                             spops_matrix points, const int32_t *batch,
                                             const spops_devoxels_options *options,
                                             spops_devoxels **out);

/**
 * The relation into a capacity of max_points, filled by spops_devoxels_update as often as wanted.
 * Until then no point has a voxel. coords gives dims and the capacity of voxels; what it holds does
 * not count yet. The rest as spops_voxels_reserve.
 */
SPOPS_API spops_status spops_devoxels_reserve(spops_context *ctx, const spops_coords *coords,
                                              int64_t max_points,
                                              const spops_devoxels_options *options,
                                              spops_devoxels **out);

/**
 * Refill a relation made by spops_devoxels_reserve, from what coords holds when the stream gets
 * there.
 *
 * coords      Of the capacity that spops_devoxels_reserve was told.
 * num_points  One int32 where ctx runs; as num_rows of spops_coords_update.
 * points      [max_points, at least dims]. Points that are not finite, or outside the box, have no voxels.
 * batch       [max_points] or NULL.
 *
 * Memory, Stream, Errors and Threads as spops_voxels_update.
 */
SPOPS_API spops_status spops_devoxels_update(spops_context *ctx, spops_devoxels *devoxels,
                                             const spops_coords *coords, const int32_t *num_points,
                                             spops_matrix points, const int32_t *batch);

/** Segments are points, rows are voxels. Owned by `devoxels`. */
SPOPS_API const spops_segments *spops_devoxels_segments(const spops_devoxels *devoxels);

/**
 * [num_points * C, 1] f32, for spops_segreduce_execute's w; all 1 with NEAREST. Owned by
 * `devoxels`, and to be read only.
 */
SPOPS_API spops_matrix spops_devoxels_weights(const spops_devoxels *devoxels);

/** Free a relation; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_devoxels_destroy(spops_devoxels *devoxels)
{
    spops_plan_destroy((spops_plan *)devoxels);
}

SPOPS_EXTERN_C_END

#endif
