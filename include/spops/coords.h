/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coordinates: sets of unique voxel coordinates (batch and 1 to 4 spatial axes), made from arrays
 * and from other sets.
 *
 * A set's rows are what features are rows for: row r of a feature matrix belongs to row r of its
 * spops_coords. Sets made from points are in spops/voxels.h, kernel maps between two sets in
 * spops/kernel_map.h.
 */
#ifndef SPOPS_COORDS_H
#define SPOPS_COORDS_H

#include "spops/context.h"
#include "spops/plan.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_MAX_DIMS        4    /* spatial axes */
#define SPOPS_MAX_KERNEL_SIZE 7    /* taps along an axis */
#define SPOPS_MAX_KERNEL_TAPS 2401 /* of a kernel */

/**
 * A set of coordinates: rows (batch, x_0, ...), none twice, with the index by which they are
 * found.
 */
typedef struct spops_coords spops_coords;

/** In which order a set's rows lie. */
typedef enum spops_coords_order {
    SPOPS_COORDS_ORDER_GIVEN = 0,         /* of first appearance in what the set is made from */
    SPOPS_COORDS_ORDER_LEXICOGRAPHIC = 1, /* by batch, then axis 0, 1, ...; the last runs fastest */
    SPOPS_COORDS_ORDER_MORTON = 2,        /* by batch, then along a Z-order curve */
    SPOPS_COORDS_ORDER_HILBERT = 3        /* by batch, then along a Hilbert curve */
} spops_coords_order;

/** How rows are found by coordinate. Every strategy finds the same. */
typedef enum spops_coords_search {
    SPOPS_COORDS_SEARCH_AUTO = 0,  /* chosen from the box, the capacity and the backend */
    SPOPS_COORDS_SEARCH_HASH = 1,  /* open addressing over packed keys */
    SPOPS_COORDS_SEARCH_GRID = 2,  /* dense over the box; refused where it exceeds max_grid_bytes */
    SPOPS_COORDS_SEARCH_SORTED = 3 /* binary search and merges over sorted keys */
} spops_coords_search;

/** What becomes of rows that are given twice. */
typedef enum spops_coords_duplicates {
    SPOPS_COORDS_DUPLICATES_REFUSE = 0, /* two equal rows are an error, which names both */
    SPOPS_COORDS_DUPLICATES_MERGE = 1   /* they become one row */
} spops_coords_duplicates;

/** A box of coordinates, both ends inclusive. Element 0 is the batch, 1 to 4 are the axes. */
typedef struct spops_coords_box {
    int32_t lower[1 + SPOPS_MAX_DIMS];
    int32_t upper[1 + SPOPS_MAX_DIMS];
} spops_coords_box;

/** Choices of the calls that make sets of coordinates. */
typedef struct spops_coords_options {
    size_t struct_size; /* sizeof(spops_coords_options) */
    spops_coords_order order;
    spops_coords_search search;
    spops_coords_duplicates duplicates; /* of arrays; sets made from points or other sets merge */
    int32_t reserved;                   /* 0 */
    const spops_coords_box *box; /* NULL: from what the set is made from. Needed by reserve */
    size_t max_grid_bytes;       /* of SPOPS_COORDS_SEARCH_GRID; 0: 256 MiB */
    spops_plan_memory *memory;   /* of reserve: where the set lives; NULL: allocated */
} spops_coords_options;

SPOPS_DEFINE_DEFAULT(spops_coords_options)

/**
 * Make a set from an array.
 *
 * dims      Spatial axes, 1 to 4.
 * num_rows  0 to INT32_MAX - 1.
 * rows      [num_rows][1 + dims]: batch (0 or more), then the coordinates, of any sign. Rows
 *           outside options->box are refused, and named, as are duplicates unless they are merged.
 * options   NULL: defaults.
 * out       The set; NULL after a failure.
 *
 * A row is packed into a key of at most 63 bits, with as many for each column as the box needs: a
 * box that needs more is refused.
 *
 * Memory    rows where ctx runs; read during the call, copied.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    INVALID_ARGUMENT (names the first bad element), OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the set.
 * Source    TorchSparse, section 4.4 (grid and hash, chosen per layer); keys of fitted widths and
 *           sorted search are ours: docs/coords.md.
 */
