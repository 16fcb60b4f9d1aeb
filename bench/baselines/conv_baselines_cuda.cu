// SPDX-License-Identifier: Apache-2.0
// Scalar, weight-stationary gather and scatter on the GPU. Only for measuring.
#include <cuda_runtime.h>

#include "bench/baselines/conv_baselines.h"

namespace
{

constexpr int threads = 256;

__global__ void gather_kernel(const float *x, const int32_t *rows, unsigned n, unsigned cols,
                              float *buffer)
{
    const unsigned i = blockIdx.x * threads + threadIdx.x;
    if (i < n * cols) buffer[i] = x[(int64_t)rows[i / cols] * cols + i % cols];
}

// No row comes twice in a tap, so nothing is added to at once.
__global__ void scatter_kernel(const float *buffer, const int32_t *rows, unsigned n, unsigned cols,
                               float *out)
{
    const unsigned i = blockIdx.x * threads + threadIdx.x;
    if (i < n * cols) out[(int64_t)rows[i / cols] * cols + i % cols] += buffer[i];
}

unsigned blocks(int64_t n)
{
    return (unsigned)((n + threads - 1) / threads);
}

} // namespace

extern "C" void conv_movement_cuda(conv_movement *m)
{
    const cudaStream_t stream = static_cast<cudaStream_t>(m->stream);
    const size_t bytes = (size_t)m->num_out * (size_t)m->out_cols * sizeof(float);
    if (cudaMemsetAsync(m->out, 0, bytes, stream) != cudaSuccess) m->failed = true;
    for (int32_t k = 0; k < m->num_taps; ++k) {
        const int64_t begin = m->tap_offsets[k], n = m->tap_offsets[k + 1] - begin;
        if (n == 0) continue;
        gather_kernel<<<blocks(n * m->in_cols), threads, 0, stream>>>(
            m->x, m->in_rows + begin, (unsigned)n, (unsigned)m->in_cols,
            m->gathered + begin * m->in_cols);
        scatter_kernel<<<blocks(n * m->out_cols), threads, 0, stream>>>(
            m->products + begin * m->out_cols, m->out_rows + begin, (unsigned)n,
            (unsigned)m->out_cols, m->out);
        if (cudaPeekAtLastError() != cudaSuccess) m->failed = true;
    }
}
