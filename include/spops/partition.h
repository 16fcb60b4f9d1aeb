/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partitions: which rank owns which rows of a set of coordinates, and of all coarser sets that follow
 * from it.
 *
 * Space is cut into cells, cubes of voxels. Cells follow each other along a curve, and the curve is cut
 * into chunks at fixed places, whose number is the caller's and does not depend on how many ranks there
 * are. A rank owns a run of chunks. What is summed over all rows is summed by chunk, then over chunks in
 * their order: so its bits are those of any number of ranks.
 */
#ifndef SPOPS_PARTITION_H
#define SPOPS_PARTITION_H

#include "spops/comm.h"
#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

#define SPOPS_PARTITION_MAX_CHUNKS 4096 /* of a partition */

/** Where chunks begin on a curve through space, and which rank owns which: a plan (spops/plan.h), in host
 * memory. */
typedef struct spops_partition spops_partition;

/** Choices of spops_partition_create. The same on all ranks, but weights. */
typedef struct spops_partition_options {
    size_t struct_size;
    int32_t num_chunks; /* 1 to SPOPS_PARTITION_MAX_CHUNKS; 0: 16. Gradients of weights take so many
                           times their memory on the ranks together */
    int32_t cell_log2;  /* a cell has 2^cell_log2 voxels along each axis, 1 to 16; 0: 4 */
    spops_coords_order order; /* MORTON or HILBERT; GIVEN, which is 0: HILBERT */
    int32_t reserved;
    const int64_t *weights; /* [rows of coords], where ctx runs, 0 to INT32_MAX: what a row costs,
                                   such as its pairs; NULL: 1 each */
    const int32_t
        *first_chunk; /* [ranks + 1] host: rank r owns first_chunk[r] to first_chunk[r + 1] - 1,
                                   a rank may own none; NULL: balanced by weights */
} spops_partition_options;

SPOPS_DEFINE_DEFAULT(spops_partition_options)

/**
 * Cut a set. Chunk c begins at the first cell before which there is at least c / num_chunks of the weight
 * of all rows; rank r of R then owns the chunks whose middle lies between r / R and (r + 1) / R of it.
 *
 * comm       All its ranks call; NULL: one rank.
 * coords     Rows of the finest level that this rank has before the cut, in any order; all ranks together
 *            have each row once. The cut follows from all rows: who had them does not count.
 * options    NULL: defaults.
 * partition  NULL after a failure, on all ranks.
 *
 * Memory    Host. Nothing of coords is kept.
 * Stream    Works on ctx's stream and waits for it. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED, CUDA, on any rank: on all.
 * Threads   One thread at a time per ctx; a partition may be shared.
 */
SPOPS_API spops_status spops_partition_create(spops_context *ctx, spops_comm *comm,
                                              const spops_coords *coords,
                                              const spops_partition_options *options,
                                              spops_partition **partition);

/** What a partition is. Arrays belong to it. */
typedef struct spops_partition_info {
    size_t struct_size; /* set by the caller */
    int32_t dims;
    int32_t num_chunks, num_ranks;
    int32_t rank; /* of the communicator that it was made with */
    int32_t cell_log2;
    spops_coords_order order;
    const int32_t *first_chunk;   /* [num_ranks + 1] */
    const int64_t *chunk_weights; /* [num_chunks] of the rows that it was made from */
} spops_partition_info;

SPOPS_DEFINE_DEFAULT(spops_partition_info)

/** Fill info. Errors: INVALID_ARGUMENT (NULL, struct_size). */
SPOPS_API spops_status spops_partition_get_info(spops_context *ctx,
                                                const spops_partition *partition,
                                                spops_partition_info *info);

/**
 * The box of a level, for spops_coords_options.box: sets of owned rows in this box and in the partition's
 * order have their rows by chunk.
 *
 * stride    [dims] host: voxels of the finest level that a voxel of the level has along each axis; powers
 *           of two, at most 2^cell_log2. NULL: 1.
 *
 * Errors    INVALID_ARGUMENT.
 */
SPOPS_API spops_status spops_partition_get_box(spops_context *ctx, const spops_partition *partition,
                                               const int32_t *stride, spops_coords_box *box);

/**
 * The chunk of each row of a level.
 *
 * rows      [num_rows][1 + dims] host.
 * chunks    [num_rows] host, written; -1: the row is outside the partition's box.
 *
 * The rest as spops_partition_get_box.
 */
SPOPS_API spops_status spops_partition_find_chunks(spops_context *ctx,
                                                   const spops_partition *partition,
                                                   const int32_t *stride, int64_t num_rows,
                                                   const int32_t *rows, int32_t *chunks);

/** Free a partition; NULL is fine. Halos do not need theirs after they are made. */
static inline void spops_partition_destroy(spops_partition *partition)
{
    spops_plan_destroy((spops_plan *)partition);
}

SPOPS_EXTERN_C_END

#endif
