/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BEV pooling: lift multi-camera features with per-pixel depth distributions and sum them into a
 * bird's-eye-view grid.
 *
 *     out[cell, c] = sum over frustum points p inside cell of  depth[p] * feat[pixel(p), c]
 *
 *     cameras n          depth bins d             grid (x, y, z)
 *     +--------+         p = (b, n, d, h, w)      cell = ((b * Z + z) * Y + y) * X + x
 *     | h x w  |  ---->  one point per pixel ---> many points per cell
 *     +--------+         and bin
 */
#ifndef SPOPS_BEVPOOL_H
#define SPOPS_BEVPOOL_H

#include "spops/segments.h"

SPOPS_EXTERN_C_BEGIN

/** A plan of BEV pooling: a relation of pixels, depth elements and cells, and how it is summed. */
typedef struct spops_bev_plan spops_bev_plan;

/** One camera of one batch element. Matrices are row-major; X_to_Y maps column vectors. */
typedef struct spops_bev_camera {
    double intrinsics[9]; /* 3x3, px of the original image; optical frame: x right, y down, z on */
    double camera_to_ego[16]; /* 4x4 rigid or affine, m; "ego" is the frame the grid is in */
    double image_to_input[6]; /* 2x3 affine: original px to network-input px (resize, crop, flip) */
} spops_bev_camera;

/** image_to_input of a resize by `scale` followed by a crop whose corner is (crop_x, crop_y) px. */
static inline void spops_bev_camera_set_resize_crop(spops_bev_camera *camera, double scale,
                                                    double crop_x, double crop_y)
{
    double *m = camera->image_to_input;
    m[0] = scale, m[1] = 0.0, m[2] = -crop_x;
    m[3] = 0.0, m[4] = scale, m[5] = -crop_y;
}

/** Sizes of the feature maps, the depth bins and the grid. */
typedef struct spops_bev_shape {
    int32_t num_batches;                           /* B */
    int32_t num_cameras;                           /* N, per batch element */
    int32_t num_depths;                            /* D */
    int32_t feature_height;                        /* H */
    int32_t feature_width;                         /* W */
    int32_t num_cells_x, num_cells_y, num_cells_z; /* X, Y, Z */
} spops_bev_shape;

/**
 * How pixels and depth bins become points, and points become cells.
 *
 * Feature pixel (h, w) sits at input px u = w * (input_width - 1) / (W - 1) (0 where W = 1),
 * v likewise. Bin d lies at depth_start_m + d * depth_step_m, or at depths_m[d]. A point is in the
 * grid when floor((p - lower) / size) is inside on each axis; all of it in f64.
 */
typedef struct spops_bev_geometry {
    size_t struct_size; /* sizeof(spops_bev_geometry) */
    spops_bev_shape shape;
    int32_t input_height, input_width; /* px of the network's input image */
    double depth_start_m, depth_step_m;
    const double *depths_m;          /* [num_depths] ascending, host; NULL: start and step */
    double grid_lower_m[3];          /* x, y, z of the grid's lower corner */
    double cell_size_m[3];           /* x, y, z */
    const spops_bev_camera *cameras; /* [num_batches * num_cameras], host */
} spops_bev_geometry;

SPOPS_DEFINE_DEFAULT(spops_bev_geometry)

/** How a plan pools. Every plan has lists; they serve the calls that spans do not. */
typedef enum spops_bev_kernel {
    SPOPS_BEV_KERNEL_AUTO = 0,      /* spans where they are likely to be faster */
    SPOPS_BEV_KERNEL_INTERVALS = 1, /* a list of points per cell: any map, dtype and device */
    SPOPS_BEV_KERNEL_SPANS = 2 /* runs of pixels that share a cell, on tensor cores: f16 depth with
                                   f16 feat, bf16 with bf16, and 8- and 4-bit feat; gradients where
                                   depth has feat's dtype, up to 256 columns; rows of multiples of
                                   16 bytes; other rows of 16 bits are copied to scratch first (not
                                   for gradients with channels first); CUDA, sm_80 and later, not plans made by
                                   reserve */
} spops_bev_kernel;

