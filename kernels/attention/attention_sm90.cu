// SPDX-License-Identifier: Apache-2.0
// Attention on sm_90a, of f16 and bf16.
#include "kernels/attention/attention_launch.cuh"
#include "kernels/attention/attention_sm90.cuh"
#include "kernels/attention/attention_tuning.h"

namespace spops
{

template <class P, class T>
static spops_status launch_policy(spops_context *ctx, const attention_params &p, int64_t max_tiles)
{
    int64_t blocks = (int64_t)ctx->info.num_processors * P::BLOCKS;
    const int64_t items = max_tiles * ((p.heads + P::HEADS - 1) / P::HEADS);
    if (blocks > items) blocks = attention_blocks(items);
    return launch_prepared<AFTER_PREVIOUS>(ctx, "attention: launch", attention_sm90_kernel<P, T>,
                                           dim3((unsigned)blocks), (unsigned)P::threads,
                                           (size_t)P::shared_bytes, p);
}

template <class T>
spops_status launch_attention_sm90(spops_context *ctx, const attention_params &p, int64_t max_tiles)
{
    switch (p.dim) {
#define SPOPS_VARIANT(dim, groups, keys, stages, blocks, order)                                    \
    case dim:                                                                                      \
        return launch_policy<attention_sm90_policy<dim, groups, keys, stages, blocks, order>, T>(  \
            ctx, p, max_tiles);
        SPOPS_ATTENTION_SM90_VARIANTS(SPOPS_VARIANT)
#undef SPOPS_VARIANT
    default: return SPOPS_STATUS_NOT_SUPPORTED;
    }
}

template <class T> spops_status prepare_attention_sm90(spops_context *ctx, int dim)
{
    switch (dim) {
#define SPOPS_VARIANT(dim, ...)                                                                    \
    case dim:                                                                                      \
        return prepare_shared(ctx, "attention: prepare",                                           \
                              attention_sm90_kernel<attention_sm90_policy<dim, __VA_ARGS__>, T>);
        SPOPS_ATTENTION_SM90_VARIANTS(SPOPS_VARIANT)
#undef SPOPS_VARIANT
    default: return SPOPS_STATUS_OK;
    }
}

template spops_status prepare_attention_sm90<f16>(spops_context *, int);
template spops_status prepare_attention_sm90<bf16>(spops_context *, int);
template spops_status launch_attention_sm90<f16>(spops_context *, const attention_params &,
                                                 int64_t);
template spops_status launch_attention_sm90<bf16>(spops_context *, const attention_params &,
                                                  int64_t);

} // namespace spops
