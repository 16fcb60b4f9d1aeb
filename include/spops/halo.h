/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Halos: the rows that a rank reads and another rank owns, and sums over the rows of all ranks that have
 * the same bits for any number of ranks. docs/ranks.md has a network.
 *
 * The rows of a level lie [owned | ghosts]: owned rows by chunk of the partition (spops/partition.h), ghosts
 * by owner and by the owner's rows. A pass that reads neighbours is "refresh ghosts, then compute": forward
 * with rows of features, backward with rows of gradients of the output. The owner computes the whole
 * gradient of its row from its neighbours' gradients, so nothing is folded, and no sum is cut by rank.
 */
#ifndef SPOPS_HALO_H
#define SPOPS_HALO_H

#include "spops/partition.h"

SPOPS_EXTERN_C_BEGIN

/** Which rows a rank sends to which, and where it receives theirs: a plan (spops/plan.h). */
typedef struct spops_halo spops_halo;

/** Choices of spops_halo_create. The same on all ranks. */
typedef struct spops_halo_options {
    size_t struct_size;
    const int32_t
        *stride; /* [dims] host: of the level, as spops_partition_get_box has it; NULL: 1 */
    /* [dims] host: voxels of the level that are read on either side: of a 3 x 3 x 3 kernel 1, of dilation d
       d times as much; 0 to as many as a cell has on this level, 2^cell_log2 / stride. NULL: 1 */
    const int32_t *reach;
    int64_t max_cols; /* of the widest rows that are refreshed; 0: 256 */
} spops_halo_options;

SPOPS_DEFINE_DEFAULT(spops_halo_options)

/**
 * Plan the halo of a level. Every voxel within reach of a cell that another rank owns is a ghost there, also
 * where that rank has no voxel near: ranks need not ask each other which rows they read.
 *
 * comm       All its ranks call; that of the partition. After its end the halo refreshes nothing.
 * partition  Not needed once the halo is made.
 * owned      The rows of this rank, all of them in its chunks, by ascending chunk: a set of the box of
 *            spops_partition_get_box in the partition's order is so. What the set is made from may be
 *            anything: rows of the finest level that this rank owns, or for a coarser level
 *            spops_coords_create_downsampled of the finer level's owned rows, where no kernel reaches over
 *            a voxel of the coarser level. Not needed once the halo is made.
 * options    NULL: defaults.
 * halo       NULL after a failure, on all ranks.
 *
 * Memory    Buffers of max_cols for the rows that are sent and received, where ctx runs.
 * Stream    Works on ctx's stream and waits for it and for the other ranks. Not capturable.
 * Errors    INVALID_ARGUMENT (owned: the first row that another rank owns, or that is out of order),
 *           OUT_OF_MEMORY, NOT_SUPPORTED, COMM_BROKEN, CUDA, on any rank: on all.
 * Threads   One thread at a time per ctx. ctx must outlive the halo.
 */
SPOPS_API spops_status spops_halo_create(spops_context *ctx, spops_comm *comm,
                                         const spops_partition *partition,
                                         const spops_coords *owned,
                                         const spops_halo_options *options, spops_halo **halo);

/** What a halo is. Arrays and the set belong to it. */
typedef struct spops_halo_info {
    size_t struct_size;                      /* set by the caller */
    int64_t num_owned, num_ghosts, num_sent; /* rows; a row that two ranks get is sent twice */
    int32_t first_chunk, num_chunks;         /* that this rank owns */
    int32_t num_all_chunks, reserved;
    const int64_t
        *chunk_offsets; /* [num_chunks + 1] host: owned rows of chunk first_chunk + i begin here */
    const int32_t
        *all_chunk_rows;  /* [num_all_chunks] where ctx runs: rows of every chunk, of all ranks */
    int64_t num_all_rows; /* owned rows of all ranks */
    const spops_coords *coords; /* [owned | ghosts] */
} spops_halo_info;

SPOPS_DEFINE_DEFAULT(spops_halo_info)

/** Fill info. Errors: INVALID_ARGUMENT (NULL, struct_size). */
SPOPS_API spops_status spops_halo_get_info(spops_context *ctx, const spops_halo *halo,
                                           spops_halo_info *info);

