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

spops_status spops_cpu_group_keys(spops_context *ctx, const spops_triplets_args *args)
{
    const int32_t *offsets = args->offsets;
    const int num_threads = spops_threads_for(ctx->num_threads, args->num_rows);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t r = 0; r < args->num_rows; ++r) {
        const bool inside =
            args->num_matrices > 0 && offsets[0] <= r && r < offsets[args->num_matrices];
        args->keys[r] = inside ? segment_of(offsets, args->num_matrices, r) : -1;
    }
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_tile_keys(spops_context *ctx, const spops_triplets_args *args)
{
    const spops_lists *lists = args->by_matrix;
    const int32_t *pairs = lists->pairs;
    const int64_t n = lists->schedule->num_terms;
    const int num_threads = spops_threads_for(ctx->num_threads, n);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t p = 0; p < n; ++p)
        args->keys[p] = pairs[2 * p + args->side] / args->tiles->tile_rows;
    return SPOPS_STATUS_OK;
}

spops_status spops_cpu_triplets_fill(spops_context *ctx, const spops_triplets_args *args)
{
    const spops_lists *lists = args->by_matrix;
    const spops_triplet_tiles *tiles = args->tiles;
    const int64_t n = lists->schedule->num_terms;
    const int num_threads = spops_threads_for(ctx->num_threads, n);
#pragma omp parallel for num_threads(num_threads) if (num_threads > 1) schedule(static)
    for (int64_t q = 0; q < n; ++q) {
        const int64_t p = args->order != NULL ? args->order[q] : q;
        const int32_t *pair = &lists->pairs[2 * p];
        tiles->triplets[q] =
            (spops_triplet){pair[args->side], pair[1 - args->side],
                            segment_of(lists->offsets, lists->num_segments, p), lists->order[p]};
    }
    if (args->order != NULL) return SPOPS_STATUS_OK;
    for (int64_t b = 0; b <= tiles->num_tiles; ++b) {
        const int64_t begin = b * tiles->tile_rows;
        tiles->offsets[b] = (int32_t)(begin < n ? begin : n);
    }
    return SPOPS_STATUS_OK;
}
