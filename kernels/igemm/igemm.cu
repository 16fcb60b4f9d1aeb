// SPDX-License-Identifier: Apache-2.0
// Products of gathered rows with the matrices of taps: which device and arguments they are for, and
// copies of W where the kernels cannot take it as it lies. Those of igemm_sm90.cuh are compiled for
// sm_90a alone, where that is among the architectures; those of igemm_sm80.cuh for all, and serve
// what has matrix units.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/core/launch.cuh"
#include "kernels/launchers.h"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/igemm/igemm_wgrad_launch.cuh"
#include "kernels/igemm/point_gemm_launch.cuh"

namespace
{

using namespace spops;

#ifdef SPOPS_SM90A
constexpr bool have_sm90a = true;
#else
constexpr bool have_sm90a = false;
#endif

constexpr int copy_threads = 256;
constexpr int copy_tile = 32;

struct weight_copy_params {
    const void *w;
    void *to;
    int taps, depth, cols; // of W, depth of k
    int padded_depth;
    bool transposed; // W is [taps][cols][depth]
};

template <class T>
__global__ void __launch_bounds__(copy_threads)
    copy_weights(const __grid_constant__ weight_copy_params p)
{
    __shared__ T block[copy_tile][copy_tile + 1];
    const int k0 = blockIdx.x * copy_tile, c0 = blockIdx.y * copy_tile;
    const int x = threadIdx.x % copy_tile, y0 = threadIdx.x / copy_tile;
    for (int tap = blockIdx.z; tap < p.taps; tap += gridDim.z) {
        const T *w = static_cast<const T *>(p.w) + (int64_t)tap * p.depth * p.cols;
        T *to = static_cast<T *>(p.to) + (int64_t)tap * p.padded_depth * p.cols;
        for (int y = y0; y < copy_tile; y += copy_threads / copy_tile) {
            const int k = k0 + (p.transposed ? x : y), c = c0 + (p.transposed ? y : x);
            T v = 0;
            if (k < p.depth && c < p.cols)
                v = p.transposed ? w[(int64_t)c * p.depth + k] : w[(int64_t)k * p.cols + c];
            block[c - c0][k - k0] = v;
        }
        __syncthreads();
        for (int y = y0; y < copy_tile; y += copy_threads / copy_tile)
            if (k0 + x < p.padded_depth && c0 + y < p.cols)
                to[(int64_t)(c0 + y) * p.padded_depth + k0 + x] = block[y][x];
        __syncthreads();
    }
}

spops_status copy_of_weights(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    const weight_copy_params p = {args->w.data,   args->scratch,     f.taps, f.depth, f.cols,
                                  f.padded_depth, args->w_transposed};
    const dim3 grid((unsigned)((f.padded_depth + copy_tile - 1) / copy_tile),
                    (unsigned)((f.cols + copy_tile - 1) / copy_tile),
                    (unsigned)(f.taps < 65535 ? f.taps : 65535));
    const char *what = "igemm: copy of weights";
    if (f.bytes == 2) return launch(ctx, what, copy_weights<uint16_t>, grid, copy_threads, p);
    return launch(ctx, what, copy_weights<uint32_t>, grid, copy_threads, p);
}

// Which of the kernels is for the device, if one is.
enum igemm_kernel { NO_KERNEL, KERNEL_SM80, KERNEL_SM90 };
igemm_kernel kernel_for(const spops_context *ctx)
{
    const int capability = ctx->info.compute_capability;
    return have_sm90a && capability == 90 ? KERNEL_SM90
           : capability >= 80             ? KERNEL_SM80
                                          : NO_KERNEL;
}

template <class T>
spops_status launch_kernel(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
#ifdef SPOPS_SM90A
    if (kernel_for(ctx) == KERNEL_SM90) return launch_igemm_sm90<T>(ctx, args, f);
#endif
    return launch_igemm_sm80<T>(ctx, args, f);
}

bool is_wide(const spops_matrix &m)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(m.dtype);
    return m.row_stride * bytes % 16 == 0 && m.cols * bytes % 16 == 0 &&
           reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

template <class T> spops_status prepare_products(spops_context *ctx)
{
#ifdef SPOPS_SM90A
    if (kernel_for(ctx) == KERNEL_SM90) return prepare_igemm_sm90<T>(ctx);
#endif
    return prepare_igemm_sm80<T>(ctx);
}

} // namespace

extern "C" bool spops_cuda_igemm_exists(const spops_context *ctx,
                                        const spops_igemm_scratch_args *args)
{
    return args->lists ? kernel_for(ctx) == KERNEL_SM90 : kernel_for(ctx) != NO_KERNEL;
}

extern "C" spops_status spops_cuda_igemm_prepare(spops_context *ctx,
                                                 const spops_igemm_prepare_args *args)
{
    if (args->products) {
        SPOPS_TRY(prepare_products<__half>(ctx));
        SPOPS_TRY(prepare_products<__nv_bfloat16>(ctx));
        SPOPS_TRY(prepare_products<float>(ctx));
    }
#ifdef SPOPS_SM90A
    if (kernel_for(ctx) == KERNEL_SM90 && args->lists) {
        SPOPS_TRY(prepare_point_gemm_sm90<__half>(ctx));
        SPOPS_TRY(prepare_point_gemm_sm90<__nv_bfloat16>(ctx));
    }
    if (kernel_for(ctx) == KERNEL_SM90 && args->gradients)
        SPOPS_TRY(prepare_igemm_wgrad_sm90(ctx, false));
    if (kernel_for(ctx) == KERNEL_SM90 && args->units)
        SPOPS_TRY(prepare_igemm_wgrad_sm90(ctx, true));
#endif
    return SPOPS_STATUS_OK;
}

extern "C" bool spops_cuda_igemm_fits(const spops_context *ctx, const spops_igemm_args *args)
{
    if (args->schedule->lists) // which are multiplied by the matrices as they lie
        return args->x.dtype != SPOPS_DTYPE_F32 && is_wide(args->x) && args->out.cols % 8 == 0 &&
               reinterpret_cast<uintptr_t>(args->w.data) % 16 == 0;
    // Rows of groups have no scratch for a copy of weights.
    return kernel_for(ctx) != NO_KERNEL && is_wide(args->x) &&
           (args->schedule->records != nullptr || !form_of_weights(args).copied);
}

extern "C" spops_status spops_cuda_igemm(spops_context *ctx, const spops_igemm_args *args)
{
    if (args->schedule->max_tiles == 0) return SPOPS_STATUS_OK;
#ifdef SPOPS_SM90A
    if (args->schedule->lists)
        return args->x.dtype == SPOPS_DTYPE_F16 ? launch_point_gemm_sm90<__half>(ctx, args)
                                                : launch_point_gemm_sm90<__nv_bfloat16>(ctx, args);
#endif
    const weight_form f = form_of_weights(args);
    if (f.copied) SPOPS_TRY(copy_of_weights(ctx, args, f));
    switch (args->x.dtype) {
    case SPOPS_DTYPE_F16: return launch_kernel<__half>(ctx, args, f);
    case SPOPS_DTYPE_BF16: return launch_kernel<__nv_bfloat16>(ctx, args, f);
    default: return launch_kernel<float>(ctx, args, f);
    }
}
