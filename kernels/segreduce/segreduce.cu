// Launcher of the segmented reduction: from checked arguments to one of the kernels of
// spops/device/segreduce.cuh.
#include <initializer_list>

#include "kernels/core/custom_reduce.h"
#include "kernels/core/functors.cuh"
#include "kernels/segreduce/segreduce_tuning.h"
#include "kernels/segreduce/segsum_mixed.cuh"

namespace
{

using namespace spops;

segreduce_params params_of(const spops_context *ctx, const spops_segreduce_args *args, int vec,
                           int threads, dim3 *grid)
{
    const walk_launch launch = walk_plan(ctx, args->lists, (args->x.cols + vec - 1) / vec, threads);
    segreduce_params p = {};
    p.walk = launch.walk;
    p.pairs = (const int2 *)args->lists->pairs;
    p.order = args->lists->order;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_dtype = args->w.dtype;
    p.cols = (int32_t)args->x.cols;
    p.out = args->out.data;
    p.out_stride = args->out.row_stride;
    p.arg = (int32_t *)args->arg.data;
    p.arg_stride = args->arg.row_stride;
    p.states = args->states;
    p.partials = args->partials;
    p.tickets = args->tickets;
    *grid = launch.grid;
    return p;
}

template <int UNROLL, int RESIDENT, bool KNOWN, class Op, class T, int WEIGHT, bool TRACED>
spops_status launch_op(spops_context *ctx, const segreduce_params &p, int vec, dim3 grid)
{
    constexpr int threads = SPOPS_SEGREDUCE_THREADS, wide = 16 / sizeof(T);
    constexpr launch_order order = KNOWN ? WAITS_FOR_PREVIOUS : AFTER_PREVIOUS;
    typedef segreduce_policy<threads, UNROLL, RESIDENT, false, KNOWN> tail_policy;
    typedef segreduce_policy<threads, UNROLL, RESIDENT, true, KNOWN> full_policy;
    const char *what = "segreduce: launch";
    if (vec == 1)
        return launch<order>(ctx, what, segreduce_kernel<tail_policy, Op, T, WEIGHT, 1, TRACED>,
                             grid, threads, p);
    if (p.cols % wide != 0)
        return launch<order>(ctx, what, segreduce_kernel<tail_policy, Op, T, WEIGHT, wide, TRACED>,
                             grid, threads, p);
    return launch<order>(ctx, what, segreduce_kernel<full_policy, Op, T, WEIGHT, wide, TRACED>,
                         grid, threads, p);
}

// The sum is what BEV pooling and most operators run, so it alone has kernels for each weight
// dtype, and in several variants.
template <int WEIGHT, class T>
spops_status launch_sum(spops_context *ctx, const segreduce_params &p, int vec, dim3 grid,
                        bool known)
{
    if (!known) return launch_op<2, 3, false, plain_SUM, T, WEIGHT, false>(ctx, p, vec, grid);
    switch (spops_segreduce_variant((int64_t)grid.x * grid.y, ctx->info.num_processors)) {
#define X(variant, unroll, resident)                                                               \
    case variant:                                                                                  \
        return launch_op<unroll, resident, true, plain_SUM, T, WEIGHT, false>(ctx, p, vec, grid);
        SPOPS_SEGREDUCE_VARIANTS(X)
#undef X
    default: return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segreduce: no such variant");
    }
}

// Any other reduction: what index outputs and gradients need is traced.
template <class Plain, class Traced, class T>
spops_status launch_other(spops_context *ctx, const segreduce_params &p, int vec, dim3 grid,
                          bool known, bool traced)
{
    if (traced) return launch_op<2, 2, false, Traced, T, WEIGHT_ANY, true>(ctx, p, vec, grid);
    if (known) return launch_op<2, 4, true, Plain, T, WEIGHT_ANY, false>(ctx, p, vec, grid);
    return launch_op<2, 4, false, Plain, T, WEIGHT_ANY, false>(ctx, p, vec, grid);
}

template <class T> spops_status launch_reduce(spops_context *ctx, const spops_segreduce_args *args)
{
    dim3 grid;
    const int vec = common_chunk({args->x, args->out});
    const segreduce_params p = params_of(ctx, args, vec, SPOPS_SEGREDUCE_THREADS, &grid);
    const bool known = !args->lists->counts_on_device;
    const bool traced = args->states != nullptr || args->arg.data != nullptr;
    if (args->reduce == SPOPS_REDUCE_SUM) {
        if (p.w == nullptr) return launch_sum<WEIGHT_NONE, T>(ctx, p, vec, grid, known);
        if (p.w_dtype == SPOPS_DTYPE_F32)
            return launch_sum<WEIGHT_F32, T>(ctx, p, vec, grid, known);
        return launch_sum<WEIGHT_SAME, T>(ctx, p, vec, grid, known);
    }
    switch (args->reduce) {
#define SPOPS_REDUCE_OP(NAME, plain, traced_op)                                                    \
    case SPOPS_REDUCE_##NAME:                                                                      \
        if constexpr (SPOPS_REDUCE_##NAME != SPOPS_REDUCE_SUM)                                     \
            return launch_other<plain_##NAME, traced_##NAME, T>(ctx, p, vec, grid, known, traced); \
        break;
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segreduce: reduce is %d", args->reduce);
}

// Whether SUM is asked for dtypes or scales that segsum_mixed.cu has, or for sums in f16 that
// segsum_wide.cu has.
bool is_mixed(const spops_segreduce_args *args)
{
    const spops_dtype x = args->x.dtype, w = args->w.dtype;
    return x > SPOPS_DTYPE_BF16 || (args->w.data != nullptr && w != SPOPS_DTYPE_F32 && w != x) ||
           (args->out.data != nullptr && args->out.dtype != x) || args->x_scale != nullptr ||
           args->w_scale != nullptr || args->out_scale != nullptr || segsum_wide_fits(args);
}

} // namespace

extern "C" spops_status spops_cuda_segreduce(spops_context *ctx, const spops_segreduce_args *args)
{
    if (args->lists->num_owners == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    if (is_mixed(args)) return spops::segsum_mixed(ctx, args);
    if (args->custom != nullptr) {
        dim3 grid;
        const int vec = common_chunk({args->x, args->out});
        segreduce_params p = params_of(ctx, args, vec, SPOPS_CUSTOM_THREADS, &grid);
        return spops_custom_launch(ctx, args->custom, SPOPS_CUSTOM_SEGREDUCE, args->x.dtype,
                                   vec > 1, grid, &p);
    }
    return with_dtype(args->x.dtype, [&](auto tag) {
        return launch_reduce<typename decltype(tag)::type>(ctx, args);
    });
}
