// Arguments of the two backward kernels, from the two backends' slots.
#ifndef SPOPS_KERNELS_SEGREDUCE_BACKWARD_CUH
#define SPOPS_KERNELS_SEGREDUCE_BACKWARD_CUH

#include <initializer_list>

#include "kernels/core/custom_reduce.h"
#include "kernels/core/functors.cuh"
#include "spops/device/segreduce_backward.cuh"

namespace spops
{

constexpr int backward_threads = 256;
static_assert(backward_threads == SPOPS_CUSTOM_THREADS, "compiled for the same block");

template <class Args>
backward_params backward_params_of(const Args *args, const walk_launch &launch, spops_matrix grad)
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
    p.grad = grad.data;
    p.grad_stride = grad.row_stride;
    p.partials = args->partials;
    p.tickets = args->tickets;
    return p;
}

} // namespace spops

#endif
