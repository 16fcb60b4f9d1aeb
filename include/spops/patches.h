/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patches: plans of which rows attend to each other (spops/attention.h). A patch has a list of rows
 * whose queries it answers and a list of rows whose keys and values they meet; in self-attention
 * the two are the same list. Rows stay where they are: attention reads and writes them by these
 * lists, so that another grouping of the same rows costs a plan, and no copy of features.
 */
#ifndef SPOPS_PATCHES_H
#define SPOPS_PATCHES_H

#include "spops/buckets.h"
#include "spops/context.h"
#include "spops/plan.h"

SPOPS_EXTERN_C_BEGIN

/** A plan: the rows of every patch, checked, and divided into tiles of like size. */
typedef struct spops_patches spops_patches;

/**
 * Lists of rows; arrays where ctx runs. Entries of a list may be in any order. A row is a query of at
 * most one patch; it may be a key of several, and several times. Patches without queries, or without
 * keys, are valid. Final: nothing will be added.
 */
typedef struct spops_patch_lists {
    int64_t num_patches;
    const int32_t *query_offsets; /* [num_patches + 1] ascending from 0: patch p has entries
                                     query_offsets[p] .. query_offsets[p + 1] - 1 */
    const int32_t *query_rows;    /* [query_offsets[num_patches]]; NULL: entry e is row e */
    const int32_t *key_offsets;   /* NULL: the keys of every patch are its queries */
    const int32_t *key_rows;      /* [key_offsets[num_patches]]; NULL: entry e is row e */
    int64_t num_key_rows; /* rows of K and V, which key_rows name; 0: those of Q and O. Another
                             number needs key_offsets */
} spops_patch_lists;

/**
 * Plan patches from the caller's lists.
 *
 * num_rows  Rows that Q and O will have, and K and V where lists->num_key_rows is 0; 0 to
 *           INT32_MAX - 1.
 * lists     At most INT32_MAX - 1 patches, queries and keys each.
 * out       The plan; NULL after a failure.
 *
 * Refused, and named: offsets that do not ascend from 0, rows that are not there, a row that is a
 * query twice.
 *
 * Memory    The arrays where ctx runs; read during the call, copied.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 */
SPOPS_API spops_status spops_patches_create(spops_context *ctx, int64_t num_rows,
                                            const spops_patch_lists *lists, spops_patches **out);

/** Capacities of a plan of patches; each 0 to INT32_MAX - 1. */
typedef struct spops_patches_capacity {
    size_t struct_size; /* sizeof(spops_patches_capacity) */
    int64_t num_rows;   /* of Q and O */
    int64_t max_patches;
    int64_t max_queries; /* entries of all patches */
    int64_t max_keys;    /* 0 where `same` is 1 */
    int32_t same;        /* 1: the keys of every patch are its queries */
    int32_t reserved;    /* 0 */
    int64_t max_samples; /* of clouds and buckets that set it; 0: lists alone set it */
    int64_t
        num_key_rows; /* of K and V; 0: num_rows, which it is where `same` is 1 or a cloud sets it */
    spops_plan_memory *memory; /* where the plan lives; NULL: the library's own */
} spops_patches_capacity;

SPOPS_DEFINE_DEFAULT(spops_patches_capacity)

/**
 * Patches into capacities, filled by spops_patches_update and its sisters as often as wanted, on the
 * stream, also inside a captured graph. Until then there are none.
 *
 * Memory    All that a set needs is allocated here.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA.
 * Threads   One thread at a time per ctx. ctx must outlive the plan.
 */
SPOPS_API spops_status spops_patches_reserve(spops_context *ctx,
                                             const spops_patches_capacity *capacity,
                                             spops_patches **out);

