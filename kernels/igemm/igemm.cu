// SPDX-License-Identifier: Apache-2.0
// Products of gathered rows with the matrices of taps: which device and arguments they are for, and
// copies of W where the kernels cannot take it as it lies. Those of igemm_sm90.cuh are compiled for
// sm_90a alone, where that is among the architectures; those of igemm_sm80.cuh for all, and serve
// what has matrix units.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/core/launch.cuh"
#include "kernels/launchers.h"
#include "kernels/igemm/dense_sm90.cuh"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/igemm/igemm_wgrad_launch.cuh"

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

bool has_units(const spops_context *ctx)
{
    return ctx->info.compute_capability >= 80;
}

bool has_sm90(const spops_context *ctx)
{
    return have_sm90a && ctx->info.compute_capability == 90;
}

// The tile of products that was asked for, or that of the table.
int32_t tile_of(const spops_context *ctx, const spops_igemm_args *args)
{
    const spops_igemm_schedule *s = args->schedule;
    const spops_igemm_case at = {s->max_tiles,
                                 args->out.cols,
                                 ctx->info.num_processors,
                                 has_sm90(ctx),
                                 s->records != nullptr,
                                 s->adds,
                                 args->whole_sums,
                                 has_igemm_pairs(args),
                                 args->x.dtype == SPOPS_DTYPE_F32,
                                 args->x.cols * (int64_t)spops_dtype_bytes(args->x.dtype),
                                 s->taps_a_row,
                                 args->reads_ahead};
    const bool asks = args->tile != 0 && !spops_igemm_is_gradient(args->tile);
    return asks ? args->tile : spops_igemm_tile(&at);
}

template <class T>
spops_status launch_kernel(spops_context *ctx, const spops_igemm_args *args, const weight_form &f)
{
    int32_t tile = tile_of(ctx, args);
#ifdef SPOPS_SM90A
    if (has_sm90(ctx) && dense_sm90_fits(ctx, args, f)) return launch_dense_sm90(ctx, args, f);
    if constexpr (sizeof(T) == 2)
        if (has_igemm_pairs(args) && f.cols <= spops_igemm_pair_columns(tile))
            return launch_igemm_pairs<T>(ctx, args, f, tile);
    tile = spops_igemm_single_tile(tile);
    if (spops_igemm_kernel_of(tile) != SPOPS_IGEMM_SM80)
        return launch_igemm_sm90<T>(ctx, args, f, tile);
#endif
    return launch_igemm_sm80<T>(ctx, args, f, tile);
}

template <class T> spops_status prepare_products(spops_context *ctx, bool adds, int32_t forced)
{
    const bool asks = spops_igemm_kernel_of(forced) == SPOPS_IGEMM_SM80;
#ifdef SPOPS_SM90A
    const int32_t single = spops_igemm_single_tile(forced);
    if (has_sm90(ctx)) SPOPS_TRY(prepare_igemm_sm90<T>(ctx, adds, single));
    if constexpr (sizeof(T) == 2)
        if (has_sm90(ctx) && !adds) SPOPS_TRY(prepare_igemm_pairs<T>(ctx, forced));
#endif
    return has_sm90(ctx) && !asks ? SPOPS_STATUS_OK : prepare_igemm_sm80<T>(ctx, adds, forced);
}

spops_status prepare_all(spops_context *ctx, bool adds, int32_t forced)
{
    SPOPS_TRY(prepare_products<__half>(ctx, adds, forced));
    SPOPS_TRY(prepare_products<__nv_bfloat16>(ctx, adds, forced));
    return prepare_products<float>(ctx, adds, forced);
}

} // namespace

extern "C" bool spops_cuda_igemm_exists(const spops_context *ctx,
                                        const spops_igemm_scratch_args *args)
{
    (void)args;
    return has_units(ctx);
}

extern "C" spops_status spops_cuda_igemm_prepare(spops_context *ctx,
                                                 const spops_igemm_prepare_args *args)
{
    if (args->products) SPOPS_TRY(prepare_all(ctx, false, args->tile));
    if (args->adds) SPOPS_TRY(prepare_all(ctx, true, args->tile));
#ifdef SPOPS_SM90A
    if (has_sm90(ctx) && args->products) SPOPS_TRY(prepare_dense_sm90(ctx));
    if (has_sm90(ctx) && args->gradients)
        SPOPS_TRY(prepare_igemm_wgrad_sm90(ctx, PAIRS, args->tile));
    if (has_sm90(ctx) && args->row_gradients)
        SPOPS_TRY(prepare_igemm_wgrad_sm90(ctx, ROWS, args->tile));
    if (has_sm90(ctx) && args->units) SPOPS_TRY(prepare_igemm_wgrad_sm90(ctx, UNITS, args->tile));
#endif
    return SPOPS_STATUS_OK;
}

extern "C" bool spops_cuda_igemm_fits(const spops_context *ctx, const spops_igemm_args *args)
{
    // Rows of groups have no scratch for a copy of weights.
    const bool has_scratch = args->schedule->records != nullptr || args->schedule->max_tiles == 0;
    return has_units(ctx) && is_wide(args->x) && (has_scratch || !form_of_weights(args).copied);
}

extern "C" int32_t spops_cuda_igemm_tile(const spops_context *ctx, const spops_igemm_args *args)
{
    const int32_t tile = has_units(ctx) ? tile_of(ctx, args) : 0;
    switch (spops_igemm_kernel_of(tile)) {
    case SPOPS_IGEMM_SM80: return tile;
    case SPOPS_IGEMM_SM90: return has_sm90(ctx) && !args->schedule->adds ? tile : 0;
    case SPOPS_IGEMM_SM90_ADDS: return has_sm90(ctx) && args->schedule->adds ? tile : 0;
    default: return 0;
    }
}

extern "C" spops_status spops_cuda_igemm(spops_context *ctx, const spops_igemm_args *args)
{
    if (args->schedule->max_tiles == 0) return SPOPS_STATUS_OK;
    const weight_form f = form_of_weights(args);
    if (f.copied) SPOPS_TRY(copy_of_weights(ctx, args, f));
    switch (args->x.dtype) {
    case SPOPS_DTYPE_F16: return launch_kernel<__half>(ctx, args, f);
    case SPOPS_DTYPE_BF16: return launch_kernel<__nv_bfloat16>(ctx, args, f);
    default: return launch_kernel<float>(ctx, args, f);
    }
}
