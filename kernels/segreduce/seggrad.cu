// Launcher of the gradient with respect to rows, for reductions other than the sum (whose gradient
// is a sum itself and runs as one).
#include "kernels/segreduce/backward.cuh"

namespace
{

using namespace spops;

template <class Op, class T>
spops_status launch_op(spops_context *ctx, const backward_params &p, bool wide, dim3 grid)
{
    constexpr int vec = 16 / sizeof(T);
    const char *what = "seggrad: launch";
    if (!wide)
        return launch(ctx, what, seggrad_kernel<backward_threads, Op, T, 1>, grid, backward_threads,
                      p);
    return launch(ctx, what, seggrad_kernel<backward_threads, Op, T, vec>, grid, backward_threads,
                  p);
}

} // namespace

extern "C" spops_status spops_cuda_seggrad(spops_context *ctx, const spops_seggrad_args *args)
{
    if (args->lists->num_owners == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    const bool wide = common_chunk({args->x, args->grad_out, args->grad_x}) > 1;
    const int64_t vec = wide ? (int64_t)(16 / spops_dtype_bytes(args->x.dtype)) : 1;
    const walk_launch shape =
        walk_plan(ctx, args->lists, (args->x.cols + vec - 1) / vec, backward_threads);
    backward_params p = backward_params_of(args, shape, args->grad_x);
    if (args->custom != nullptr)
        return spops_custom_launch(ctx, args->custom, SPOPS_CUSTOM_SEGGRAD, args->x.dtype, wide,
                                   shape.grid, &p);
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        switch (args->reduce) {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    case SPOPS_REDUCE_##NAME:                                                                      \
        return launch_op<traced_##NAME, T>(ctx, p, wide, shape.grid);
#include "core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        default: break;
        }
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "seggrad: reduce is %d", args->reduce);
    });
}
