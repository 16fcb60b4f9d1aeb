// SPDX-License-Identifier: Apache-2.0
// Launcher of the segmented reduction: from checked arguments to the source that has the kernels.
#include "kernels/segreduce/custom_kernels.h"
#include "kernels/segreduce/fewterms.cuh"
#include "kernels/segreduce/oneterm.cuh"
#include "kernels/segreduce/segreduce_params.cuh"
#include "kernels/segreduce/segreduce_tuning.h"
#include "kernels/segreduce/segsum_mixed.cuh"

namespace
{

using namespace spops;

// Whether SUM is asked for dtypes or scales that segsum_mixed.cu has, or for sums in f16 that
// segsum_wide.cu has.
bool is_mixed(const spops_context *ctx, const spops_segreduce_args *args)
{
    const spops_dtype x = args->x.dtype, w = args->w.dtype;
    return !spops_dtype_is_float(x) ||
           (args->w.data != nullptr && w != SPOPS_DTYPE_F32 && w != x) ||
           (args->out.data != nullptr && args->out.dtype != x) || args->x_scale != nullptr ||
           args->w_scale != nullptr || args->out_scale != nullptr || segsum_wide_fits(ctx, args);
}

} // namespace

extern "C" int32_t spops_cuda_choose_sums(const spops_context *ctx,
                                          const spops_choose_sums_args *args)
{
    const spops_lists *lists = args->lists;
    if (lists == nullptr) return SPOPS_SEGREDUCE_NUM_VARIANTS;
    for (int chunks = 1; chunks <= SPOPS_SUM_CHUNKS && lists->num_segments > 0; ++chunks) {
        const dim3 grid = walk_plan(ctx, lists, chunks, SPOPS_SEGREDUCE_THREADS).grid;
        const int64_t rows = args->num_rows + lists->num_segments;
        for (int i = 0; i < SPOPS_SUM_DTYPES; ++i) {
            spops_tuning_case at = {};
            at.compute_capability = ctx->info.compute_capability;
            at.regime = spops_context_regime(ctx, rows * chunks * 16);
            at.dtype = (spops_dtype)(SPOPS_DTYPE_F32 + i);
            at.cols = chunks * 16 / (int64_t)spops_dtype_bytes(at.dtype);
            args->choice->variant[i][chunks - 1] = (uint8_t)spops_segreduce_variant(
                &at, (int64_t)grid.x * grid.y, ctx->info.num_processors);
        }
    }
    return SPOPS_SEGREDUCE_NUM_VARIANTS;
}

extern "C" spops_status spops_cuda_segreduce(spops_context *ctx, const spops_segreduce_args *args)
{
    if (args->lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    if (is_mixed(ctx, args)) return spops::segsum_mixed(ctx, args);
    if (args->custom != nullptr) {
        dim3 grid;
        const int vec = common_chunk({args->x, args->out});
        segreduce_params p = segreduce_params_of(ctx, args, vec, SPOPS_CUSTOM_THREADS, &grid);
        return spops_custom_launch(ctx, args->custom, SPOPS_CUSTOM_SEGREDUCE, args->x.dtype,
                                   vec > 1, grid, &p);
    }
    if (few_terms_fit(args)) return few_terms(ctx, args);
    if (args->reduce == SPOPS_REDUCE_SUM && args->states == nullptr && args->arg.data == nullptr &&
        has_one_term_at_most(args->lists)) {
        one_term_args one = {};
        one.lists = args->lists;
        one.rows = args->x;
        one.w = args->w;
        one.out = args->out;
        return one_term(ctx, one);
    }
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        return args->reduce == SPOPS_REDUCE_SUM ? launch_sum<T>(ctx, args)
                                                : launch_other<T>(ctx, args);
    });
}
