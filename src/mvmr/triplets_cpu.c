// SPDX-License-Identifier: Apache-2.0
// Plans of triplets on the CPU: the slots that make tiles from the lists by matrix.
#include "backends/backend_cpu.h"
#include "mvmr/mvmr.h"
#include "core/threads.h"

// Rows of a tile: their sums, a panel of columns wide, fit the second-level cache beside the rows
// they take; and a tile of a typical convolution has about a hundred triplets for each matrix, so
// that loading a matrix costs little.
#define TILE_ROWS 512

// Pieces of at least this many triplets, and at most about 64 of them, which bounds the scratch.
#define MIN_SPLIT_TERMS 4096
#define NUM_SPLITS      32

int32_t spops_cpu_triplets_tile_rows(const spops_context *ctx,
                                     const spops_triplets_layout_args *args)
{
    (void)ctx, (void)args;
    return TILE_ROWS;
}

int32_t spops_cpu_triplets_split_terms(const spops_context *ctx,
                                       const spops_triplets_layout_args *args)
{
    const int64_t terms = args->max_triplets / NUM_SPLITS;
    (void)ctx;
    return terms < MIN_SPLIT_TERMS ? MIN_SPLIT_TERMS : (int32_t)terms;
}

// The last of num_segments segments whose positions begin at or before p.
static int32_t segment_of(const int32_t *offsets, int64_t num_segments, int64_t p)
{
    int64_t low = 0, high = num_segments; // offsets[low] <= p < offsets[high]
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (offsets[middle] <= p)
            low = middle;
        else
            high = middle;
    }
    return (int32_t)low;
}

static void group_keys(const void *work, int64_t begin, int64_t end)
{
    const spops_triplets_args *args = (const spops_triplets_args *)work;
    const int32_t *offsets = args->offsets;
    for (int64_t r = begin; r < end; ++r) {
        const bool inside =
            args->num_matrices > 0 && offsets[0] <= r && r < offsets[args->num_matrices];
        args->keys[r] = inside ? segment_of(offsets, args->num_matrices, r) : -1;
    }
}

spops_status spops_cpu_group_keys(spops_context *ctx, const spops_triplets_args *args)
{
    const int64_t n = args->num_rows;
    spops_parallel_for(spops_team_for(ctx, n), n, 0, group_keys, args);
    return SPOPS_STATUS_OK;
}

static void tile_keys(const void *work, int64_t begin, int64_t end)
{
    const spops_triplets_args *args = (const spops_triplets_args *)work;
    const int32_t *pairs = args->by_matrix->pairs;
    for (int64_t p = begin; p < end; ++p)
        args->keys[p] = pairs[2 * p + args->side] / args->tiles->tile_rows;
}

spops_status spops_cpu_tile_keys(spops_context *ctx, const spops_triplets_args *args)
{
    const int64_t n = args->by_matrix->schedule->num_terms;
    spops_parallel_for(spops_team_for(ctx, n), n, 0, tile_keys, args);
    return SPOPS_STATUS_OK;
}

static void fill_triplets(const void *work, int64_t begin, int64_t end)
{
    const spops_triplets_args *args = (const spops_triplets_args *)work;
    const spops_lists *lists = args->by_matrix;
    for (int64_t q = begin; q < end; ++q) {
        const int64_t p = args->order != NULL ? args->order[q] : q;
        const int32_t *pair = &lists->pairs[2 * p];
        args->tiles->triplets[q] =
            (spops_triplet){pair[args->side], pair[1 - args->side],
                            segment_of(lists->offsets, lists->num_segments, p), lists->order[p]};
    }
}

spops_status spops_cpu_triplets_fill(spops_context *ctx, const spops_triplets_args *args)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t n = args->by_matrix->schedule->num_terms;
    spops_parallel_for(spops_team_for(ctx, n), n, 0, fill_triplets, args);
    if (args->order != NULL) return SPOPS_STATUS_OK;
    for (int64_t b = 0; b <= tiles->num_tiles; ++b) {
        const int64_t begin = b * tiles->tile_rows;
        tiles->offsets[b] = (int32_t)(begin < n ? begin : n);
    }
    return SPOPS_STATUS_OK;
}
