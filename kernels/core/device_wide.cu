// SPDX-License-Identifier: Apache-2.0
// CUB's functions over a whole device (device_wide.h).
#include "kernels/core/device_wide.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "kernels/core/launch.cuh"

namespace
{

using namespace spops;

struct add_halves {
    __host__ __device__ int2 operator()(const int2 &a, const int2 &b) const
    {
        return make_int2(a.x + b.x, a.y + b.y);
    }
};

// As CUB's are called: with temp NULL each only says how many bytes it needs.
template <class Key>
cudaError_t run_sort(void *temp, size_t &bytes, const Key *keys, Key *sorted_keys,
                     const int32_t *values, int32_t *sorted_values, int64_t n, int end_bit,
                     cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(temp, bytes, keys, sorted_keys, values, sorted_values,
                                           (int)n, 0, end_bit, stream);
}

cudaError_t run_sort(void *temp, size_t &bytes, sort_buffers *pairs, int64_t n, int end_bit,
                     cudaStream_t stream)
{
    const int from = pairs->current;
    cub::DoubleBuffer<uint32_t> keys(pairs->keys[from], pairs->keys[from ^ 1]);
    cub::DoubleBuffer<int32_t> values(pairs->values[from], pairs->values[from ^ 1]);
    const cudaError_t error =
        cub::DeviceRadixSort::SortPairs(temp, bytes, keys, values, (int)n, 0, end_bit, stream);
    pairs->current ^= keys.selector;
    return error;
}

cudaError_t run_scan(void *temp, size_t &bytes, const int32_t *in, int32_t *out, int64_t n,
                     cudaStream_t stream)
{
    // Kernels that count in 32 bits where that is enough. CUB has others since 2.8 (CUDA 12.8).
    if (n <= INT32_MAX) return cub::DeviceScan::ExclusiveSum(temp, bytes, in, out, (int)n, stream);
#if CUB_VERSION >= 200800
    return cub::DeviceScan::ExclusiveSum(temp, bytes, in, out, n, stream);
#else
    return cudaErrorInvalidValue;
#endif
}

cudaError_t run_scan(void *temp, size_t &bytes, int2 *counts, int64_t n, cudaStream_t stream)
{
    return cub::DeviceScan::ExclusiveScan(temp, bytes, counts, counts, add_halves(),
                                          make_int2(0, 0), (int)n, stream);
}

void keep_most(size_t *most, size_t bytes)
{
    if (bytes > *most) *most = bytes;
}

} // namespace

template <class Key> void spops::device_wide::needs_sort(int64_t n, int end_bit)
{
    size_t own = 0;
    (void)run_sort<Key>(nullptr, own, nullptr, nullptr, nullptr, nullptr, n, end_bit, nullptr);
    keep_most(&bytes, own);
}

template <> void spops::device_wide::needs_sort<sort_buffers>(int64_t n, int end_bit)
{
    sort_buffers pairs = {};
    size_t own = 0;
    (void)run_sort(nullptr, own, &pairs, n, end_bit, nullptr);
    keep_most(&bytes, own);
}

template <> void spops::device_wide::needs_scan<int32_t>(int64_t n)
{
    size_t own = 0;
    (void)run_scan(nullptr, own, nullptr, nullptr, n, nullptr);
    keep_most(&bytes, own);
}

template <> void spops::device_wide::needs_scan<int2>(int64_t n)
{
    size_t own = 0;
    (void)run_scan(nullptr, own, static_cast<int2 *>(nullptr), n, nullptr);
    keep_most(&bytes, own);
}

template <class Key>
spops_status spops::device_wide::sort(spops_context *ctx, const char *what, const Key *keys,
                                      Key *sorted_keys, const int32_t *values,
                                      int32_t *sorted_values, int64_t n, int end_bit) const
{
    size_t own = bytes;
    return spops_cuda_status(ctx, what,
                             (int)run_sort(temp, own, keys, sorted_keys, values, sorted_values, n,
                                           end_bit, stream_of(ctx)));
}

spops_status spops::device_wide::sort(spops_context *ctx, const char *what, sort_buffers *pairs,
                                      int64_t n, int end_bit) const
{
    size_t own = bytes;
    return spops_cuda_status(ctx, what,
                             (int)run_sort(temp, own, pairs, n, end_bit, stream_of(ctx)));
}

spops_status spops::device_wide::scan(spops_context *ctx, const char *what, const int32_t *in,
                                      int32_t *out, int64_t n) const
{
    size_t own = bytes;
    return spops_cuda_status(ctx, what, (int)run_scan(temp, own, in, out, n, stream_of(ctx)));
}

spops_status spops::device_wide::scan(spops_context *ctx, const char *what, int2 *counts,
                                      int64_t n) const
{
    size_t own = bytes;
    return spops_cuda_status(ctx, what, (int)run_scan(temp, own, counts, n, stream_of(ctx)));
}

#define SPOPS_KEY(Key)                                                                             \
    template void spops::device_wide::needs_sort<Key>(int64_t, int);                               \
    template spops_status spops::device_wide::sort<Key>(spops_context *, const char *,             \
                                                        const Key *, Key *, const int32_t *,       \
                                                        int32_t *, int64_t, int) const;
SPOPS_KEY(uint32_t)
SPOPS_KEY(uint64_t)
#undef SPOPS_KEY