/**
 * Refill patches made by spops_patches_reserve from lists.
 *
 * num_patches  One int32 where ctx runs: how many patches count, none where it is less than 0;
 *              NULL: lists->num_patches.
 * lists        lists->num_patches is at most max_patches; its offsets are that long and one more,
 *              and its rows as long as the offsets say, which is at most the capacity.
 *              key_offsets is NULL where `same` is 1, and only there; num_key_rows is 0 or that
 *              of the plan.
 *
 * What spops_patches_create would refuse leaves the plan without patches and sets `refused` of the
 * info; more patches or entries than fit do so too, and set `overflow`.
 *
 * Memory    Where ctx runs; read when the stream gets there.
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not such a plan, NULL, shapes), CUDA.
 * Threads   One thread at a time per ctx and per plan.
 */
SPOPS_API spops_status spops_patches_update(spops_context *ctx, spops_patches *patches,
                                            const int32_t *num_patches,
                                            const spops_patch_lists *lists);

/* ---- From an order of rows ------------------------------------------------------------------- */

/** Curves through a cube of cells. Transposed: with axes 0 and 1 exchanged. */
typedef enum spops_patch_curve {
    SPOPS_PATCH_CURVE_ZORDER = 0,
    SPOPS_PATCH_CURVE_HILBERT = 1,
    SPOPS_PATCH_CURVE_ZORDER_TRANSPOSED = 2,
    SPOPS_PATCH_CURVE_HILBERT_TRANSPOSED = 3
} spops_patch_curve;

/**
 * Rows in an order, cut into patches of patch_rows. The order is that of their cells on a curve, ties
 * by row, or the caller's. A cell is floor((p - origin_m) / size_m) per axis in f64, clamped to
 * 0 .. 2^bits - 1.
 */
typedef struct spops_patch_order {
    size_t struct_size; /* sizeof(spops_patch_order) */
    int32_t patch_rows; /* 1 or more */
    /* 1: if the last patch of a sample is short, it also attends to the last rows of the patch before
       it, as many as it lacks. Those rows are keys of both patches and queries of the earlier one. */
    int32_t borrow;
    spops_patch_curve curve;
    int32_t bits; /* 1 to SPOPS_MAX_BUCKET_BITS; 0: SPOPS_MAX_BUCKET_BITS. A Hilbert curve of other
                     bits is another curve */
    double size_m[3];     /* 0: 1 */
    double origin_m[3];   /* lower corner of cell 0; what lies below it is clamped to cell 0 */
    const int32_t *order; /* [rows] where ctx runs: every row once, samples in order; NULL: by the
                             curve */
} spops_patch_order;

SPOPS_DEFINE_DEFAULT(spops_patch_order)

/**
 * Plan patches from an order of a cloud's rows, which are the rows of Q, K, V and O.
 *
 * cloud     points [rows, 3], f32 (m) or i32 (cells of a grid), any row stride.
 * order     patch_rows is needed.
 *
 * Refused, and named: coordinates that are not finite, offsets that do not ascend from 0 to the
 * number of rows, an order that names a row twice or one that is not there.
 *
 * Source    Point Transformer V3, section 4.1 (serialized patches, and their padding by borrowing).
 * The rest as spops_patches_create.
 */
SPOPS_API spops_status spops_patches_create_from_order(spops_context *ctx,
                                                       const spops_point_cloud *cloud,
                                                       const spops_patch_order *order,
                                                       spops_patches **out);

/**
 * Refill patches made by spops_patches_reserve from an order of a cloud's rows.
 *
 * cloud     points.rows is num_rows of the plan; with offsets, the last one says how many rows there
 *           are. A coordinate that is not finite is in cell 0.
 * order     borrow is 0 where the plan's `same` is 1, and only there.
 *
 * The rest as spops_patches_update.
 */
SPOPS_API spops_status spops_patches_update_from_order(spops_context *ctx, spops_patches *patches,
                                                       const spops_point_cloud *cloud,
                                                       const spops_patch_order *order);

/** The most plans of one spops_patches_update_from_orders. */
#define SPOPS_MAX_PATCH_ORDERS 32