/**
 * Refresh ghosts: rows num_owned and after of out become what their owners have.
 *
 *     out[i] = x[i],  i < num_owned
 *     out[num_owned + g] = what the owner of ghost g has as x
 *
 * x         [num_owned, cols], f32 f16 bf16, on the CPU f64; cols and dtype the same on all ranks.
 * out       [num_owned + num_ghosts, cols]. x may be its first rows, which then stay as they are.
 *
 * Memory    Where ctx runs; both are in use until the stream has run.
 * Stream    As spops_comm_exchange_execute.
 * Numerics  Copies.
 * Errors    INVALID_ARGUMENT (shape, dtype, more than max_cols; where ranks are threads, on all), and those of
 *           spops_comm_exchange_execute.
 * Threads   One thread at a time per ctx and per halo.
 */
SPOPS_API spops_status spops_halo_execute(spops_context *ctx, spops_halo *halo, spops_matrix x,
                                          spops_matrix out);

/**
 * The same in two calls. Between them ctx's stream goes on, and no other call on the communicator is made;
 * ghosts are read after the second one. Backward, gradients of weights need owned gradients alone: they
 * hide the exchange.
 */
SPOPS_API spops_status spops_halo_begin(spops_context *ctx, spops_halo *halo, spops_matrix x,
                                        spops_matrix out);

/** End what spops_halo_begin began. */
SPOPS_API spops_status spops_halo_end(spops_context *ctx, spops_halo *halo);

/** Free a halo; NULL is fine. Waits for its context. */
static inline void spops_halo_destroy(spops_halo *halo)
{
    spops_plan_destroy((spops_plan *)halo);
}

/** Sums over all ranks' chunks, along one tree for any number of ranks: a plan (spops/plan.h). */
typedef struct spops_chunk_sums spops_chunk_sums;

/**
 * Plan sums of at most max_values numbers a chunk. Chunks are the leaves of a binary tree in their order:
 * leaf 2i and leaf 2i + 1 are added, then nodes of the next level likewise; a node without a right sibling
 * goes up as it is. A rank adds what it owns of the tree before anything travels, and of two ranks with
 * half of the chunks each one node does.
 *
 * comm       All its ranks call; that of the partition. After its end nothing is summed.
 * partition  Not needed once they are made.
 * max_values The same on all ranks.
 *
 * Memory    Where ctx runs: about max_values times 1 + (nodes that a rank sends) + (levels of the tree below
 *           one of them) numbers of f32, 6 for two ranks and 16 chunks.
 *           Where max_values times the ranks is at most 65,536, all nodes of all ranks besides: each rank
 *           gets them whole, and an execute is one exchange for each node that a rank sends. Elsewhere it
 *           is one more, of the result.
 * Stream    Works on ctx's stream and waits for it and for the other ranks. Not capturable.
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, COMM_BROKEN, CUDA, on any rank: on all.
 * Threads   One thread at a time per ctx. ctx must outlive the sums.
 */
SPOPS_API spops_status spops_chunk_sums_create(spops_context *ctx, spops_comm *comm,
                                               const spops_partition *partition, int64_t max_values,
                                               spops_chunk_sums **sums);

/**
 * Sum chunks.
 *
 * partials  [chunks of this rank, n] f32, by chunk, rows without gaps; n at most max_values, the same on all
 *           ranks.
 * out       [n] f32, on all ranks. Apart from partials.
 *
 * Memory    Where ctx runs.
 * Stream    As spops_comm_exchange_execute.
 * Numerics  f32, along the tree: the bits depend on partials and the number of chunks alone.
 * Errors    INVALID_ARGUMENT (shape, dtype; where ranks are threads, on all), and those of
 *           spops_comm_exchange_execute.
 * Threads   One thread at a time per ctx and per plan.
 */
SPOPS_API spops_status spops_chunk_sums_execute(spops_context *ctx, spops_chunk_sums *sums,
                                                spops_matrix partials, float *out);

/** Free; NULL is fine. Waits for its context. */
static inline void spops_chunk_sums_destroy(spops_chunk_sums *sums)
{
    spops_plan_destroy((spops_plan *)sums);
}

SPOPS_EXTERN_C_END

#endif
