// SPDX-License-Identifier: Apache-2.0
// CUB's functions over a whole device that launchers call, compiled once: its headers take longer
// to read than most of our sources to compile.
//
// Each is called as CUB's are: with temp NULL it only says how many bytes of temp it needs.
#ifndef SPOPS_KERNELS_CORE_DEVICE_WIDE_H
#define SPOPS_KERNELS_CORE_DEVICE_WIDE_H

#include <cuda_runtime.h>
#include <stdint.h>

namespace spops
{

// Keys and their values, in one of two buffers that a sort goes back and forth between.
struct sort_buffers {
    uint32_t *keys[2];
    int32_t *values[2];
    int current;
};

// Stable sorts of n pairs by bits 0 .. end_bit - 1 of the key.
cudaError_t device_sort(void *temp, size_t &bytes, sort_buffers &pairs, int64_t n, int end_bit,
                        cudaStream_t stream);
cudaError_t device_sort(void *temp, size_t &bytes, const uint32_t *keys, uint32_t *sorted_keys,
                        const int32_t *values, int32_t *sorted_values, int64_t n, int end_bit,
                        cudaStream_t stream);
cudaError_t device_sort(void *temp, size_t &bytes, const uint64_t *keys, uint64_t *sorted_keys,
                        const int32_t *values, int32_t *sorted_values, int64_t n, int end_bit,
                        cudaStream_t stream);

// Each of n counts becomes the sum of those before it; out may be in. Of pairs of counts, each half
// by itself.
cudaError_t device_scan(void *temp, size_t &bytes, const int32_t *in, int32_t *out, int64_t n,
                        cudaStream_t stream);
cudaError_t device_scan(void *temp, size_t &bytes, int2 *counts, int64_t n, cudaStream_t stream);

} // namespace spops

#endif
