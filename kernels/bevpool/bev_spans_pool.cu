// SPDX-License-Identifier: Apache-2.0
// BEV pooling over spans (bevpool/bev_spans.h) on tensor cores, in two launches. In the first a block
// has a wedge: it loads the features of the wedge's window and the weights between its two depths
// into shared memory, each once, and its warps multiply bundles until none is left. A step's
// weights are a 16 x 32 matrix, zero where a pixel is not the cell's. Sums are f32. Parts of shared
// cells go to scratch; the second launch adds them up, in order, and clears cells without a point.
//
// Features of 8 and 4 bits are widened to f16, which is exact, where they are loaded: after that
// all dtypes are one.
//
// A zero weight times an infinity would be NaN in cells that the pixel is not in: a wedge with a
// feature that is not finite is summed term by term.
#include "kernels/bevpool/bev_spans_layout.cuh"
#include "kernels/core/float8.cuh"
#include "kernels/core/with_dtype.cuh"

namespace
{

using namespace spops;
using namespace spops::pool;

constexpr unsigned pooled_dtypes =
    ((unsigned)SPOPS_DTYPES_FLOAT | (unsigned)SPOPS_DTYPES_NARROW) & ~(1u << SPOPS_DTYPE_F32);

// Columns of a window that one load can have: all of them, half or one.
int32_t depth_run(int32_t width, const spops_matrix &depth)
{
    for (int32_t run = window_columns; run > 1; run -= 4)
        if (width % run == 0 &&
            (uint64_t)(uintptr_t)depth.data % (uint64_t)spops_elements_bytes(depth.dtype, run) == 0)
            return run;
    return 1;
}

pool_params params_of(const spops_bev_spans_pool_args *args)
{
    const spops_bev_spans &s = *args->spans;
    const spops_matrix &feat = args->feat, &depth = args->depth, &out = args->out;
    pool_params p = {};
    p.wedges = s.wedges;
    p.bundles = s.bundles;
    p.rows = s.rows;
    p.spans = s.spans;
    p.max_depths = s.host_counts.max_depths;
    p.max_steps = s.host_counts.max_steps;
    p.max_bundles = s.host_counts.max_bundles;
    p.num_depths = args->shape.num_depths;
    p.height = args->shape.feature_height;
    p.width = args->shape.feature_width;
    p.tile_width_log2 = s.tile_width_log2;
    p.cols = (int32_t)feat.cols;
    p.feat = (const uint8_t *)feat.data;
    p.feat_stride = (int32_t)spops_elements_bytes(feat.dtype, feat.row_stride);
    p.feat_scales = (const uint8_t *)args->feat_scales.data;
    p.scales_stride = (int32_t)args->feat_scales.row_stride;
    p.depth = (const uint8_t *)depth.data;
    p.depth_dtype = depth.dtype;
    p.depth_run = depth_run(p.width, depth);
    p.out = (uint8_t *)out.data;
    p.out_stride = spops_elements_bytes(out.dtype, out.row_stride);
    p.out_dtype = out.dtype;
    p.parts = args->parts;
    p.part_cols = spops_bev_part_cols(feat.cols);
    p.feat_scale = args->feat_scale;
    p.depth_scale = args->depth_scale;
    p.out_scale = args->out_scale;
    return p;
}

// Rows that can be copied and stored 16 bytes at a time; of 4 bits 8 bytes.
bool has_aligned_rows(const spops_matrix &x)
{
    const uint64_t bytes = x.dtype == SPOPS_DTYPE_F4E2M1 ? 8 : 16;
    return (uintptr_t)x.data % bytes == 0 &&
           (uint64_t)spops_elements_bytes(x.dtype, x.row_stride) % bytes == 0;
}

} // namespace

extern "C" bool spops_cuda_bev_spans_pool_fits(const spops_context *ctx,
                                               const spops_bev_spans_pool_args *args)
{
    const spops_matrix &feat = args->feat;
    const int64_t stride = spops_elements_bytes(feat.dtype, feat.row_stride);
    if (args->depth.dtype == SPOPS_DTYPE_F32 || !spops_dtype_in(feat.dtype, pooled_dtypes))
        return false;
    if (feat.cols % (spops_dtype_bytes(feat.dtype) == 2 ? 8 : 16) != 0) return false;
    if (!has_aligned_rows(feat) || !has_aligned_rows(args->out)) return false;
    if (stride > INT32_MAX || feat.cols > INT32_MAX / 4) return false;
    return shared_bytes(params_of(args), spops_bev_pool_variant_width(args->variant)) <=
           ctx->block_shared_bytes;
}

extern "C" int32_t spops_cuda_bev_spans_choose(const spops_context *ctx,
                                               const spops_bev_spans_choose_args *args)
{
    const spops_bev_spans &s = *args->spans;
    pool_params p = {};
    p.max_depths = s.host_counts.max_depths;
    p.max_steps = s.host_counts.max_steps;
    p.max_bundles = s.host_counts.max_bundles;
    p.tile_width_log2 = s.tile_width_log2;
    spops_bev_pool_case at = {};
    at.compute_capability = ctx->info.compute_capability;
    at.num_processors = ctx->info.num_processors;
    at.processor_shared_bytes = ctx->processor_shared_bytes;
    at.num_wedges = s.host_counts.num_wedges;
    for (int i = 0; i < SPOPS_BEV_POOL_WIDTHS; ++i)
        at.block_bytes[i] = shared_bytes(p, spops_bev_pool_widths[i]);
    at.cols = args->cols;
    return spops_bev_pool_variant(&at);
}

extern "C" spops_status spops_cuda_bev_spans_prepare(spops_context *ctx,
                                                     const spops_bev_spans_prepare_args *args)
{
    for (int32_t variant = 1; variant <= SPOPS_BEV_POOL_NUM_VARIANTS; ++variant) {
        if ((args->variants >> variant & 1u) == 0) continue;
        for (int dtype = SPOPS_NUM_DTYPES - 1; dtype >= 0; --dtype) {
            if (!spops_dtype_in((spops_dtype)dtype, pooled_dtypes)) continue;
            SPOPS_TRY(with_dtype<pooled_dtypes>((spops_dtype)dtype, [&](auto tag) {
                return prepare_pool<typename decltype(tag)::type>(ctx, variant);
            }));
        }
    }
    return args->gradients ? prepare_gradients(ctx) : SPOPS_STATUS_OK;
}

extern "C" spops_status spops_cuda_bev_spans_pool(spops_context *ctx,
                                                  const spops_bev_spans_pool_args *args)
{
    const int32_t num_wedges = args->spans->host_counts.num_wedges;
    if (args->feat.cols == 0 || args->num_cells == 0) return SPOPS_STATUS_OK;
    const pool_params p = params_of(args);
    SPOPS_TRY(with_dtype<pooled_dtypes>(args->feat.dtype, [&](auto tag) {
        return pool_wedges<typename decltype(tag)::type>(ctx, p, args->variant, num_wedges);
    }));
    return finish_cells(ctx, args, p);
}
