// SPDX-License-Identifier: Apache-2.0
// CUB's functions over a whole device (device_wide.h).
#include "kernels/core/device_wide.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

namespace
{

struct add_halves {
    __host__ __device__ int2 operator()(const int2 &a, const int2 &b) const
    {
        return make_int2(a.x + b.x, a.y + b.y);
    }
};

template <class Key>
cudaError_t sort_apart(void *temp, size_t &bytes, const Key *keys, Key *sorted_keys,
                       const int32_t *values, int32_t *sorted_values, int64_t n, int end_bit,
                       cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(temp, bytes, keys, sorted_keys, values, sorted_values,
                                           (int)n, 0, end_bit, stream);
}

} // namespace

cudaError_t spops::device_sort(void *temp, size_t &bytes, sort_buffers &pairs, int64_t n,
                               int end_bit, cudaStream_t stream)
{
    cub::DoubleBuffer<uint32_t> keys(pairs.keys[pairs.current], pairs.keys[pairs.current ^ 1]);
    cub::DoubleBuffer<int32_t> values(pairs.values[pairs.current], pairs.values[pairs.current ^ 1]);
    const cudaError_t error =
        cub::DeviceRadixSort::SortPairs(temp, bytes, keys, values, (int)n, 0, end_bit, stream);
    pairs.current ^= keys.selector;
    return error;
}

cudaError_t spops::device_sort(void *temp, size_t &bytes, const uint32_t *keys,
                               uint32_t *sorted_keys, const int32_t *values, int32_t *sorted_values,
                               int64_t n, int end_bit, cudaStream_t stream)
{
    return sort_apart(temp, bytes, keys, sorted_keys, values, sorted_values, n, end_bit, stream);
}

cudaError_t spops::device_sort(void *temp, size_t &bytes, const uint64_t *keys,
                               uint64_t *sorted_keys, const int32_t *values, int32_t *sorted_values,
                               int64_t n, int end_bit, cudaStream_t stream)
{
    return sort_apart(temp, bytes, keys, sorted_keys, values, sorted_values, n, end_bit, stream);
}

cudaError_t spops::device_scan(void *temp, size_t &bytes, const int32_t *in, int32_t *out,
                               int64_t n, cudaStream_t stream)
{
    // Kernels that count in 32 bits where that is enough. CUB has others since 2.8 (CUDA 12.8).
    if (n <= INT32_MAX) return cub::DeviceScan::ExclusiveSum(temp, bytes, in, out, (int)n, stream);
#if CUB_VERSION >= 200800
    return cub::DeviceScan::ExclusiveSum(temp, bytes, in, out, n, stream);
#else
    return cudaErrorInvalidValue;
#endif
}

cudaError_t spops::device_scan(void *temp, size_t &bytes, int2 *counts, int64_t n,
                               cudaStream_t stream)
{
    return cub::DeviceScan::ExclusiveScan(temp, bytes, counts, counts, add_halves(),
                                          make_int2(0, 0), (int)n, stream);
}
