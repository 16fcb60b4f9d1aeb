// SPDX-License-Identifier: Apache-2.0
// Rows of x that are added before they are multiplied: the sums of a record (igemm_args.h), 16 bytes of
// each row, in f32 and in the order of their members, rounded to numbers of T.
#ifndef SPOPS_KERNELS_IGEMM_ROW_SUMS_CUH
#define SPOPS_KERNELS_IGEMM_ROW_SUMS_CUH

#include "kernels/igemm/igemm_epilogue.cuh"

namespace spops
{

// 16 bytes as numbers of T, added to f32 sums and back.
template <class T>
__device__ __forceinline__ void add_numbers(float (&sum)[16 / sizeof(T)], uint4 v)
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const T *numbers = reinterpret_cast<const T *>(&word[i]);
#pragma unroll
        for (int j = 0; j < 4 / (int)sizeof(T); ++j)
            sum[i * 4 / (int)sizeof(T) + j] += number_of(numbers[j]);
    }
}

template <class T>
__device__ __forceinline__ int4 rounded_numbers(const float (&sum)[16 / sizeof(T)])
{
    if constexpr (sizeof(T) == 4)
        return make_int4(__float_as_int(sum[0]), __float_as_int(sum[1]), __float_as_int(sum[2]),
                         __float_as_int(sum[3]));
    else
        return make_int4((int)rounded_pair<T>(sum[0], sum[1]), (int)rounded_pair<T>(sum[2], sum[3]),
                         (int)rounded_pair<T>(sum[4], sum[5]),
                         (int)rounded_pair<T>(sum[6], sum[7]));
}

// Row `from` of x.
__device__ __forceinline__ const unsigned char *row_at(const unsigned char *x, uint32_t stride,
                                                       int from)
{
    return x + (uint64_t)(uint32_t)from * stride;
}
__device__ __forceinline__ const unsigned char *row_at(const unsigned char *x, int64_t stride,
                                                       int from)
{
    return x + (int64_t)from * stride;
}

// The sum of an entry, of the 16 bytes of each row that begin at x.
template <class T>
__device__ __forceinline__ int4 sum_of_rows(int4 entry, const int *members, const unsigned char *x,
                                            int64_t stride)
{
    const int count = entry.x >> 8;
    float value[16 / sizeof(T)] = {};
    for (int m = 0; m < count; ++m) {
        const int from = m == 0       ? entry.y
                         : m == 1     ? entry.z
                         : count == 3 ? entry.w
                                      : __ldg(members + entry.w + m);
        add_numbers<T>(value, __ldg(reinterpret_cast<const uint4 *>(row_at(x, stride, from))));
    }
    return rounded_numbers<T>(value);
}

} // namespace spops

#endif