/** Scratch of spops_patches_update_from_orders for these plans; 0 for NULL and for a `num` out of range. */
SPOPS_API size_t spops_patches_orders_scratch_bytes(const spops_patches *const *patches,
                                                    int64_t num);

/**
 * Refill several plans, each as spops_patches_update_from_order does, with the same patches. On a GPU plans
 * of at most 1,024 patches (max_patches) without a caller's order share their launches, and one sort.
 *
 * num       0 to SPOPS_MAX_PATCH_ORDERS.
 * patches, clouds, orders   [num], host memory. No plan comes twice.
 *
 * Scratch   spops_patches_orders_scratch_bytes, reserved in ctx beforehand.
 * Errors    SCRATCH_TOO_SMALL too. After any but CUDA, nothing was enqueued.
 * The rest as spops_patches_update_from_order.
 */
SPOPS_API spops_status spops_patches_update_from_orders(spops_context *ctx, int64_t num,
                                                        spops_patches *const *patches,
                                                        const spops_point_cloud *clouds,
                                                        const spops_patch_order *orders);

/* ---- From windows of a grid -------------------------------------------------------------------- */

/**
 * Windows of cells, and sets of rows within them. A cell is that of spops_patch_order, clamped to 0
 * .. 2^bits - 1; cell c lies in window floor((c + shift) / window) of its axis.
 *
 * Rows are sorted by window and then by cell, both by axes[0] first and by axes[2] last; ties by row.
 * They are cut into patches:
 *
 *     set_rows 0    a window is a patch
 *     across 0      a window of n rows is cut into S = ceil(n / set_rows) patches. Patch j begins at
 *                   place j * set_rows of the window, or, with `even`, at floor(j * n / S)
 *     across 1      the rows of a sample are cut every set_rows, whichever windows they are in
 */
typedef struct spops_patch_grid {
    size_t struct_size; /* sizeof(spops_patch_grid) */
    int32_t window[3];  /* cells, along each axis; 0: the axis is one window */
    int32_t shift[3];   /* cells, any sign */
    int32_t axes[3];    /* 0 to 2, each once; all of them 0: 0, 1, 2 */
    int32_t set_rows;   /* 0 or more */
    int32_t even;       /* 1: the sets of a window differ by one row at most */
    int32_t across;     /* 1: needs set_rows */
    int32_t borrow;     /* with `across`, as in spops_patch_order */
    int32_t bits;       /* 1 to SPOPS_MAX_BUCKET_BITS; 0: SPOPS_MAX_BUCKET_BITS */
    double size_m[3];   /* 0: 1 */
    double origin_m[3]; /* lower corner of cell 0 */
} spops_patch_grid;

SPOPS_DEFINE_DEFAULT(spops_patch_grid)

/**
 * Plan patches from windows of a cloud's rows, which are the rows of Q, K, V and O.
 *
 * cloud     As in spops_patches_create_from_order.
 * grid      NULL: all rows of a sample are a patch.
 *
 * Source    Swin3D (shifted windows), DSVT, section 3.2 (sets of equal size along rotated axes, here
 *           without rows that come twice), LION (groups of equal size in the order of windows).
 * The rest as spops_patches_create_from_order.
 */
SPOPS_API spops_status spops_patches_create_from_grid(spops_context *ctx,
                                                      const spops_point_cloud *cloud,
                                                      const spops_patch_grid *grid,
                                                      spops_patches **out);

/**
 * Refill patches made by spops_patches_reserve from windows of a cloud's rows: without `borrow` one
 * with `same`. The rest as spops_patches_update_from_order.
 */
SPOPS_API spops_status spops_patches_update_from_grid(spops_context *ctx, spops_patches *patches,
                                                      const spops_point_cloud *cloud,
                                                      const spops_patch_grid *grid);

/* ---- From buckets ----------------------------------------------------------------------------- */

