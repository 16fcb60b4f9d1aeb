// SPDX-License-Identifier: Apache-2.0
// Gradients of the matrices of taps: which device and arguments they are for, and the scratch of all
// matrix kernels.
#include "kernels/launchers.h"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/igemm/igemm_wgrad_launch.cuh"

extern "C" bool spops_cuda_igemm_wgrad_fits(const spops_context *ctx,
                                            const spops_igemm_wgrad_args *args)
{
#ifdef SPOPS_SM90A
    constexpr int64_t most_tiles = 65535; // of a grid along y
    return ctx->info.compute_capability == 90 && args->x.dtype != SPOPS_DTYPE_F32 &&
           spops::is_wide(args->x) && spops::is_wide(args->g) &&
           spops::igemm_wgrad_tiles(args) <= most_tiles;
#else
    (void)ctx, (void)args;
    return false;
#endif
}

extern "C" size_t spops_cuda_igemm_scratch_bytes(spops_context *ctx,
                                                 const spops_igemm_scratch_args *args)
{
    const int64_t x = spops::padded_to_16_bytes(args->max_x_cols, 2);
    const int64_t out = spops::padded_to_16_bytes(args->max_out_cols, 2);
    const size_t copy = spops_mul_bytes(spops_mul_bytes((size_t)x, (size_t)out),
                                        (size_t)args->num_taps * sizeof(float));
    size_t product = copy, gradient = 0;
#ifdef SPOPS_SM90A
    if (ctx->info.compute_capability == 90) {
        const bool reversed = args->gradients && args->max_x_cols > args->max_out_cols;
        product = spops_add_bytes(
            copy, spops::igemm_sm90_scratch_bytes(ctx, args->max_records,
                                                  reversed ? args->max_x_cols : args->max_out_cols,
                                                  args->tile));
        if (args->gradients)
            gradient = spops::igemm_wgrad_sm90_scratch_bytes(ctx, args->num_taps, args->max_x_cols,
                                                             args->max_out_cols, args->tile);
    }
#else
    (void)ctx;
#endif
    return product > gradient ? product : gradient;
}

extern "C" int32_t spops_cuda_igemm_wgrad_tile(const spops_context *ctx,
                                               const spops_igemm_wgrad_args *args)
{
#ifdef SPOPS_SM90A
    const int32_t tile = spops::igemm_wgrad_tile_of(args);
    const spops_igemm_kernel wanted =
        args->units != nullptr ? SPOPS_IGEMM_WGRAD_UNITS : SPOPS_IGEMM_WGRAD;
    return ctx->info.compute_capability == 90 && spops_igemm_kernel_of(tile) == wanted ? tile : 0;
#else
    (void)ctx, (void)args;
    return 0;
#endif
}

extern "C" spops_status spops_cuda_igemm_wgrad(spops_context *ctx,
                                               const spops_igemm_wgrad_args *args)
{
#ifdef SPOPS_SM90A
    return spops::launch_igemm_wgrad_sm90(ctx, args);
#else
    (void)args;
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "igemm_wgrad: built without sm_90a");
#endif
}
