// SPDX-License-Identifier: Apache-2.0
// Launching point_gemm_kernel. Only sources compiled for compute_90a may include this.
#ifndef SPOPS_KERNELS_POINTCONV_POINT_GEMM_SM90_LAUNCH_CUH
#define SPOPS_KERNELS_POINTCONV_POINT_GEMM_SM90_LAUNCH_CUH

#include "kernels/core/sm90/tensor_map.cuh"
#include "kernels/pointconv/point_gemm_launch.cuh"
#include "kernels/pointconv/point_gemm_sm90.cuh"
#include "kernels/pointconv/point_gemm_tuning.h"

namespace spops
{

template <class P, class T, operand B>
spops_status launch_point_policy(spops_context *ctx, const spops_point_gemm_args *args)
{
    const spops_point_schedule *s = args->schedule;
    point_gemm_params p = {};
    const int depth = (int)args->x.cols, cols = (int)args->out.cols;
    p.x = static_cast<const unsigned char *>(args->x.data);
    p.row_stride = (uint32_t)(args->x.row_stride * 2);
    p.row_bytes = depth * 2;
    p.row_stages = (p.row_bytes + 127) / 128;
    p.tiles = reinterpret_cast<const int4 *>(s->tiles);
    p.totals = s->totals;
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
spops_status launch_point_columns(spops_context *ctx, const spops_point_gemm_args *args)
{
    if (args->w_transposed) return launch_point_policy<P, T, ALONG_K>(ctx, args);
    return launch_point_policy<P, T, ACROSS_K>(ctx, args);
}

// Rounds of tiles of so many columns, one a multiprocessor.
inline int64_t point_rounds(const spops_context *ctx, const spops_point_gemm_args *args,
                            int columns)
{
    const int64_t tiles = args->schedule->max_tiles * ((args->out.cols + columns - 1) / columns);
    return (tiles + ctx->info.num_processors - 1) / ctx->info.num_processors;
}

template <int GATHER_WARPS, int BATCH> struct point_gemm_policies {
    //                               columns                stages
    using narrow = point_gemm_policy<64, GATHER_WARPS, 8, BATCH>;
    using wide = point_gemm_policy<128, GATHER_WARPS, 6, BATCH>;
    using broad = point_gemm_policy<256, 4, 4, 6>; // more warps would leave too few registers
};

template <int GATHER_WARPS, int BATCH, class T>
spops_status prepare_point_variant(spops_context *ctx)
{
    typedef point_gemm_policies<GATHER_WARPS, BATCH> policies;
    SPOPS_TRY((prepare_point_columns<typename policies::narrow, T>(ctx)));
    SPOPS_TRY((prepare_point_columns<typename policies::wide, T>(ctx)));
    return prepare_point_columns<typename policies::broad, T>(ctx);
}

template <int GATHER_WARPS, int BATCH, class T>
spops_status launch_point_variant(spops_context *ctx, const spops_point_gemm_args *args)
{
    typedef point_gemm_policies<GATHER_WARPS, BATCH> policies;
    typedef typename policies::narrow narrow;
    typedef typename policies::wide wide;
    typedef typename policies::broad broad;
    if (args->out.cols <= narrow::COLS) return launch_point_columns<narrow, T>(ctx, args);
    // A tile of 256 columns takes as long as 1.7 of 128; few of them may leave multiprocessors idle.
    if (args->out.cols <= wide::COLS ||
        17 * point_rounds(ctx, args, broad::COLS) >= 10 * point_rounds(ctx, args, wide::COLS))
        return launch_point_columns<wide, T>(ctx, args);
    return launch_point_columns<broad, T>(ctx, args);
}

template <class T> spops_status prepare_point_gemm_sm90(spops_context *ctx, int32_t variant)
{
    switch (variant) {
#define X(variant, gather_warps, batch)                                                            \
    case variant: return prepare_point_variant<gather_warps, batch, T>(ctx);
        SPOPS_POINT_GEMM_VARIANTS(X)
#undef X
    default: return SPOPS_STATUS_OK;
    }
}

template <class T>
spops_status launch_point_gemm_sm90(spops_context *ctx, const spops_point_gemm_args *args)
{
    switch (args->variant) {
#define X(variant, gather_warps, batch)                                                            \
    case variant: return launch_point_variant<gather_warps, batch, T>(ctx, args);
        SPOPS_POINT_GEMM_VARIANTS(X)
#undef X
    default: break;
    }
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "pointconv: there is no variant %d",
                      (int)args->variant);
}

} // namespace spops

#endif
