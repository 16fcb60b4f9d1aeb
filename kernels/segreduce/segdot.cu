// Launcher of the gradient with respect to weights: dot products of rows, summed per weight.
#include "kernels/segreduce/backward.cuh"

namespace
{

using namespace spops;

template <class Op, class T>
spops_status launch_op(spops_context *ctx, const backward_params &p, bool wide, dim3 grid)
{
    constexpr int vec = 16 / sizeof(T);
    const char *what = "segdot: launch";
    if (!wide)
        return launch(ctx, what, segdot_kernel<backward_threads, Op, T, 1>, grid, backward_threads,
                      p);
    return launch(ctx, what, segdot_kernel<backward_threads, Op, T, vec>, grid, backward_threads,
                  p);
}

} // namespace

extern "C" spops_status spops_cuda_segdot(spops_context *ctx, const spops_segdot_args *args)
{
    if (args->lists->num_owners == 0) return SPOPS_STATUS_OK;
    const bool wide = common_chunk({args->x, args->grad_out}) > 1;
    const int64_t vec = wide ? (int64_t)(16 / spops_dtype_bytes(args->x.dtype)) : 1;
    // Lanes of a group add up with shuffles: a power of two, at most a warp.
    int64_t lanes = 1;
    while (lanes < 32 && 2 * lanes * vec <= args->x.cols)
        lanes *= 2;
    walk_launch shape = walk_plan(ctx, args->lists, lanes, backward_threads);
    backward_params p = backward_params_of(args, shape, args->grad_w);
    p.w_dtype = args->grad_w.dtype; // the same as w's, which may be absent
    if (args->custom != nullptr)
        return spops_custom_launch(ctx, args->custom, SPOPS_CUSTOM_SEGDOT, args->x.dtype, wide,
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
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segdot: reduce is %d", args->reduce);
    });
}
