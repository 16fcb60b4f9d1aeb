// SPDX-License-Identifier: Apache-2.0
// Features of i8 back to floats, on the GPU: a thread has 8 columns of a row, or one.
#include "kernels/core/chunk.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "tapconv/widen_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;

struct params {
    const int8_t *q;
    void *out;
    int64_t q_stride, max_rows;
    const int32_t *num_rows;
    const float *scales;
    int32_t cols, pieces; // pieces of a row
    bool by_channel;
};

template <class T, int VEC>
__global__ void __launch_bounds__(threads) widen_kernel(const __grid_constant__ params p)
{
    const int64_t rows = *p.num_rows < p.max_rows ? *p.num_rows : p.max_rows;
    for (int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x; i < rows * p.pieces;
         i += (int64_t)gridDim.x * threads) {
        const int64_t row = i / p.pieces;
        const int col = (int)(i - row * p.pieces) * VEC;
        const int8_t *q = p.q + row * p.q_stride + col;
        T *out = static_cast<T *>(p.out) + row * p.cols + col;
        if constexpr (VEC == 1) {
            *out = from_f32<T>(p.scales[p.by_channel ? col : 0] * (float)*q);
        } else {
            const int2 word = *reinterpret_cast<const int2 *>(q);
            const int8_t *codes = reinterpret_cast<const int8_t *>(&word);
#pragma unroll
            for (int part = 0; part < VEC; part += 16 / (int)sizeof(T)) {
                row_chunk<T, 16 / (int)sizeof(T), false> chunk;
                float v[16 / sizeof(T)];
#pragma unroll
                for (int j = 0; j < 16 / (int)sizeof(T); ++j)
                    v[j] = p.scales[p.by_channel ? col + part + j : 0] * (float)codes[part + j];
                chunk.set(v);
                chunk.store(out + part, 16 / (int)sizeof(T));
            }
        }
    }
}

template <class T, int VEC> spops_status run(spops_context *ctx, params p)
{
    p.pieces = p.cols / VEC;
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t blocks = (p.max_rows * p.pieces + threads - 1) / threads;
    return launch(ctx, "widen: launch", widen_kernel<T, VEC>,
                  dim3((unsigned)(blocks < resident ? blocks : resident)), threads, p);
}

} // namespace

extern "C" spops_status spops_cuda_widen(spops_context *ctx, const spops_widen_args *args)
{
    const bool wide = args->q.cols % 8 == 0 && (args->q.rows <= 1 || args->q.row_stride % 8 == 0) &&
                      (uintptr_t)args->q.data % 8 == 0;
    params p = {};
    p.q = static_cast<const int8_t *>(args->q.data);
    p.out = args->out.data;
    p.q_stride = args->q.row_stride;
    p.max_rows = args->q.rows;
    p.num_rows = args->num_rows;
    p.scales = args->scales;
    p.cols = (int32_t)args->q.cols;
    p.by_channel = args->by_channel;
    return with_dtype(args->out.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return wide ? run<T, 8>(ctx, p) : run<T, 1>(ctx, p);
    });
}
