// SPDX-License-Identifier: Apache-2.0
// Dense grids that are cleared, and rows scattered into them. Only for measuring.
#include <cuda_runtime.h>

#include "bench/baselines/dense_baselines.h"

namespace
{

constexpr int threads = 256;

template <class T> __global__ void __launch_bounds__(threads) scatter(const dense_scatter d)
{
    const int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    if (i >= d.num_rows * d.channels) return;
    const int64_t row = i / d.channels, c = i % d.channels, cell = d.cells[row];
    const int64_t at = d.channels_last ? cell * d.channels + c : c * d.num_cells + cell;
    static_cast<T *>(d.dense)[at] = static_cast<const T *>(d.rows)[i];
}

} // namespace

void dense_write_cuda(dense_scatter *d)
{
    if (cudaMemsetAsync(d->dense, 0, d->bytes, static_cast<cudaStream_t>(d->stream)) != cudaSuccess)
        d->failed = true;
}

void dense_scatter_cuda(dense_scatter *d)
{
    const cudaStream_t stream = static_cast<cudaStream_t>(d->stream);
    const unsigned blocks = (unsigned)((d->num_rows * d->channels + threads - 1) / threads);
    dense_write_cuda(d);
    if (d->element == 2)
        scatter<uint16_t><<<blocks, threads, 0, stream>>>(*d);
    else
        scatter<uint32_t><<<blocks, threads, 0, stream>>>(*d);
    if (cudaGetLastError() != cudaSuccess) d->failed = true;
}
