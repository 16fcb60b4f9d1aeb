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

typedef struct spops_voxels spops_voxels;

/** Which of a voxel's points its segment holds. */
typedef enum spops_voxel_points {
    SPOPS_VOXEL_POINTS_ALL = 0,
    SPOPS_VOXEL_POINTS_FIRST = 1,  /* the earliest alone */
    SPOPS_VOXEL_POINTS_NEAREST = 2 /* the one nearest to the voxel's centre; the earliest on ties */
} spops_voxel_points;

typedef struct spops_voxels_options {
    size_t struct_size;
    double size_m[SPOPS_MAX_DIMS];   /* of a voxel, more than 0: no default */
    double origin_m[SPOPS_MAX_DIMS]; /* lower corner of the voxel at 0 */
    spops_coords_options coords;     /* order, search, box (reserve needs it) */
    spops_voxel_points points;
    spops_gradients gradients; /* of the segments */
    int64_t max_cols;          /* of the segments; 0: 256 */
} spops_voxels_options;

static inline spops_voxels_options spops_voxels_options_default(void)
{
    spops_voxels_options options = SPOPS_ZERO_INIT;
    options.struct_size = sizeof options;
    options.coords.struct_size = sizeof options.coords;
    return options;
}

/**
 * Voxelize points: voxel = floor((p - origin) / size) per axis, in f64.
 *
 * points    [num_points, dims] f32, m, any row stride; dims = points.cols is 1 to 4.
 * batch     [num_points], 0 or more; NULL: all 0.
 * options   size_m is needed.
 *
 * Refused, and named: points that are not finite, whose voxel is not an int32, or which lie
 * outside options->coords.box.
 *
 * The voxels' features are a reduction over spops_voxels_segments: SUM, MEAN, MAX, with gradients;
 * with POINTS_FIRST and POINTS_NEAREST, the chosen point's own (SUM).
 *
 * Memory, Stream, Errors, Threads as spops_coords_create.
 */
SPOPS_API spops_status spops_voxels_create(spops_context *ctx, spops_matrix points,
                                           const int32_t *batch,
                                           const spops_voxels_options *options, spops_voxels **out);

/** Into a capacity, as spops_coords_reserve. The segments' plan has max_voxels segments. */
SPOPS_API spops_status spops_voxels_reserve(spops_context *ctx, int32_t dims, int64_t max_points,
                                            int64_t max_voxels, const spops_voxels_options *options,
                                            spops_voxels **out);

/**
 * Refill voxels made by spops_voxels_reserve.
 *
 * num_points  One int32 where ctx runs; as num_rows of spops_coords_set.
 * points      [max_points, dims]; points that are not finite, or outside the box, or of a batch
 *             outside it, are left out and counted.
 * batch       [max_points] or NULL.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 */
SPOPS_API spops_status spops_voxels_set(spops_context *ctx, spops_voxels *voxels,
                                        const int32_t *num_points, spops_matrix points,
                                        const int32_t *batch);

/** The voxels; row_item is a voxel's first point, item_row a point's voxel. Owned by `voxels`. */
SPOPS_API const spops_coords *spops_voxels_coords(const spops_voxels *voxels);

/** Segments are voxels, rows are points. Owned by `voxels`. */
SPOPS_API const spops_segments *spops_voxels_segments(const spops_voxels *voxels);

typedef struct spops_voxels_view {
    int64_t max_points, max_voxels;
    const int32_t *point_voxel;  /* [max_points] -1 for a point left out */
    const int32_t *num_points;   /* [max_voxels] points of a voxel */
    const int32_t *chosen_point; /* [max_voxels] with POINTS_FIRST and POINTS_NEAREST, else NULL */
} spops_voxels_view;

SPOPS_API spops_status spops_voxels_get_view(spops_context *ctx, const spops_voxels *voxels,
                                             spops_voxels_view *view);

SPOPS_API void spops_voxels_destroy(spops_voxels *voxels);

/* ---- Voxels to points ------------------------------------------------------------------------ */

typedef struct spops_devoxels spops_devoxels;

typedef enum spops_interpolation {
    SPOPS_INTERPOLATION_NEAREST = 0, /* the voxel a point lies in, if there is one */
    SPOPS_INTERPOLATION_LINEAR = 1   /* the 2^dims voxels whose centres surround it, weighted */
} spops_interpolation;

/** What becomes of the weights of voxels that are not there. */
typedef enum spops_missing {
    SPOPS_MISSING_ZERO = 0,   /* they count as voxels whose features are 0 */
    SPOPS_MISSING_RESCALE = 1 /* the other weights are divided by their sum */
} spops_missing;

typedef struct spops_devoxels_options {
    size_t struct_size;
    double size_m[SPOPS_MAX_DIMS];
    double origin_m[SPOPS_MAX_DIMS];
    spops_interpolation interpolation;
    spops_missing missing;
    spops_gradients gradients;
    int32_t reserved;
    int64_t max_cols;
} spops_devoxels_options;

static inline spops_devoxels_options spops_devoxels_options_default(void)
{
    spops_devoxels_options options = SPOPS_ZERO_INIT;
    options.struct_size = sizeof options;
    return options;
}

/**
 * The relation that brings features of voxels to points: segments are points, rows are voxels,
 * element p * C + c of the weights belongs to corner c of point p (C = 1 or 2^dims; corner bits,
 * the last axis lowest). Features of points are its weighted SUM; gradients are segreduce's.
 *
 * points, batch  As spops_voxels_create. A point that is not finite is refused; one outside the
 *                set's box has no voxels.
 */
SPOPS_API spops_status spops_devoxels_create(spops_context *ctx, const spops_coords *coords,
                                             spops_matrix points, const int32_t *batch,
                                             const spops_devoxels_options *options,
                                             spops_devoxels **out);
SPOPS_API spops_status spops_devoxels_reserve(spops_context *ctx, const spops_coords *coords,
                                              int64_t max_points,
                                              const spops_devoxels_options *options,
                                              spops_devoxels **out);
/** coords: of the capacity that spops_devoxels_reserve was told. Points not finite have none. */
SPOPS_API spops_status spops_devoxels_set(spops_context *ctx, spops_devoxels *devoxels,
                                          const spops_coords *coords, const int32_t *num_points,
                                          spops_matrix points, const int32_t *batch);

SPOPS_API const spops_segments *spops_devoxels_segments(const spops_devoxels *devoxels);

/** [num_points * C, 1] f32, for spops_segreduce_execute's w; all 1 with NEAREST. */
SPOPS_API spops_matrix spops_devoxels_weights(const spops_devoxels *devoxels);

SPOPS_API void spops_devoxels_destroy(spops_devoxels *devoxels);

SPOPS_EXTERN_C_END

#endif