SPOPS_API spops_status spops_coords_create(spops_context *ctx, int32_t dims, int64_t num_rows,
                                           const int32_t *rows, const spops_coords_options *options,
                                           spops_coords **out);

/**
 * A convolution's window. A tap is one of its places, what others call a kernel offset; their
 * number is the kernel volume. Tap k = (t_0, ..., t_{dims-1}), 0 <= t_a < size[a], is numbered with
 * the last axis fastest. It joins an input at p and an output at q with
 *
 *     p = stride * q - padding + dilation * t        per axis (a transposed one: p and q swapped)
 */
typedef struct spops_kernel_shape {
    size_t struct_size; /* sizeof(spops_kernel_shape) */
    int32_t dims;
    int32_t size[SPOPS_MAX_DIMS];     /* 1 to SPOPS_MAX_KERNEL_SIZE */
    int32_t stride[SPOPS_MAX_DIMS];   /* 1 or more */
    int32_t padding[SPOPS_MAX_DIMS];  /* any sign */
    int32_t dilation[SPOPS_MAX_DIMS]; /* 1 or more */
} spops_kernel_shape;

SPOPS_DEFINE_DEFAULT(spops_kernel_shape)

/** size, stride and dilation alike on every axis; padding 0. */
static inline spops_kernel_shape spops_kernel_shape_cube(int32_t dims, int32_t size, int32_t stride,
                                                         int32_t dilation)
{
    spops_kernel_shape shape = spops_kernel_shape_default();
    int32_t a;
    shape.dims = dims;
    for (a = 0; a < SPOPS_MAX_DIMS; ++a) {
        shape.size[a] = size;
        shape.stride[a] = stride;
        shape.dilation[a] = dilation;
    }
    return shape;
}

/** Taps of a kernel (0 if its sizes are wrong). */
SPOPS_API int64_t spops_kernel_shape_num_taps(const spops_kernel_shape *kernel);

/**
 * The outputs of a convolution: every q that some tap joins to a row of `in`, within options->box
 * where there is one. With size = stride and padding 0 this is q = floor(p / stride).
 *
 * ORDER_GIVEN is the order of first appearance by row of `in`, then tap.
 *
 * Memory, Stream, Errors and Threads as spops_coords_create.
 * Source    TorchSparse, Appendix A and section 4.4 (its stages fused).
 */
SPOPS_API spops_status spops_coords_create_downsampled(spops_context *ctx, const spops_coords *in,
                                                       const spops_kernel_shape *kernel,
                                                       const spops_coords_options *options,
                                                       spops_coords **out);

/**
 * The outputs of a generative transposed convolution: every stride * p - padding + dilation * t of
 * a row p of `in`, within options->box where there is one. The rest as
 * spops_coords_create_downsampled.
 */
SPOPS_API spops_status spops_coords_create_upsampled(spops_context *ctx, const spops_coords *in,
                                                     const spops_kernel_shape *kernel,
                                                     const spops_coords_options *options,
                                                     spops_coords **out);

/**
 * The rows of a, then those of b that are not in a. The rest as spops_coords_create; a and b have
 * the same dims.
 */
SPOPS_API spops_status spops_coords_create_union(spops_context *ctx, const spops_coords *a,
                                                 const spops_coords *b,
                                                 const spops_coords_options *options,
                                                 spops_coords **out);

/**
 * The rows of `in` whose keep is not 0.
 *
 * keep      [rows of in], where ctx runs; read during the call.
 *
 * The rest as spops_coords_create.
 */
SPOPS_API spops_status spops_coords_create_pruned(spops_context *ctx, const spops_coords *in,
                                                  const uint8_t *keep,
                                                  const spops_coords_options *options,
                                                  spops_coords **out);