/**
 * Which buckets make a patch. The K buckets of a sample stand in a circle that is entered at bucket
 * `shift`. Each run of buckets * stride of them makes `stride` patches: patch i takes every
 * stride-th one, from the i-th on. What is left at the end of the circle makes smaller patches in the
 * same way.
 */
typedef struct spops_patch_window {
    size_t struct_size; /* sizeof(spops_patch_window) */
    int32_t buckets;    /* of a patch; 0: 1 */
    int32_t stride;     /* 0: 1 */
    int32_t shift;      /* any sign */
    int32_t in_places;  /* 1: Q, K, V and O lie in the order of buckets: the row is the place */
} spops_patch_window;

SPOPS_DEFINE_DEFAULT(spops_patch_window)

/**
 * Plan patches from buckets: rows of a patch's buckets are its queries and keys. Another window of
 * the same buckets is another plan, and moves no feature.
 *
 * window    NULL: every bucket is a patch.
 *
 * Source    Flash3D, section 4.2 and section 9.3 (windows of buckets, shifted and strided).
 * The rest as spops_patches_create.
 */
SPOPS_API spops_status spops_patches_create_from_buckets(spops_context *ctx,
                                                         const spops_buckets *buckets,
                                                         const spops_patch_window *window,
                                                         spops_patches **out);

/**
 * Refill patches made by spops_patches_reserve with `same` from buckets, whose max_rows is num_rows
 * of the plan. There are no more patches than buckets. The rest as spops_patches_update.
 */
SPOPS_API spops_status spops_patches_update_from_buckets(spops_context *ctx, spops_patches *patches,
                                                         const spops_buckets *buckets,
                                                         const spops_patch_window *window);

/* ---- What they hold --------------------------------------------------------------------------- */

/** What a plan of patches holds. For one made by reserve it is read from the device. */
typedef struct spops_patches_info {
    size_t struct_size; /* set by the caller */
    int64_t num_rows;   /* of Q and O */
    int64_t num_patches, max_patches;
    int64_t num_queries, max_queries;
    int64_t num_keys, max_keys;
    int64_t num_no_queries; /* rows that are no query: attention gives them 0 */
    int64_t num_no_keys;    /* rows that are no key: their gradients of K and V are 0 */
    int32_t same;           /* 1: keys are the queries */
    int32_t keys_once;      /* 1: no row is a key twice, whatever is set */
    int32_t refused;        /* 1: the last set had lists that create refuses */
    int32_t overflow;       /* 1: it had more than fits */
    int64_t num_key_rows;   /* of K and V */
} spops_patches_info;

SPOPS_DEFINE_DEFAULT(spops_patches_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1.
 * Threads   One thread at a time per ctx; patches may be shared.
 */
SPOPS_API spops_status spops_patches_get_info_sync(spops_context *ctx, const spops_patches *patches,
                                                   spops_patches_info *info);

/** A plan's lists where its context runs; valid while it lives. */
typedef struct spops_patches_view {
    size_t struct_size; /* set by the caller */
    int64_t max_patches, max_queries, max_keys;
    const int32_t *num_patches; /* [1] in use */
    /* [max_patches + 1]; after the last patch in use all are the end */
    const int32_t *query_offsets;
    const int32_t *query_rows;  /* [max_queries] */
    const int32_t *key_offsets; /* [max_patches + 1]; those of queries where `same` */
    const int32_t *key_rows;    /* [max_keys] */
} spops_patches_view;

SPOPS_DEFINE_DEFAULT(spops_patches_view)

/**
 * Fill view.
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx; patches may be shared.
 */
SPOPS_API spops_status spops_patches_get_view(spops_context *ctx, const spops_patches *patches,
                                              spops_patches_view *view);

/** Free a plan; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_patches_destroy(spops_patches *patches)
{
    spops_plan_destroy((spops_plan *)patches);
}

SPOPS_EXTERN_C_END

#endif