/** Choices of the calls that make plans of BEV pooling. */
typedef struct spops_bev_options {
    size_t struct_size;      /* sizeof(spops_bev_options) */
    int64_t max_cols;        /* widest feature row (channels) it will meet; 0: 256. Spans serve no
                                wider rows; above 96 columns those of large maps are laid out
                                twice, for wide rows and for others */
    int32_t backward;        /* 1: build what spops_bevpool_execute_backward needs */
    spops_bev_kernel kernel; /* SPANS where there can be none: NOT_SUPPORTED */
    int32_t pool_variant;    /* block that pools over spans, same bits each: 0: by the tuning table;
                                1, 2: 64 columns by 8 or 5 warps; 3, 4: 80 by 8 or 5, for rows that
                                fewer than 64 would waste more of; 5, 6: 128 by 8 or 12. Refused
                                where the plan pools by lists, and by calls that it does not suit */
    spops_plan_memory *memory; /* of reserve: where the plan lives; NULL: allocated */
} spops_bev_options;

SPOPS_DEFINE_DEFAULT(spops_bev_options)

/**
 * Plan from geometry. Frustum, ranks and schedule are computed where ctx runs.
 *
 * geometry  Refused: non-finite or singular calibration, non-positive sizes, depths that do not
 *           ascend, more than INT32_MAX - 1 points or cells.
 * options   NULL: defaults.
 * out       The plan; NULL after a failure.
 *
 * Memory    geometry and what it points to are host memory; read during the call.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Scratch   Reserved in ctx for the plan's own needs.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 * Source    BEVPoolV2 (precomputed ranks), V2 depth-outer, BEVPoolV3 (interval-owned).
 */
SPOPS_API spops_status spops_bev_plan_create(spops_context *ctx, const spops_bev_geometry *geometry,
                                             const spops_bev_options *options,
                                             spops_bev_plan **out);

/**
 * Plan into a capacity from geometry that changes from frame to frame: all B*N*D*H*W points fit.
 * The geometry's cameras may be NULL (then the plan is empty until set). The calibration goes to
 * the device as `transforms`, made on the host by spops_bev_geometry_get_transforms. The rest as
 * spops_bev_plan_create.
 */
SPOPS_API spops_status spops_bev_plan_reserve(spops_context *ctx,
                                              const spops_bev_geometry *geometry,
                                              const spops_bev_options *options,
                                              spops_bev_plan **out);

#define SPOPS_BEV_TRANSFORM_DOUBLES 12 /* of one transform: 3 rows of 4 */

/**
 * Turn calibrations into what the frustum needs: per camera a row-major 3x4 matrix T (f64), with
 * p = T (u d, v d, d, 1) in metres for input px (u, v) and depth d.
 *
 * transforms  host memory, [num_batches * num_cameras][SPOPS_BEV_TRANSFORM_DOUBLES].
 *
 * Errors    INVALID_ARGUMENT as spops_bev_plan_create, reported on ctx (which may be NULL).
 * Threads   One thread at a time per ctx; any without one.
 */
SPOPS_API spops_status spops_bev_geometry_get_transforms(spops_context *ctx,
                                                         const spops_bev_geometry *geometry,
                                                         double *transforms);

/**
 * Rebuild a plan made by spops_bev_plan_reserve for new calibrations.
 *
 * transforms  [num_batches * num_cameras][SPOPS_BEV_TRANSFORM_DOUBLES] where ctx runs; read when
 *             the stream gets there, so a captured graph serves whatever is in them then. Values
 *             that are not finite put no point into the grid.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not such a plan, NULL), CUDA.
 * Threads   One thread at a time per ctx and per plan.
 */
SPOPS_API spops_status spops_bev_plan_update(spops_context *ctx, spops_bev_plan *plan,
                                             const double *transforms);

/** BEVDet's five arrays, where ctx runs. Term t of interval i is interval_starts[i] + t. */
typedef struct spops_bev_ranks {
    size_t struct_size; /* sizeof(spops_bev_ranks) */
    int64_t num_points;
    int64_t num_intervals;
    const int32_t *ranks_depth;      /* [num_points] element of depth, 0 to B*N*D*H*W - 1 */
    const int32_t *ranks_feat;       /* [num_points] row of feat, 0 to B*N*H*W - 1 */
    const int32_t *ranks_bev;        /* [num_points] cell, the same within an interval */
    const int32_t *interval_starts;  /* [num_intervals] ascending */
    const int32_t *interval_lengths; /* [num_intervals] > 0; intervals do not overlap */
} spops_bev_ranks;

