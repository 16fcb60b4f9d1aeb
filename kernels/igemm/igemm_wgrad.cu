// SPDX-License-Identifier: Apache-2.0
// Gradients of the matrices of taps: which device and arguments they are for, and the scratch of all
// matrix kernels.
#include "kernels/launchers.h"
#include "kernels/igemm/igemm_launch.cuh"
#include "kernels/igemm/igemm_wgrad_launch.cuh"

#ifdef SPOPS_SM90A
namespace
{

bool is_wide(spops_matrix m)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(m.dtype);
    return m.row_stride * bytes % 16 == 0 && m.cols * bytes % 16 == 0 &&
           reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

} // namespace
#endif

extern "C" bool spops_cuda_igemm_wgrad_fits(const spops_context *ctx,
                                            const spops_igemm_wgrad_args *args)
{
#ifdef SPOPS_SM90A
    return ctx->info.compute_capability == 90 && args->x.dtype != SPOPS_DTYPE_F32 &&
           is_wide(args->x) && is_wide(args->g);
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
    size_t product = args->lists ? 0 : copy, gradient = 0; // lists take W as it lies
#ifdef SPOPS_SM90A
    if (ctx->info.compute_capability == 90) {
        const bool reversed = args->gradients && args->max_x_cols > args->max_out_cols;
        if (!args->lists)
            product = spops_add_bytes(copy, spops::igemm_sm90_scratch_bytes(
                                                ctx, args->max_records,
                                                reversed ? args->max_x_cols : args->max_out_cols));
        if (args->gradients)
            gradient = spops::igemm_wgrad_sm90_scratch_bytes(ctx, args->num_taps, args->max_x_cols,
                                                             args->max_out_cols);
    }
#else
    (void)ctx;
#endif
    return product > gradient ? product : gradient;
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
