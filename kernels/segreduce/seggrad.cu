// SPDX-License-Identifier: Apache-2.0
// Launcher of the gradient with respect to rows, for reductions other than the sum (whose gradient
// is a sum itself and runs as one).
#include "kernels/segreduce/backward.cuh"
#include "kernels/segreduce/fewterms.cuh"

namespace
{

using namespace spops;

struct seggrad_kernels {
    template <class Op, class T, int VEC> static constexpr auto of()
    {
        return seggrad_kernel<backward_threads, Op, T, VEC>;
    }
};

} // namespace

extern "C" spops_status spops_cuda_seggrad(spops_context *ctx, const spops_grad_args *args)
{
    if (args->lists->num_segments == 0 || args->x.cols == 0) return SPOPS_STATUS_OK;
    if (few_terms_mean_grad_fit(args)) return few_terms_mean_grad(ctx, args);
    const bool wide = common_chunk({args->x, args->grad_out, args->grad}) > 1;
    const int64_t vec = wide ? (int64_t)(16 / spops_dtype_bytes(args->x.dtype)) : 1;
    const walk_launch shape =
        walk_plan(ctx, args->lists, (args->x.cols + vec - 1) / vec, backward_threads);
    return launch_backward<seggrad_kernels>(ctx, args, "seggrad", SPOPS_CUSTOM_SEGGRAD,
                                            backward_params_of(args, shape), wide, shape.grid);
}
