// SPDX-License-Identifier: Apache-2.0
// Ranks of terms on the GPU: a thread a position, which looks its segment up among the offsets.
#include "kernels/core/launch.cuh"
#include "segreduce/rank_args.h"

namespace
{

constexpr int threads = 256;

struct params {
    const int32_t *offsets, *order;
    int32_t *ranks;
    int64_t num_segments, max_terms;
};

__global__ void __launch_bounds__(threads) leave_out_kernel(const __grid_constant__ params p)
{
    const int64_t t = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (t < p.max_terms) p.ranks[t] = -1;
}

__global__ void __launch_bounds__(threads) rank_kernel(const __grid_constant__ params p)
{
    const int64_t position = (int64_t)blockIdx.x * threads + threadIdx.x;
    int64_t low = 0, high = p.num_segments; // the segment is at least low, and less than high

    if (position >= p.max_terms || position >= p.offsets[p.num_segments]) return;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (p.offsets[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    p.ranks[p.order == nullptr ? position : p.order[position]] =
        (int32_t)(position - p.offsets[low]);
}

} // namespace

extern "C" spops_status spops_cuda_rank(spops_context *ctx, const spops_rank_args *args)
{
    const spops_lists *lists = args->lists;
    params p = {lists->offsets, lists->order, args->ranks, lists->num_segments, lists->max_terms};
    const unsigned blocks = (unsigned)((p.max_terms + threads - 1) / threads);
    const spops_status status =
        spops::launch(ctx, "rank: launch", leave_out_kernel, dim3(blocks), threads, p);
    if (status != SPOPS_STATUS_OK || p.num_segments == 0) return status;
    return spops::launch(ctx, "rank: launch", rank_kernel, dim3(blocks), threads, p);
}
