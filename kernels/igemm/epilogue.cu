// SPDX-License-Identifier: Apache-2.0
// The epilogue of a convolution on the GPU: a thread has 16 bytes of a row, or one element.
#include <initializer_list>

#include "core/matrix.h"
#include "kernels/core/activation.cuh"
#include "kernels/core/chunk.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "igemm/epilogue_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct params {
    spops_epilogue_args args;
    int32_t cols, pieces; // pieces of a row
};

template <class T, int VEC>
__global__ void __launch_bounds__(threads) epilogue_kernel(const __grid_constant__ params p)
{
    const spops_matrix &out = p.args.out, &also = p.args.epilogue.residual;
    const spops_epilogue &e = p.args.epilogue;
    const int32_t *const num_rows = p.args.num_rows;
    const int64_t rows = num_rows != nullptr && *num_rows < out.rows ? *num_rows : out.rows;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < rows * p.pieces;
         i += (int64_t)gridDim.x * threads) {
        const int64_t row = i / p.pieces;
        const int col = (int)(i - row * p.pieces) * VEC;
        const int n = p.cols - col < VEC ? p.cols - col : VEC;
        T *at = static_cast<T *>(out.data) + row * out.row_stride + col;
        float v[VEC], residual[VEC] = {};
        row_chunk<T, VEC, false> chunk;
        chunk.load(at, n);
        chunk.get(v);
        if (also.data != nullptr) {
            row_chunk<T, VEC, false> other;
            other.load(static_cast<const T *>(also.data) + row * also.row_stride + col, n);
            other.get(residual);
        }
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            if (j >= n) continue;
            if (e.bias != nullptr) v[j] += e.bias[col + j];
            if (e.scale != nullptr) v[j] *= e.scale[col + j];
            if (e.shift != nullptr) v[j] += e.shift[col + j];
            v[j] += residual[j];
        }
        activate<true>(e.activated, v);
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
    const int vec = common_chunk({args->out, args->epilogue.residual});
    params p = {};
    p.args = *args;
    p.cols = (int32_t)args->out.cols;
    return with_dtype(args->out.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return vec == 1 ? run<T, 1>(ctx, p, args->out.rows)
                        : run<T, 16 / (int)sizeof(T)>(ctx, p, args->out.rows);
    });
}
