// SPDX-License-Identifier: Apache-2.0
// Sums, extremes and prefix sums over the threads of a warp and of a block. All of them call.
#ifndef SPOPS_KERNELS_CORE_SCAN_CUH
#define SPOPS_KERNELS_CORE_SCAN_CUH

#include <stdint.h>

namespace spops
{

// ---- A warp -------------------------------------------------------------------------------------

// What join makes of the values of all lanes, two at a time: of lanes 16 apart first.
template <class T, class Join> __device__ __forceinline__ T over_warp(T value, const Join &join)
{
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        value = join(value, __shfl_xor_sync(~0u, value, half));
    return value;
}

template <class T> __device__ __forceinline__ T warp_sum(T value)
{
    return over_warp(value, [](T a, T b) { return a + b; });
}
template <class T> __device__ __forceinline__ T warp_min(T value)
{
    return over_warp(value, [](T a, T b) { return b < a ? b : a; });
}
template <class T> __device__ __forceinline__ T warp_max(T value)
{
    return over_warp(value, [](T a, T b) { return b > a ? b : a; });
}
__device__ __forceinline__ uint32_t warp_or(uint32_t bits)
{
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(~0u, bits);
#else
    return over_warp(bits, [](uint32_t a, uint32_t b) { return a | b; });
#endif
}
#if __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ int32_t warp_sum(int32_t value)
{
    return __reduce_add_sync(~0u, value);
}
template <> __device__ __forceinline__ int32_t warp_max(int32_t value)
{
    return __reduce_max_sync(~0u, value);
}
#endif

// The sum of the lanes up to this one.
__device__ __forceinline__ int32_t warp_scan(int32_t value)
{
    for (int step = 1; step < 32; step *= 2) {
        const int32_t below = __shfl_up_sync(~0u, value, step);
        if ((int)threadIdx.x % 32 >= step) value += below;
    }
    return value;
}
__device__ __forceinline__ int2 warp_scan(int2 value)
{
    return make_int2(warp_scan(value.x), warp_scan(value.y));
}

// Bit i of lane k: bit k of lane i.
__device__ __forceinline__ uint32_t warp_transpose(uint32_t bits)
{
    uint32_t kept = 0x0000ffffu; // bits whose number lacks `step`
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const uint32_t other = __shfl_xor_sync(~0u, bits, step);
        bits = threadIdx.x & step ? (bits & ~kept) | (other >> step & kept)
                                  : (bits & kept) | (other & kept) << step;
        kept ^= kept << (step / 2);
    }
    return bits;
}

// ---- A block ------------------------------------------------------------------------------------

__device__ __forceinline__ int32_t scan_add(int32_t a, int32_t b)
{
    return a + b;
}
__device__ __forceinline__ int2 scan_add(int2 a, int2 b)
{
    return make_int2(a.x + b.x, a.y + b.y);
}

// The sum of what the threads before this one have; *total is the sum of all. T: int32_t, or int2, each
// half by itself.
template <class T> __device__ inline T sum_before(T value, T *total)
{
    __shared__ T warp_sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T sum = warp_scan(value);
    __syncthreads();
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    T before = {}, all = {};
    for (int w = 0; w < (int)blockDim.x / 32; ++w) {
        if (w < warp) before = scan_add(before, warp_sums[w]);
        all = scan_add(all, warp_sums[w]);
    }
    *total = all;
    // What the lanes of this warp before this thread have.
    T below = sum;
    if constexpr (sizeof(T) == sizeof(int32_t)) {
        below -= value;
    } else {
        below.x -= value.x;
        below.y -= value.y;
    }
    return scan_add(before, below);
}

} // namespace spops

#endif
