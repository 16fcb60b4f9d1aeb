// SPDX-License-Identifier: Apache-2.0
// Ranks of terms on the GPU: blocks take positions in order and find their segments together.
#include "kernels/core/launch.cuh"
#include "kernels/segments/segment_of.cuh"
#include "segreduce/rank_args.h"

namespace
{

constexpr int threads = 256, each = 4;
typedef spops::segment_finder<threads, each> finder;

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
    __shared__ finder::shared shared;
    const int64_t first = (int64_t)blockIdx.x * finder::positions;
    const int32_t num_terms = p.offsets[p.num_segments];
    int32_t segment[each];

    if (first >= num_terms) return;
    const int32_t begin = (int32_t)first;
    const int32_t end = (int32_t)min(first + finder::positions, (int64_t)num_terms);
    finder::find(shared, p.offsets, p.num_segments, begin, end, segment);
#pragma unroll
    for (int i = 0; i < each; ++i) {
        const int32_t position = begin + (int32_t)threadIdx.x * each + i;
        if (position >= end) continue;
        p.ranks[p.order == nullptr ? position : p.order[position]] =
            position - __ldg(p.offsets + segment[i]);
    }
}

} // namespace

extern "C" spops_status spops_cuda_rank(spops_context *ctx, const spops_rank_args *args)
{
    const spops_lists *lists = args->lists;
    params p = {lists->offsets, lists->order, args->ranks, lists->num_segments, lists->max_terms};
    const bool all_count =
        !lists->counts_on_device && lists->host_schedule.num_terms == lists->max_terms;
    if (!all_count)
        SPOPS_TRY(spops::launch(ctx, "rank: launch", leave_out_kernel,
                                spops::blocks_for(p.max_terms, threads), threads, p));
    if (p.num_segments == 0) return SPOPS_STATUS_OK;
    return spops::launch(ctx, "rank: launch", rank_kernel,
                         spops::blocks_for(p.max_terms, finder::positions), threads, p);
}
