// SPDX-License-Identifier: Apache-2.0
// What the sources of the segmented reduction share: a kernel's arguments, and where its kernels
// are.
#ifndef SPOPS_KERNELS_SEGREDUCE_PARAMS_CUH
#define SPOPS_KERNELS_SEGREDUCE_PARAMS_CUH

#include <initializer_list>

#include "kernels/segreduce/reduce_functors.cuh"

namespace spops
{

inline segreduce_params segreduce_params_of(const spops_context *ctx,
                                            const spops_segreduce_args *args, int vec, int threads,
                                            dim3 *grid)
{
    const walk_launch launch = walk_plan(ctx, args->lists, (args->x.cols + vec - 1) / vec, threads);
    segreduce_params p = {};
    p.walk = launch.walk;
    p.pairs = (const int2 *)args->lists->pairs;
    p.order = args->lists->order;
    p.x = args->x.data;
    p.x_end = rows_end(args->x);
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

// For x and out of T, in a source for each (segreduce_sum_*.cu, segreduce_ops_*.cu): SUM, and any
// other built-in reduction.
template <class T> spops_status launch_sum(spops_context *ctx, const spops_segreduce_args *args);
template <class T> spops_status launch_other(spops_context *ctx, const spops_segreduce_args *args);

} // namespace spops

#endif
