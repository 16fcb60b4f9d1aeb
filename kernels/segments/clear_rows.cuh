// SPDX-License-Identifier: Apache-2.0
// Rows of one value, with gaps between them.
#ifndef SPOPS_KERNELS_SEGMENTS_CLEAR_ROWS_CUH
#define SPOPS_KERNELS_SEGMENTS_CLEAR_ROWS_CUH

#include "core/backend.h"
#include "kernels/core/launch.cuh"

namespace spops
{

constexpr int clear_threads = 256;

// i / cols, in 32 bits where that is enough.
__device__ __forceinline__ int64_t row_of(int64_t i, int32_t cols)
{
    return i >> 32 == 0 ? (int64_t)((uint32_t)i / (uint32_t)cols) : i / cols;
}

template <class T>
__global__ void __launch_bounds__(clear_threads)
    fill_rows_kernel(T *out, int64_t stride, int64_t rows, int32_t cols, T value)
{
    for (int64_t i = (int64_t)blockIdx.x * clear_threads + threadIdx.x; i < rows * cols;
         i += (int64_t)gridDim.x * clear_threads) {
        const int64_t row = row_of(i, cols);
        out[row * stride + (i - row * cols)] = value;
    }
}

// Every element of m, whose elements are as large as T, becomes value.
template <class T>
spops_status fill_rows(spops_context *ctx, const char *what, const spops_matrix &m, T value)
{
    const int64_t blocks = (m.rows * m.cols + clear_threads - 1) / clear_threads;
    const int64_t most = (int64_t)ctx->info.num_processors * 16;
    return launch(ctx, what, fill_rows_kernel<T>, dim3((unsigned)(blocks < most ? blocks : most)),
                  clear_threads, (T *)m.data, m.row_stride, m.rows, (int32_t)m.cols, value);
}

// Zeros, of any dtype of 2 or 4 bytes.
inline spops_status clear_rows(spops_context *ctx, const char *what, const spops_matrix &m)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(m.dtype);
    if (m.rows <= 1 || m.row_stride == m.cols)
        return ctx->backend->fill_zero(ctx, m.data, (size_t)(m.rows * m.cols * bytes));
    return bytes == 2 ? fill_rows<uint16_t>(ctx, what, m, 0) : fill_rows<uint32_t>(ctx, what, m, 0);
}

} // namespace spops

#endif
