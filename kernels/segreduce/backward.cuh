// SPDX-License-Identifier: Apache-2.0
// The two backward kernels, from the backend's two slots: their arguments and their choice.
#ifndef SPOPS_KERNELS_SEGREDUCE_BACKWARD_CUH
#define SPOPS_KERNELS_SEGREDUCE_BACKWARD_CUH

#include <initializer_list>

#include "kernels/segreduce/custom_kernels.h"
#include "kernels/segreduce/reduce_functors.cuh"
#include "spops/device/segreduce_backward.cuh"

namespace spops
{

constexpr int backward_threads = 256;
static_assert(backward_threads == SPOPS_CUSTOM_THREADS, "compiled for the same block");

inline backward_params backward_params_of(const spops_grad_args *args, const walk_launch &launch)
{
    backward_params p = {};
    p.walk = launch.walk;
    p.pairs = (const int2 *)args->lists->pairs;
    p.order = args->lists->order;
    p.grad_out = args->grad_out.data;
    p.grad_out_stride = args->grad_out.row_stride;
    p.x = args->x.data;
    p.x_stride = args->x.row_stride;
    p.w = args->w.data;
    p.w_dtype = args->w.dtype;
    p.cols = (int32_t)args->x.cols;
    p.states = args->states;
    p.segment_offsets = args->segment_offsets;
    p.grad = args->grad.data;
    p.grad_stride = args->grad.row_stride;
    p.partials = args->partials;
    p.tickets = args->tickets;
    return p;
}

// Launch the kernel that Kernels has for the call's reduction and dtype, with chunks of 16 bytes of
// a row where `wide`; a reduction of the caller's was compiled as `custom`.
template <class Kernels>
spops_status launch_backward(spops_context *ctx, const spops_grad_args *args, const char *what,
                             spops_custom_kernel custom, backward_params p, bool wide, dim3 grid)
{
    if (args->custom != nullptr)
        return spops_custom_launch(ctx, args->custom, custom, args->x.dtype, wide, grid, &p);
    return with_dtype(args->x.dtype, [&](auto tag) {
        typedef typename decltype(tag)::type T;
        constexpr int vec = 16 / sizeof(T);
        switch (args->reduce) {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    case SPOPS_REDUCE_##NAME:                                                                      \
        return wide ? launch(ctx, what, Kernels::template of<traced_##NAME, T, vec>(), grid,       \
                             backward_threads, p)                                                  \
                    : launch(ctx, what, Kernels::template of<traced_##NAME, T, 1>(), grid,         \
                             backward_threads, p);
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
        default: break;
        }
        return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "%s: reduce is %d", what, args->reduce);
    });
}

} // namespace spops

#endif
