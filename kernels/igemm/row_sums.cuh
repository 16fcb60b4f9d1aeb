// SPDX-License-Identifier: Apache-2.0
// Rows of 16-bit numbers that are added, 16 bytes of each, before they are multiplied.
#ifndef SPOPS_KERNELS_IGEMM_ROW_SUMS_CUH
#define SPOPS_KERNELS_IGEMM_ROW_SUMS_CUH

#include "kernels/igemm/igemm_epilogue.cuh"

namespace spops
{

// 16 bytes as 8 numbers, added to f32 sums and back.
template <class T> __device__ __forceinline__ void add_numbers(float (&sum)[8], uint4 v)
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const T *pair = reinterpret_cast<const T *>(&word[i]);
        sum[2 * i] += number_of(pair[0]);
        sum[2 * i + 1] += number_of(pair[1]);
    }
}

template <class T> __device__ __forceinline__ int4 rounded_numbers(const float (&sum)[8])
{
    return make_int4((int)rounded_pair<T>(sum[0], sum[1]), (int)rounded_pair<T>(sum[2], sum[3]),
                     (int)rounded_pair<T>(sum[4], sum[5]), (int)rounded_pair<T>(sum[6], sum[7]));
}

} // namespace spops

#endif
