// SPDX-License-Identifier: Apache-2.0
// Rows of points at the places of their voxels on the GPU, and back.
#include "dense/padded_args.h"
#include "kernels/dense/move_chunks.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;

// Steps are in pieces.
template <bool BACK> struct point_places {
    spops_voxel_places places;
    int64_t rows_step, padded_step;

    __device__ __forceinline__ int64_t operator()(int64_t i, int64_t *to) const
    {
        const int32_t most = places.most_points;
        if (!BACK) {
            const int64_t voxel = i / most;
            const int32_t point =
                spops_voxel_place(places.ranks, places.chosen, most, places.num_points[voxel],
                                  voxel, (int32_t)(i % most));
            *to = i * padded_step;
            return point < 0 ? -1 : point * rows_step;
        }
        const int32_t voxel = places.keys[i];
        *to = i * rows_step;
        if (voxel < 0) return -1;
        const int32_t n = min(places.num_points[voxel], most);
        for (int32_t k = 0; k < n; ++k)
            if (spops_voxel_place(places.ranks, places.chosen, most, n, voxel, k) == i)
                return ((int64_t)voxel * most + k) * padded_step;
        return -1;
    }
};

__global__ void __launch_bounds__(threads)
    count_places(const __grid_constant__ spops_voxel_places places, int32_t *num_points)
{
    const int64_t voxel = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (voxel < places.max_voxels)
        num_points[voxel] = min(places.num_points[voxel], places.most_points);
}

template <bool BACK>
spops_status move(spops_context *ctx, const char *what, const spops_padded_args *args)
{
    const int64_t piece = piece_elements(args->rows, args->padded, args->rows.cols);
    const point_places<BACK> places = {args->places, spops_row_step(args->rows) / piece,
                                       spops_row_step(args->padded) / piece};
    const spops_matrix &from = BACK ? args->padded : args->rows;
    const spops_matrix &to = BACK ? args->rows : args->padded;
    if (to.rows == 0 || to.cols == 0) return SPOPS_STATUS_OK;
    return launch_chunks(ctx, what, to.dtype, piece, to.rows, to.cols, from.data, to.data, places);
}

} // namespace

extern "C" spops_status spops_cuda_voxels_padded(spops_context *ctx, const spops_padded_args *args)
{
    if (args->num_points != nullptr && args->places.max_voxels > 0)
        SPOPS_TRY(launch(ctx, "voxels_padded: count", count_places,
                         blocks_for(args->places.max_voxels, threads), threads, args->places,
                         args->num_points));
    return move<false>(ctx, "voxels_padded: launch", args);
}

extern "C" spops_status spops_cuda_voxels_padded_backward(spops_context *ctx,
                                                          const spops_padded_args *args)
{
    return move<true>(ctx, "voxels_padded_backward: launch", args);
}
