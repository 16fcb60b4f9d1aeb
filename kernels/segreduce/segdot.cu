// SPDX-License-Identifier: Apache-2.0
// Launcher of the gradient with respect to weights: dot products of rows, summed per weight.
#include "kernels/segreduce/backward.cuh"

namespace
{

using namespace spops;

struct segdot_kernels {
    template <class Op, class T, int VEC> static constexpr auto of()
    {
        return segdot_kernel<backward_threads, Op, T, VEC>;
    }
};

} // namespace

extern "C" spops_status spops_cuda_segdot(spops_context *ctx, const spops_grad_args *args)
{
    if (args->lists->num_segments == 0) return SPOPS_STATUS_OK;
    const bool wide = common_chunk({args->x, args->grad_out}) > 1;
    const int64_t vec = wide ? (int64_t)(16 / spops_dtype_bytes(args->x.dtype)) : 1;
    // Lanes of a group add up with shuffles: a power of two, at most a warp.
    int64_t lanes = 1;
    while (lanes < 32 && 2 * lanes * vec <= args->x.cols)
        lanes *= 2;
    const walk_launch shape = walk_plan(ctx, args->lists, lanes, backward_threads);
    backward_params p = backward_params_of(args, shape);
    p.w_dtype = args->grad.dtype; // the same as w's, which may be absent
    return launch_backward<segdot_kernels>(ctx, args, "segdot", SPOPS_CUSTOM_SEGDOT, p, wide,
                                           shape.grid);
}