/**
 * Children of rows: row x of `in` has factor^dims of them, at factor x + d with 0 <= d < factor on each
 * axis. The set has the children whose keep is not 0.
 *
 * factor    1 to 7; 2: eight children in 3D.
 * keep      [rows of in][factor^dims], the last axis fastest, where ctx runs; read during the call.
 *           Often `logits > 0` of a network that predicts which children there are.
 * options   Its box, left out: the box of all children. Children outside are left out and counted.
 *
 * row_item of the view says which child a row is: row of in * factor^dims + number of the child. Features
 * follow with spops_channel_to_space_execute (spops/dense.h). In order GIVEN rows are in that order.
 *
 * The rest as spops_coords_create.
 */
SPOPS_API spops_status spops_coords_create_children(spops_context *ctx, const spops_coords *in,
                                                    int32_t factor, const uint8_t *keep,
                                                    const spops_coords_options *options,
                                                    spops_coords **out);

/**
 * Growth around marked rows: the rows of `in`, then the cells of windows around rows whose mark is not 0
 * that are not in `in`. In order GIVEN the rows of `in` keep their numbers, so that features are padded
 * by rows of zeros.
 *
 * kernel    The window: odd sizes and dilations; stride 1, padding 0 or such that the row is in the middle.
 * marks     [rows of in], where ctx runs; read during the call.
 * options   Its box, left out: the box of `in` and its windows. Rows and cells outside are left out and
 *           counted.
 *
 * The rest as spops_coords_create.
 * Source    What networks call feature diffusion (SAFDNet) or focal convolution.
 */
SPOPS_API spops_status spops_coords_create_grown(spops_context *ctx, const spops_coords *in,
                                                 const spops_kernel_shape *kernel,
                                                 const uint8_t *marks,
                                                 const spops_coords_options *options,
                                                 spops_coords **out);

/**
 * A set into a capacity, filled by spops_coords_update and its sisters, as often as wanted, on the
 * stream, also inside a captured graph. Until then it is empty.
 *
 * max_rows   Rows it can hold.
 * max_items  Candidates a fill may bring, duplicates included: the rows of the array; those of both
 *            sets of a union; for down- and upsampling, the capacity of `in` times
 *            spops_kernel_shape_num_candidates; for children, times factor^dims; for growth, times
 *            the window's cells and one.
 * options    Its box is needed: what lies outside is left out and counted. Duplicates are merged
 *            and counted.
 *
 * Memory    All that a fill needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the set.
 */
SPOPS_API spops_status spops_coords_reserve(spops_context *ctx, int32_t dims, int64_t max_rows,
                                            int64_t max_items, const spops_coords_options *options,
                                            spops_coords **out);

/** Most outputs that one row can have; upsampled: of spops_coords_create_upsampled. */
SPOPS_API int64_t spops_kernel_shape_num_candidates(const spops_kernel_shape *kernel,
                                                    int upsampled);

/**
 * Refill a set made by spops_coords_reserve.
 *
 * num_rows  One int32 where ctx runs: how many rows count. More than max_items sets the overflow
 *           flag, and only max_items are taken.
 * rows      [max_items][1 + dims].
 *
 * Where more unique rows come than fit, the first max_rows in the set's order are kept and the
 * overflow flag is set. Nothing is written past a capacity.
 *
 * Memory    Arrays and sets where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not such a set, NULL, capacities), CUDA.
 * Threads   One thread at a time per ctx and per set.
 */
SPOPS_API spops_status spops_coords_update(spops_context *ctx, spops_coords *coords,
                                           const int32_t *num_rows, const int32_t *rows);

/** Refill with the outputs of a convolution over `in`. The rest as spops_coords_update. */
SPOPS_API spops_status spops_coords_update_downsampled(spops_context *ctx, spops_coords *coords,
                                                       const spops_coords *in,
                                                       const spops_kernel_shape *kernel);