SPOPS_DEFINE_DEFAULT(spops_bev_ranks)

/**
 * Plan from the five arrays, checked. Points outside every interval are ignored. No two intervals
 * may have the same cell.
 *
 * Memory    The arrays where ctx runs; read during the call, copied.
 * Errors    As spops_bev_plan_create; the message names array and element.
 *
 * The rest as spops_bev_plan_create.
 */
SPOPS_API spops_status spops_bev_plan_create_from_ranks(spops_context *ctx,
                                                        const spops_bev_shape *shape,
                                                        const spops_bev_ranks *ranks,
                                                        const spops_bev_options *options,
                                                        spops_bev_plan **out);

/** The depth-outer form, as CUDA-BEVFusion keeps it, where ctx runs. */
typedef struct spops_bev_intervals {
    size_t struct_size; /* sizeof(spops_bev_intervals) */
    int64_t num_points;
    int64_t num_intervals;
    const int32_t *indices;   /* [num_points] element of depth; its pixel follows from D, H, W */
    const int32_t *intervals; /* [num_intervals][3]: first point, end (exclusive), cell */
} spops_bev_intervals;

SPOPS_DEFINE_DEFAULT(spops_bev_intervals)

/** Plan from the depth-outer form, checked. The rest as spops_bev_plan_create_from_ranks. */
SPOPS_API spops_status spops_bev_plan_create_from_intervals(spops_context *ctx,
                                                            const spops_bev_shape *shape,
                                                            const spops_bev_intervals *intervals,
                                                            const spops_bev_options *options,
                                                            spops_bev_plan **out);

/** What a plan of BEV pooling holds. */
typedef struct spops_bev_plan_info {
    size_t struct_size; /* set by the caller */
    spops_bev_shape shape;
    int64_t num_points;      /* inside the grid */
    int64_t num_intervals;   /* cells that hold a point */
    int64_t num_cells;       /* B * Z * Y * X */
    int64_t longest;         /* points of the fullest cell */
    int64_t num_features;    /* B * N * H * W */
    int64_t num_depths;      /* B * N * D * H * W */
    spops_bev_kernel kernel; /* INTERVALS or SPANS: what calls that both serve run */
    int32_t pool_variant;    /* with SPANS: of rows of max_cols columns; else 0 */
    int64_t num_spans;       /* with kernel SPANS; else 0 */
    int64_t num_steps; /* multiplications of 16 cells by 32 pixels, for rows of up to 96 columns */
} spops_bev_plan_info;

