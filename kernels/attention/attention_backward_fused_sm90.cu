// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by wgmma, of keys and queries in one pass.
#include "kernels/attention/attention_backward_fused_sm90.cuh"
#include "kernels/attention/attention_backward_launch.cuh"

namespace
{

using namespace spops;

// f(policy). Stages of queries and places for sums of grad_q: what is left of shared memory.
template <class F> spops_status with_policy(int lines, F f)
{
    return lines == 1 ? f(attention_fused_policy<64, 3, 1>())
                      : f(attention_fused_policy<128, 2, 2>());
}

} // namespace

template <class T>
spops_status spops::launch_attention_backward_fused(spops_context *ctx,
                                                    const attention_fused_params &p,
                                                    int64_t max_tiles, int lines)
{
    const int64_t items = max_tiles * p.keys.heads, processors = ctx->info.num_processors;
    return with_policy(lines, [&](auto policy) {
        typedef decltype(policy) P;
        return launch_preparing<AFTER_PREVIOUS>(
            ctx, "attention_execute_backward: launch", attention_backward_fused_kernel<P, T>,
            dim3((unsigned)(items < processors ? items : processors)), (unsigned)P::threads,
            (size_t)P::shared_bytes, p);
    });
}

template <class T>
spops_status spops::prepare_attention_backward_fused(spops_context *ctx, int lines)
{
    return with_policy(lines, [&](auto policy) {
        return prepare_shared(ctx, "attention_execute_backward: prepare",
                              attention_backward_fused_kernel<decltype(policy), T>);
    });
}

template spops_status
spops::launch_attention_backward_fused<spops::f16>(spops_context *, const attention_fused_params &,
                                                   int64_t, int);
template spops_status
spops::launch_attention_backward_fused<spops::bf16>(spops_context *, const attention_fused_params &,
                                                    int64_t, int);
template spops_status spops::prepare_attention_backward_fused<spops::f16>(spops_context *, int);
template spops_status spops::prepare_attention_backward_fused<spops::bf16>(spops_context *, int);
