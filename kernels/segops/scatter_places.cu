// SPDX-License-Identifier: Apache-2.0
// The gradient of sort and top-k: each row of a column to its place.
#include "kernels/segments/clear_rows.cuh"
#include "segops/segops_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct scatter_params {
    const void *x;
    int64_t x_stride;
    const int32_t *places;
    int64_t places_stride;
    void *out;
    int64_t out_stride, rows, out_rows;
    int32_t cols;
};

template <class T>
__global__ void __launch_bounds__(threads) scatter_kernel(const __grid_constant__ scatter_params p)
{
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < p.rows * p.cols;
         i += (int64_t)gridDim.x * threads) {
        const int64_t row = row_of(i, p.cols), col = i - row * p.cols;
        const int32_t place = __ldg(p.places + row * p.places_stride + col);
        if (place >= 0 && place < p.out_rows)
            static_cast<T *>(p.out)[place * p.out_stride + col] =
                static_cast<const T *>(p.x)[row * p.x_stride + col];
    }
}

} // namespace

extern "C" spops_status spops_cuda_scatter_places(spops_context *ctx,
                                                  const spops_scatter_places_args *args)
{
    const scatter_params p = {args->x.data,
                              args->x.row_stride,
                              (const int32_t *)args->places.data,
                              args->places.row_stride,
                              args->out.data,
                              args->out.row_stride,
                              args->x.rows,
                              args->out.rows,
                              (int32_t)args->out.cols};
    const int64_t blocks = (p.rows * p.cols + threads - 1) / threads;
    const int64_t most = (int64_t)ctx->info.num_processors * 16;
    const dim3 grid((unsigned)(blocks < most ? blocks : most));
    SPOPS_TRY(clear_rows(ctx, "scatter_places: clear", args->out));
    return spops_dtype_bytes(args->out.dtype) == 2
               ? launch(ctx, "scatter_places: launch", scatter_kernel<uint16_t>, grid, threads, p)
               : launch(ctx, "scatter_places: launch", scatter_kernel<uint32_t>, grid, threads, p);
}
