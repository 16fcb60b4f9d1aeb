// SPDX-License-Identifier: Apache-2.0
// Parts summed in their order on the GPU: a thread has a column, or four where all parts lie on 16
// bytes. Loads of several parts are in flight; the order of additions is that of the parts.
#include "comm/comm_args.h"
#include "kernels/core/launch.cuh"

namespace
{

constexpr int threads = 256;

__device__ __forceinline__ float added(float a, float b)
{
    return a + b;
}
__device__ __forceinline__ float4 added(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// cols and stride are counted in V.
template <class V>
__global__ void __launch_bounds__(threads)
    sum_kernel(const V *__restrict__ parts, int64_t num_parts, int64_t stride, int64_t cols, V *out)
{
    for (int64_t c = (int64_t)blockIdx.x * threads + threadIdx.x; c < cols;
         c += (int64_t)gridDim.x * threads) {
        V sum = {};
        if (num_parts > 0) sum = __ldg(parts + c);
#pragma unroll 8
        for (int64_t p = 1; p < num_parts; ++p)
            sum = added(sum, __ldg(parts + p * stride + c));
        out[c] = sum;
    }
}

template <class V>
spops_status run(spops_context *ctx, const spops_comm_sum_args *args, int64_t width)
{
    const int64_t cols = args->cols / width, stride = args->stride / width;
    const int64_t resident = (int64_t)ctx->info.num_processors * 8;
    const int64_t blocks = (cols + threads - 1) / threads;
    return spops::launch(ctx, "comm_sum: launch", sum_kernel<V>,
                         dim3((unsigned)(blocks < resident ? blocks : resident)), threads,
                         static_cast<const V *>(args->parts), args->num_parts, stride, cols,
                         static_cast<V *>(args->out));
}

} // namespace

extern "C" spops_status spops_cuda_comm_sum(spops_context *ctx, const spops_comm_sum_args *args)
{
    const uintptr_t places =
        reinterpret_cast<uintptr_t>(args->parts) | reinterpret_cast<uintptr_t>(args->out);
    const bool wide =
        places % 16 == 0 && args->cols % 4 == 0 && (args->num_parts <= 1 || args->stride % 4 == 0);
    return wide ? run<float4>(ctx, args, 4) : run<float>(ctx, args, 1);
}
