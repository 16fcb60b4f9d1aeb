// SPDX-License-Identifier: Apache-2.0
// Products of point convolutions: which device and arguments they are for. The kernels are compiled
// for sm_90a alone; a library that was built without that architecture has none.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/core/launch.cuh"
#include "kernels/launchers.h"
#include "kernels/pointconv/point_gemm_launch.cuh"
#include "kernels/pointconv/point_gemm_tuning.h"

namespace
{

#ifdef SPOPS_SM90A
constexpr bool have_sm90a = true;
#else
constexpr bool have_sm90a = false;
#endif

bool is_aligned(const void *data, int64_t stride)
{
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}

} // namespace

extern "C" int32_t spops_cuda_point_gemm_choose(const spops_context *ctx,
                                                const spops_point_gemm_args *args)
{
    const int32_t variant = args->variant == 0 ? SPOPS_POINT_GEMM_DEFAULT_VARIANT : args->variant;
    if (!have_sm90a || ctx->info.compute_capability != 90) return 0;
    return variant > 0 && variant <= SPOPS_POINT_GEMM_NUM_VARIANTS ? variant : 0;
}

extern "C" bool spops_cuda_point_gemm_fits(const spops_context *ctx,
                                           const spops_point_gemm_args *args)
{
    (void)ctx;
    return (args->x.dtype == SPOPS_DTYPE_F16 || args->x.dtype == SPOPS_DTYPE_BF16) &&
           args->x.cols % 8 == 0 && args->out.cols % 8 == 0 &&
           is_aligned(args->x.data, args->x.row_stride) &&
           is_aligned(args->w.data, args->w.row_stride);
}

extern "C" spops_status spops_cuda_point_gemm_prepare(spops_context *ctx,
                                                      const spops_point_gemm_args *args)
{
#ifdef SPOPS_SM90A
    SPOPS_TRY(spops::prepare_point_gemm_sm90<__half>(ctx, args->variant));
    return spops::prepare_point_gemm_sm90<__nv_bfloat16>(ctx, args->variant);
#else
    (void)ctx, (void)args;
    return SPOPS_STATUS_OK;
#endif
}

extern "C" spops_status spops_cuda_point_gemm(spops_context *ctx, const spops_point_gemm_args *args)
{
    if (args->schedule->max_tiles == 0) return SPOPS_STATUS_OK;
#ifdef SPOPS_SM90A
    if (args->x.dtype == SPOPS_DTYPE_F16) return spops::launch_point_gemm_sm90<__half>(ctx, args);
    return spops::launch_point_gemm_sm90<__nv_bfloat16>(ctx, args);
#else
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "pointconv: built without sm_90a");
#endif
}
