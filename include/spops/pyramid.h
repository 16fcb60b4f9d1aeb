/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pyramids: the sets of coordinates of all levels of a U-Net and the kernel maps within and between
 * them, planned together from the finest level.
 */
#ifndef SPOPS_PYRAMID_H
#define SPOPS_PYRAMID_H

#include "spops/kernel_map.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_PYRAMID_MAX_LEVELS 8 /* of a pyramid */

/** The levels of a U-Net over one set of voxels, and the kernel maps within and between them. */
typedef struct spops_pyramid spops_pyramid;

/** Which of a level's maps. */
typedef enum spops_pyramid_relation {
    SPOPS_PYRAMID_WITHIN = 0, /* from the level to itself: submanifold */
    SPOPS_PYRAMID_DOWN = 1,   /* from the level to the next one, which is coarser: convolution */
    SPOPS_PYRAMID_UP = 2      /* from the next level back to this one, on the pairs of DOWN:
                                 transposed */
} spops_pyramid_relation;

/** Arrays are read during the call. Level 0 is the finest. */
typedef struct spops_pyramid_options {
    size_t struct_size; /* sizeof(spops_pyramid_options) */
    int32_t num_levels; /* 1 to SPOPS_PYRAMID_MAX_LEVELS; 0: 5 */
    /* Of every map, SPOPS_MAP_*; 0: FOR_CONV_BACKWARD, as for one map. The REVERSE of a map within a
       level is the map itself, and takes no memory. */
    int32_t contents;
    /* [num_levels] kernel within a level, or NULL: none there. NULL: size 3 on every axis */
    const spops_kernel_shape *const *within;
    /* [num_levels - 1] kernel from a level to the next, whose stride is that of the levels. NULL:
       size 2, stride 2 on every axis */
    const spops_kernel_shape *const *down;
    spops_coords_order order; /* of all levels but the finest */
    /* Likewise. AUTO: HASH of levels that a GPU makes at once (docs/coords.md), else as of any set */
    spops_coords_search search;
    /* [num_levels] capacities of reserve. max_rows[0] is not looked at. An element that is 0, and
       NULL: as much as the level before can bring; for pairs: as many as the rows can have */
    const int64_t *max_rows;
    const int64_t *max_pairs;  /* of the maps within */
    spops_plan_memory *memory; /* of reserve: where the pyramid lives; NULL: allocated */
} spops_pyramid_options;

SPOPS_DEFINE_DEFAULT(spops_pyramid_options)

/**
 * Plan a pyramid on a set: its coarser levels, as spops_coords_create_downsampled, and the maps of
 * every level.
 *
 * finest    Level 0. Must outlive the pyramid.
 * options   NULL: defaults, five levels of a U-Net of 3 x 3 x 3 layers.
 * pyramid   NULL after a failure.
 *
 * An UP map shares the arrays of its DOWN map, inputs and outputs exchanged, so that nothing is
 * searched, ordered or listed twice; of its pairs, those of one tap are by ascending row of the
 * coarser level. DOWN maps therefore hold SPOPS_MAP_REVERSE, whatever contents says, and UP maps
 * too.
 *
 * Memory    Where ctx runs.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Numerics  The same sets and maps as one by one, bit for bit.
 * Errors    As spops_coords_create_downsampled and spops_kernel_map_create.
 * Threads   One thread at a time per ctx. ctx must outlive the pyramid.
 * Source    TorchSparse, section 4.4; one plan for all levels is ours: docs/coords.md.
 */
SPOPS_API spops_status spops_pyramid_create(spops_context *ctx, const spops_coords *finest,
                                            const spops_pyramid_options *options,
                                            spops_pyramid **pyramid);

/**
 * A pyramid into capacities, filled by spops_pyramid_update as often as wanted. Until then its coarser
 * levels and its maps are empty.
 *
 * finest    Level 0, usually made by reserve itself. Must outlive the pyramid. Its capacity counts;
 *           what it holds does not yet.
 *
 * Memory    All that a set needs is allocated here.
 * Options, Stream, Errors and Threads as spops_pyramid_create.
 */
SPOPS_API spops_status spops_pyramid_reserve(spops_context *ctx, const spops_coords *finest,
                                             const spops_pyramid_options *options,
                                             spops_pyramid **pyramid);

/**
 * Refill a pyramid made by spops_pyramid_reserve from what `finest` holds when the stream gets
 * there. A level with more rows than its capacity, and a map with more pairs, set their overflow
 * flags, as spops_coords_update and spops_kernel_map_update say.
 *
 * Stream    Enqueues on ctx's stream and returns. Allocates nothing, waits for nothing, capturable.
 * Errors    INVALID_ARGUMENT (not such a pyramid, NULL), CUDA.
 * Threads   One thread at a time per ctx and per pyramid.
 */
static inline spops_status spops_pyramid_update(spops_context *ctx, spops_pyramid *pyramid)
{
    spops_plan *const plan = (spops_plan *)pyramid;
    return spops_update(ctx, &plan, 1);
}

/** A level's coordinates; level 0 is the set that was given. NULL for a level that is not there. */
SPOPS_API const spops_coords *spops_pyramid_coords(const spops_pyramid *pyramid, int32_t level);

/** One of a level's maps, owned by the pyramid; NULL for one that is not there. */
SPOPS_API const spops_kernel_map *spops_pyramid_map(const spops_pyramid *pyramid,
                                                    spops_pyramid_relation relation, int32_t level);

/** What a level of a pyramid holds. */
typedef struct spops_pyramid_info {
    size_t struct_size; /* set by the caller */
    int32_t num_levels;
    int32_t overflow; /* 1: a level or a map met more than its capacity */
    int64_t num_rows[SPOPS_PYRAMID_MAX_LEVELS];
    int64_t max_rows[SPOPS_PYRAMID_MAX_LEVELS];
    int64_t num_pairs[SPOPS_PYRAMID_MAX_LEVELS];      /* within; found, also past the capacity */
    int64_t max_pairs[SPOPS_PYRAMID_MAX_LEVELS];      /* within */
    int64_t num_down_pairs[SPOPS_PYRAMID_MAX_LEVELS]; /* DOWN and UP */
} spops_pyramid_info;

SPOPS_DEFINE_DEFAULT(spops_pyramid_info)

/**
 * Fill info; waits for ctx's stream.
 *
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (the stream is being captured), CUDA;
 *           CAPACITY_EXCEEDED, with info filled, if overflow is 1: the message names the level.
 * Threads   One thread at a time per ctx; the pyramid may be shared.
 */
SPOPS_API spops_status spops_pyramid_get_info_sync(spops_context *ctx, const spops_pyramid *pyramid,
                                                   spops_pyramid_info *info);

/** Free a pyramid; NULL is fine. Waits for its context; nothing else may be using it. */
static inline void spops_pyramid_destroy(spops_pyramid *pyramid)
{
    spops_plan_destroy((spops_plan *)pyramid);
}

SPOPS_EXTERN_C_END

#endif
