// SPDX-License-Identifier: Apache-2.0
// MVMR: the choice of a kernel (mvmr_kernel.cuh), and rows that no triplet names.
#include "kernels/core/launch.cuh"
#include "kernels/core/with_dtype.cuh"
#include "kernels/mvmr/mvmr_params.cuh"

namespace
{

using namespace spops;

// Rows of the result that no triplet names, and all others.
__global__ void zero_rows(char *data, int64_t stride_bytes, int64_t row_bytes, int64_t num_rows,
                          const int32_t *num_written)
{
    const int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows_written(num_written, num_rows)) return;
    // Elements have two bytes or four.
    for (int64_t i = threadIdx.x * 2; i < row_bytes; i += blockDim.x * 2)
        *reinterpret_cast<uint16_t *>(data + r * stride_bytes + i) = 0;
}

spops_status zero_result(spops_context *ctx, spops_matrix m, const int32_t *num_written)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(m.dtype);
    const dim3 grid((unsigned)((m.rows + 7) / 8));
    char *data = static_cast<char *>(m.data);
    if (m.rows == 0 || m.cols == 0) return SPOPS_STATUS_OK;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(32, 8);
    config.stream = stream_of(ctx);
    return spops_cuda_status(ctx, "mvmr: zero_rows",
                             (int)cudaLaunchKernelEx(&config, zero_rows, data, m.row_stride * bytes,
                                                     m.cols * bytes, m.rows, num_written));
}

} // namespace

extern "C" spops_status spops_cuda_mvmr_prepare(spops_context *ctx,
                                                const spops_triplets_layout_args *)
{
    SPOPS_TRY(prepare_mvmr<float>(ctx));
    SPOPS_TRY(prepare_mvmr<f16>(ctx));
    return prepare_mvmr<bf16>(ctx);
}

extern "C" spops_status spops_cuda_mvmr(spops_context *ctx, const spops_mvmr_args *args)
{
    const spops_triplet_tiles *tiles = args->tiles;
    const bool dot = args->grad_s.data != nullptr;
    mvmr_params p = {};
    if (!dot && tiles->direct && !tiles->complete && !args->accumulate)
        SPOPS_TRY(zero_result(ctx, args->out, args->num_rows));
    if (tiles->num_tiles == 0) return SPOPS_STATUS_OK;
    if (args->diagonal) return mvmr_diagonal(ctx, args);
    p.offsets = tiles->offsets;
    p.triplets = (const int4 *)tiles->triplets;
    p.num_rows = tiles->num_rows;
    p.tile_rows = tiles->tile_rows;
    p.num_written = args->num_rows;
    p.mode = dot ? MODE_DOT : tiles->direct ? MODE_DIRECT : MODE_SUM;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_stride = args->w.row_stride;
    p.s = args->s.data;
    p.s_dtype = args->s.dtype;
    p.g = args->g.data;
    p.g_stride = args->g.row_stride;
    p.grad_s = static_cast<float *>(args->grad_s.data);
    p.x_cols = (int32_t)args->x_cols;
    p.out_cols = (int32_t)args->out_cols;
    p.groups = args->groups;
    p.out = result_of(args->out, args->out_cols, args->groups, args->accumulate);
    const bool wide = wide_columns(args->x, args->x_cols, args->groups) &&
                      wide_columns(args->w, args->w.cols / args->groups, args->groups);
    return with_dtype(args->x.dtype, [&](auto tag) {
        return launch_mvmr<typename decltype(tag)::type>(ctx, args, p, wide);
    });
}
