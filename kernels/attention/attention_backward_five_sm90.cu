// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by wgmma in five products.
#include "kernels/attention/attention_backward_five_sm90.cuh"
#include "kernels/attention/attention_backward_launch.cuh"

namespace
{

using namespace spops;

// f(policy). Variants are compared by a switch of this branch.
template <class F> spops_status with_policy(spops_context *ctx, int lines, int variant, F f)
{
    switch (lines * 10 + variant) {
    case 24: return f(attention_five_policy<128, 3, 1, false, true, 40, false>());
    case 23: return f(attention_five_policy<128, 2, 2, false, true, 40>());
    case 22: return f(attention_five_policy<128, 3, 1, true, true, 24>());
    case 21: return f(attention_five_policy<128, 3, 1, false, true, 40>());
    case 14: return f(attention_five_policy<64, 2, 1, false, true, 40, false>());
    case 13: return f(attention_five_policy<64, 3, 1, false, true, 40>());
    case 12: return f(attention_five_policy<64, 2, 1, false, true, 40>());
    case 11: return f(attention_five_policy<64, 3, 1, false, false, 40>());
    default:
        return spops_fail(ctx, SPOPS_STATUS_INVALID_ARGUMENT, "SPOPS_ATTENTION_FIVE is %d",
                          variant);
    }
}

} // namespace

template <class T>
spops_status spops::launch_attention_backward_five(spops_context *ctx,
                                                   const attention_five_params &p,
                                                   int64_t max_tiles, int lines, int variant)
{
    const int64_t items = max_tiles * p.keys.heads, processors = ctx->info.num_processors;
    return with_policy(ctx, lines, variant, [&](auto policy) {
        typedef decltype(policy) P;
        return launch_preparing<AFTER_PREVIOUS>(
            ctx, "attention_execute_backward: launch", attention_backward_five_kernel<P, T>,
            dim3((unsigned)(items < processors ? items : processors)), (unsigned)P::threads,
            (size_t)P::shared_bytes, p);
    });
}

template <class T>
spops_status spops::prepare_attention_backward_five(spops_context *ctx, int lines, int variant)
{
    return with_policy(ctx, lines, variant, [&](auto policy) {
        return prepare_shared(ctx, "attention_execute_backward: prepare",
                              attention_backward_five_kernel<decltype(policy), T>);
    });
}

template spops_status
spops::launch_attention_backward_five<spops::f16>(spops_context *, const attention_five_params &,
                                                  int64_t, int, int);
template spops_status
spops::launch_attention_backward_five<spops::bf16>(spops_context *, const attention_five_params &,
                                                   int64_t, int, int);
template spops_status spops::prepare_attention_backward_five<spops::f16>(spops_context *, int, int);
template spops_status spops::prepare_attention_backward_five<spops::bf16>(spops_context *, int,
                                                                          int);
