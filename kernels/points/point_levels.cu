// SPDX-License-Identifier: Apache-2.0
// Samples, offsets and weights of clouds on the GPU.
#include "points/neighbors.h"
#include "kernels/core/launch.cuh"

namespace
{

using namespace spops;

constexpr int threads = 256;

// Offsets that are not right give numbers that nobody reads.
__global__ void __launch_bounds__(threads)
    put_samples(const __grid_constant__ spops_cloud_samples_args p, const int *offsets,
                int num_samples, int64_t num_rows)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i < num_rows) p.samples[i] = spops_sample_of(offsets, num_samples, i);
}

// One block. All rows are in use where there are no offsets.
__global__ void __launch_bounds__(threads)
    count_rows(int *num_rows, const int *offsets, int num_samples, int64_t max_rows)
{
    if (offsets == nullptr) {
        if (threadIdx.x == 0) *num_rows = (int)max_rows;
        return;
    }
    bool wrong = threadIdx.x == 0 && (offsets[0] != 0 || offsets[num_samples] > max_rows);
    for (int b = threadIdx.x; b < num_samples; b += threads)
        wrong = wrong || offsets[b] > offsets[b + 1];
    wrong = __syncthreads_or(wrong);
    if (threadIdx.x == 0) *num_rows = wrong ? 0 : offsets[num_samples];
}

// offsets[b]: rows of samples before b.
__global__ void __launch_bounds__(threads)
    put_offsets(const __grid_constant__ spops_cloud_offsets_args p)
{
    const int64_t b = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (b > p.num_samples) return;
    int64_t low = 0, high = *p.num_rows;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (p.rows[middle * p.columns] < b)
            low = middle + 1;
        else
            high = middle;
    }
    p.offsets[b] = (int)low;
}

__global__ void __launch_bounds__(threads)
    put_weights(const __grid_constant__ spops_inverse_distances_args p)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i < p.num_points) spops_inverse_distances(&p, i);
}

} // namespace

extern "C" spops_status spops_cuda_cloud_samples(spops_context *ctx,
                                                 const spops_cloud_samples_args *args)
{
    const spops_point_cloud *cloud = args->cloud;
    const char *what = "point_level: samples";
    SPOPS_TRY(launch(ctx, what, count_rows, dim3(1), (unsigned)threads, args->num_rows,
                     cloud->offsets, (int)cloud->num_samples, cloud->points.rows));
    if (cloud->points.rows == 0 || cloud->offsets == nullptr) return SPOPS_STATUS_OK;
    return launch(ctx, what, put_samples, blocks_for(cloud->points.rows, threads),
                  (unsigned)threads, *args, cloud->offsets, (int)cloud->num_samples,
                  cloud->points.rows);
}

extern "C" spops_status spops_cuda_cloud_offsets(spops_context *ctx,
                                                 const spops_cloud_offsets_args *args)
{
    return launch(ctx, "point_level: offsets", put_offsets,
                  blocks_for(args->num_samples + 1, threads), (unsigned)threads, *args);
}

extern "C" spops_status spops_cuda_inverse_distances(spops_context *ctx,
                                                     const spops_inverse_distances_args *args)
{
    return launch(ctx, "interpolation: weights", put_weights, blocks_for(args->num_points, threads),
                  (unsigned)threads, *args);
}
