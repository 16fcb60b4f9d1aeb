// SPDX-License-Identifier: Apache-2.0
// Weights of layers to codes on the GPU, once a network: a block takes an output channel. The same
// operations as quantize_cpu.c, none of which can be contracted.
#include "kernels/core/float8.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/scan.cuh"
#include "quantize/quantize_args.h"

namespace
{

using namespace spops;

constexpr int threads = 256;
constexpr float smallest = 0x1p-126f; // scale

struct weights_params {
    const void *w;
    int64_t stride; // of rows of w
    uint8_t *q;
    float *scales;
    int64_t taps, depth, padded, cols;
    bool transposed, is_int;
    float largest;
};

// Weight number i of an output channel: input channel i % depth at tap i / depth.
template <class T>
__device__ __forceinline__ float weight_of(const weights_params &p, int64_t i, int64_t o)
{
    const int64_t tap = i / p.depth, c = i - tap * p.depth;
    const int64_t row = p.transposed ? tap * p.cols + o : i, col = p.transposed ? c : o;
    return to_f32(static_cast<const T *>(p.w)[row * p.stride + col]);
}

template <class T>
__global__ void __launch_bounds__(threads) weights_kernel(const __grid_constant__ weights_params p)
{
    __shared__ uint32_t of_warp[threads / 32];
    const int64_t o = blockIdx.x, n = p.taps * p.depth;
    uint32_t most = 0;
    for (int64_t i = threadIdx.x; i < n; i += threads) {
        const uint32_t magnitude = __float_as_uint(weight_of<T>(p, i, o)) & 0x7fffffffu;
        most = magnitude < 0x7f800000u && magnitude > most ? magnitude : most;
    }
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < threads / 32; ++i)
        most = of_warp[i] > most ? of_warp[i] : most;
    float scale = __fdiv_rn(__uint_as_float(most), p.largest);
    scale = most == 0 ? 1.0f : scale < smallest ? smallest : scale;
    if (threadIdx.x == 0) p.scales[o] = scale;
    for (int64_t i = threadIdx.x; i < p.taps * p.padded; i += threads) {
        const int64_t tap = i / p.padded, c = i - tap * p.padded;
        uint8_t code = 0;
        if (c < p.depth) {
            const float v = __fdiv_rn(weight_of<T>(p, tap * p.depth + c, o), scale);
            code = p.is_int ? (uint8_t)spops_i8_of_float(v) : spops_f8e4m3_of_float(v);
        }
        p.q[(tap * p.cols + o) * p.padded + c] = code;
    }
}

} // namespace

extern "C" spops_status spops_cuda_quantize_weights(spops_context *ctx,
                                                    const spops_quantize_weights_args *args)
{
    weights_params p = {};
    p.w = args->w.data;
    p.stride = args->w.row_stride;
    p.q = static_cast<uint8_t *>(args->q.data);
    p.scales = args->scales;
    p.taps = args->taps;
    p.depth = args->depth;
    p.padded = args->q.cols;
    p.cols = args->cols;
    p.transposed = args->transposed;
    p.is_int = args->q.dtype == SPOPS_DTYPE_I8;
    p.largest = spops_largest_narrow(args->q.dtype);
    return with_dtype(args->w.dtype, [&](auto tag) {
        return launch(ctx, "quantize_weights: launch", weights_kernel<typename decltype(tag)::type>,
                      dim3((unsigned)args->cols), threads, p);
    });
}