/** Refill with the outputs of a generative transposed convolution. The rest as spops_coords_update. */
SPOPS_API spops_status spops_coords_update_upsampled(spops_context *ctx, spops_coords *coords,
                                                     const spops_coords *in,
                                                     const spops_kernel_shape *kernel);

/** Refill with the rows of a, then those of b that are not in a. The rest as spops_coords_update. */
SPOPS_API spops_status spops_coords_update_union(spops_context *ctx, spops_coords *coords,
                                                 const spops_coords *a, const spops_coords *b);

/**
 * Refill with the rows of `in` whose keep is not 0; keep is [max_rows of in]. The rest as
 * spops_coords_update.
 */
SPOPS_API spops_status spops_coords_update_pruned(spops_context *ctx, spops_coords *coords,
                                                  const spops_coords *in, const uint8_t *keep);

/** Refill with children of `in`; keep is [max_rows of in][factor^dims]. The rest as spops_coords_update. */
SPOPS_API spops_status spops_coords_update_children(spops_context *ctx, spops_coords *coords,
                                                    const spops_coords *in, int32_t factor,
                                                    const uint8_t *keep);

/** Refill with `in` and what grows around it; marks is [max_rows of in]. The rest as spops_coords_update. */
SPOPS_API spops_status spops_coords_update_grown(spops_context *ctx, spops_coords *coords,
                                                 const spops_coords *in,
                                                 const spops_kernel_shape *kernel,
                                                 const uint8_t *marks);

/** What a set of coordinates holds, and what was left out of it. */
typedef struct spops_coords_info {
    size_t struct_size; /* set by the caller */
    int32_t dims;
    int32_t key_bits; /* of a packed row */
    spops_coords_order order;
    spops_coords_search search; /* as chosen */
    spops_coords_box box;
    int64_t num_rows;
    int64_t max_rows;    /* the capacity */
    int64_t num_dropped; /* items left out: outside the box, or not finite */
    int64_t num_merged;  /* items that are further appearances of a row */
    int64_t overflow;    /* 1: more rows or items came than the capacity */
} spops_coords_info;

SPOPS_DEFINE_DEFAULT(spops_coords_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 * Threads   One thread at a time per ctx; coords may be shared.
 */
SPOPS_API spops_status spops_coords_get_info_sync(spops_context *ctx, const spops_coords *coords,
                                                  spops_coords_info *info);

/**
 * num_rows of the info alone: rows in use, or the capacity where more came; waits for ctx's stream.
 * The rest as spops_coords_get_info_sync.
 */
SPOPS_API spops_status spops_coords_get_num_rows_sync(spops_context *ctx,
                                                      const spops_coords *coords,
                                                      int64_t *num_rows);

/** A set's arrays where its context runs; valid while it lives. */
typedef struct spops_coords_view {
    size_t struct_size; /* set by the caller: sizeof(spops_coords_view) */
    int32_t dims;
    int32_t reserved;
    int64_t max_rows;        /* for a set not made by reserve: its rows */
    const int32_t *num_rows; /* [1] rows in use */
    const int32_t *rows;     /* [max_rows][1 + dims] */
    const int32_t *row_item; /* [max_rows] the first item that a row was made from: row of the
                                array, of `in` or of a and then b (counted from the capacity of a),
                                point */
    /* [max_items] the row an item became, -1 for one left out. NULL after down- and upsampling,
       where an item can become several rows. */
    const int32_t *item_row;
    int64_t max_items;
} spops_coords_view;

SPOPS_DEFINE_DEFAULT(spops_coords_view)

/**
 * Fill view. For a set made by reserve its item_row and max_items are those of the last fill.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; coords may be shared.
 */
SPOPS_API spops_status spops_coords_get_view(spops_context *ctx, const spops_coords *coords,
                                             spops_coords_view *view);

/** Free a set; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_coords_destroy(spops_coords *coords)
{
    spops_plan_destroy((spops_plan *)coords);
}

SPOPS_EXTERN_C_END

#endif
