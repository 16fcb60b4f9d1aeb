// SPDX-License-Identifier: Apache-2.0
// Plans of triplets: the slots that make tiles from the lists by matrix, and the layout that the
// kernels of mvmr and vvor want.
#include "kernels/core/launch.cuh"
#include "kernels/mvmr/mvmr_tuning.h"
#include "mvmr/mvmr.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

// The last of num_segments segments whose positions begin at or before p. offsets[0] <= p <
// offsets[num_segments] holds, whatever lies between.
__device__ int32_t segment_of(const int32_t *offsets, int64_t num_segments, int64_t p)
{
    int64_t low = 0, high = num_segments;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (offsets[middle] <= p)
            low = middle;
        else
            high = middle;
    }
    return (int32_t)low;
}

__global__ void fill_group_keys(const int32_t *offsets, int64_t num_matrices, int64_t num_rows,
                                int32_t *keys)
{
    const int64_t r = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (r >= num_rows) return;
    const bool inside = num_matrices > 0 && offsets[0] <= r && r < offsets[num_matrices];
    keys[r] = inside ? segment_of(offsets, num_matrices, r) : -1;
}

__global__ void fill_tile_keys(const spops_schedule *schedule, const int2 *pairs, int side,
                               int32_t tile_rows, int32_t *keys)
{
    const int64_t p = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (p >= schedule->num_terms) return;
    const int2 pair = pairs[p];
    keys[p] = (side == SPOPS_SIDE_TARGET ? pair.x : pair.y) / tile_rows;
}

struct fill_params {
    const spops_schedule *schedule;
    const int32_t *matrix_offsets;
    int64_t num_matrices;
    const int2 *pairs;
    const int32_t *numbers, *order;
    int side;
    int4 *triplets;
    int32_t *tile_offsets; // filled where order is null
    int64_t num_tiles;
    int32_t tile_rows;
};

__global__ void fill_triplets(const __grid_constant__ fill_params f)
{
    const int64_t q = (int64_t)blockIdx.x * threads + threadIdx.x;
    const int64_t n = f.schedule->num_terms;
    if (f.order == nullptr && q <= f.num_tiles) {
        const int64_t begin = q * f.tile_rows;
        f.tile_offsets[q] = (int32_t)(begin < n ? begin : n);
    }
    if (q >= n) return;
    const int64_t p = f.order != nullptr ? f.order[q] : q;
    const int2 pair = f.pairs[p];
    const bool out = f.side == SPOPS_SIDE_TARGET;
    f.triplets[q] = make_int4(out ? pair.x : pair.y, out ? pair.y : pair.x,
                              segment_of(f.matrix_offsets, f.num_matrices, p), f.numbers[p]);
}

} // namespace

extern "C" int32_t spops_cuda_triplets_tile(const spops_context *ctx,
                                            const spops_triplets_layout_args *args)
{
    (void)ctx;
    return spops_mvmr_tile(args->tile);
}

extern "C" int32_t spops_cuda_triplets_tile_rows(const spops_context *ctx,
                                                 const spops_triplets_layout_args *args)
{
    (void)ctx;
    return spops_mvmr_tile_rows(spops_mvmr_tile(args->tile));
}

// Pieces enough to give every multiprocessor several blocks of sums, for matrices of the size that
// the plan was told of: wider ones have more blocks themselves. So scratch is about 35 MB at most,
// unless 16 pieces of one matrix are more.
extern "C" int32_t spops_cuda_triplets_split_terms(const spops_context *ctx,
                                                   const spops_triplets_layout_args *args)
{
    const int64_t block = SPOPS_CUDA_BLOCK_ROWS * SPOPS_CUDA_BLOCK_COLS;
    const int64_t blocks = (args->max_matrix_elements + block - 1) / block;
    int64_t pieces = (int64_t)ctx->info.num_processors * 8 / (blocks > 0 ? blocks : 1);
    int64_t terms;
    if (pieces < 16) pieces = 16;
    terms = args->max_triplets / pieces;
    return terms < 512 ? 512 : (int32_t)terms;
}

extern "C" spops_status spops_cuda_group_keys(spops_context *ctx, const spops_triplets_args *args)
{
    return launch(ctx, "triplets: fill_group_keys", fill_group_keys,
                  blocks_for(args->num_rows, threads), threads, args->offsets, args->num_matrices,
                  args->num_rows, args->keys);
}

extern "C" spops_status spops_cuda_tile_keys(spops_context *ctx, const spops_triplets_args *args)
{
    const spops_lists *lists = args->by_matrix;
    return launch(ctx, "triplets: fill_tile_keys", fill_tile_keys,
                  blocks_for(lists->max_terms, threads), threads, lists->schedule,
                  (const int2 *)lists->pairs, args->side, args->tiles->tile_rows, args->keys);
}

extern "C" spops_status spops_cuda_triplets_fill(spops_context *ctx,
                                                 const spops_triplets_args *args)
{
    const spops_lists *lists = args->by_matrix;
    const spops_triplet_tiles *tiles = args->tiles;
    fill_params f = {};
    int64_t n = lists->max_terms;
    f.schedule = lists->schedule;
    f.matrix_offsets = lists->offsets;
    f.num_matrices = lists->num_segments;
    f.pairs = (const int2 *)lists->pairs;
    f.numbers = lists->order;
    f.order = args->order;
    f.side = args->side;
    f.triplets = (int4 *)tiles->triplets;
    f.tile_offsets = tiles->offsets;
    f.num_tiles = tiles->num_tiles;
    f.tile_rows = tiles->tile_rows;
    if (args->order == nullptr && n <= tiles->num_tiles) n = tiles->num_tiles + 1;
    return launch(ctx, "triplets: fill_triplets", fill_triplets, blocks_for(n, threads), threads,
                  f);
}
