// SPDX-License-Identifier: Apache-2.0
// The epilogue of a convolution on the GPU: a thread has 16 bytes of a row, or one element.
#include <initializer_list>

#include "core/matrix.h"
#include "kernels/core/chunk.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "sparseconv/epilogue_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct params {
    void *out;
    const void *residual;
    int64_t out_stride, residual_stride, max_rows;
    const int32_t *num_rows;
    const float *bias, *scale, *shift;
    int32_t cols, pieces; // pieces of a row
    bool relu;
};

template <class T, int VEC>
__global__ void __launch_bounds__(threads) epilogue_kernel(const __grid_constant__ params p)
{
    const int64_t rows =
        p.num_rows != nullptr && *p.num_rows < p.max_rows ? *p.num_rows : p.max_rows;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < rows * p.pieces;
         i += (int64_t)gridDim.x * threads) {
        const int64_t row = i / p.pieces;
        const int col = (int)(i - row * p.pieces) * VEC;
        const int n = p.cols - col < VEC ? p.cols - col : VEC;
        T *at = static_cast<T *>(p.out) + row * p.out_stride + col;
        float v[VEC], residual[VEC] = {};
        row_chunk<T, VEC, false> chunk;
        chunk.load(at, n);
        chunk.get(v);
        if (p.residual != nullptr) {
            row_chunk<T, VEC, false> other;
            other.load(static_cast<const T *>(p.residual) + row * p.residual_stride + col, n);
            other.get(residual);
        }
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            if (j >= n) continue;
            if (p.bias != nullptr) v[j] += p.bias[col + j];
            if (p.scale != nullptr) v[j] *= p.scale[col + j];
            if (p.shift != nullptr) v[j] += p.shift[col + j];
            v[j] += residual[j];
            if (p.relu && v[j] < 0.0f) v[j] = 0.0f;
        }
        chunk.set(v);
        chunk.store(at, n);
    }
}

template <class T, int VEC> spops_status run(spops_context *ctx, params p, int64_t capacity)
{
    p.pieces = (p.cols + VEC - 1) / VEC;
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t blocks = (capacity * p.pieces + threads - 1) / threads;
    return launch(ctx, "epilogue: launch", epilogue_kernel<T, VEC>,
                  dim3((unsigned)(blocks < resident ? blocks : resident)), threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_epilogue(spops_context *ctx, const spops_epilogue_args *args)
{
    const int vec = common_chunk({args->out, args->residual});
    params p = {};
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    p.residual = args->residual.data;
    p.residual_stride = args->residual.row_stride;
    p.max_rows = args->out.rows;
    p.num_rows = args->num_rows;
    p.bias = args->bias;
    p.scale = args->scale;
    p.shift = args->shift;
    p.cols = (int32_t)args->out.cols;
    p.relu = args->activation == SPOPS_ACTIVATION_RELU;
    return with_dtype(args->out.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return vec == 1 ? run<T, 1>(ctx, p, args->out.rows)
                        : run<T, 16 / (int)sizeof(T)>(ctx, p, args->out.rows);
    });
}
