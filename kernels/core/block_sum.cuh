// SPDX-License-Identifier: Apache-2.0
// A prefix sum over the threads of a block.
#ifndef SPOPS_KERNELS_CORE_BLOCK_SUM_CUH
#define SPOPS_KERNELS_CORE_BLOCK_SUM_CUH

namespace spops
{

// The sum of what the threads before this one have; *total is that of all. For whole blocks.
__device__ inline int sum_before(int value, int *total)
{
    __shared__ int warp_sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += below;
    }
    __syncthreads();
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < (int)blockDim.x / 32; ++w) {
        if (w < warp) before += warp_sums[w];
        all += warp_sums[w];
    }
    *total = all;
    return before + sum - value;
}

} // namespace spops

#endif
