// SPDX-License-Identifier: Apache-2.0
// From a call's arguments to one of the kernels of spops/device/segreduce.cuh. A kernel is compiled
// for each case that is worth one of its own:
//
//     rows      whole chunks of 16 bytes; rows of any length that begin anywhere
//     counts    known to the host, so that the kernel may start early; on the device
//
// and weights of a dtype that it knows only for sums of whole chunks: elsewhere it asks.
#ifndef SPOPS_KERNELS_SEGREDUCE_LAUNCH_CUH
#define SPOPS_KERNELS_SEGREDUCE_LAUNCH_CUH

#include "kernels/segreduce/segreduce_params.cuh"
#include "kernels/segreduce/segreduce_tuning.h"

namespace spops
{

// A call, ready for a kernel.
struct segreduce_call {
    segreduce_params params;
    dim3 grid;
    bool whole; // rows are whole chunks
    bool known; // counts
    int32_t variant;

    segreduce_call(const spops_context *ctx, const spops_segreduce_args *args)
        : known(!args->lists->counts_on_device)
    {
        const int vec = (int)(16 / spops_dtype_bytes(args->x.dtype));
        whole = common_chunk({args->x, args->out}) == vec && args->x.cols % vec == 0;
        params = segreduce_params_of(ctx, args, vec, SPOPS_SEGREDUCE_THREADS, &grid);
        variant = spops_sum_variant(&args->lists->sum_choice, args->x.dtype,
                                    (args->x.cols + vec - 1) / vec);
    }
};

template <class Policy, class Op, class T, int WEIGHT, int VEC, bool TRACED>
spops_status launch_kernel(spops_context *ctx, const segreduce_call &call)
{
    constexpr launch_order order = Policy::counts_known ? WAITS_FOR_PREVIOUS : AFTER_PREVIOUS;
    return launch<order>(ctx, "segreduce: launch",
                         segreduce_kernel<Policy, Op, T, WEIGHT, VEC, TRACED>, call.grid,
                         Policy::threads, call.params);
}

template <int UNROLL, int RESIDENT, bool KNOWN, class Op, class T, int WEIGHT, bool TRACED>
spops_status launch_whole(spops_context *ctx, const segreduce_call &call)
{
    typedef segreduce_policy<SPOPS_SEGREDUCE_THREADS, UNROLL, RESIDENT, true, KNOWN> policy;
    return launch_kernel<policy, Op, T, WEIGHT, 16 / sizeof(T), TRACED>(ctx, call);
}

// Rows that are no whole chunks.
template <int UNROLL, int RESIDENT, bool KNOWN, class Op, class T, bool TRACED>
spops_status launch_ragged(spops_context *ctx, const segreduce_call &call)
{
    typedef segreduce_policy<SPOPS_SEGREDUCE_THREADS, UNROLL, RESIDENT, false, KNOWN> policy;
    return launch_kernel<policy, Op, T, WEIGHT_ANY, 16 / sizeof(T), TRACED>(ctx, call);
}

// ---- Sums ---------------------------------------------------------------------------------------

template <int WEIGHT, class T>
spops_status launch_whole_sum(spops_context *ctx, const segreduce_call &call)
{
    if (!call.known) return launch_whole<2, 3, false, plain_SUM, T, WEIGHT, false>(ctx, call);
    switch (call.variant) {
#define X(variant, unroll, resident)                                                               \
    case variant:                                                                                  \
        return launch_whole<unroll, resident, true, plain_SUM, T, WEIGHT, false>(ctx, call);
        SPOPS_SEGREDUCE_VARIANTS(X)
#undef X
    default: return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segreduce: no such variant");
    }
}

// The sum is what BEV pooling and most operators run, so it alone has kernels for each weight
// dtype, and in several variants.
template <class T> spops_status launch_sum(spops_context *ctx, const spops_segreduce_args *args)
{
    const segreduce_call call(ctx, args);
    if (!call.whole)
        return call.known ? launch_ragged<2, 4, true, plain_SUM, T, false>(ctx, call)
                          : launch_ragged<2, 3, false, plain_SUM, T, false>(ctx, call);
    if (call.params.w == nullptr) return launch_whole_sum<WEIGHT_NONE, T>(ctx, call);
    // Weights have the dtype of x, or are f32.
    if constexpr (sizeof(T) < sizeof(float))
        if (call.params.w_dtype != SPOPS_DTYPE_F32)
            return launch_whole_sum<WEIGHT_SAME, T>(ctx, call);
    return launch_whole_sum<WEIGHT_F32, T>(ctx, call);
}

// ---- Other reductions ---------------------------------------------------------------------------

template <int RESIDENT, bool KNOWN, class Op, class T, bool TRACED>
spops_status launch_rows(spops_context *ctx, const segreduce_call &call)
{
    return call.whole ? launch_whole<2, RESIDENT, KNOWN, Op, T, WEIGHT_ANY, TRACED>(ctx, call)
                      : launch_ragged<2, RESIDENT, KNOWN, Op, T, TRACED>(ctx, call);
}

// What index outputs and gradients need is traced.
template <class Plain, class Traced, class T>
spops_status launch_op(spops_context *ctx, const segreduce_call &call, bool traced)
{
    if (traced) return launch_rows<2, false, Traced, T, true>(ctx, call);
    return call.known ? launch_rows<4, true, Plain, T, false>(ctx, call)
                      : launch_rows<4, false, Plain, T, false>(ctx, call);
}

template <class T> spops_status launch_other(spops_context *ctx, const spops_segreduce_args *args)
{
    const segreduce_call call(ctx, args);
    const bool traced = args->states != nullptr || args->arg.data != nullptr;
    switch (args->reduce) {
#define SPOPS_REDUCE_OP(NAME, plain, traced_op)                                                    \
    case SPOPS_REDUCE_##NAME:                                                                      \
        if constexpr (SPOPS_REDUCE_##NAME != SPOPS_REDUCE_SUM)                                     \
            return launch_op<plain_##NAME, traced_##NAME, T>(ctx, call, traced);                   \
        break;
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
    default: break;
    }
    return spops_fail(ctx, SPOPS_STATUS_NOT_SUPPORTED, "segreduce: reduce is %d", args->reduce);
}

} // namespace spops

#endif
