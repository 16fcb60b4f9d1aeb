// SPDX-License-Identifier: Apache-2.0
// Transpose of batched matrices by way of shared memory, for channels-first outputs.
#include "kernels/core/launch.cuh"
#include "gather/gather_args.h"

namespace
{

constexpr int tile = 32;
constexpr int threads = 256;

struct transpose_params {
    int64_t rows, cols;
    const void *in;
    int64_t in_stride;
    void *out;
    int64_t out_stride;
};

template <class T>
__global__ void __launch_bounds__(threads)
    transpose_kernel(const __grid_constant__ transpose_params p)
{
    __shared__ T block[tile][tile + 1];
    const int64_t row0 = (int64_t)blockIdx.x * tile, col0 = (int64_t)blockIdx.y * tile;
    const int64_t batch = blockIdx.z;
    const T *in = static_cast<const T *>(p.in) + batch * p.rows * p.in_stride;
    T *out = static_cast<T *>(p.out) + batch * p.cols * p.out_stride;
    const int x = threadIdx.x % tile, y0 = threadIdx.x / tile;
    for (int y = y0; y < tile; y += threads / tile)
        if (row0 + y < p.rows && col0 + x < p.cols)
            block[y][x] = in[(row0 + y) * p.in_stride + col0 + x];
    __syncthreads();
    for (int y = y0; y < tile; y += threads / tile)
        if (col0 + y < p.cols && row0 + x < p.rows)
            out[(col0 + y) * p.out_stride + row0 + x] = block[x][y];
}

} // namespace

extern "C" spops_status spops_cuda_transpose(spops_context *ctx, const spops_transpose_args *args)
{
    if (args->batches == 0 || args->rows == 0 || args->cols == 0) return SPOPS_STATUS_OK;
    const int64_t row_tiles = (args->rows + tile - 1) / tile;
    const int64_t col_tiles = (args->cols + tile - 1) / tile;
    if (args->batches > 65535 || col_tiles > 65535)
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED,
                          "transpose: %" PRId64 " batches of %" PRId64
                          " columns, expected at most 65535 and %d",
                          args->batches, args->cols, 65535 * tile);
    transpose_params p = {args->rows,          args->cols,     args->in.data,
                          args->in.row_stride, args->out.data, args->out.row_stride};
    const dim3 grid((unsigned)row_tiles, (unsigned)col_tiles, (unsigned)args->batches);
    const char *what = "transpose: launch";
    switch (spops_dtype_bytes(args->in.dtype)) {
    case 1: return spops::launch(ctx, what, transpose_kernel<uint8_t>, grid, threads, p);
    case 2: return spops::launch(ctx, what, transpose_kernel<uint16_t>, grid, threads, p);
    default: return spops::launch(ctx, what, transpose_kernel<uint32_t>, grid, threads, p);
    }
}
