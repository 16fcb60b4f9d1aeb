// SPDX-License-Identifier: Apache-2.0
// Launching point_gemm_kernel. Only sources compiled for compute_90a may include this.
#ifndef SPOPS_KERNELS_IGEMM_POINT_GEMM_SM90_LAUNCH_CUH
#define SPOPS_KERNELS_IGEMM_POINT_GEMM_SM90_LAUNCH_CUH

#include "kernels/core/sm90/tensor_map.cuh"
#include "kernels/igemm/point_gemm_launch.cuh"
#include "kernels/igemm/point_gemm_sm90.cuh"

namespace spops
{

template <class P, class T, operand B>
spops_status launch_point_policy(spops_context *ctx, const spops_igemm_args *args)
{
    const spops_igemm_schedule *s = args->schedule;
    point_gemm_params p = {};
    const int depth = (int)args->x.cols, cols = (int)args->out.cols;
    p.x = static_cast<const unsigned char *>(args->x.data);
    p.row_stride = (uint32_t)(args->x.row_stride * 2);
    p.row_bytes = depth * 2;
    p.row_stages = (p.row_bytes + 127) / 128;
    p.tiles = reinterpret_cast<const int4 *>(s->tiles);
    p.num_tiles = s->num_tiles;
    p.records = s->records;
    p.out_rows = s->out_rows;
    p.sums = reinterpret_cast<const int4 *>(s->sums);
    p.members = s->members;
    p.last_tap = args->mirrored ? s->num_taps - 1 : -1;
    p.col_tiles = (cols + P::COLS - 1) / P::COLS;
    p.epilogue = epilogue_of(args);

    box_shape box = {};
    box.data = args->w.data;
    box.line = B == ALONG_K ? depth : cols;
    box.lines = B == ALONG_K ? cols : depth;
    box.slabs = s->num_taps;
    box.box_line = 64;
    box.box_lines = B == ALONG_K ? P::COLS : 64;
    box.dtype = args->x.dtype;
    SPOPS_TRY(encode_tensor_map(ctx, box, &p.w));

    int64_t blocks = ctx->info.num_processors;
    if (blocks > s->max_tiles * p.col_tiles) blocks = s->max_tiles * p.col_tiles;
    return launch_prepared<AFTER_PREVIOUS>(ctx, "pointconv: launch", point_gemm_kernel<P, T, B>,
                                           dim3((unsigned)blocks), (unsigned)P::threads,
                                           (size_t)P::shared_bytes, p);
}

template <class P, class T> spops_status prepare_point_columns(spops_context *ctx)
{
    SPOPS_TRY(prepare_shared(ctx, "pointconv: prepare", point_gemm_kernel<P, T, ALONG_K>));
    return prepare_shared(ctx, "pointconv: prepare", point_gemm_kernel<P, T, ACROSS_K>);
}

template <class P, class T>
spops_status launch_point_columns(spops_context *ctx, const spops_igemm_args *args)
{
    if (args->w_transposed) return launch_point_policy<P, T, ALONG_K>(ctx, args);
    return launch_point_policy<P, T, ACROSS_K>(ctx, args);
}

// Rounds of tiles of so many columns, one a multiprocessor.
inline int64_t point_rounds(const spops_context *ctx, const spops_igemm_args *args, int columns)
{
    const int64_t tiles = args->schedule->max_tiles * ((args->out.cols + columns - 1) / columns);
    return (tiles + ctx->info.num_processors - 1) / ctx->info.num_processors;
}

// H200, f16, points_200000, cold, us: forward 64 to 128 224, its gradient of x 316; with 8 gather
// warps that ask for a stage once the one before is full, 234 and 394. 256 to 256 columns 1,315; in
// tiles of 128 columns, which gather each row twice, 1,534. 512 to 512 5,022 and 5,687.
//                                columns, gather warps, stages, sums of a lane on their way
using point_columns_64 = point_gemm_policy<64, 12, 8, 3>;
using point_columns_128 = point_gemm_policy<128, 12, 6, 3>;
using point_columns_256 = point_gemm_policy<256, 4, 4, 6>; // more warps: too few registers

template <class T> spops_status prepare_point_gemm_sm90(spops_context *ctx)
{
    SPOPS_TRY((prepare_point_columns<point_columns_64, T>(ctx)));
    SPOPS_TRY((prepare_point_columns<point_columns_128, T>(ctx)));
    return prepare_point_columns<point_columns_256, T>(ctx);
}

template <class T>
spops_status launch_point_gemm_sm90(spops_context *ctx, const spops_igemm_args *args)
{
    if (args->out.cols <= 64) return launch_point_columns<point_columns_64, T>(ctx, args);
    // A tile of 256 columns takes as long as 1.7 of 128; few of them may leave multiprocessors idle.
    if (args->out.cols <= 128 ||
        17 * point_rounds(ctx, args, 256) >= 10 * point_rounds(ctx, args, 128))
        return launch_point_columns<point_columns_128, T>(ctx, args);
    return launch_point_columns<point_columns_256, T>(ctx, args);
}

} // namespace spops

#endif