SPOPS_DEFINE_DEFAULT(spops_bev_plan_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA.
 * Threads   One thread at a time per ctx; plan may be shared.
 */
SPOPS_API spops_status spops_bev_plan_get_info_sync(spops_context *ctx, const spops_bev_plan *plan,
                                                    spops_bev_plan_info *info);

/** Where spops_bev_plan_get_ranks_sync writes to: spops_bev_ranks, writable. */
typedef struct spops_bev_ranks_out {
    size_t struct_size;        /* sizeof(spops_bev_ranks_out) */
    int64_t num_points;        /* of the plan; other counts are refused */
    int64_t num_intervals;     /* likewise */
    int32_t *ranks_depth;      /* [num_points] */
    int32_t *ranks_feat;       /* [num_points] */
    int32_t *ranks_bev;        /* [num_points] */
    int32_t *interval_starts;  /* [num_intervals] */
    int32_t *interval_lengths; /* [num_intervals] */
} spops_bev_ranks_out;

SPOPS_DEFINE_DEFAULT(spops_bev_ranks_out)

/** Arrays that were written, as spops_bev_plan_create_from_ranks takes them. */
static inline spops_bev_ranks spops_bev_ranks_of(const spops_bev_ranks_out *written)
{
    spops_bev_ranks ranks = spops_bev_ranks_default();
    ranks.num_points = written->num_points;
    ranks.num_intervals = written->num_intervals;
    ranks.ranks_depth = written->ranks_depth;
    ranks.ranks_feat = written->ranks_feat;
    ranks.ranks_bev = written->ranks_bev;
    ranks.interval_starts = written->interval_starts;
    ranks.interval_lengths = written->interval_lengths;
    return ranks;
}

/**
 * Write the plan out as BEVDet's five arrays.
 *
 * ranks     Its num_points and num_intervals are those of spops_bev_plan_info.
 *
 * Memory    The arrays where ctx runs.
 * Stream    Waits for ctx's stream. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx; plan may be shared.
 */
SPOPS_API spops_status spops_bev_plan_get_ranks_sync(spops_context *ctx, const spops_bev_plan *plan,
                                                     const spops_bev_ranks_out *ranks);

/** Where spops_bev_plan_get_intervals_sync writes to: spops_bev_intervals, writable. */
typedef struct spops_bev_intervals_out {
    size_t struct_size;    /* sizeof(spops_bev_intervals_out) */
    int64_t num_points;    /* of the plan; other counts are refused */
    int64_t num_intervals; /* likewise */
    int32_t *indices;      /* [num_points] */
    int32_t *intervals;    /* [num_intervals][3] */
} spops_bev_intervals_out;

SPOPS_DEFINE_DEFAULT(spops_bev_intervals_out)

/** Arrays that were written, as spops_bev_plan_create_from_intervals takes them. */
static inline spops_bev_intervals spops_bev_intervals_of(const spops_bev_intervals_out *written)
{
    spops_bev_intervals intervals = spops_bev_intervals_default();
    intervals.num_points = written->num_points;
    intervals.num_intervals = written->num_intervals;
    intervals.indices = written->indices;
    intervals.intervals = written->intervals;
    return intervals;
}

/**
 * Write the plan out in the depth-outer form. Feature rows must follow from the depth elements,
 * else NOT_SUPPORTED. The rest as spops_bev_plan_get_ranks_sync.
 */
SPOPS_API spops_status spops_bev_plan_get_intervals_sync(spops_context *ctx,
                                                         const spops_bev_plan *plan,
                                                         const spops_bev_intervals_out *intervals);

/** Free a plan; NULL is fine. Waits for the creating context; nothing else may be running it. */
static inline void spops_bev_plan_destroy(spops_bev_plan *plan)
{
    spops_plan_destroy((spops_plan *)plan);
}

/**
 * The plan's relation: segments are cells, rows are pixels, weights are depth elements. Owned by
 * `plan`.
 */
SPOPS_API const spops_segments *spops_bev_plan_segments(const spops_bev_plan *plan);

/** Scratch for forward and backward in either layout, up to max_cols channels. */
static inline size_t spops_bev_plan_scratch_bytes(const spops_bev_plan *plan)
{
    return spops_plan_scratch_bytes((const spops_plan *)plan);
}

/** In which order the axes of a pooled grid lie in memory. */
typedef enum spops_bev_layout {
    SPOPS_BEV_CHANNELS_LAST = 0, /* [B, Z, Y, X, C]: matrix [B*Z*Y*X, C], any row_stride */
    SPOPS_BEV_CHANNELS_FIRST = 1 /* [B, C, Z, Y, X]: matrix [B*C, Z*Y*X], any row_stride */
} spops_bev_layout;

/**
 * What to pool, and how. All memory lies where the context runs.
 *
 *     feat      depth          out                An element of feat, depth or out stands for its
 *     f32       f32            f32                value times feat_scale, depth_scale or out_scale,
 *     f16       f16 f32        f16 f32            and an element of an f4e2m1 feat also times the
 *     bf16      bf16 f32       bf16 f32           block scale of its 16 channels: what
 *     8 bits    f16, as feat   f16 f32, as feat   spops/quantize.h makes.
 *     f4e2m1    f16 f8e4m3     f16 f32 f8e4m3
 */
typedef struct spops_bevpool_args {
    size_t struct_size;          /* sizeof(spops_bevpool_args) */
    spops_bev_layout layout;     /* of out */
    spops_accumulate accumulate; /* see spops_accumulate, and Numerics below */
    spops_matrix depth;          /* [B, N, D, H, W] as [B*N*D*H*W, 1], row_stride 1 */
    spops_matrix feat;           /* [B, N, H, W, C] as [B*N*H*W, C]; C even for f4e2m1, and at most
                                    the plan's max_cols for 8 and 4 bits */
    spops_matrix out;            /* see spops_bev_layout */
    const spops_matrix *feat_scales; /* f8e4m3 [B*N*H*W, ceil(C / 16)] for f4e2m1; else NULL */
    const float *feat_scale, *depth_scale, *out_scale; /* one f32 each, or NULL for 1 */
} spops_bevpool_args;

SPOPS_DEFINE_DEFAULT(spops_bevpool_args)

/**
 * Pool:
 *
 *     out[cell, :] = sum over points p of cell of  depth[p] * feat[pixel(p), :]
 *                    * feat_scale * depth_scale / out_scale
 *
 * args      depth, feat and out are needed. Every element of out is written, empty cells with 0.
 *           out overlaps no input.
 *
 * Memory    Where ctx runs. No pointer is kept; scales are read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Scratch   spops_bev_plan_scratch_bytes(plan), reserved in ctx beforehand.
 * Numerics  Accumulates in f32, unless asked for less, in an order the plan fixes; same bits on
 *           every run. SPOPS_ACCUMULATE_F16 is used by CUDA where it is not slower: for f16 and
 *           8-bit feat with f16 depth, C >= 256 and a multiple of 16, rows that start on 16 bytes,
 *           in plans without spans. All else accumulates in f32, within the same bound. The factor
 *           feat_scale * depth_scale / out_scale is made in f32 and applied once, to the sum.
 *           Rounds to nearest even; an 8-bit out saturates (infinities too, NaN stays NaN), an f16
 *           out overflows to infinity.
 *           Error of an f32 sum of n points before that rounding: at most
 *           n * 2^-24 * sum |depth * feat| by lists, n * 2^-22 over spans, where tensor cores cut
 *           terms off below the largest of 16; there a factor below its dtype's smallest normal
 *           number counts as that number, and terms below 2^-126 may be lost.
 * Errors    INVALID_ARGUMENT (shape, dtype, stride), SCRATCH_TOO_SMALL, NOT_SUPPORTED, CUDA.
 *           After any but CUDA, nothing was enqueued and out is untouched.
 * Threads   One thread at a time per ctx; plan may be shared.
 */
SPOPS_API spops_status spops_bevpool_execute(spops_context *ctx, const spops_bev_plan *plan,
                                             const spops_bevpool_args *args);

/**
 * Gradients of spops_bevpool_execute:
 *
 *     grad_depth[p]   = <feat[pixel(p), :], grad_out[cell(p), :]>   (0 for points outside the grid)
 *     grad_feat[j, :] = sum over points p of pixel j of  depth[p] * grad_out[cell(p), :]
 *
 * layout      Of grad_out, whose shape is that of out.
 * feat        f32, f16 or bf16; grad_out has its dtype.
 * grad_depth  Shape and dtype of depth, or NULL. Every element is written.
 * grad_feat   Shape and dtype of feat (own row_stride), or NULL. Every element is written.
 *
 * The plan must have been built with backward = 1.
 *
 * Scratch   spops_bev_plan_scratch_bytes(plan), reserved in ctx beforehand.
 * Numerics  Accumulates in f32 in an order the plan fixes, products of f16 and bf16 on tensor cores
 *           where spans serve; same bits on every run.
 * Errors    As spops_bevpool_execute; INVALID_ARGUMENT also for a plan without gradients.
 *
 * Memory, Stream and Threads as spops_bevpool_execute.
 */
SPOPS_API spops_status spops_bevpool_execute_backward(
    spops_context *ctx, const spops_bev_plan *plan, spops_bev_layout layout, spops_matrix grad_out,
    spops_matrix depth, spops_matrix feat, const spops_matrix *grad_depth,
    const spops_matrix *grad_feat);

SPOPS_EXTERN_C_END

#endif
